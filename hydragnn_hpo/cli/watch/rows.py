"""Running trials as rows whose columns leave, the least important first, where room is short."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from hydragnn_hpo.campaign.status import RunningTrial
from hydragnn_hpo.cli.watch.signs import Signs, bar
from hydragnn_hpo.cli.words import duration
from hydragnn_hpo.text import one_line

LEAST_BAR, MOST_BAR = 8, 32
LEAST_WORDS = 12
"""Columns below which a configuration says nothing."""

GAP = 2


@dataclass(frozen=True)
class Column:
    """A column of the running trials."""

    title: str
    cells: tuple[str, ...]
    leaves: int
    """The higher, the earlier it leaves; 0 stays."""
    right: bool = False
    style: str = ""

    @property
    def width(self) -> int:
        """Columns of the terminal that it needs."""
        return max(len(self.title), *map(len, self.cells))


def columns_of(rows: Sequence[RunningTrial], *, several: bool) -> tuple[list[Column], list[float]]:
    """Give the columns, and how far each trial is.

    Args:
        rows: the trials.
        several: whether there are several hosts, so that their names say something.
    """

    def column(
        title: str,
        cell: Callable[[RunningTrial], str],
        leaves: int,
        *,
        right: bool = True,
        style: str = "",
    ) -> Column:
        return Column(title, tuple(one_line(cell(row)) for row in rows), leaves, right, style)

    found = [
        column("trial", lambda row: row.trial, 0, right=False, style="bold"),
        column("configuration", _configuration, 3, right=False),
        column("ranks", lambda row: str(row.width), 5),
        column("epoch", lambda row: f"{row.epoch}/{row.until}", 0),
        column("ends in", lambda row: "" if row.ends_in is None else duration(row.ends_in), 0),
        column("objective", lambda row: _number(row.objective, ".4f"), 2),
        column("s/epoch", lambda row: _number(row.epoch_seconds, ".3g"), 4),
    ]
    if several:
        found.insert(3, column("hosts", _hosts, 6, right=False))
    return found, [row.epoch / row.until if row.until else 0.0 for row in rows]


def lay_out(columns: tuple[list[Column], list[float]], width: int, signs: Signs) -> list[Text]:
    """Lay out titles and rows; the bar takes what the others leave.

    Args:
        columns: of the trials, and how far each of them is.
        width: of the terminal.
        signs: for the bars.
    """
    kept, shares = columns
    widths = _fit(kept, width)
    kept = [column for column in kept if column.title in widths]
    used = sum(widths.values()) + GAP * len(kept)
    room = min(MOST_BAR, width - used)
    lines = []
    for number in range(-1, len(shares)):
        line = Text(no_wrap=True)
        for column in kept:
            cell = column.title if number < 0 else column.cells[number]
            wide = widths[column.title]
            cell = cell if len(cell) <= wide else cell[: wide - len(signs.more)] + signs.more
            text = cell.rjust(wide) if column.right else cell.ljust(wide)
            line.append(text, "dim" if number < 0 else column.style)
            line.append(" " * GAP)
            if column.title == "epoch" and room >= LEAST_BAR:
                _append_bar(line, shares[number] if number >= 0 else None, room, signs)
        line.rstrip()
        lines.append(line)
    return lines


def _append_bar(line: Text, share: float | None, room: int, signs: Signs) -> None:
    if share is None:
        line.append(" " * room)
        return
    done, rest = bar(share, room - GAP, signs)
    line.append(done, "cyan").append(rest, "dim").append(" " * GAP)


def _fit(columns: list[Column], width: int) -> dict[str, int]:
    """Give the widths of the columns that stay, with room for a bar where there can be."""
    widths = {column.title: column.width for column in columns}
    leaving = sorted((c for c in columns if c.leaves), key=lambda c: -c.leaves)

    def over() -> int:
        return sum(widths.values()) + GAP * len(widths) + LEAST_BAR - width

    for column in leaving:
        words = widths.get("configuration", 0)
        if over() <= 0:
            break
        if words - over() >= LEAST_WORDS:
            widths["configuration"] = words - over()
            break
        del widths[column.title]
    return widths


def _configuration(row: RunningTrial) -> str:
    return row.configuration + (f" ({row.asked})" if row.asked else "")


def _hosts(row: RunningTrial) -> str:
    first, *others = row.hosts or ("",)
    return f"{first} +{len(others)}" if others else first


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
