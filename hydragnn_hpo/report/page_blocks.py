"""Building blocks of a report's sections: plain data that ``page`` turns into HTML.

Every number that a reader can see has a key, so that a test can find it and recompute it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hydragnn_hpo.config import Scalar
from hydragnn_hpo.report.charts import Layout, Trace


@dataclass(frozen=True)
class Number:
    """A figure in large letters."""

    key: str
    """Unique within its section: ``test_mae.HEAD``."""
    label: str
    value: float | int | None
    """Not rounded; None is shown as a dash."""
    unit: str = ""
    """``%`` shows a share times 100."""
    note: str = ""
    """A few words below it."""


@dataclass(frozen=True)
class Numbers:
    """Figures side by side."""

    numbers: tuple[Number, ...]


Cell = float | int | str | None
"""Numbers keep their value; the page rounds what it shows."""


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
    """A table; a click or a key on a column's head sorts it."""

    key: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    """The first cell names its row."""
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
    """Make a table of columns that are named by their label, or by label and unit.

    Args:
        key: unique within its section.
        columns: labels, or labels and units, by the column's key.
        rows: a cell for each column; the first names its row.
        note: a sentence below it.
    """
    labels = {name: (of,) if isinstance(of, str) else of for name, of in columns.items()}
    heads = tuple(Column(name, *label) for name, label in labels.items())
    return Table(key, heads, tuple(map(tuple, rows)), note)


@dataclass(frozen=True)
class Figure:
    """A chart for plotly; ``parcoords`` traces are drawn by ``parallel_coordinates.js``."""

    key: str
    title: str
    caption: str
    """Text below it and for screen readers: a sentence or two on what it shows."""
    data: tuple[Trace, ...]
    """Traces as plotly takes them. Colours are left out or are names of ``charts.LIGHT``, so that
    they fit light and dark. Arrays may be numpy arrays."""
    layout: Layout
    """Axes, titles, shapes; ``page.js`` adds fonts, colours and margins."""
    height: int = 380
    """Pixels."""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code:
    """Something to copy: a command, a log, a configuration."""

    text: str
    title: str = ""
    folded: bool = False
    """Whether it is collapsed until a reader opens it."""


@dataclass(frozen=True)
class Doubtful:
    """Blocks that are greyed out, and why they are not to be trusted."""

    why: str
    blocks: tuple["Block", ...]


Block = Numbers | Table | Figure | Text | Code | Doubtful


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    key: str
    """Its anchor."""
    title: str
    lead: str
    """The question that it answers, one or two sentences."""
    blocks: tuple[Block, ...]
