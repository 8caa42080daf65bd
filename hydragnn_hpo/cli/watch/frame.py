"""A campaign on a terminal of any size: lines that fit, the most important ones first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.text import Text

from hydragnn_hpo.campaign.accounting import CAUSES
from hydragnn_hpo.campaign.status import RunningTrial, Status, describe_trial
from hydragnn_hpo.cli.standing_view import energy_line, headline, troubled_hosts
from hydragnn_hpo.cli.watch.rows import columns_of, lay_out
from hydragnn_hpo.cli.watch.sight import Sight
from hydragnn_hpo.cli.watch.signs import STYLES, Signs, bar, curve, parts
from hydragnn_hpo.cli.words import count, duration, percent
from hydragnn_hpo.text import one_line

LABEL = 9
"""Columns of what a line is about."""

MOST_RUNGS = 5
AIRY = 36
"""Lines from which blocks stand apart even if trials have to go."""

LEAST_ROWS = 4
"""Lines for running trials, their titles included, that are kept before others go."""


@dataclass(frozen=True)
class Page:
    """Where it is drawn."""

    width: int
    height: int
    signs: Signs


def frame(sight: Sight, name: str, page: Page, note: str = "") -> list[Text]:
    """Lay out a campaign in as many lines as there are, none wider than there is room.

    Args:
        sight: the campaign at one moment.
        name: of its run directory.
        page: the room.
        note: in the last line.
    """
    standing = sight.standing
    top = [*_head(sight, name, page), *_best(sight, page)]
    middle = [*_slots(standing, page), *_rungs(standing, page)]
    trouble = list(_trouble(sight))
    foot = [Text(note, "dim")] if note else []
    room = page.height - len(top) - len(foot)
    wanted = min(LEAST_ROWS, 1 + len(standing.running)) if standing.running else 0
    middle = middle[: max(0, room - wanted)]
    trouble = trouble[: max(0, room - wanted - len(middle))]
    room -= len(middle) + len(trouble) + (3 if page.height >= AIRY else 0)
    running = running_lines(standing, page.width, room, page.signs)
    spare = page.height - sum(map(len, (top, middle, trouble, running, foot)))
    gaps = iter([True] * max(0, spare))
    lines = [*top, *_after(middle, gaps), *_after(trouble, gaps), *_after(running, gaps)]
    lines = lines[: page.height - len(foot)]
    lines += [Text()] * (page.height - len(foot) - len(lines)) if note else []
    return [_cut(line, page) for line in [*lines, *foot]]


def _after(lines: Sequence[Text], gaps: Iterator[bool]) -> list[Text]:
    """Put a line without words before a block, while there is room for one."""
    if not lines or not next(gaps, False):
        return list(lines)
    return [Text(), *lines]


def _cut(line: Text, page: Page) -> Text:
    """Cut a line to the width of the page; nothing wraps."""
    line.no_wrap = True
    if line.cell_len > page.width:
        line.truncate(max(0, page.width - len(page.signs.more)))
        line.append(page.signs.more, "dim")
    return line


def _labelled(label: str, *said: "str | tuple[str, str]") -> Text:
    return Text.assemble((f"{label:{LABEL}}", "dim"), *said)


def _head(sight: Sight, name: str, page: Page) -> Iterator[Text]:
    """Say which campaign it is, who runs it, and how far it is."""
    standing = sight.standing
    course = "" if sight.course == standing.phase else one_line(sight.course)
    ahead = standing.ends_in if standing.counts.get("running") else None
    left = "" if ahead is None else f"  about {duration(ahead)} left"
    title = Text.assemble((one_line(name), "bold"), (left, "cyan"))
    blank = max(2, page.width - title.cell_len - len(course))
    yield title.append(" " * blank).append(course, "dim")
    yield Text(headline(replace(standing, ends_in=None)), "bold")
    share = standing.at_rest / standing.budget if standing.budget else 0.0
    done, rest = bar(share, page.width, page.signs)
    yield Text.assemble((done, "green"), (rest, "dim"))


def _best(sight: Sight, page: Page) -> Iterator[Text]:
    """Name the best, and draw how the best result fell."""
    best = sight.standing.best
    if best is None:
        return
    score = "" if best.objective is None else f"{best.objective:.4g} "
    told = f"{one_line(best.name)} ({one_line(describe_trial(best))}), epoch {best.epoch}"
    yield _labelled("best", (score, "bold green"), told)
    if len(sight.best) > 1:
        first, last = f"{sight.best[0]:.3g} ", f" {sight.best[-1]:.3g}"
        said = f" after {count(len(sight.best), 'result')}"
        room = page.width - LABEL - len(first) - len(last) - len(said)
        drawn = curve(sight.best, room, page.signs)
        yield _labelled("", first, (drawn, "green"), last, (said, "dim"))


def _slots(standing: Status, page: Page) -> Iterator[Text]:
    """Say what the slots do, and draw where their time went."""
    where = f"{count(standing.slots, 'slot')} on {count(standing.hosts, 'host')}"
    if standing.losses.slot_seconds == 0:
        yield _labelled("slots", where)
        return
    now = f", {percent(standing.training_now)} train now" if standing.running else ""
    so_far = percent(standing.losses.share("training"))
    yield _labelled("slots", f"{where}{now}, {so_far} of the time so far")
    shares = standing.losses.shares
    columns = parts(shares, max(1, page.width - LABEL))
    causes = [(page.signs.causes[c] * columns[c], STYLES[c]) for c in CAUSES]
    yield _labelled("", *causes)
    largest = sorted((c for c in CAUSES if shares[c] >= 5e-4), key=lambda c: -shares[c])
    legend = Text(" " * LABEL)
    for cause in largest:
        entry = f"{page.signs.causes[cause]} "
        said = f"{cause.replace('_', '-')} {percent(shares[cause])}  "
        if legend.cell_len + len(entry) + len(said) - 2 > page.width:
            break
        legend.append(entry, STYLES[cause]).append(said, "dim")
    yield legend


def _rungs(standing: Status, page: Page) -> Iterator[Text]:
    """Count the trials at each rung; the highest rungs where there are many."""
    rungs = standing.rungs[-MOST_RUNGS:]
    if len(standing.rungs) < 2:
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


def _trouble(sight: Sight) -> Iterator[Text]:
    """Say what failed, which hosts are gone, and what it all takes."""
    standing = sight.standing
    if standing.failures or sight.restarts:
        failed = ", ".join(f"{n:,} {one_line(reason)}" for reason, n in standing.failures.items())
        again = ", ".join(f"{n:,} {one_line(reason)}" for reason, n in sight.restarts.items())
        said = [(failed, "red"), ("; " if failed and again else "", "")]
        yield _labelled("failed", *said, (f"started again: {again}" if again else "", "yellow"))
    if troubled := "; ".join(troubled_hosts(standing)):
        yield _labelled("hosts", (one_line(troubled), "red"))
    if standing.warned:
        odd = [f"{host} ({reason})" for host, reason in standing.warned.items()]
        yield _labelled("look at", (one_line(", ".join(odd)), "yellow"))
    if energy := energy_line(standing):
        yield _labelled("energy", one_line(energy))


def running_lines(standing: Status, width: int, room: int, signs: Signs) -> list[Text]:
    """Lay out the running trials in some lines; the widest where they are too many."""
    running: Sequence[RunningTrial] = standing.running
    if not running or room < 2:
        return []
    total = standing.counts.get("running", 0)
    shown_rows = running[: room - 1]
    if len(shown_rows) < total and room > 2:
        shown_rows = running[: room - 2]
    columns = columns_of(shown_rows, several=standing.hosts > 1)
    lines = lay_out(columns, width, signs)
    if (more := total - len(shown_rows)) > 0 and room > 2:
        lines.append(Text(f"and {more:,} more; these are the widest", "dim"))
    return lines
