"""``hydragnn-hpo compare``: campaigns side by side."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import JsonOption
from hydragnn_hpo.errors import ConfigError

if TYPE_CHECKING:
    from hydragnn_hpo.report import Cell, RunComparison


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, two or more.")],
    reach: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HEAD=MAE",
            help="Show what it cost to reach this MAE, or objective=VALUE; repeatable.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write an HTML page, NAME.html.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare campaigns: search spaces, winners, and what it cost to reach an error."""
    from hydragnn_hpo.report import compare_runs, read_campaigns, write_comparison

    levels = [_parse_level(text) for text in reach or ()]
    if out is not None and out.suffix != ".html":
        raise ConfigError(f"{out}: the comparison is a page: name it NAME.html.")
    comparison = compare_runs(read_campaigns(runs), levels)
    if out is not None:
        write_comparison(comparison, out)
    if as_json:
        typer.echo(json.dumps({**comparison.to_plain(), "file": None if out is None else str(out)}))
        return
    _print_tables(comparison)
    if out is not None:
        typer.echo(f"wrote {out}")


def _parse_level(text: str) -> tuple[str, float]:
    name, equals, value = text.rpartition("=")
    try:
        level = float(value)
    except ValueError:
        level = float("nan")
    if not equals or not name or level != level:
        raise ConfigError(f"--reach {text!r}: write HEAD=MAE, as --reach energy=0.02.")
    return name, level


def _print_tables(comparison: "RunComparison") -> None:
    """Print the sections of the page as tables, with a right-aligned column for each run."""
    from rich.table import Table as Rich
    from rich.text import Text as RichText

    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.report import Table, Text, compare_sections
    from hydragnn_hpo.sanitize import escape_controls

    for section in compare_sections(comparison):
        typer.echo(section.title)
        for block in section.blocks:
            if isinstance(block, Text):
                typer.echo(escape_controls(block.text))
            if isinstance(block, Table):
                table = Rich()
                for column in block.columns:
                    right = column.key.startswith("run")
                    label = RichText(escape_controls(column.label))
                    table.add_column(label, justify="right" if right else "left")
                for row in block.rows:
                    table.add_row(*(RichText(escape_controls(_format_cell(cell))) for cell in row))
                console().print(table)
        typer.echo("")


def _format_cell(cell: "Cell") -> str:
    if cell is None or isinstance(cell, str):
        return cell or "-"
    if isinstance(cell, float):
        return f"{cell:,.4g}" if abs(cell) < 1000.0 else f"{cell:,.0f}"
    return f"{cell:,}"
