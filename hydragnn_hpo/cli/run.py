"""``hydragnn-hpo run``: a campaign from data to ensemble."""

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import DryRunOption, JsonOption

if TYPE_CHECKING:
    from hydragnn_hpo.campaign.controller import Controller
    from hydragnn_hpo.config.campaign import CampaignConfig
    from hydragnn_hpo.layout import RunDir


RunOption = Annotated[
    Path | None, typer.Option("--run", help="Run directory; runs/NAME if left out.")
]
SlotsOption = Annotated[
    int | None, typer.Option(min=1, help="Ranks at a time; the campaign's own if left out.")
]
BackendOption = Annotated[
    str | None,
    typer.Option(help="local, slurm, ray, steps or mpiexec; the campaign's own if left out."),
]


def run(
    campaign: Annotated[str, typer.Argument(help="Campaign file, or the name of a shipped one.")],
    run_dir: RunOption = None,
    slots: SlotsOption = None,
    backend: BackendOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search, train the best on, and leave one ensemble file; run it again to go on."""
    from hydragnn_hpo import log
    from hydragnn_hpo.campaign.setup import open_run, settle
    from hydragnn_hpo.config.campaign import CampaignConfig
    from hydragnn_hpo.config.loading import load
    from hydragnn_hpo.errors import ConfigError, StorageError
    from hydragnn_hpo.shipped import find

    log.configure(level=30)
    source = find(campaign, "workflows")
    config = settle(load(source, CampaignConfig), source)
    config = _on(config, slots=slots, backend=backend)
    cards = _fitting_cards(config, source) if config.command is None else {}
    where = run_dir or Path("runs") / config.name
    if dry_run:
        _show_plan(config, cards, where)
        return
    opened = open_run(config, where)
    try:
        result = _run(config, opened, cards, quiet=as_json)
    except (ConfigError, StorageError):
        _forget(opened)
        raise
    if as_json:
        typer.echo(json.dumps(result))
    else:
        _print(opened, result)


def _fitting_cards(config: "CampaignConfig", source: Path) -> dict[Path, str]:
    """Give path and name of a campaign's cards, when every value of the space fits them."""
    from hydragnn_hpo.campaign.setup import check_space, find_cards
    from hydragnn_hpo.config.mixture import targets_of, united_targets
    from hydragnn_hpo.errors import ConfigError

    try:
        cards = find_cards(config, source)
        said = [targets_of(card) for card in cards.values()]
        targets = united_targets(said, config.data, config.shared)
        check_space(config, targets, min(card.graphs.cutoff for card in cards.values()))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    return {path: card.name for path, card in cards.items()}


def _on(config: "CampaignConfig", **machine: Any) -> "CampaignConfig":
    """Give the campaign with parts of its machine replaced; what is None stays."""
    from hydragnn_hpo.config.campaign import MachineConfig
    from hydragnn_hpo.config.loading import parse

    asked = {key: value for key, value in machine.items() if value is not None}
    if not asked:
        return config
    values = {**config.machine.model_dump(), **asked}
    return config.model_copy(update={"machine": parse(values, MachineConfig, "command line")})


def _show_plan(config: "CampaignConfig", cards: dict[Path, str], where: Path) -> None:
    from hydragnn_hpo.data.build.plan import find_files
    from hydragnn_hpo.launching.slots import detect_slots
    from hydragnn_hpo.layout import RunDir

    if not any(RunDir(where).data.glob("*/index.json")):
        for card in cards:
            find_files(card)
    rungs = " -> ".join(map(str, config.search.rungs))
    names = ", ".join(map(str, cards))
    typer.echo(f"campaign {config.name} into {where}, data set {names}")
    typer.echo(f"{config.search.trials} trials by {config.search.brain}, epochs {rungs}")
    if config.machine.backend != "local":
        typer.echo(f"on the hosts of the backend '{config.machine.backend}'")
        return
    for slot in detect_slots(config.machine.slots):
        typer.echo(f"slot {slot.name}: {slot.device}, cores {','.join(map(str, slot.cores))}")
    typer.echo("would start: python -m hydragnn_hpo.launching.agent (one, on this host)")


def _run(
    config: "CampaignConfig",
    opened: "RunDir",
    cards: dict[Path, str],
    quiet: bool,
) -> dict[str, Any]:
    from hydragnn_hpo.campaign.backends import make_backend
    from hydragnn_hpo.campaign.controller import Controller
    from hydragnn_hpo.campaign.pause import Drained, Pause
    from hydragnn_hpo.cli.display import Display

    pause = Pause()
    with pause.heard(), Display(config.search.trials, quiet) as display:
        controller = Controller(
            config,
            opened,
            cards=cards,
            make_backend=lambda: make_backend(config, opened.path),
            watch=display,
            pause=pause,
        )
        display.begin(controller.state)
        try:
            controller.run()
            return _finish(controller, opened)
        except (KeyboardInterrupt, Drained) as why:
            said = str(why) or "paused"
            again = f"run the same command again to go on with {opened.path}."
            typer.echo(f"{said.rstrip('.')}; {again}", err=True)
            raise typer.Exit(1) from None
        finally:
            controller.close()


def _forget(opened: "RunDir") -> None:
    """Remove a run directory in which nothing was done yet: the user will edit and retry."""
    from hydragnn_hpo.campaign.leaderboard import read_state

    built = any(opened.data.glob("*/index.json"))
    if not built and not read_state(opened).trials:
        shutil.rmtree(opened.path, ignore_errors=True)


def _finish(controller: "Controller", opened: "RunDir") -> dict[str, Any]:
    """Build the ensemble as a job, and write the run's figures."""
    from hydragnn_hpo.campaign.journal import read
    from hydragnn_hpo.campaign.leaderboard import leaderboard_of
    from hydragnn_hpo.campaign.summary import summarize
    from hydragnn_hpo.files import read_json, write_json
    from hydragnn_hpo.report.figures import draw_parity

    if controller.state.finished and opened.summary.exists():
        done: dict[str, Any] = read_json(opened.summary)
        return done
    trains = controller.config.command is None
    spec = {"run": str(opened.path.resolve())}
    result = {
        "ensemble": controller.job("ensemble", spec) if trains else None,
        "leaderboard": leaderboard_of(controller.state).to_plain(),
        "figures": summarize(read(opened.journal)),
    }
    write_json(opened.summary, result)
    if trains:
        draw_parity(opened.path, opened.report / "parity.png")
    controller.finish()
    return result


def _print(opened: "RunDir", result: dict[str, Any]) -> None:
    from hydragnn_hpo.campaign.leaderboard import read_leaderboard
    from hydragnn_hpo.cli.tables import console, ensemble_table, leaderboard_table

    out = console()
    ensemble, figures = result["ensemble"], result["figures"]
    members = ensemble["members"] if ensemble else ()
    weights = {member["trial"]: member["weight"] for member in members}
    out.print(leaderboard_table(read_leaderboard(opened), weights))
    if ensemble:
        out.print(ensemble_table(ensemble["heads"]))
        for warning in ensemble["warnings"]:
            out.print(f"warning: {warning}", highlight=False)
    out.print(_used(figures))
    if not ensemble:
        return
    out.print(f"Figure: {opened.report / 'parity.png'}")
    out.print("Try next:", style="bold")
    file = _example(opened)
    program = "hydragnn-hpo" if shutil.which("hydragnn-hpo") else sys.argv[0]
    out.print(f"  {program} predict {file} --ensemble {opened.ensemble}", soft_wrap=True)


def _used(figures: dict[str, Any]) -> str:
    """Say what became of the slots."""
    used = figures["utilization"] or 0.0
    said = (
        f"{figures['trials']} trials, {figures['attempts']} attempts "
        f"({figures['wide_attempts']} of two ranks or more), slots {100 * used:.0f} % in training"
    )
    warm, cold = figures["first_step_seconds"], figures["cold_start_seconds"]
    if warm is None or cold is None:
        return f"{said}."
    return f"{said}; from placed to first step {warm:.2f} s warm, {cold:.1f} s cold."


def _example(opened: "RunDir") -> str:
    """Name the shipped molecules if the ensemble knows all their elements."""
    import ase.io

    from hydragnn_hpo.ensemble.artefact import read
    from hydragnn_hpo.shipped import shipped

    file = "workflows/molecules.xyz"
    frames = ase.io.read(shipped(file), ":")
    known = set(read(opened.ensemble).manifest.elements)
    fits = all(known.issuperset(atoms.numbers.tolist()) for atoms in frames)
    return file if fits else "YOUR_STRUCTURES"
