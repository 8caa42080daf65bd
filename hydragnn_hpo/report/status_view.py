"""The status page of a campaign, fitted to the size of the terminal.

``status``, ``status --watch`` and the live display of ``run`` all draw this page. When the terminal
is small, the least important lines are left out.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hydragnn_hpo.campaign import Status
from hydragnn_hpo.campaign.accounting import CAUSES
from hydragnn_hpo.campaign.status import RunningTrial, describe_trial
from hydragnn_hpo.sanitize import sanitize_line
from hydragnn_hpo.words import count, duration, energy, fixed, percent

LABEL = 9
"""Width of the label at the beginning of a line, in terminal columns."""

MOST_RUNGS = 5
NAMED_HOSTS = 4
SHOWN_LOSSES = 3

SPACIOUS = 36
"""Terminal height in lines from which blank lines separate the blocks."""

LEAST_ROWS = 4
"""Lines kept for the table of running trials, titles included; other blocks are cut first."""


@dataclass(frozen=True)
class Glyphs:
    """Characters that bars and curves are drawn with."""

    done: str
    open: str
    curve: str
    """Characters of a sparkline, from the lowest value to the highest."""
    cut: str
    """End of a line that was cut."""


UNICODE = Glyphs("\u2501", "\u2500", "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588", "\u2026")
ASCII = Glyphs("#", "-", "_.-=+*#", "")


@dataclass(frozen=True)
class Snapshot:
    """Status of a campaign at one moment, with all that the page needs."""

    name: str
    """Name of the run directory."""
    status: Status
    course: str
    """Which controller or batch job runs it, in words."""
    best_so_far: Sequence[float] = ()
    """Best score so far, after each result."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Number of interrupted attempts, by reason."""


# -- sentences ---------------------------------------------------------------------------


def headline(status: Status) -> str:
    """Return the phase and the numbers of trials in one line."""
    running = status.counts.get("running", 0)
    parts = [f"{status.phase}: {status.at_rest} of {status.budget} trials at rest"]
    parts.append(f"{status.counts.get('queued', 0)} waiting")
    parts.append(f"{running} running")
    if status.ends_in is not None and running:
        parts.append(f"about {duration(status.ends_in)} left")
    return ", ".join(parts)


def use_of_slots(status: Status) -> str:
    """Return the numbers of slots and hosts, and the slot utilization, in one line."""
    hosts = count(status.hosts, "host")
    if status.absent:
        hosts = f"{status.hosts} of {count(status.hosts + len(status.absent), 'host')}"
    where = f"{count(status.slots, 'slot')} on {hosts}"
    if status.utilization.slot_seconds == 0:
        return where
    so_far = percent(status.utilization.share("training"))
    if not status.running:
        return f"{where}: {so_far} in training"
    return f"{where}: {percent(status.training_now)} train now, {so_far} so far"


def summary_line(status: Status) -> str:
    """Return phase, trials, slot utilization and the largest loss of slot time in one line."""
    line = f"{headline(status)}; {use_of_slots(status)}"
    losses = name_losses(status)
    return f"{line}; largest loss: {losses[0]}" if losses else line


def name_losses(status: Status) -> list[str]:
    """Name the largest losses of slot time in words."""
    shares = {c: s for c, s in status.utilization.shares.items() if c != "training" and s >= 5e-4}
    worst = sorted(shares, key=lambda cause: -shares[cause])[:SHOWN_LOSSES]
    return [f"{percent(shares[cause])} {CAUSES[cause]}" for cause in worst]


def energy_line(status: Status) -> str:
    """Return the energy that hosts or ranks measured, or why it is unknown."""
    spent = status.energy
    if spent.joules is None:
        ranks = f"{energy(status.joules)} in training and validation" if status.joules else ""
        return ranks or (f"unknown: {spent.unread}" if spent.unread else "")
    idle = f"{percent(spent.idle / spent.joules)} of it idle" if spent.joules else "none"
    line = f"{energy(spent.joules)} so far ({', '.join(spent.parts)}), {idle}"
    if spent.watts and status.running:
        line += f"; {spent.watts / 1e3:,.1f} kW on {count(spent.hosts, 'host')} now"
    best = status.best
    return f"{line}; {best.name}: {energy(best.energy)}" if best and best.energy else line


def troubled_hosts(status: Status) -> Iterator[str]:
    """Yield lost, absent and quarantined hosts by name, and the number of excluded ones."""
    kinds = {
        "lost": status.lost,
        "without an agent": {
            host: reason.removeprefix("has no agent, ") for host, reason in status.absent.items()
        },
        "in quarantine": status.quarantined,
    }
    for what, hosts in kinds.items():
        if hosts:
            yield f"{len(hosts)} {what}: {_name_hosts(hosts)}"
    if status.excluded:
        yield f"{status.excluded:,} excluded (exclude.hosts)"


def _name_hosts(hosts: Mapping[str, str]) -> str:
    named = [f"{host} ({reason})" for host, reason in list(hosts.items())[:NAMED_HOSTS]]
    more = len(hosts) - len(named)
    return f"{', '.join(named)}{f' and {more} more' if more else ''}"


# -- bars and curves ---------------------------------------------------------------------


def bar(share: float, width: int, glyphs: Glyphs) -> tuple[str, str]:
    """Return the two parts of a progress bar.

    Args:
        share: progress from 0 to 1; values outside are clipped.
        width: length of the whole bar in columns.
        glyphs: characters to draw with.

    Returns:
        The filled part and the rest; together ``width`` characters.
    """
    done = round(width * min(1.0, max(0.0, share)))
    return glyphs.done * done, glyphs.open * (width - done)


def sparkline(values: Sequence[float], width: int, glyphs: Glyphs) -> str:
    """Draw values as one line of characters; the scale is logarithmic if all are positive.

    If there are more values than columns, each column shows its last value.

    Args:
        values: finite numbers, in order.
        width: largest number of columns.
        glyphs: characters to draw with.
    """
    if not values or width < 1:
        return ""
    if len(values) > width:
        values = [values[(place + 1) * len(values) // width - 1] for place in range(width)]
    scaled = [math.log(value) for value in values] if min(values) > 0 else list(values)
    low = min(scaled)
    high = max(scaled)
    top = len(glyphs.curve) - 1
    steps = [round(top * (value - low) / (high - low)) if high > low else 0 for value in scaled]
    return "".join(glyphs.curve[step] for step in steps)


# -- the page ----------------------------------------------------------------------------


@dataclass
class StatusPage:
    """A status page that fits the terminal, whatever its size when the page is drawn."""

    snapshot: Snapshot
    interval: float | None = None
    """Seconds between snapshots if the page fills the screen; None if it is printed once."""
    titled: bool = True
    """Whether the first line names the campaign."""
    drawn_for: tuple[int, int] | None = None
    """Columns and rows of the terminal at the last drawing; None before it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the page within the height and width of the terminal."""
        self.drawn_for = options.size
        glyphs = ASCII if options.ascii_only else UNICODE
        for line in self._lay_out(options, glyphs):
            yield FittedLine(line, glyphs.cut) if isinstance(line, Text) else line

    def _lay_out(self, options: ConsoleOptions, glyphs: Glyphs) -> list[RenderableType]:
        status, width = self.snapshot.status, options.max_width
        # Below a page that does not fill the screen, the cursor needs a line of its own.
        cursor = 0 if self.interval is not None else 1
        height = options.height or options.max_height - cursor
        room = height if self.interval is None else height - 1
        head = [*_head(self.snapshot, width, glyphs), *_best(self.snapshot, width, glyphs)]
        gap = [Text()] if height >= SPACIOUS else []
        rest = [*gap, *_slots(status), *_rungs(status, width, glyphs)]
        if trouble := list(_trouble(self.snapshot)):
            rest += [*gap, *trouble]
        reserved = min(LEAST_ROWS, 1 + len(status.running)) if status.running else 0
        head += rest[: max(0, room - len(head) - reserved)]
        head = head[:room] if self.titled else head[1:room]  # its first line is the title
        lines: list[RenderableType] = [*head]
        used = len(lines)
        if status.running and (left := room - used - len(gap)) >= 2:
            table, more = _running(status, left, width, glyphs)
            lines += [*gap, table, *more]
            used += len(gap) + 1 + table.row_count + len(more)
        if self.interval is not None:
            clock = time.strftime("%H:%M:%S")
            note = f"{clock}, every {self.interval:g} s; Ctrl-C to quit"
            lines += [Text()] * (room - used) + [Text(note, "dim")]
        return lines


@dataclass(frozen=True)
class FittedLine:
    """A line that ends after a whole word where it does not fit, so that numbers stay whole."""

    line: Text
    mark: str
    """Character at the end of a line that was cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the words that there is room for."""
        short = self.line.copy()
        width = options.max_width
        short.no_wrap, short.overflow = True, "crop"
        if short.cell_len > width:
            short.truncate(max(0, width - len(self.mark)), overflow="crop")
            stem = short.plain.rpartition(" ")[0].rstrip()
            if stem and self.line.plain[len(short.plain)] != " ":
                short.right_crop(len(short.plain) - len(stem))
            short.append(self.mark)
        yield short

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the width of the whole line as the largest width."""
        return Measurement(1, max(1, self.line.cell_len))


def _labelled(label: str, *parts: str | tuple[str, str]) -> Text:
    return Text.assemble((f"{label:{LABEL}}", "dim"), *parts)


def _head(snapshot: Snapshot, width: int, glyphs: Glyphs) -> Iterator[Text]:
    """Lay out the name of the campaign, its controller and its progress."""
    status = snapshot.status
    course = "" if snapshot.course == status.phase else sanitize_line(snapshot.course)
    seconds = status.ends_in if status.counts.get("running") else None
    left = "" if seconds is None else f"  about {duration(seconds)} left"
    title = Text.assemble((sanitize_line(snapshot.name), "bold"), (left, "cyan"))
    blank = max(2, width - title.cell_len - len(course)) if course else 0
    yield title.append(" " * blank).append(course, "dim")
    yield Text(headline(replace(status, ends_in=None)), "bold")  # the title shows the time left
    share = status.at_rest / status.budget if status.budget else 0.0
    done, rest = bar(share, width, glyphs)
    yield Text.assemble((done, "green"), (rest, "dim"))


def _best(snapshot: Snapshot, width: int, glyphs: Glyphs) -> Iterator[Text]:
    """Lay out the best trial, and a curve of the best result over time."""
    best, scores = snapshot.status.best, snapshot.best_so_far
    if best is None:
        return
    score = "" if best.objective is None else f"{best.objective:.4g} "
    values = sanitize_line(describe_trial(best))
    text = f"{sanitize_line(best.name)}, epoch {best.epoch} ({values})"
    yield _labelled("best", (score, "bold green"), text)
    if len(scores) > 1:
        first, last = f"{scores[0]:.3g} ", f" {scores[-1]:.3g}"
        text = f" after {count(len(scores), 'result')}"
        room = width - LABEL - len(first) - len(last) - len(text)
        drawn = sparkline(scores, room, glyphs)
        yield _labelled("", first, (drawn, "green"), last, (text, "dim"))


def _slots(status: Status) -> Iterator[Text]:
    """Lay out the slot utilization and the largest losses."""
    yield _labelled("slots", use_of_slots(status))
    for number, loss in enumerate(name_losses(status)):
        yield _labelled("" if number else "losses", loss)


def _rungs(status: Status, width: int, glyphs: Glyphs) -> Iterator[Text]:
    """Lay out the number of trials at each rung, or at the highest rungs if there are many."""
    rungs = status.rungs[-MOST_RUNGS:]
    if len(status.rungs) < 2:
        return
    titles = ("epochs", "waiting", "running", "resting")
    yield _labelled("rungs", ("".join(f"{title:>9}" for title in titles), "dim"))
    most = max(1, *(r.waiting + r.running + r.resting for r in rungs))
    room = min(40, width - LABEL - 9 * len(titles) - 2)
    for rung in rungs:
        numbers = (rung.epochs, rung.waiting, rung.running, rung.resting)
        drawn = [("  ", "")]
        for number, style in ((rung.resting, "green"), (rung.running, "cyan")):
            columns = round(max(0, room) * number / most)
            drawn.append((glyphs.done * columns, style))
        yield _labelled("", "".join(f"{number:>9,}" for number in numbers), *drawn)


def _trouble(snapshot: Snapshot) -> Iterator[Text]:
    """Lay out failures, lost hosts, warnings and energy."""
    status, restarts = snapshot.status, snapshot.restarts
    if status.failures or restarts:
        failed = ", ".join(
            f"{n:,} {sanitize_line(reason)}" for reason, n in status.failures.items()
        )
        again = ", ".join(f"{n:,} {sanitize_line(reason)}" for reason, n in restarts.items())
        parts = [(failed, "red"), ("; " if failed and again else "", "")]
        yield _labelled("failed", *parts, (f"restarted: {again}" if again else "", "yellow"))
    if troubled := "; ".join(troubled_hosts(status)):
        yield _labelled("hosts", (sanitize_line(troubled), "red"))
    if status.warned:
        yield _labelled("warnings", (sanitize_line(_name_hosts(status.warned)), "yellow"))
    if energy_used := energy_line(status):
        yield _labelled("energy", sanitize_line(energy_used))


# -- running trials ----------------------------------------------------------------------

MOST_BAR = 32

BAR = ""
"""Title of the column of progress bars, which is left blank."""


@dataclass(frozen=True)
class TrialColumn:
    """A column of the table of running trials."""

    title: str
    least_width: int
    """Smallest width of the terminal, in columns, at which this column is shown."""
    cell: Callable[[RunningTrial], str]
    justify: Literal["left", "right"] = "right"
    style: str = ""


TRIAL_COLUMNS = (
    TrialColumn("trial", 0, lambda row: row.trial, "left", "bold"),
    TrialColumn("configuration", 60, lambda row: _configuration(row), "left"),
    TrialColumn("ranks", 70, lambda row: str(row.width)),
    TrialColumn("hosts", 100, lambda row: _hosts(row), "left"),
    TrialColumn("epoch", 0, lambda row: f"{row.epoch}/{row.until}"),
    TrialColumn(BAR, 80, lambda row: "", "left"),
    TrialColumn("ends in", 0, lambda row: _number(row.ends_in, duration)),
    TrialColumn("objective", 40, lambda row: _number(row.objective, fixed)),
    TrialColumn("s/epoch", 90, lambda row: _number(row.epoch_seconds, "{:.3g}".format)),
)


def _configuration(row: RunningTrial) -> str:
    return row.configuration + (f" ({row.stop_reason})" if row.stop_reason else "")


def _hosts(row: RunningTrial) -> str:
    first, *others = row.hosts or ("",)
    return f"{first} +{len(others)}" if others else first


def _number(value: float | None, form: Callable[[float], str]) -> str:
    return "" if value is None else form(value)


def _running(status: Status, room: int, width: int, glyphs: Glyphs) -> tuple[Table, list[Text]]:
    """Lay out the running trials in the given height; if they do not fit, those with most ranks.

    Args:
        status: status of the campaign.
        room: height in lines, 2 or more.
        width: width in columns.
        glyphs: characters to draw with.

    Returns:
        The table, and a list with a line that counts the trials left out, if there is room for it.
    """
    total = status.counts.get("running", 0)
    rows = status.running[: room - 1]
    if len(rows) < total and room > 2:
        rows = status.running[: room - 2]
    columns = [column for column in TRIAL_COLUMNS if width >= column.least_width]
    if status.hosts < 2:
        columns = [column for column in columns if column.title != "hosts"]
    table = _trials_table(rows, columns, min(MOST_BAR, width // 8), glyphs)
    hidden = total - len(rows)
    more = f"and {hidden:,} more; these are the widest {len(rows)}"
    return table, [Text(more, "dim")] if hidden and room > 2 else []


def _trials_table(
    rows: Sequence[RunningTrial], columns: Sequence[TrialColumn], room: int, glyphs: Glyphs
) -> Table:
    """Build the table of running trials, one on each line.

    Args:
        rows: the trials.
        columns: columns of the table.
        room: length of a progress bar, in terminal columns.
        glyphs: characters to draw with.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        shrinks_first = column.title == "configuration"
        table.add_column(
            column.title,
            style=column.style,
            justify=column.justify,
            no_wrap=not shrinks_first,
            overflow="crop",
        )
    for row in rows:
        done, rest = bar(row.epoch / row.until if row.until else 0.0, room, glyphs)
        drawn = Text.assemble((done, "cyan"), (rest, "dim"))
        table.add_row(
            *(
                drawn
                if c.title == BAR
                else FittedLine(Text(sanitize_line(c.cell(row))), glyphs.cut)
                for c in columns
            )
        )
    return table
