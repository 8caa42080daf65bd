"""``hydragnn-hpo ensemble``: build an ensemble of a run, look at one, work with one."""

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import EnsembleArgument, JsonOption, TrustOption, ensemble_file
from hydragnn_hpo.cli.ensemble_build import build
from hydragnn_hpo.cli.ensemble_evaluate import evaluate
from hydragnn_hpo.cli.ensemble_pick import pick

if TYPE_CHECKING:
    from rich.table import Table

    from hydragnn_hpo.ensemble import ArtefactContent, PruneEffect

app = typer.Typer(no_args_is_help=True)


def info(
    path: EnsembleArgument,
    card: Annotated[bool, typer.Option("--card", help="Print the model card instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every checksum and show what an ensemble predicts, from what data, by whom."""
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.ensemble import read_artefact, render_model_card

    content = read_artefact(ensemble_file(path))
    if card:
        typer.echo(render_model_card(content.manifest, content.configs))
    elif as_json:
        typer.echo(json.dumps(_info_to_plain(content)))
    else:
        out = console()
        for line in _info_lines(content):
            out.print(line, markup=False, highlight=False)
        out.print(_heads_table(content))
        out.print(_members_table(content))


def _info_to_plain(content: "ArtefactContent") -> dict[str, Any]:
    """Return the manifest and facts about the file as plain data."""
    file = {
        "identity": content.identity,
        "written_as": content.manifest.format,
        "bytes": sum(content.sizes.values()),
        "entries": {n: {"bytes": content.sizes[n], "sha256": s} for n, s in content.sums.items()},
        "numbers": {trial: _count_weights(content, trial) for trial in content.configs},
        "can_be_pruned": content.calibration_data is not None,
    }
    return {**content.manifest.model_dump(mode="json"), "file": file}


def _count_weights(content: "ArtefactContent", trial: str) -> int:
    return sum(tensor.numel() for tensor in content.weights[trial].values())


def _info_lines(content: "ArtefactContent") -> list[str]:
    known = content.manifest
    made, data = known.created_by, known.data
    lines = [
        f"campaign {made.campaign} (seed {made.seed}, {made.method}), data {data.name}"
        f"{': ' if data.title else ''}{data.title}",
        f"{len(known.elements)} elements, edges up to {known.cutoff:g} angstrom",
        f"licence: {known.licence or 'not stated'}; of the data: {data.licence or 'not stated'}",
        f"{len(content.sizes)} entries, {sum(content.sizes.values()) / 1e6:.1f} MB, all checksums "
        f"right; format {content.manifest.format}; {content.identity[:12]}",
    ]
    if data.splits:
        splits = ", ".join(f"{name} {count}" for name, count in data.splits.items())
        lines.insert(1, f"structures: {splits}")
    if known.software:
        versions = ", ".join(f"{name} {version}" for name, version in known.software.items())
        lines.append(f"made with {versions}{f', commit {known.commit}' if known.commit else ''}")
    lines += [f"needs --trust {name} (version {v})" for name, v in known.packages.items()]
    lines += [f"pruned: {', '.join(step.removed)} were taken out" for step in known.pruned]
    return lines


def _heads_table(content: "ArtefactContent") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Heads", title_justify="left")
    for column in ("head", "level", "unit", "sigma^2 = a s^2 + c v + b", "test MAE", "description"):
        table.add_column(column)
    for name, head in content.manifest.heads.items():
        fit, scores = head.calibration, content.manifest.evaluation.get(name, {})
        parts = [f"a = {fit.a:.3g}", *([f"c = {fit.c:.3g}"] if fit.c else []), f"b = {fit.b:.3g}"]
        mae = scores.get("test_mae")
        shown = f"{mae:.4g}" if isinstance(mae, float) else "-"
        description = Text(head.description)
        table.add_row(name, head.level, Text(head.unit), ", ".join(parts), shown, description)
    return table


def _members_table(content: "ArtefactContent") -> "Table":
    from rich.table import Table

    table = Table(title="Members", title_justify="left")
    for column in ("trial", "net", "numbers", "weight", "val objective"):
        table.add_column(column)
    for member in content.manifest.members:
        model = content.configs[member.trial].model
        net = f"{model.conv} {model.layers} x {model.features}, {model.cutoff:g} A"
        shares = sorted(member.weights.values())
        weight = " to ".join(dict.fromkeys(f"{share:.3f}" for share in (shares[0], shares[-1])))
        numbers = f"{_count_weights(content, member.trial):,}"
        table.add_row(member.trial, net, numbers, weight, f"{member.objective:.4f}")
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
    """Take members out: faster, smaller; intervals are made anew from the calibration split."""
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.ensemble import choose_members, prune_members, read_artefact, write_artefact
    from hydragnn_hpo.errors import ConfigError

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


def _prune_table(effects: "dict[str, PruneEffect]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(title="On the calibration split, before and after", title_justify="left")
    for column in ("head", "unit", "MAE", "MAE after", "90 % width", "90 % width after"):
        table.add_column(column, justify="left" if column in ("head", "unit") else "right")
    for name, effect in effects.items():
        numbers = (effect.mae_before, effect.mae_after, effect.width90_before, effect.width90_after)
        table.add_row(name, Text(effect.unit), *(f"{number:.4g}" for number in numbers))
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
        Precision | None, typer.Option(help="Of all members; each its own if left out.")
    ] = None,
    trust: TrustOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one target as a program that gives mean and spread without this package.

    Trials and epochs of a campaign for other programs: hydragnn-hpo export.
    """
    from hydragnn_hpo.ensemble import Ensemble
    from hydragnn_hpo.ensemble import export_program as write

    ensemble = Ensemble.load(ensemble_file(path), precision=precision, trust=trust or ())
    page = write(ensemble, target, out, aot=aot)
    if as_json:
        typer.echo(json.dumps(page))
        return
    typer.echo(f"wrote {out} ({len(page['members'])} members) and {out.with_suffix('.json')}")
    typer.echo(page["python"])


for verb in (build, evaluate, info, prune, pick, export):
    app.command()(verb)
