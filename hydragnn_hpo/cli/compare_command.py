"""``hydragnn-hpo compare``: campaigns side by side."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import JsonOption
from hydragnn_hpo.errors import ConfigError

if TYPE_CHECKING:
    from hydragnn_hpo.report import Cell, RunComparison, Table


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, two or more.")],
    reach: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HEAD=MAE",
            help="What did it cost to reach this? objective=VALUE too; repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write a page, NAME.html, or a chart, NAME.png.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set campaigns side by side: spaces, winners, what it cost to reach an error."""
    from hydragnn_hpo.report import compare_runs as compare_runs
    from hydragnn_hpo.report import read_campaigns

    levels = [_parse_level(text) for text in reach or ()]
    if out is not None and out.suffix not in (".html", ".png"):
        raise ConfigError(f"{out}: name it NAME.html or NAME.png.")
    comparison = compare_runs(read_campaigns(runs), levels)
    if out is not None:
        _write_file(comparison, out)
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


def _write_file(comparison: "RunComparison", out: Path) -> None:
    from hydragnn_hpo.report import draw_comparison, write_comparison

    if out.suffix == ".html":
        write_comparison(comparison, out)
        return
    if not comparison.quantities:
        raise ConfigError(f"{out}: these runs have no result in common that could be drawn.")
    draw_comparison(comparison, out)


def _print_tables(comparison: "RunComparison") -> None:
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.report import Table, Text, compare_sections

    for section in compare_sections(comparison):
        typer.echo(section.title)
        for block in section.blocks:
            if isinstance(block, Table):
                console().print(_rich_table(block))
            elif isinstance(block, Text):
                typer.echo(block.text)
        typer.echo("")


def _rich_table(table: "Table") -> object:
    """Lay out a table of a page for a terminal."""
    from rich.table import Table as Rich
    from rich.text import Text

    made = Rich()
    for column in table.columns:
        side = column.key.startswith("run")
        made.add_column(Text(column.label), justify="right" if side else "left")
    for row in table.rows:
        made.add_row(*(Text(_format_cell(cell)) for cell in row))
    return made


def _format_cell(cell: "Cell") -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.4g}" if abs(cell) < 1000.0 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
