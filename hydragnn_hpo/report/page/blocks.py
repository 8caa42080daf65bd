"""What a section of a page is made of. Plain data: the page turns it into HTML.

Every number that a reader can see has a key, so that a test can find it and compute it anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Number:
    """A figure in large letters."""

    key: str
    """Unique within its section: ``test_mae.HEAD``."""
    label: str
    value: float | int | None
    """As it is; None is shown as a dash."""
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


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str
    label: str
    unit: str = ""


@dataclass(frozen=True)
class Table:
    """A table; sorted by its columns with a click or a key."""

    key: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    """The first cell names its row."""
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart for plotly, or for a drawer of ours that the page's script knows by name."""

    key: str
    title: str
    says: str
    """What is to be seen in it, one sentence: for those who cannot see it, too."""
    data: tuple[Mapping[str, Any], ...]
    """Traces as plotly takes them. Colours are left out, or named by ``look.COLOUR`` names, so that
    they fit light and dark. Arrays may be numpy arrays."""
    layout: Mapping[str, Any]
    """Axes, titles, shapes; the page adds fonts, colours and margins."""
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
    """Whether it is shown only on request."""


@dataclass(frozen=True)
class Doubtful:
    """Blocks that are shown greyed out, and why they are not to be trusted."""

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
    """What it answers, one or two sentences."""
    blocks: tuple[Block, ...]
