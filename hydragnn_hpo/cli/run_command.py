"""``hydragnn-hpo run``: a campaign from data to ensemble."""

import json
import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypedDict

import typer

from hydragnn_hpo import log
from hydragnn_hpo.cli.arguments import (
    CampaignArgument,
    DryRunOption,
    JsonOption,
    SetOption,
    campaign_option,
    machine_option,
)
from hydragnn_hpo.cli.tables import console, ensemble_table, leaderboard_table, print_verdict
from hydragnn_hpo.errors import ConfigError, StorageError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.leases import LeaseTaken
from hydragnn_hpo.optional_packages import is_installed, missing_sentence
from hydragnn_hpo.resources import find_resource
from hydragnn_hpo.sanitize import escape_line, shorten_words
from hydragnn_hpo.words import energy

if TYPE_CHECKING:
    from hydragnn_hpo.campaign import ShutdownRequest
    from hydragnn_hpo.config import CampaignConfig
    from hydragnn_hpo.file_records import RunFigures, RunSummary
    from hydragnn_hpo.launching import Backend
    from hydragnn_hpo.pipeline.campaign_changes import Changes


def _named_directory(text: str) -> Path:
    """Return the directory that an option names; an empty text would be the current one."""
    if not text.strip():
        raise typer.BadParameter("is empty: name a directory, or leave --run out.")
    return Path(text)


RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="<path>",
        parser=_named_directory,
        help="Run directory; runs/NAME if left out.",
    ),
]
SlotsOption = Annotated[
    int | None,
    machine_option(
        min=1, max=10_000, help="Ranks per host at a time; by default as in the campaign file."
    ),
]
BackendOption = Annotated[
    str | None,
    machine_option(
        help="local, slurm, mpiexec, ray or a package's; by default as in the campaign file."
    ),
]


MachineOption = Annotated[
    str | None, machine_option("--machine", help="Machine profile: a shipped name or a path.")
]


ExcludeOption = Annotated[
    Path | None,
    machine_option(help="File of hosts to exclude; they are added to the run's exclude.hosts."),
]


PackOption = Annotated[
    str | None,
    machine_option(
        "--pack", help="Archive made by hydragnn-hpo pack, to unpack on each host's own disk."
    ),
]
ContainerOption = Annotated[
    str | None, machine_option("--container", help="Container image in which ranks run.")
]
TrialsOption = Annotated[
    int | None,
    campaign_option(min=1, max=10**6, help="Number of trials; by default as in the campaign file."),
]
SeedOption = Annotated[
    int | None, campaign_option(help="Seed of the campaign; by default as in the campaign file.")
]
MinutesOption = Annotated[
    float | None,
    campaign_option(
        min=1.0,
        max=1e5,
        help="Minutes for the whole campaign on this machine: chooses the numbers of trials, "
        "epochs and members.",
    ),
]
JoinOption = Annotated[
    bool,
    machine_option(
        "--join",
        help="Share the campaign with other allocations: lend hosts to its controller, or, if "
        "there is none, become it.",
    ),
]


def run(
    campaign: CampaignArgument,
    run_dir: RunOption = None,
    settings: SetOption = None,
    trials: TrialsOption = None,
    seed: SeedOption = None,
    minutes: MinutesOption = None,
    slots: SlotsOption = None,
    backend: BackendOption = None,
    machine: MachineOption = None,
    exclude: ExcludeOption = None,
    pack: PackOption = None,
    container: ContainerOption = None,
    join: JoinOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a campaign from data to one ensemble file; the same command resumes it."""
    from hydragnn_hpo.launching.excluded_hosts import read_excluded
    from hydragnn_hpo.pipeline.campaign_changes import parse_settings

    log.configure(level=logging.WARNING)
    source = find_resource(campaign, "workflows")
    changes = parse_settings(settings or (), trials, seed)
    keys: MachineKeys = {"slots": slots, "backend": backend, "profile": machine}
    keys |= {"pack": pack, "container": container}
    config, target, cards = _load(source, changes, keys, run_dir, minutes)
    to_exclude = read_excluded(exclude) if exclude else {}  # a dry run rejects bad files, too
    if dry_run:
        _print_start(_plan_start(config, cards, target), as_json)
        return
    opened, result = _start(config, target, cards, to_exclude, join=join, quiet=as_json)
    typer.echo(json.dumps(result)) if as_json else _print(opened, result)


MachineKeys: TypeAlias = dict[str, str | int | None]
"""Keys of ``[machine]`` from the command line; None keeps the campaign's value."""


def _load(
    source: Path, changes: "Changes", keys: MachineKeys, run_dir: Path | None, minutes: float | None
) -> "tuple[CampaignConfig, Path, dict[Path, str]]":
    """Load and check a campaign as the options say; print on stderr what fits into a time.

    Args:
        source: the campaign file.
        changes: values in place of the file's.
        keys: of ``[machine]``.
        run_dir: the run directory; None for that of the campaign's name.
        minutes: time that the campaign may take; None for any.

    Returns:
        The campaign, its run directory, and the name of each card by its path.
    """
    from hydragnn_hpo.pipeline import check_campaign_file, load_campaign
    from hydragnn_hpo.pipeline.campaign_changes import fit_to_time

    if minutes is not None:
        run = None if run_dir is None else RunDir(run_dir)
        changes, why = fit_to_time(source, changes, minutes, run, **keys)
        for sentence in why:
            typer.echo(sentence, err=True)
    config = load_campaign(source, changes, **keys)
    target = run_dir or Path("runs") / config.name
    cards = check_campaign_file(config, source, target)
    if not is_installed("plotly"):
        what = missing_sentence("plotly", "the report at its end", ", or run on without")
        typer.echo(f"warning: {what}", err=True)
    return config, target, cards


def _start(
    config: "CampaignConfig",
    target: Path,
    cards: dict[Path, str],
    to_exclude: Mapping[str, str],
    *,
    join: bool,
    quiet: bool,
) -> "tuple[RunDir, RunSummary]":
    """Make or reopen the run directory, and run the campaign there to its end.

    Args:
        config: the campaign.
        target: its run directory.
        cards: name of each card, by the card's path.
        to_exclude: hosts to exclude, each with a reason.
        join: whether to share the campaign with other allocations.
        quiet: whether to hide the progress.

    Returns:
        The run directory, and the content of ``summary.json``.
    """
    from hydragnn_hpo.campaign import open_run
    from hydragnn_hpo.launching.excluded_hosts import add_excluded
    from hydragnn_hpo.pipeline import forget_run

    opened = open_run(config, target)
    add_excluded(opened.excluded, to_exclude)
    try:
        return opened, (_join if join else run_alone)(config, opened, cards, quiet)
    except (ConfigError, StorageError):
        if not join:  # else another allocation may be using the run directory
            forget_run(opened)
        raise


class PlannedStart(TypedDict):
    """What a dry run prints with ``--json``."""

    campaign: str
    run: str
    """The run directory."""
    cards: list[str]
    trials: int
    brain: str
    rungs: list[int]
    """Epochs."""
    reseed: int
    """Trials that are trained once more with new seeds."""
    backend: str
    slots: list[dict[str, str | list[int]]]
    """Slots of this computer: name, device, cores; empty for other backends."""
    command: str | None
    """What would be started here; null for other backends."""


def _plan_start(config: "CampaignConfig", cards: dict[Path, str], where: Path) -> PlannedStart:
    from hydragnn_hpo.launching import detect_slots, find_backend, layout_of, site_of

    machine = config.machine
    here = find_backend(machine.backend).tethered
    layout = layout_of(site_of(machine)) if here else None
    slots = detect_slots(machine.slots, lanes=machine.lanes, layout=layout) if here else ()
    return {
        "campaign": config.name,
        "run": str(where),
        "cards": [str(path) for path in cards],
        "trials": config.search.trials,
        "brain": config.search.brain,
        "rungs": list(config.search.rungs),
        "reseed": config.ensemble.reseed,
        "backend": machine.backend,
        "slots": [
            {"name": slot.name, "device": slot.device, "cores": list(slot.cores)} for slot in slots
        ],
        "command": "python -m hydragnn_hpo.launching.agent" if here else None,
    }


def _print_start(start: PlannedStart, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(start))
        return
    names = ", ".join(start["cards"])
    rungs = " -> ".join(map(str, start["rungs"]))
    typer.echo(f"campaign {start['campaign']} into {start['run']}, data set {names}")
    typer.echo(f"{start['trials']} trials by {start['brain']}, epochs {rungs}")
    if start["reseed"]:
        typer.echo(f"then the best {start['reseed']} once more, with new seeds")
    if start["command"] is None:
        typer.echo(f"on the hosts of the backend '{start['backend']}'")
        return
    for slot in start["slots"]:
        cores = ",".join(map(str, slot["cores"]))
        typer.echo(f"slot {slot['name']}: {slot['device']}, cores {cores}")
    typer.echo(f"would start: {start['command']} (one, on this host)")


def run_alone(
    config: "CampaignConfig",
    opened: RunDir,
    cards: dict[Path, str],
    quiet: bool,
    reseed: int = 0,
) -> "RunSummary":
    """Run the campaign in this process as its controller, on the hosts of its own backend.

    Args:
        config: the campaign.
        opened: its run directory.
        cards: name of each card, by the card's path.
        quiet: whether to hide the progress.
        reseed: how many of the best trials to train again with new seeds.

    Returns:
        The content of ``summary.json``.
    """
    from hydragnn_hpo.campaign import make_backend
    from hydragnn_hpo.pipeline import make_shutdown_request

    backend = partial(make_backend, config, opened.path)
    pause = make_shutdown_request()
    return _run(config, opened, cards, quiet=quiet, make=backend, pause=pause, reseed=reseed)


def _join(
    config: "CampaignConfig", opened: RunDir, cards: dict[Path, str], quiet: bool
) -> "RunSummary":
    """Offer this allocation's hosts to the controller; without a controller, become it.

    Raises:
        RunError: the campaign does not accept these hosts.
    """
    from hydragnn_hpo.campaign.joining import AllocationMember
    from hydragnn_hpo.launching.batch_jobs import DRAINED
    from hydragnn_hpo.pipeline import make_shutdown_request

    pause = make_shutdown_request()
    with pause.handle_signals(), AllocationMember(config, opened) as member:
        while (course := member.serve(pause, partial(typer.echo, err=True))) == "free":
            try:
                make = member.backend
                return _run(config, opened, cards, quiet=quiet, make=make, pause=pause)
            except LeaseTaken:  # another member became the controller first: join it
                continue
    if course == "finished":
        typer.echo(f"{opened.path}: the campaign has finished", err=True)
        done: RunSummary = read_json(opened.summary)
        return done
    typer.echo(f"{course}; run the same command again to go on with {opened.path}.", err=True)
    raise typer.Exit(DRAINED if course == "drained" and not pause.wanted else 1)


def _run(
    config: "CampaignConfig",
    opened: RunDir,
    cards: dict[Path, str],
    *,
    quiet: bool,
    make: Callable[[], "Backend"],
    pause: "ShutdownRequest",
    reseed: int = 0,
) -> "RunSummary":
    from hydragnn_hpo.campaign import Drained
    from hydragnn_hpo.launching.batch_jobs import DRAINED
    from hydragnn_hpo.pipeline import RunSettings, run_campaign
    from hydragnn_hpo.report import RunProgress

    display = RunProgress(config.search.trials, quiet)
    settings = RunSettings(make, pause, display, _warn_of_report, reseed)
    try:
        return run_campaign(config, opened, cards, settings)
    except (KeyboardInterrupt, Drained) as why:
        reason = str(why) or "paused"
        code = DRAINED if isinstance(why, Drained) else 1
        again = f"run the same command again to go on with {opened.path}."
        typer.echo(f"{reason.rstrip('.')}; {again}", err=True)
        raise typer.Exit(code) from None


def _warn_of_report(run: Path, error: Exception) -> None:
    """Warn that the report could not be written."""
    again = f"try '{_program()} report {shlex.quote(str(run))}'"
    reason = shorten_words(escape_line(str(error)).rstrip("."))
    typer.echo(f"warning: no report was written ({reason}); {again}.", err=True)


def _print(opened: RunDir, result: "RunSummary") -> None:
    from hydragnn_hpo.campaign import read_leaderboard

    out = console()
    ensemble, figures = result["ensemble"], result["figures"]
    members = ensemble["members"] if ensemble else ()
    weights = {member["trial"]: member["weight"] for member in members}
    out.print(leaderboard_table(read_leaderboard(opened), weights))
    if ensemble:
        out.print(ensemble_table(ensemble["heads"]))
        print_verdict(ensemble.get("verdict", ()))
        for warning in ensemble["warnings"]:
            typer.echo(f"warning: {warning}", err=True)
    out.print(_used(figures), markup=False)
    say = partial(out.print, soft_wrap=True, markup=False)
    page = opened.report / "report.html"
    if page.exists():
        say(f"Report: {page} (open it in a browser)")
    if not ensemble:
        return
    figure = opened.report / "parity.png"
    if figure.exists():
        say(f"Figure: {figure}")
    say("Try next:", style="bold")
    for command in next_commands(opened):
        say(f"  {_program()} {command}")
    say(f"  ({NEW_FILE}: a file with structures of yours)")


def _program() -> str:
    """Return the command that starts this program from the current shell."""
    if shutil.which("hydragnn-hpo"):
        return "hydragnn-hpo"
    called = Path(sys.argv[0])
    return sys.argv[0] if called.name == "hydragnn-hpo" else f"{sys.executable} -m hydragnn_hpo"


def _used(figures: "RunFigures") -> str:
    """Summarize trials, slot utilization and energy in a sentence."""
    used = figures["utilization"] or 0.0
    text = (
        f"{figures['trials']} trials, {figures['attempts']} attempts "
        f"({figures['wide_attempts']} multi-process), slots {100 * used:.0f} % in training"
    )
    if joules := figures.get("energy_joules"):  # runs of earlier versions have no energy
        text += f", {energy(joules)} ({', '.join(figures['energy_parts'] or ())})"
    warm, cold = figures["first_step_seconds"], figures["cold_start_seconds"]
    if warm is None or cold is None:
        return f"{text}."
    return f"{text}; from placed to first step {warm:.2f} s warm, {cold:.1f} s cold."


NEW_FILE = "NEW_FILE"
"""Stands for structures of the user in a command that is proposed."""


def next_commands(opened: RunDir) -> list[str]:
    """Return what to do with the ensemble of a run, as arguments of this program.

    First comes the evaluation on the test split, where there is one store; then a prediction of
    ``NEW_FILE``, never of structures that the ensemble was trained on.
    """
    from hydragnn_hpo.ensemble import read_artefact

    packages = read_artefact(opened.ensemble).manifest.packages
    archive = ["--ensemble", str(opened.ensemble)]
    archive += [word for package in packages for word in ("--trust", package)]
    stores = sorted(opened.data.glob("*.bp"))
    commands = [["ensemble", "evaluate", str(stores[0]), *archive]] if len(stores) == 1 else []
    commands.append(["predict", NEW_FILE, *archive])
    return [shlex.join(command) for command in commands]
