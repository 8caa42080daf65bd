"""Sections as a page shows them, and the page around them (a stand-in)."""

import html
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.page.blocks import (
    Block,
    Cell,
    Code,
    Doubtful,
    Figure,
    Numbers,
    Section,
    Table,
    Text,
)

if TYPE_CHECKING:
    from hydragnn_hpo.report.dashboard.board import Part

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Drawn:
    """A section in HTML."""

    html: str

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        return asdict(self)


def draw(section: Section) -> Drawn:
    """Draw a section."""
    inside = "".join(_block(section.key, block) for block in section.blocks)
    e = html.escape
    return Drawn(
        f'<section id="{e(section.key)}"><h2>{e(section.title)}</h2><p>{e(section.lead)}</p>'
        f"{inside}</section>"
    )


def _block(key: str, block: Block) -> str:
    e = html.escape
    if isinstance(block, Numbers):
        return "".join(
            f"<p>{e(n.label)}: {_data(f'{key}.{n.key}', n.value)}</p>" for n in block.numbers
        )
    if isinstance(block, Table):
        head = "".join(f"<th>{e(column.label)}</th>" for column in block.columns)
        rows = "".join(_row(f"{key}.{block.key}", block, row) for row in block.rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    if isinstance(block, Doubtful):
        return "".join(_block(key, inner) for inner in block.blocks)
    if isinstance(block, Figure):
        return f'<figure data-key="{e(key)}.{e(block.key)}">{e(block.title)}</figure>'
    if isinstance(block, Code):
        return f"<pre>{e(block.text)}</pre>"
    assert isinstance(block, Text)
    return f"<p>{e(block.text)}</p>"


def _row(key: str, table: Table, row: Iterable[Cell]) -> str:
    first, *others = row
    cells = "".join(
        f"<td>{_data(f'{key}.{first}.{column.key}', cell)}</td>"
        for column, cell in zip(table.columns[1:], others, strict=True)
    )
    return f"<tr><td>{html.escape(str(first))}</td>{cells}</tr>"


def _data(key: str, value: Cell) -> str:
    if value is None or isinstance(value, str):
        return html.escape(value or "")
    return f'<data data-key="{html.escape(key)}" value="{value}">{value:g}</data>'


def failed(key: str) -> Drawn:
    """Say that a section could not be made."""
    return Drawn(f'<section id="{key}">{key} could not be made; the log says why</section>')


def page(run: RunDir, parts: "Mapping[str, Part]") -> tuple[str, str]:
    """Give the page with what is there, and its content policy."""
    made = "".join(part.drawn.html for part in parts.values() if part.drawn)
    policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    policy += "connect-src 'self'; img-src data: blob:; frame-ancestors 'none'"
    name = html.escape(run.path.resolve().name)
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
    return f"{head}</head><body><main>{made}</main>{live_bar(parts)}</body></html>", policy


def live_bar(parts: "Mapping[str, Part]") -> str:
    """Give what keeps a page up to date, and says so."""
    said = json.dumps({key: part.version for key, part in parts.items() if part.version})
    return (
        '<link rel="stylesheet" href="live.css">'
        f'<div id="live" data-versions="{html.escape(said)}">'
        '<span role="status" data-live="state">connecting</span> <span data-live="time"></span> '
        '<a href="report.html" download>as one file</a></div>'
        '<script src="live.js" defer></script>'
    )


def asset(name: str) -> bytes:
    """Give one of our two files."""
    return (HERE / name).read_bytes()


def whole(run: RunDir) -> bytes:
    """Make the report as one file."""
    from hydragnn_hpo.report.reading.facts import read_facts
    from hydragnn_hpo.report.sections.contents import SECTIONS

    facts = read_facts(run)
    sections = [section for make in SECTIONS.values() if (section := make(facts)) is not None]
    return ("<!doctype html>" + "".join(draw(section).html for section in sections)).encode()
