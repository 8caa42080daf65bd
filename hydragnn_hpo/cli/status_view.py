"""A campaign on a terminal of any size: lines that fit, the most important ones first.

``status``, ``status --watch`` and the live table of ``run`` show the same.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from hydragnn_hpo.campaign import CAUSES, RunningTrial, Status, describe_trial
from hydragnn_hpo.cli.words import count, duration, energy, percent
from hydragnn_hpo.sanitize import sanitize_line

LABEL = 9
"""Columns of what a line is about."""

MOST_RUNGS = 5
NAMED_HOSTS = 4
SHOWN_LOSSES = 3
GAP = 2
LEAST_BAR, MOST_BAR = 8, 32
LEAST_WORDS = 12
"""Columns below which a configuration says nothing."""

AIRY = 36
"""Lines from which blocks stand apart even if trials have to go."""

LEAST_ROWS = 4
"""Lines for running trials, their titles included, that are kept before others go."""

STYLES = {
    "training": "green",
    "start_up": "cyan",
    "between": "blue",
    "ending": "bright_blue",
    "lost": "red",
    "held": "yellow",
    "brain": "magenta",
    "tail": "bright_black",
    "away": "bright_red",
}
"""Colours of causes: of the 16 that every terminal's theme has, so that they fit light and dark."""


@dataclass(frozen=True)
class Signs:
    """What bars are drawn with."""

    done: str
    open: str
    curve: str
    """From the least to the most."""
    causes: Mapping[str, str]
    """Fillings of the bar of slots, which differ where colours do not show."""
    more: str
    """Where something was cut off."""


UNICODE = Signs(
    done="\u2501",
    open="\u2500",
    curve="\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588",
    causes=dict(zip(STYLES, "\u2588\u2593\u2592\u2591x\u2022\u00b7\u2219-", strict=True)),
    more="\u2026",
)
ASCII = Signs("#", "-", "_.-=+*#", dict(zip(STYLES, "#+=~x*o.-", strict=True)), ">")


@dataclass(frozen=True)
class Page:
    """Where it is drawn."""

    width: int
    height: int
    signs: Signs


@dataclass(frozen=True)
class Snapshot:
    """A campaign at one moment, for a terminal."""

    name: str
    """Of its run directory."""
    status: Status
    course: str
    """Who works on it."""
    best_so_far: Sequence[float] = ()
    """The best score after each result."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Interrupted attempts by reason."""


# -- sentences ---------------------------------------------------------------------------


def headline(status: Status) -> str:
    """Return in one line what goes on."""
    running = status.counts.get("running", 0)
    parts = [f"{status.phase}: {status.at_rest} of {status.budget} trials at rest"]
    parts.append(f"{status.counts.get('queued', 0)} waiting")
    parts.append(f"{running} running")
    if status.ends_in is not None and running:
        parts.append(f"about {duration(status.ends_in)} left")
    return ", ".join(parts)


def use_of_slots(status: Status) -> str:
    """Return how well the slots are used, and what costs most."""
    where = _slot_count(status)
    if status.utilization.slot_seconds == 0:
        return where
    so_far = status.utilization.share("training")
    now = f"{percent(status.training_now)} train now, " if status.running else ""
    said = f"{where}: {now}{percent(so_far)} {'so far' if now else 'in training'}"
    worst = status.utilization.largest
    if worst is None:
        return said
    return f"{said}; largest loss: {percent(status.utilization.share(worst))} {CAUSES[worst]}"


def _slot_count(status: Status) -> str:
    return f"{count(status.slots, 'slot')} on {count(status.hosts, 'host')}"


def losses_line(status: Status) -> str:
    """Name the largest losses of slot time in words."""
    shares = {c: s for c, s in status.utilization.shares.items() if c != "training" and s >= 5e-4}
    worst = sorted(shares, key=lambda cause: -shares[cause])[:SHOWN_LOSSES]
    return "; ".join(f"{percent(shares[cause])} {CAUSES[cause]}" for cause in worst)


def energy_line(status: Status) -> str:
    """Return what the hosts take, or what ranks measured, or why nothing is known."""
    spent = status.energy
    if spent.joules is None:
        ranks = f"{energy(status.joules)} in training and validation" if status.joules else ""
        return ranks or (f"unknown: {spent.unread}" if spent.unread else "")
    idle = f"{percent(spent.idle / spent.joules)} of it idle" if spent.joules else "none"
    said = f"{energy(spent.joules)} so far ({', '.join(spent.parts)}), {idle}"
    if spent.watts and status.running:
        said += f"; {spent.watts / 1e3:,.1f} kW on {count(spent.hosts, 'host')} now"
    best = status.best
    return f"{said}; {best.name}: {energy(best.energy)}" if best and best.energy else said


def troubled_hosts(status: Status) -> Iterator[str]:
    """Name the hosts that are gone, and count those that are left alone."""
    kinds = {"lost": status.lost, "in quarantine": status.quarantined}
    for what, hosts in kinds.items():
        if hosts:
            yield f"{len(hosts)} {what}: {_name_hosts(hosts)}"
    if status.excluded:
        yield f"{status.excluded:,} left alone (exclude.hosts)"


def _name_hosts(hosts: Mapping[str, str]) -> str:
    named = [f"{host} ({reason})" for host, reason in list(hosts.items())[:NAMED_HOSTS]]
    more = len(hosts) - len(named)
    return f"{', '.join(named)}{f' and {more} more' if more else ''}"


# -- bars and curves ---------------------------------------------------------------------


def bar(share: float, width: int, signs: Signs) -> tuple[str, str]:
    """Return what is done of a bar, and what is open."""
    done = round(width * min(1.0, max(0.0, share)))
    return signs.done * done, signs.open * (width - done)


def split_columns(shares: Mapping[str, float], width: int) -> dict[str, int]:
    """Share out columns: each part gets its floor, those with the largest rest one more.

    Args:
        shares: of the parts; they sum to 1, or to 0 where nothing is known.
        width: columns in all.

    Returns:
        Columns by part.
    """
    exact = {name: max(0.0, share) * width for name, share in shares.items()}
    columns = {name: math.floor(wanted) for name, wanted in exact.items()}
    left = round(sum(exact.values())) - sum(columns.values())
    for name in sorted(exact, key=lambda name: columns[name] - exact[name])[:left]:
        columns[name] += 1
    return columns


def sparkline(values: Sequence[float], width: int, signs: Signs) -> str:
    """Draw values as one line of letters, on a logarithmic scale where all are positive.

    More values than columns are thinned; the last of each column stays.

    Args:
        values: finite numbers, in order.
        width: columns at most.
        signs: to draw with.
    """
    if not values or width < 1:
        return ""
    if len(values) > width:
        values = [values[(place + 1) * len(values) // width - 1] for place in range(width)]
    scaled = [math.log(value) for value in values] if min(values) > 0 else list(values)
    low, high = min(scaled), max(scaled)
    top = len(signs.curve) - 1
    steps = [round(top * (value - low) / (high - low)) if high > low else 0 for value in scaled]
    return "".join(signs.curve[step] for step in steps)


# -- the page ----------------------------------------------------------------------------


def lay_out(snapshot: Snapshot, page: Page, note: str = "") -> list[Text]:
    """Lay out a campaign in as many lines as there are, none wider than there is room.

    Args:
        snapshot: the campaign at one moment.
        page: the room.
        note: in the last line.
    """
    status = snapshot.status
    top = [*_head(snapshot, page), *_best(snapshot, page)]
    middle = [*_slots(status, page), *_rungs(status, page)]
    trouble = list(_trouble(snapshot))
    foot = [Text(note, "dim")] if note else []
    room = page.height - len(top) - len(foot)
    wanted = min(LEAST_ROWS, 1 + len(status.running)) if status.running else 0
    middle = middle[: max(0, room - wanted)]
    trouble = trouble[: max(0, room - wanted - len(middle))]
    room -= len(middle) + len(trouble) + (3 if page.height >= AIRY else 0)
    running = _running(status, page, room)
    spare = page.height - sum(map(len, (top, middle, trouble, running, foot)))
    lines = list(top)
    for block in (middle, trouble, running):
        if block and spare > 0:
            lines.append(Text())
            spare -= 1
        lines += block
    lines = lines[: page.height - len(foot)]
    lines += [Text()] * (page.height - len(foot) - len(lines)) if note else []
    return [_cut(line, page) for line in [*lines, *foot]]


def _cut(line: Text, page: Page) -> Text:
    """Cut a line to the width of the page; nothing wraps."""
    line.no_wrap = True
    if line.cell_len > page.width:
        line.truncate(max(0, page.width - len(page.signs.more)))
        line.append(page.signs.more, "dim")
    return line


def _labelled(label: str, *said: "str | tuple[str, str]") -> Text:
    return Text.assemble((f"{label:{LABEL}}", "dim"), *said)


def _head(snapshot: Snapshot, page: Page) -> Iterator[Text]:
    """Lay out which campaign it is, who runs it, and how far it is."""
    status = snapshot.status
    course = "" if snapshot.course == status.phase else sanitize_line(snapshot.course)
    ahead = status.ends_in if status.counts.get("running") else None
    left = "" if ahead is None else f"  about {duration(ahead)} left"
    title = Text.assemble((sanitize_line(snapshot.name), "bold"), (left, "cyan"))
    blank = max(2, page.width - title.cell_len - len(course)) if course else 0
    yield title.append(" " * blank).append(course, "dim")
    yield Text(headline(replace(status, ends_in=None)), "bold")
    share = status.at_rest / status.budget if status.budget else 0.0
    done, rest = bar(share, page.width, page.signs)
    yield Text.assemble((done, "green"), (rest, "dim"))


def _best(snapshot: Snapshot, page: Page) -> Iterator[Text]:
    """Name the best, and draw how the best result fell."""
    best, scores = snapshot.status.best, snapshot.best_so_far
    if best is None:
        return
    score = "" if best.objective is None else f"{best.objective:.4g} "
    said = f"{sanitize_line(best.name)} ({sanitize_line(describe_trial(best))}), epoch {best.epoch}"
    yield _labelled("best", (score, "bold green"), said)
    if len(scores) > 1:
        first, last = f"{scores[0]:.3g} ", f" {scores[-1]:.3g}"
        said = f" after {count(len(scores), 'result')}"
        room = page.width - LABEL - len(first) - len(last) - len(said)
        drawn = sparkline(scores, room, page.signs)
        yield _labelled("", first, (drawn, "green"), last, (said, "dim"))


def _slots(status: Status, page: Page) -> Iterator[Text]:
    """Lay out what the slots do, and where their time went."""
    where = _slot_count(status)
    if status.utilization.slot_seconds == 0:
        yield _labelled("slots", where)
        return
    now = f", {percent(status.training_now)} train now" if status.running else ""
    so_far = percent(status.utilization.share("training"))
    yield _labelled("slots", f"{where}{now}, {so_far} of the time so far")
    shares = status.utilization.shares
    columns = split_columns(shares, max(1, page.width - LABEL))
    yield _labelled("", *((page.signs.causes[c] * columns[c], STYLES[c]) for c in CAUSES))
    largest = sorted((c for c in CAUSES if shares[c] >= 5e-4), key=lambda c: -shares[c])
    legend = Text(" " * LABEL)
    for cause in largest:
        entry = f"{page.signs.causes[cause]} "
        said = f"{cause.replace('_', '-')} {percent(shares[cause])}  "
        if legend.cell_len + len(entry) + len(said) - 2 > page.width:
            break
        legend.append(entry, STYLES[cause]).append(said, "dim")
    yield legend


def _rungs(status: Status, page: Page) -> Iterator[Text]:
    """Count the trials at each rung; the highest rungs where there are many."""
    rungs = status.rungs[-MOST_RUNGS:]
    if len(status.rungs) < 2:
        return
    titles = ("epochs", "waiting", "running", "resting")
    yield _labelled("rungs", ("".join(f"{title:>9}" for title in titles), "dim"))
    most = max(1, *(r.waiting + r.running + r.resting for r in rungs))
    width = min(40, page.width - LABEL - 9 * len(titles) - 2)
    for rung in rungs:
        numbers = (rung.epochs, rung.waiting, rung.running, rung.resting)
        drawn = [("  ", "")]
        for number, style in ((rung.resting, "green"), (rung.running, "cyan")):
            columns = round(max(0, width) * number / most)
            drawn.append((page.signs.done * columns, style))
        yield _labelled("", "".join(f"{number:>9,}" for number in numbers), *drawn)


def _trouble(snapshot: Snapshot) -> Iterator[Text]:
    """Lay out what failed, which hosts are gone, and the energy."""
    status, restarts = snapshot.status, snapshot.restarts
    if status.failures or restarts:
        failed = ", ".join(
            f"{n:,} {sanitize_line(reason)}" for reason, n in status.failures.items()
        )
        again = ", ".join(f"{n:,} {sanitize_line(reason)}" for reason, n in restarts.items())
        said = [(failed, "red"), ("; " if failed and again else "", "")]
        yield _labelled("failed", *said, (f"started again: {again}" if again else "", "yellow"))
    if troubled := "; ".join(troubled_hosts(status)):
        yield _labelled("hosts", (sanitize_line(troubled), "red"))
    if status.warned:
        yield _labelled("look at", (sanitize_line(_name_hosts(status.warned)), "yellow"))
    if said_of_energy := energy_line(status):
        yield _labelled("energy", sanitize_line(said_of_energy))


class Picture:
    """A campaign as large as the terminal is when it is drawn."""

    def __init__(self, snapshot: Snapshot, interval: float | None = None) -> None:
        """Take a snapshot, and the seconds until the next one follows, if it does."""
        self.snapshot, self.interval = snapshot, interval
        self.drawn_for: tuple[int, int] | None = None
        """Columns and rows of the terminal when it was drawn last."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it."""
        self.drawn_for = options.size
        signs = ASCII if options.ascii_only else UNICODE
        cursor = 0 if self.interval is not None else 1  # a whole screen has no line for it
        height = options.height or options.max_height - cursor
        page = Page(options.max_width, height, signs)
        note = ""
        if self.interval is not None:
            note = f"{time.strftime('%H:%M:%S')}, every {self.interval:g} s; Ctrl-C ends watching"
        yield from lay_out(self.snapshot, page, note)


# -- running trials ----------------------------------------------------------------------


@dataclass(frozen=True)
class StatusColumn:
    """A column of the running trials."""

    title: str
    cells: tuple[str, ...]
    leaves: int
    """The higher, the earlier it leaves where room is short; 0 stays."""
    right: bool = True
    style: str = ""

    @property
    def width(self) -> int:
        """Columns of the terminal that it needs."""
        return max(len(self.title), *map(len, self.cells))


def _running(status: Status, page: Page, room: int) -> list[Text]:
    """Lay out the running trials in some lines; the widest where they are too many.

    Text instead of rich's table: the thread that decides draws it, up to twice a second.
    """
    if not status.running or room < 2:
        return []
    total = status.counts.get("running", 0)
    rows = status.running[: room - 1]
    if len(rows) < total and room > 2:
        rows = status.running[: room - 2]
    columns = _columns(rows, hosts=status.hosts > 1)
    widths = _fit(columns, page.width)
    columns = [column for column in columns if column.title in widths]
    spare = min(MOST_BAR, page.width - sum(widths.values()) - GAP * len(columns))
    lines = [_row(columns, widths, -1, page.signs, bar_of=(None, spare))]
    for number, row in enumerate(rows):
        share = row.epoch / row.until if row.until else 0.0
        lines.append(_row(columns, widths, number, page.signs, bar_of=(share, spare)))
    if (more := total - len(rows)) > 0 and room > 2:
        lines.append(Text(f"and {more:,} more; these are the widest {len(rows)}", "dim"))
    return lines


def _columns(rows: Sequence[RunningTrial], *, hosts: bool) -> list[StatusColumn]:
    def column(
        title: str,
        leaves: int,
        cell: Callable[[RunningTrial], str],
        *,
        right: bool = True,
        style: str = "",
    ) -> StatusColumn:
        return StatusColumn(
            title, tuple(sanitize_line(cell(row)) for row in rows), leaves, right, style
        )

    columns = [
        column("trial", 0, lambda row: row.trial, right=False, style="bold"),
        column("configuration", 3, _configuration, right=False),
        column("ranks", 5, lambda row: str(row.width)),
        column("epoch", 0, lambda row: f"{row.epoch}/{row.until}"),
        column("ends in", 0, lambda row: "" if row.ends_in is None else duration(row.ends_in)),
        column("objective", 2, lambda row: _number(row.objective, ".4f")),
        column("s/epoch", 4, lambda row: _number(row.epoch_seconds, ".3g")),
    ]
    if hosts:
        columns.insert(3, column("hosts", 6, _hosts, right=False))
    return columns


def _configuration(row: RunningTrial) -> str:
    return row.configuration + (f" ({row.asked})" if row.asked else "")


def _hosts(row: RunningTrial) -> str:
    first, *others = row.hosts or ("",)
    return f"{first} +{len(others)}" if others else first


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _fit(columns: Sequence[StatusColumn], width: int) -> dict[str, int]:
    """Return the widths of the columns that stay, with room for a bar where there can be."""
    widths = {column.title: column.width for column in columns}
    for column in sorted((c for c in columns if c.leaves), key=lambda c: -c.leaves):
        excess = sum(widths.values()) + GAP * len(widths) + LEAST_BAR - width
        words = widths.get("configuration", 0)
        if excess <= 0:
            break
        if words - excess >= LEAST_WORDS:
            widths["configuration"] = words - excess
            break
        del widths[column.title]
    return widths


def _row(
    columns: Sequence[StatusColumn],
    widths: Mapping[str, int],
    number: int,
    signs: Signs,
    *,
    bar_of: tuple[float | None, int],
) -> Text:
    """Lay out one row.

    Args:
        columns: that are shown.
        widths: by title.
        number: of the row; -1 for the titles.
        signs: to draw with.
        bar_of: the share that the bar behind the epoch shows, if any, and the room for it.
    """
    line, (share, room) = Text(no_wrap=True), bar_of
    for column in columns:
        cell, wide = column.title if number < 0 else column.cells[number], widths[column.title]
        cell = cell if len(cell) <= wide else cell[: wide - len(signs.more)] + signs.more
        text = cell.rjust(wide) if column.right else cell.ljust(wide)
        line.append(text, "dim" if number < 0 else column.style).append(" " * GAP)
        if column.title == "epoch" and room >= LEAST_BAR:
            blank = ("", " " * (room - GAP))
            done, rest = blank if share is None else bar(share, room - GAP, signs)
            line.append(done, "cyan").append(rest, "dim").append(" " * GAP)
    line.rstrip()
    return line
