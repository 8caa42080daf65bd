"""Building blocks of report sections: plain data that ``page`` renders as HTML.

Every number on the page has a key, so that a test can find and recompute it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hydragnn_hpo.config import Scalar
from hydragnn_hpo.report.charts import Layout, PlotlyValue, Trace

Level = Literal["good", "note", "warning"]
"""What a sentence means for its reader."""

OPENING = ("trial", "structure")
"""Keys of columns whose cells open more about what they name, see ``details.js``."""


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

    @property
    def opens(self) -> str:
        """What a click on a cell opens: one of ``OPENING``, or nothing."""
        return self.key if self.key in OPENING else ""


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
    width: int = 0
    """Minimum width in pixels; where the page is narrower, the chart scrolls."""
    name: str = ""
    """Name by which a notebook asks for it: a key of ``sections.FIGURES``, or ``KEY.OF`` for one of
    each head, parameter or cost; empty for a chart of the page alone."""


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
class VerdictConclusion:
    """One conclusion in words."""

    level: Level
    sentence: str
    topic: str = ""
    """What it is about, the same for all targets."""
    head: str = ""
    """The target; empty for the search as a whole."""


@dataclass(frozen=True)
class Verdict:
    """Conclusions in words, the first thing that a reader sees.

    Those on several targets are a matrix of topics by targets, whose rows open to the sentences;
    rows with a warning are open.
    """

    conclusions: tuple[VerdictConclusion, ...]

    @property
    def heads(self) -> tuple[str, ...]:
        """Columns of the matrix.

        Returns:
            Names of the targets; none if there are fewer than two.
        """
        heads = dict.fromkeys(each.head for each in self.conclusions if each.head)
        return tuple(heads) if len(heads) > 1 else ()

    @property
    def topics(self) -> Mapping[str, Sequence[VerdictConclusion]]:
        """Rows of the matrix.

        Returns:
            Conclusions by topic.
        """
        rows: dict[str, list[VerdictConclusion]] = {}
        for each in self.conclusions:
            if each.head in self.heads:
                rows.setdefault(each.topic, []).append(each)
        return rows

    @property
    def others(self) -> Sequence[VerdictConclusion]:
        """Conclusions that are not in the matrix."""
        return [each for each in self.conclusions if each.head not in self.heads]


@dataclass(frozen=True)
class Data:
    """Data for the page's script alone; shows nothing."""

    key: str
    content: Mapping[str, PlotlyValue]


@dataclass(frozen=True)
class Doubtful:
    """Blocks shown greyed out, with the reason not to trust them."""

    why: str
    blocks: tuple["Block", ...]


@dataclass(frozen=True)
class Fold:
    """Blocks that are collapsed until a reader opens them."""

    title: str
    blocks: tuple["Block", ...]
    is_open: bool = False


@dataclass(frozen=True)
class Row:
    """Blocks side by side where the page is wide enough."""

    blocks: tuple["Block", ...]
    leads: bool = False
    """Whether the first block is twice as wide as the second, and last, one."""


Block = Numbers | Table | Figure | Text | Code | Verdict | Data | Doubtful | Fold | Row


def flatten(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks in the order of the page, those inside other blocks in place of these."""
    for block in blocks:
        if isinstance(block, Doubtful | Fold | Row):
            yield from flatten(block.blocks)
        else:
            yield block


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    key: str
    """Anchor of the section in the page."""
    title: str
    lead: str
    """One or two sentences: the question that the section answers."""
    blocks: tuple[Block, ...]
    folded: bool = False
    """Whether only the title is visible until a reader opens the section."""
