"""``hydragnn-hpo ensemble info``: check an ensemble, and show what is in it."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import EnsembleArgument, JsonOption, ensemble_file

if TYPE_CHECKING:
    from rich.table import Table

    from hydragnn_hpo.ensemble.artefact.archive import Survey


def info(
    path: EnsembleArgument,
    card: Annotated[bool, typer.Option("--card", help="Print the model card instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every checksum and show what an ensemble predicts, from what data, by whom."""
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.ensemble.artefact.archive import survey
    from hydragnn_hpo.ensemble.artefact.model_card import model_card

    found = survey(ensemble_file(path))
    if card:
        typer.echo(model_card(found.manifest, found.configs))
    elif as_json:
        typer.echo(json.dumps(as_plain(found)))
    else:
        out = console()
        for line in _lines(found):
            out.print(line, markup=False, highlight=False)
        out.print(_heads(found))
        out.print(_members(found))


def as_plain(found: "Survey") -> dict[str, Any]:
    """Give what is known about an ensemble as plain data: the manifest, and its file."""
    file = {
        "identity": found.identity,
        "written_as": found.written_as,
        "bytes": sum(found.sizes.values()),
        "entries": {n: {"bytes": found.sizes[n], "sha256": s} for n, s in found.sums.items()},
        "numbers": found.numbers,
        "can_be_pruned": found.evidence is not None,
    }
    return {**found.manifest.model_dump(mode="json"), "file": file}


def _lines(found: "Survey") -> list[str]:
    known, made, data = found.manifest, found.manifest.created_by, found.manifest.data
    lines = [
        f"campaign {made.campaign} (seed {made.seed}, {made.method}), data {data.name}"
        f"{': ' if data.title else ''}{data.title}",
        f"{len(known.elements)} elements, edges up to {known.cutoff:g} angstrom",
        f"licence: {known.licence or 'not stated'}; of the data: {data.licence or 'not stated'}",
        f"{len(found.sizes)} entries, {sum(found.sizes.values()) / 1e6:.1f} MB, all checksums "
        f"right; format {found.written_as}; {found.identity[:12]}",
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


def _heads(found: "Survey") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Heads", title_justify="left")
    for column in ("head", "level", "unit", "sigma^2 = a s^2 + c v + b", "test MAE", "description"):
        table.add_column(column)
    for name, head in found.manifest.heads.items():
        fit, scores = head.calibration, found.manifest.evaluation.get(name, {})
        parts = [f"a = {fit.a:.3g}", *([f"c = {fit.c:.3g}"] if fit.c else []), f"b = {fit.b:.3g}"]
        mae = scores.get("test_mae")
        shown = f"{mae:.4g}" if isinstance(mae, float) else "-"
        description = Text(head.description)
        table.add_row(name, head.level, Text(head.unit), ", ".join(parts), shown, description)
    return table


def _members(found: "Survey") -> "Table":
    from rich.table import Table

    table = Table(title="Members", title_justify="left")
    for column in ("trial", "net", "numbers", "weight", "val objective"):
        table.add_column(column)
    for member in found.manifest.members:
        model = found.configs[member.trial].model
        net = f"{model.conv} {model.layers} x {model.features}, {model.cutoff:g} A"
        shares = sorted(member.weights.values())
        weight = " to ".join(dict.fromkeys(f"{share:.3f}" for share in (shares[0], shares[-1])))
        numbers = f"{found.numbers[member.trial]:,}"
        table.add_row(member.trial, net, numbers, weight, f"{member.objective:.4f}")
    return table
