"""How a campaign stands, laid out for a terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hydragnn_hpo.campaign.accounting import CAUSES
from hydragnn_hpo.campaign.status import ROWS, RunningTrial, Status, describe_trial
from hydragnn_hpo.cli.words import count, duration, energy, percent

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

BAR = 20
"""Columns of a trial's bar."""

SHOWN_LOSSES = 3
NAMED_HOSTS = 4

NUMBERS = ("objective", "s/epoch")
RIGHT = (2, 4, 6, 7)
"""Columns of numbers."""

STYLES = {0: "bold", 5: "cyan"}
"""Styles of columns: the name, the bar."""


def headline(standing: Status) -> str:
    """Say in one line what goes on."""
    counts = standing.counts
    running = counts.get("running", 0)
    parts = [f"{standing.phase}: {standing.at_rest} of {standing.budget} trials at rest"]
    parts.append(f"{counts.get('queued', 0)} waiting")
    parts.append(f"{running} running")
    if standing.ends_in is not None and running:
        parts.append(f"about {duration(standing.ends_in)} left")
    return ", ".join(parts)


def use_of_slots(standing: Status) -> str:
    """Say how well the slots are used, and what costs most."""
    where = f"{count(standing.slots, 'slot')} on {count(standing.hosts, 'host')}"
    if standing.losses.slot_seconds == 0:
        return where
    so_far = standing.losses.share("training")
    now = f"{percent(standing.training_now)} train now, " if standing.running else ""
    said = f"{where}: {now}{percent(so_far)} {'so far' if now else 'in training'}"
    worst = standing.losses.largest
    if worst is None:
        return said
    return f"{said}; largest loss: {percent(standing.losses.share(worst))} {CAUSES[worst]}"


def details(standing: Status) -> Iterator[tuple[str, str]]:
    """Give the lines below the table: what they are about, and what they say."""
    several = len(standing.rungs) > 1
    if several:
        yield (
            "rungs",
            "   ".join(
                f"{r.epochs} epochs: {r.waiting} wait, {r.running} run, {r.resting} rest"
                for r in standing.rungs
            ),
        )
    yield "slots", use_of_slots(standing)
    if standing.lost or standing.quarantined or standing.excluded:
        yield "hosts", "; ".join(troubled_hosts(standing))
    if said := energy_line(standing):
        yield "energy", said
    if standing.warned:
        yield "look at", _hosts_of("", standing.warned)
    if (best := standing.best) is not None:
        score = "" if best.objective is None else f" {best.objective:.4f}"
        yield "best", f"{best.name}{score} ({describe_trial(best)}), epoch {best.epoch}"


def energy_line(standing: Status) -> str:
    """Say what the hosts take; what ranks measured, or why nothing is known, where they do not."""
    spent = standing.energy
    if spent.joules is None:
        ranks = f"{energy(standing.joules)} in training and validation" if standing.joules else ""
        return ranks or (f"unknown: {spent.unread}" if spent.unread else "")
    idle = f"{percent(spent.idle / spent.joules)} of it idle" if spent.joules else "none"
    said = f"{energy(spent.joules)} so far ({', '.join(spent.parts)}), {idle}"
    if spent.watts and standing.running:
        said += f"; {spent.watts / 1e3:,.1f} kW on {count(spent.hosts, 'host')} now"
    best = standing.best
    return f"{said}; {best.name}: {energy(best.energy)}" if best and best.energy else said


def losses_line(standing: Status) -> str:
    """Give the largest losses in one line."""
    shares = {c: s for c, s in standing.losses.shares.items() if c != "training" and s >= 5e-4}
    worst = sorted(shares, key=lambda cause: -shares[cause])[:SHOWN_LOSSES]
    return "; ".join(f"{percent(shares[cause])} {CAUSES[cause]}" for cause in worst)


def troubled_hosts(standing: Status) -> Iterator[str]:
    """Name the hosts that are gone, and count those that are left alone."""
    kinds = {"lost": standing.lost, "in quarantine": standing.quarantined}
    for what, hosts in kinds.items():
        if hosts:
            yield _hosts_of(f"{len(hosts)} {what}: ", hosts)
    if standing.excluded:
        yield f"{standing.excluded:,} left alone (exclude.hosts)"


def _hosts_of(what: str, hosts: dict[str, str]) -> str:
    named = [f"{host} ({reason})" for host, reason in list(hosts.items())[:NAMED_HOSTS]]
    more = len(hosts) - len(named)
    return f"{what}{', '.join(named)}{f' and {more} more' if more else ''}"


def running_rows(standing: Status) -> Iterator[tuple[str, ...]]:
    """Give the cells of the running trials below their titles; the sixth is the bar."""
    several = standing.hosts > 1
    yield ("trial", "configuration", "ranks", "hosts" if several else "", "epoch", "", *NUMBERS)
    for row in standing.running:
        done = round(BAR * min(1.0, row.epoch / row.until))
        yield (
            row.trial,
            row.configuration + (f" ({row.asked})" if row.asked else ""),
            str(row.width),
            _hosts(row) if several else "",
            f"{row.epoch}/{row.until}",
            "\u2501" * done + "\u2500" * (BAR - done),
            "" if row.objective is None else f"{row.objective:.4f}",
            "" if row.epoch_seconds is None else f"{row.epoch_seconds:.3g}",
        )


def running_table(standing: Status) -> "Text":
    """Lay out the running trials; the widest when they are too many.

    One text instead of rich's table: it is drawn twice a second by the thread that decides.
    """
    from rich.text import Text

    rows = list(running_rows(standing))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = Text(no_wrap=True)
    for number, row in enumerate(rows):
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            if width:
                shown = cell.rjust(width) if place in RIGHT else cell.ljust(width)
                text.append(shown + "  ", "dim" if number == 0 else STYLES.get(place))
        text.append("\n")
    text.rstrip()
    return text


def _hosts(row: RunningTrial) -> str:
    first, *others = row.hosts or ("",)
    return f"{first} +{len(others)}" if others else first


def laid_out(standing: Status, *, note: str = "") -> "Group":
    """Lay out everything.

    Args:
        standing: the campaign at one moment.
        note: said behind the headline.
    """
    from rich.console import Group
    from rich.text import Text

    parts = [Text(headline(standing) + note, style="bold")]
    if standing.running:
        parts += [Text(), running_table(standing)]
    if (more := standing.counts.get("running", 0) - len(standing.running)) > 0:
        parts.append(Text(f"and {more:,} more; these are the widest {ROWS}", style="dim"))
    parts.append(Text())
    for name, said in details(standing):
        parts.append(Text.assemble((f"{name:8}", "dim"), said))
    return Group(*parts)
