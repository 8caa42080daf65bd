"""``hydragnn-hpo ensemble prune``: fewer members, calibrated anew."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import EnsembleArgument, JsonOption, ensemble_file

if TYPE_CHECKING:
    from rich.table import Table

    from hydragnn_hpo.ensemble.artefact.prune import Change


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
    from hydragnn_hpo.ensemble.artefact import archive
    from hydragnn_hpo.ensemble.artefact.prune import choose
    from hydragnn_hpo.ensemble.artefact.prune import prune as smaller
    from hydragnn_hpo.errors import ConfigError

    source = ensemble_file(path)
    if out.exists() and (out.is_dir() or out.samefile(source)):
        raise ConfigError(f"--out {out}: is a folder or the ensemble itself; name another file.")
    names = [name.strip() for name in members.split(",") if name.strip()]
    content, identity = archive.read_with_identity(source)
    stay = choose(content.manifest, keep, names)
    pruned, changes = smaller(content, stay, parent=identity, where=str(source))
    if not dry_run:
        archive.save(out, pruned)
    if as_json:
        plain = {name: asdict(change) for name, change in changes.items()}
        typer.echo(json.dumps({"out": str(out), "members": list(stay), "heads": plain}))
        return
    console().print(_table(changes))
    verb = "would write" if dry_run else "wrote"
    total = len(content.manifest.members)
    typer.echo(f"{verb} {out}: {len(stay)} of {total} members ({', '.join(stay)})")


def _table(changes: "dict[str, Change]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(title="On the calibration split, before and after", title_justify="left")
    for column in ("head", "unit", "MAE", "MAE after", "90 % width", "90 % width after"):
        table.add_column(column, justify="left" if column in ("head", "unit") else "right")
    for name, change in changes.items():
        numbers = (change.mae_before, change.mae_after, change.width90_before, change.width90_after)
        table.add_row(name, Text(change.unit), *(f"{number:.4g}" for number in numbers))
    return table
