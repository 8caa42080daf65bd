"""Building blocks of report sections: plain data that ``page`` renders as HTML.

Every number on the page has a key, so that a test can find and recompute it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hydragnn_hpo.config import Scalar
from hydragnn_hpo.report.charts import Layout, Trace


@dataclass(frozen=True)
class Number:
    """One number in large print, with a label."""

    key: str
    """Unique within its section, for example ``test_mae.HEAD``."""
    label: str
    value: float | int | None
    """Unrounded value; None is shown as a dash."""
    unit: str = ""
    """Unit of the value; with ``%`` the value is a share from 0 to 1, shown times 100."""
    note: str = ""
    """A few words below the number."""


@dataclass(frozen=True)
class Numbers:
    """Numbers in large print, side by side."""

    numbers: tuple[Number, ...]


Cell = float | int | str | None
"""One cell of a table. Numbers are unrounded; the page rounds what it shows."""


def searched_cell(value: Scalar | None) -> Cell:
    """Return a searched value as a cell: True and False become ``true`` and ``false``."""
    return str(value).lower() if isinstance(value, bool) else value


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str
    label: str
    unit: str = ""


@dataclass(frozen=True)
class Table:
    """A table; the reader sorts it by a column with a click or key press on the column's title."""

    key: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    """Cells by row, as many as columns; the first cell is the name of the row."""
    note: str = ""

    def is_numeric(self, place: int) -> bool:
        """Check whether a column holds numbers only, and at least one."""
        cells = [row[place] for row in self.rows if row[place] is not None]
        return bool(cells) and not any(isinstance(cell, str) for cell in cells)


def make_table(
    key: str,
    columns: Mapping[str, str | Sequence[str]],
    rows: Iterable[Sequence[Cell]],
    note: str = "",
) -> Table:
    """Make a table from columns given by their label, or by label and unit.

    Args:
        key: unique within its section.
        columns: labels, or labels and units, by the column's key.
        rows: one cell for each column; the first cell is the name of the row.
        note: a sentence below the table.
    """
    labels = {name: (of,) if isinstance(of, str) else of for name, of in columns.items()}
    heads = tuple(Column(name, *label) for name, label in labels.items())
    return Table(key, heads, tuple(map(tuple, rows)), note)


@dataclass(frozen=True)
class Figure:
    """A plotly chart; ``parcoords`` traces are drawn by ``parallel_coordinates.js`` instead."""

    key: str
    title: str
    caption: str
    """One or two sentences on what the chart shows, below it and for screen readers."""
    data: tuple[Trace, ...]
    """Traces in plotly's format; arrays may be numpy arrays. Colours are omitted or keys of
    ``charts.LIGHT``, so that they suit the light and the dark theme."""
    layout: Layout
    """Axes, titles, shapes; ``page.js`` adds fonts, colours and margins."""
    height: int = 380
    """Height in pixels."""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code:
    """Text in a fixed-width font to copy: a command, a log, a configuration."""

    text: str
    title: str = ""
    folded: bool = False
    """Whether the text is collapsed until a reader opens it."""


@dataclass(frozen=True)
class Doubtful:
    """Blocks shown greyed out, with the reason not to trust them."""

    why: str
    blocks: tuple["Block", ...]


Block = Numbers | Table | Figure | Text | Code | Doubtful


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    key: str
    """Anchor of the section in the page."""
    title: str
    lead: str
    """One or two sentences: the question that the section answers."""
    blocks: tuple[Block, ...]
