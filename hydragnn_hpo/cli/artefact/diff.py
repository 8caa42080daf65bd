"""``hydragnn-hpo ensemble diff``: what differs between two ensembles."""

import json
from typing import Any

import typer

from hydragnn_hpo.cli.arguments import EnsembleArgument, JsonOption, ensemble_file

MOST = 40
"""Differences of one part that a table shows."""


def diff(first: EnsembleArgument, second: EnsembleArgument, as_json: JsonOption = False) -> None:
    """Show what differs: how they were made, data, heads, calibration, members, scores."""
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.ensemble.artefact.archive import survey
    from hydragnn_hpo.ensemble.artefact.diff import diff as compare

    found = compare(survey(ensemble_file(first)), survey(ensemble_file(second)))
    if as_json:
        typer.echo(json.dumps(found))
        return
    if not found["differences"]:
        same = "hold the same bytes" if found["same"] else "say the same in other bytes"
        typer.echo(f"{first} and {second} {same}.")
        return
    for part, changes in found["differences"].items():
        few = {name: pair for name, pair in changes.items() if not _is_fine(name)}
        console().print(_table(part, few))


def _is_fine(name: str) -> bool:
    """Whether this is a quantile between the usual ones: there are nineteen for each head."""
    _, found, level = name.partition("quantiles.")
    return bool(found) and level not in ("0.5", "0.8", "0.9", "0.95")


def _table(part: str, changes: dict[str, list[Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=part, title_justify="left")
    for column in ("what", "first", "second"):
        table.add_column(column, overflow="fold")
    for name, pair in list(changes.items())[:MOST]:
        table.add_row(name, *(Text(_shown(value)) for value in pair))
    if len(changes) > MOST:
        table.caption = f"{len(changes) - MOST} more; all of them with --json"
    return table


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
