"""Tables that fit the terminal: where it is narrow, columns are left out and numbers stay whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import HEAVY_HEAD, Box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

TEXT_WIDTH = 12
"""Width below which a column of text does not shrink; longer words are folded."""


@dataclass(frozen=True)
class FittedColumn:
    """A column and how narrow it may become."""

    title: str
    justify: Literal["left", "right"]
    no_wrap: bool = False

    def least_width(self, cells: Sequence[Text]) -> int:
        """Return the width of the longest word, or of the longest line where none is wrapped."""
        if self.no_wrap:
            return self.most_width(cells)
        texts = (self.title, *(cell.plain for cell in cells))
        longest = max((cell_len(word) for text in texts for word in text.split()), default=1)
        return longest if self.justify == "right" else min(longest, TEXT_WIDTH)

    def most_width(self, cells: Sequence[Text]) -> int:
        """Return the width of the longest line, at which no cell is wrapped."""
        lines = [
            line for text in (self.title, *(c.plain for c in cells)) for line in text.split("\n")
        ]
        return max(1, *map(cell_len, lines))


class FittedTable:
    """A table whose cells are text, never markup, and whose numbers are never cut.

    Cells are wrapped between words. Where the terminal is too narrow for the longest word of each
    column, columns are left out, and named below the table: first those in ``drop``, in its order,
    then the others from the right, except for the first column.
    """

    def __init__(
        self,
        title: str = "",
        *,
        drop: Sequence[str] = (),
        box: Box | None = HEAVY_HEAD,
        **layout: Any,
    ) -> None:
        """Make a table without columns.

        Args:
            title: text above it.
            drop: titles of the columns to leave out first.
            box: lines around the cells.
            layout: other arguments of rich's ``Table``.
        """
        self.title, self.drop = title, drop
        self.caption = ""
        self.columns: list[FittedColumn] = []
        self._rows: list[tuple[list[Text], str | None]] = []
        self._layout = {**layout, "box": box}

    def add_texts(self, *titles: str, no_wrap: bool = False) -> None:
        """Add columns of text, which align left."""
        self.columns += [FittedColumn(title, "left", no_wrap) for title in titles]

    def add_numbers(self, *titles: str) -> None:
        """Add columns of numbers, which align right."""
        self.columns += [FittedColumn(title, "right") for title in titles]

    def add_row(self, *cells: str | Text, style: str | None = None) -> None:
        """Add a row; cells that are missing at its end are empty."""
        texts = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        blank = [Text() for _ in self.columns[len(texts) :]]
        self._rows.append((texts + blank, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table with the columns that the terminal has room for."""
        cells = [[row[place] for row, _ in self._rows] for place in range(len(self.columns))]
        least = [c.least_width(texts) for c, texts in zip(self.columns, cells, strict=True)]
        most = [c.most_width(texts) for c, texts in zip(self.columns, cells, strict=True)]
        shown = list(range(len(self.columns)))
        room = options.max_width - self._border_width(console, options, shown)
        left_out = []
        for place in self._order_to_drop():
            if sum(least[n] for n in shown) <= room:
                break
            shown.remove(place)
            left_out.append(self.columns[place].title.replace("\n", " "))
            room = options.max_width - self._border_width(console, options, shown)
        whole = [most[n] if self.columns[n].justify == "right" else least[n] for n in shown]
        fits = sum(whole) <= room  # text gives way before numbers
        narrowest = whole if fits else [least[n] for n in shown]
        widths = share_width(narrowest, [most[n] for n in shown], room)
        table = self._build(shown, widths)
        notes = [self.caption] if self.caption else []
        if left_out:
            notes.append(f"left out for lack of width: {', '.join(left_out)}")
        table.caption = Text("\n".join(notes)) if notes else None
        yield table

    def _order_to_drop(self) -> list[int]:
        """Return the places of all columns but one, the least important first."""
        titles = [column.title for column in self.columns]
        first = [titles.index(title) for title in self.drop if title in titles]
        others = [place for place in reversed(range(len(titles))) if place not in first]
        return [*first, *others][: len(titles) - 1]

    def _border_width(self, console: Console, options: ConsoleOptions, shown: Sequence[int]) -> int:
        """Return how many columns of the terminal lines and padding take."""
        empty = self._build(shown, [1] * len(shown))
        wide = options.update_width(10_000)
        return Measurement.get(console, wide, empty).maximum - len(shown)

    def _build(self, shown: Sequence[int], widths: Sequence[int]) -> Table:
        title = Text(self.title) if self.title else None
        table = Table(title=title, title_justify="left", **self._layout)
        for place, width in zip(shown, widths, strict=True):
            column = self.columns[place]
            table.add_column(
                Text(column.title), justify=column.justify, width=width, overflow="fold"
            )
        for row, style in self._rows:
            table.add_row(*(row[place] for place in shown), style=style)
        return table


def share_width(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns: the widest ones give way until all fit.

    Args:
        least: smallest width of each column.
        most: width at which no cell of a column is wrapped.
        room: width of all columns together; it is exceeded if the smallest widths exceed it.
    """
    for level in range(max(most, default=0), 0, -1):
        widths = [max(low, min(high, level)) for low, high in zip(least, most, strict=True)]
        if sum(widths) <= room:
            return widths
    return list(least)
