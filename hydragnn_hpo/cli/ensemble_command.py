"""``hydragnn-hpo ensemble``: build an ensemble of a run, look at one, work with one."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from hydragnn_hpo import log
from hydragnn_hpo.cli.arguments import (
    DeviceOption,
    DryRunOption,
    EnsembleArgument,
    JsonOption,
    RunArgument,
    TrustOption,
    ensemble_file,
    shipped_or_path,
)
from hydragnn_hpo.cli.ensemble_evaluate import evaluate
from hydragnn_hpo.cli.examples import show_examples
from hydragnn_hpo.cli.tables import console, ensemble_table, make_table, print_verdict
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.words import fixed

if TYPE_CHECKING:
    from hydragnn_hpo.campaign import State
    from hydragnn_hpo.cli.fitted_table import FittedTable
    from hydragnn_hpo.data import Rules
    from hydragnn_hpo.ensemble import ArtefactContent
    from hydragnn_hpo.ensemble.pick import PickResult, PickTable
    from hydragnn_hpo.ensemble.prune import PruneEffect
    from hydragnn_hpo.ensemble.structure_batches import Structures
    from hydragnn_hpo.file_records import EnsembleTable

app = typer.Typer(no_args_is_help=True)

ReseedOption = Annotated[
    int,
    typer.Option(
        "--reseed",
        min=0,
        help="First train so many of the best trials once more, with new seeds.",
    ),
]

NetsOption = Annotated[
    int,
    typer.Option(
        "--nets",
        min=0,
        help="Keep so many nets of a cross-fitted ensemble; 0: as the campaign says, or all.",
    ),
]

FilesArgument = Annotated[
    list[Path], typer.Argument(help="The pool: structure files, FILE@INDEX, or folders.")
]
OutOption = Annotated[Path, typer.Option(help="NAME.extxyz to write.")]
NumberOption = Annotated[int, typer.Option("--n", min=1, max=100_000, help="How many to pick.")]
ByOption = Annotated[
    str | None, typer.Option(help="A head, or forces (how far members disagree); else all heads.")
]
LowOption = Annotated[
    float, typer.Option(min=0.0, max=1e6, help="eV/angstrom: below, forces are accurate already.")
]
HighOption = Annotated[
    float | None,
    typer.Option(min=0.0, max=1e6, help="eV/angstrom: from here on, a structure is too odd."),
]
UnseenOption = Annotated[
    bool, typer.Option("--unseen", help="Also pick structures with elements no member has seen.")
]

METHODS = {
    "top": "the K best",
    "greedy": "weighted by errors",
    "single": "the best alone",
}
"""Words for the mixes of a build, by their name in its table."""
ROWS = 20
"""Most picked structures that are shown."""
_COUNTS = {
    "read": "read",
    "bad": "cannot be predicted",
    "not_finite": "with a prediction that is not finite",
    "unseen": "with elements no member has seen",
    "same": "as good as equal to a picked one",
    "accurate": "accurate (below --low)",
    "candidate": "candidates",
    "failed": "failed (from --high on)",
}
"""Words for the counts of a pick, see ``PickTable``."""


def info(
    path: EnsembleArgument,
    card: Annotated[bool, typer.Option("--card", help="Print the model card instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every checksum and show what an ensemble predicts, from what data, by whom."""
    from hydragnn_hpo.ensemble import read_artefact
    from hydragnn_hpo.ensemble.artefact import find_constants
    from hydragnn_hpo.ensemble.model_card import render_model_card

    content = read_artefact(ensemble_file(path))
    if card:
        constants = find_constants(content.manifest, content.weights)
        typer.echo(render_model_card(content.manifest, content.configs, constants))
    elif as_json:
        typer.echo(_info_json(content))
    else:
        out = console()
        for line in _info_lines(content):
            out.print(line, markup=False, highlight=False)
        out.print(_heads_table(content))
        out.print(_members_table(content))


def _info_json(content: "ArtefactContent") -> str:
    """Return the manifest as JSON, with facts about the file under ``file``."""
    file = {
        "identity": content.identity,
        "written_as": content.manifest.format,
        "bytes": sum(content.sizes.values()),
        "entries": {n: {"bytes": content.sizes[n], "sha256": s} for n, s in content.sums.items()},
        "numbers": {trial: _count_weights(content, trial) for trial in content.configs},
        "can_be_pruned": content.calibration_data is not None,
    }
    return json.dumps({**content.manifest.model_dump(mode="json"), "file": file})


def _count_weights(content: "ArtefactContent", trial: str) -> int:
    return sum(tensor.numel() for tensor in content.weights[trial].values())


def _info_lines(content: "ArtefactContent") -> list[str]:
    manifest = content.manifest
    made, data = manifest.created_by, manifest.data
    lines = [
        f"campaign {made.campaign} (seed {made.seed}, {made.method}), data {data.name}"
        f"{': ' if data.title else ''}{data.title}",
        f"{len(manifest.elements)} elements, edges up to {manifest.cutoff:g} angstrom",
        f"licence: {manifest.licence or 'not stated'}; of the data: {data.licence or 'not stated'}",
        f"{len(content.sizes)} entries, {sum(content.sizes.values()) / 1e6:.1f} MB, all checksums "
        f"right; format {manifest.format}; {content.identity[:12]}",
    ]
    if data.splits:
        splits = ", ".join(f"{name} {count}" for name, count in data.splits.items())
        lines.insert(1, f"structures: {splits}")
    if manifest.software:
        versions = ", ".join(f"{name} {version}" for name, version in manifest.software.items())
        commit = f", commit {manifest.commit}" if manifest.commit else ""
        lines.append(f"made with {versions}{commit}")
    lines += [f"needs --trust {name} (version {v})" for name, v in manifest.packages.items()]
    lines += [f"pruned: {', '.join(step.removed)} were taken out" for step in manifest.pruned]
    lines += [
        f"'{name}' has a regression on {head.local.title} among its members, with the weight "
        f"{head.local.weight:.3g}"
        for name, head in manifest.heads.items()
        if head.local is not None
    ]
    return lines


def _heads_table(content: "ArtefactContent") -> "FittedTable":
    table = make_table("Heads", drop=("description", "level"))
    table.add_texts("head", "level", "unit", "sigma^2 = a s^2 + c v + b")
    table.add_numbers("test MAE")
    table.add_texts("description")
    for name, head in content.manifest.heads.items():
        fit = head.calibration
        scores = content.manifest.evaluation.get(name, {})
        parts = [f"a = {fit.a:.3g}", *([f"c = {fit.c:.3g}"] if fit.c else []), f"b = {fit.b:.3g}"]
        mae = scores.get("test_mae")
        shown = f"{mae:.4g}" if isinstance(mae, float) else "-"
        table.add_row(name, head.level, head.shown_unit, ", ".join(parts), shown, head.description)
    return table


def _members_table(content: "ArtefactContent") -> "FittedTable":
    table = make_table("Members", drop=("numbers", "net"))
    table.add_texts("trial", "net")
    table.add_numbers("numbers", "weight", "val objective")
    for member in content.manifest.members:
        model = content.configs[member.trial].model
        net = f"{model.conv} {model.layers} x {model.features}, {model.cutoff:g} A"
        shares = sorted(member.weights.values())
        weight = " to ".join(dict.fromkeys(f"{share:.3f}" for share in (shares[0], shares[-1])))
        numbers = f"{_count_weights(content, member.trial):,}"
        table.add_row(member.trial, net, numbers, weight, fixed(member.objective))
    return table


def prune(
    path: EnsembleArgument,
    out: Annotated[Path, typer.Option(help="The ensemble.zip to write.")],
    keep: Annotated[int | None, typer.Option(help="How many: those that weigh most.")] = None,
    members: Annotated[str, typer.Option(help="Members to keep, as t0001,t0004.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change; write nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take members out: faster, smaller; intervals are made again from the calibration split."""
    from hydragnn_hpo.ensemble import prune_members, read_artefact, write_artefact
    from hydragnn_hpo.ensemble.prune import choose_members

    source = ensemble_file(path)
    if out.exists() and (out.is_dir() or out.samefile(source)):
        raise ConfigError(f"--out {out}: is a folder or the ensemble itself; name another file.")
    names = [name.strip() for name in members.split(",") if name.strip()]
    content = read_artefact(source)
    stay = choose_members(content.manifest, keep, names)
    pruned, effects = prune_members(content, stay, where=str(source))
    if not dry_run:
        write_artefact(out, pruned)
    if as_json:
        plain = {name: asdict(effect) for name, effect in effects.items()}
        typer.echo(json.dumps({"out": str(out), "members": list(stay), "heads": plain}))
        return
    console().print(_prune_table(effects))
    verb = "would write" if dry_run else "wrote"
    total = len(content.manifest.members)
    typer.echo(f"{verb} {out}: {len(stay)} of {total} members ({', '.join(stay)})")


def _prune_table(effects: "dict[str, PruneEffect]") -> "FittedTable":
    table = make_table("On the calibration split, before and after")
    table.add_texts("head", "unit")
    table.add_numbers("MAE", "MAE after", "90 % width", "90 % width after")
    for name, effect in effects.items():
        numbers = (effect.mae_before, effect.mae_after, effect.width90_before, effect.width90_after)
        table.add_row(name, effect.unit, *(f"{number:.4g}" for number in numbers))
    return table


class Precision(StrEnum):
    """Floating point types of a program."""

    fp32 = "fp32"
    fp64 = "fp64"


def export(
    path: EnsembleArgument,
    target: Annotated[str, typer.Option(help="The head; energies come with forces and stress.")],
    out: Annotated[Path, typer.Option(help="NAME.pt2; NAME.json beside it says how to use it.")],
    aot: Annotated[
        bool, typer.Option("--aot", help="Compile it for this kind of processor: quicker.")
    ] = False,
    precision: Annotated[
        Precision | None, typer.Option(help="Precision of all members; by default that of each.")
    ] = None,
    trust: TrustOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one target as a program that gives mean and spread without this package.

    Trials and epochs of a campaign for other programs: hydragnn-hpo export.
    """
    from hydragnn_hpo.ensemble import Ensemble
    from hydragnn_hpo.ensemble import export_program as write
    from hydragnn_hpo.ensemble.structure_batches import refuse_to_replace

    archive = ensemble_file(path)
    ensemble = Ensemble.load(archive, precision=precision, trust=trust or ())
    for written in (out, out.with_suffix(".json")):
        refuse_to_replace((), archive, written)
    page = write(ensemble, target, out, aot=aot)
    if as_json:
        typer.echo(json.dumps(page))
        return
    typer.echo(f"wrote {out} ({len(page['members'])} members) and {out.with_suffix('.json')}")
    typer.echo(page["python"])


def build(
    run_dir: RunArgument,
    reseed: ReseedOption = 0,
    nets: NetsOption = 0,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Select, calibrate and evaluate an ensemble from a run's trials, and pack it.

    With --reseed the run's campaign goes on as an ordinary one: killed, the same command resumes.
    """
    from hydragnn_hpo.campaign import read_state

    run = RunDir(run_dir)
    state = read_state(run)
    if dry_run:
        planned = _describe_build(run, state, reseed)
        typer.echo(json.dumps({"would": planned}) if as_json else planned)
        return
    table = _reseed_and_build(run.path, reseed, as_json) if reseed else _build_here(run, nets)
    if as_json:
        typer.echo(json.dumps(table))
        return
    _print_build(table)


def _describe_build(run: RunDir, state: "State", reseed: int) -> str:
    """Return what would be done, as a sentence."""
    from hydragnn_hpo.campaign.promotion import choose_replicates

    first = ""
    if again := choose_replicates(state, reseed):
        first = f"would train {', '.join(t.name for t in again)} with new seeds, then "
    names = ", ".join(trial.name for trial in state.ranked()) or "none"
    return f"{first}would write {run.ensemble} from the best of: {names}"


def _build_here(run: RunDir, nets: int) -> "EnsembleTable":
    """Build in this process, from the trials that the run has."""
    from hydragnn_hpo.ensemble_build import build_ensemble
    from hydragnn_hpo.report import draw_parity

    table = build_ensemble(run.path, keep=nets)
    draw_parity(run.path, run.report / "parity.png")
    return table


def _reseed_and_build(run: Path, count: int, quiet: bool) -> "EnsembleTable":
    """Train the best trials of the run's campaign again, and build the ensemble at its end.

    Raises:
        ConfigError: the campaign's trials run a command.
    """
    from hydragnn_hpo.campaign import open_run
    from hydragnn_hpo.cli.run_command import run_alone
    from hydragnn_hpo.config import CampaignConfig, load_config
    from hydragnn_hpo.pipeline import check_campaign_file

    log.configure(level=30)
    source = RunDir(run).campaign
    config = load_config(source, CampaignConfig)
    if config.command is not None:
        raise ConfigError(f"{run}: its trials run a command: name a run that trains.")
    cards = check_campaign_file(config, source, run)
    result = run_alone(config, open_run(config, run), cards, quiet=quiet, reseed=count)
    return cast("EnsembleTable", result["ensemble"])


def _print_build(table: "EnsembleTable") -> None:
    out = console()
    out.print(selection_table(table))
    out.print(diversity_table(table))
    out.print(ensemble_table(table["heads"]))
    print_verdict(table.get("verdict", ()))
    for warning in table["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    kept, why = METHODS[table["method"]], table["why"]
    typer.echo(f"{table['path']}: {len(table['members'])} members, {kept}: {why}")


def selection_table(table: "EnsembleTable") -> "FittedTable":
    """Lay out how each selection method does on ``sel`` or out of fold, and which is kept."""
    heads = {name: head["unit"] for name, head in table["heads"].items()}
    errors = [f"{name.replace('_', ' ')} [{unit}]" for name, unit in heads.items()]
    title = f"Selection: errors {_where_judged(table)} (the test split has no say)"
    out = make_table(title, drop=("MFLOP/graph", "members", *errors[::-1]))
    out.add_texts("members chosen")
    out.add_numbers("members", "MFLOP/graph", "loss", *errors)
    for method, mix in table["selection"].items():
        kept = method == table["method"]
        out.add_row(
            METHODS[method] + (" (kept)" if kept else ""),
            str(len(mix["members"])),
            f"{mix['flops_per_graph'] / 1e6:.3g}",
            f"{mix['sel_loss']:.4f}",
            *(fixed(mix["sel_mae"][name]) for name in heads),
            style="bold" if kept else None,
        )
    return out


def _where_judged(table: "EnsembleTable") -> str:
    return "out of fold" if table.get("folds") else "on sel"


def diversity_table(table: "EnsembleTable") -> "FittedTable":
    """Lay out how alike members err, and what mixing them gains."""
    out = make_table(f"Diversity of the members ({_where_judged(table)})", drop=("members",))
    out.add_texts("head")
    columns = ("members", "correlation of errors", "member RMSE", "RMSE of the mix", "gained")
    out.add_numbers(*columns)
    for name, head in table["diversity"].items():
        correlation, alone = head["mean_correlation"], head["mean_member_mse"]
        gain = head["ambiguity"] / alone if alone else 0.0
        out.add_row(
            name.replace("_", " "),
            str(len(head["members"])),
            "-" if correlation is None else f"{correlation:.2f}",
            f"{math.sqrt(alone):.4f}",
            f"{math.sqrt(head['mse']):.4f}",
            f"{100 * gain:.0f} %",
        )
    return out


def pick(
    files: FilesArgument,
    ensemble: Annotated[
        Path | None, typer.Option(help="An ensemble.zip, or a run directory.")
    ] = None,
    trunk: Annotated[
        str | None,
        typer.Option(help="Foundation model in place of an ensemble, where nothing has labels."),
    ] = None,
    out: OutOption = Path("picked.extxyz"),
    number: NumberOption = 100,
    by: ByOption = None,
    low: LowOption = 0.0,
    high: HighOption = None,
    unseen: UnseenOption = False,
    trust: TrustOption = None,
    device: DeviceOption = "auto",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pick the structures of a pool that are worth a label: uncertain, and not all alike."""
    from hydragnn_hpo.ensemble import Ensemble, PickRequest, list_input_sources, pick_structures
    from hydragnn_hpo.ensemble.engine import device_of
    from hydragnn_hpo.ensemble.pick import check_picks_format, make_ranking, write_picks
    from hydragnn_hpo.ensemble.structure_batches import refuse_to_replace

    check_picks_format(out)
    if trunk is not None or ensemble is None:
        if trunk is None or ensemble is not None or by is not None or low > 0 or high is not None:
            raise ConfigError(
                "name either an ensemble (--ensemble), or a foundation model (--trunk chgnet) "
                "without --by, --low and --high."
            )
        picked = _pick_unlike(trunk, files, out, number, dry_run)
        if picked is not None:
            _print_picks(picked, out, as_json=as_json)
        return
    model = Ensemble.load(ensemble_file(ensemble), device=device_of(device), trust=trust or ())
    request = PickRequest(number, by, low, float("inf") if high is None else high, unseen)
    make_ranking(model, request)
    files = [shipped_or_path(path) for path in files]
    if dry_run:
        pool = ", ".join(map(str, files))
        typer.echo(f"would rank {pool} by {by or 'all heads'}, write {number} to {out}")
        return
    refuse_to_replace(list_input_sources(files), ensemble_file(ensemble), out)
    picked = pick_structures(model, _pool(files, model.rules), request)
    write_picks(out, model.manifest.attributes, picked)
    _print_picks(picked, out, as_json=as_json)


def _pick_unlike(
    trunk: str, files: list[Path], out: Path, number: int, dry_run: bool
) -> "PickResult | None":
    """Pick structures by the features of a foundation model.

    Args:
        trunk: its name.
        files: the pool.
        out: file to write.
        number: structures to pick.
        dry_run: whether to say only what would be done.

    Returns:
        The picks, written to ``out``; None if only told.
    """
    from hydragnn_hpo.ensemble import list_input_sources
    from hydragnn_hpo.ensemble.pick import pick_unlike, write_picks
    from hydragnn_hpo.ensemble.structure_batches import refuse_to_replace, rules_for
    from hydragnn_hpo.model.trunks import load_trunk

    model = load_trunk(trunk)
    files = [shipped_or_path(path) for path in files]
    if dry_run:
        pool = ", ".join(map(str, files))
        typer.echo(f"would compare {pool} by features of {trunk}, write {number} to {out}")
        return None
    refuse_to_replace(list_input_sources(files), None, out)
    rules = rules_for(model.cutoff, trunks=(model.spec,))
    picked = pick_unlike(model, _pool(files, rules), number)
    write_picks(out, {}, picked)
    return picked


def _print_picks(picked: "PickResult", out: Path, *, as_json: bool) -> None:
    from hydragnn_hpo.ensemble.pick import picks_to_plain

    plain = picks_to_plain(picked)
    if as_json:
        typer.echo(json.dumps(plain))
    else:
        console().print(_picks_table(plain))
    typer.echo(f"wrote {out}", err=as_json)


def _pool(files: list[Path], rules: "Rules") -> Iterator["Structures"]:
    """Yield the structures, a bounded number at a time."""
    from hydragnn_hpo.ensemble import (
        ChunkReader,
        StructureFiles,
        list_input_sources,
        read_structures,
    )

    with ChunkReader(list_input_sources(files), rules, StructureFiles()) as reading:
        yield from read_structures(reading)


def _picks_table(plain: "PickTable") -> "FittedTable":
    picked, counts = plain["picked"], plain["counts"]
    # sigma of each head, and the largest disagreement on a force where that ranks
    columns = [name for name in picked[0] if name.endswith("_std") or name.startswith("max_")]
    drop = ("trust", "distance", *columns[::-1], "pick")
    table = make_table(f"{len(picked)} of {counts['read']} picked", drop=drop)
    table.add_numbers("pick")
    table.add_texts("structure")
    table.add_numbers("score", "distance", *columns)
    table.add_texts("trust")
    for entry in picked[:ROWS]:
        cells = [entry[name] for name in ("score", "distance", *columns)]
        shown = ["-" if value is None else f"{value:.4g}" for value in cells]
        table.add_row(str(entry["pick"]), str(entry["id"]), *shown, str(entry["trust"]))
    notes = [f"{count} {_COUNTS[name]}" for name, count in counts.items() if count]
    if len(picked) > ROWS:
        notes.append(f"the first {ROWS} are shown")
    notes.append(
        f"mean distance of two picked ones {plain['mean_distance']:.3g}, of the highest scores "
        f"{plain['mean_distance_top']:.3g}"
    )
    table.caption = "\n".join(notes)
    return table


for verb in (build, evaluate, info, prune, pick, export):
    app.command(epilog=show_examples(f"ensemble {verb.__name__}"))(verb)
