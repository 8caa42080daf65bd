"""Blocks as HTML. All that is shown is escaped: it may come from anywhere."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from hydragnn_hpo.report.page.blocks import (
    Block,
    Cell,
    Code,
    Column,
    Doubtful,
    Figure,
    Number,
    Numbers,
    Section,
    Table,
    Text,
)
from hydragnn_hpo.report.page.encode import plain

LONG = 16
"""Tables with more rows scroll in a frame of their own."""

WIDE = 32
"""Longer texts get room in their column."""


@dataclass
class Rendered:
    """A section as a page takes it."""

    html: str
    figures: dict[str, Any] = field(default_factory=dict)
    """Charts for the page's script, by their full key."""


def render(section: Section) -> Rendered:
    """Turn a section into HTML and the data of its charts."""
    made = Rendered("")
    inside = "".join(_block(section.key, block, made) for block in section.blocks)
    key = escape(section.key)
    made.html = (
        f'<section id="{key}" aria-labelledby="{key}-title">'
        f'<h2 id="{key}-title">{escape(section.title)}</h2>'
        f'<p class="lead">{escape(section.lead)}</p>{inside}</section>'
    )
    return made


def shown(value: Cell, unit: str = "") -> str:
    """Round a value for a reader: four digits, thousands apart; shares in percent.

    Zeros at the end say that a number was rounded: 3.5 is 3.5, 0.22699 is 0.2270.
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return str(value)
    if unit == "%":
        return f"{100 * value:.1f}"
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    size = abs(value)
    if not 1e-3 <= size < 1e15:
        return f"{value:.3g}"
    text = f"{value:,.{max(0, 3 - math.floor(math.log10(size)))}f}"
    exact = float(text.replace(",", "")) == value and "." in text
    return text.rstrip("0") if exact else text


# -- blocks --------------------------------------------------------------------------


def _block(key: str, block: Block, made: Rendered) -> str:
    if isinstance(block, Doubtful):
        inside = "".join(_block(key, inner, made) for inner in block.blocks)
        why = escape(block.why)
        return f'<div class="doubtful"><p class="why">{why}</p><div>{inside}</div></div>'
    if isinstance(block, Figure):
        return _figure(key, block, made)
    draw: Callable[[str, Any], str] = _DRAWN[type(block)]
    return draw(key, block)


def _numbers(key: str, block: Numbers) -> str:
    inside = "".join(_number(key, number) for number in block.numbers)
    return f'<dl class="numbers">{inside}</dl>'


def _number(key: str, number: Number) -> str:
    known = number.unit and number.value is not None
    unit = f' <span class="unit">{escape(number.unit)}</span>' if known else ""
    note = f'<dd class="note">{escape(number.note)}</dd>' if number.note else ""
    value = _data(f"{key}.{number.key}", number.value, number.unit)
    return f"<div><dt>{escape(number.label)}</dt><dd>{value}{unit}</dd>{note}</div>"


def _data(key: str, value: Cell, unit: str = "") -> str:
    """Give a value that scripts and tests can find and read in full."""
    if value is None:
        return "&ndash;"
    if isinstance(value, str):
        return escape(value)
    value = value.item() if isinstance(value, np.generic) else value
    exact = repr(float(value)) if isinstance(value, float) else str(int(value))
    return f'<data data-key="{escape(key)}" value="{exact}">{shown(value, unit)}</data>'


def _table(key: str, table: Table) -> str:
    head = "".join(_head(table, column) for column in table.columns)
    rows = "".join(_row(f"{key}.{table.key}", table, row) for row in table.rows)
    long = " long" if len(table.rows) > LONG else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    name = escape(f"{key}.{table.key}")
    return (
        f'<div class="frame{long}" data-key="{name}" tabindex="0" role="region" '
        f'aria-label="{escape(table.key)}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _head(table: Table, column: Column) -> str:
    unit = f'<span class="unit">{escape(column.unit)}</span>' if column.unit else ""
    kind = ' class="number"' if _is_number(table, column) else ""
    return (
        f'<th scope="col" aria-sort="none"{kind}>'
        f'<button type="button">{escape(column.label)}{unit}</button></th>'
    )


def _is_number(table: Table, column: Column) -> bool:
    place = table.columns.index(column)
    cells = [row[place] for row in table.rows if row[place] is not None]
    return bool(cells) and not any(isinstance(cell, str) for cell in cells)


def _row(key: str, table: Table, row: tuple[Cell, ...]) -> str:
    cells = []
    for place, (column, cell) in enumerate(zip(table.columns, row, strict=True)):
        tag = 'th scope="row"' if place == 0 else "td"
        numeric = not isinstance(cell, str) and cell is not None
        wide = isinstance(cell, str) and len(cell) > WIDE
        kind = ' class="number"' if numeric else ' class="wide"' if wide else ""
        value = _data(f"{key}.{row[0]}.{column.key}", cell, column.unit)
        cells.append(f"<{tag}{kind}>{value}</{tag[:2]}>")
    return f"<tr>{''.join(cells)}</tr>"


def _figure(key: str, figure: Figure, made: Rendered) -> str:
    full = f"{key}.{figure.key}"
    made.figures[full] = plain({"data": figure.data, "layout": figure.layout})
    name, says = escape(full), escape(figure.says)
    return (
        f'<figure data-key="{name}"><h3>{escape(figure.title)}</h3>'
        f'<div class="choices" role="group" aria-label="{escape(figure.title)}"></div>'
        f'<div class="chart" role="img" aria-label="{says}" style="height:{int(figure.height)}px">'
        f"</div><figcaption>{says}</figcaption></figure>"
    )


def _text(key: str, block: Text) -> str:
    return f"<p>{escape(block.text)}</p>"


def _code(key: str, block: Code) -> str:
    title = escape(block.title)
    body = (
        f'<div class="code"><button type="button" class="copy">copy</button>'
        f'<pre tabindex="0"><code>{escape(block.text)}</code></pre></div>'
    )
    if block.folded:
        return f"<details><summary>{title or 'show'}</summary>{body}</details>"
    return f"<h3>{title}</h3>{body}" if title else body


_DRAWN: dict[type, Callable[[str, Any], str]] = {
    Numbers: _numbers,
    Table: _table,
    Text: _text,
    Code: _code,
}
