"""Decide which waiting trials start now, on which slots, how wide: a pure function.

Longest first. A trial gets the fewest ranks (a power of two) that keep it from outlasting
the others; what cannot start yet keeps its turn, and short trials fill the holes meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hydragnn_hpo.placement.cost import efficiency

EFFICIENCY_FLOOR = 0.7
"""No trial is made so wide that it wastes more than this leaves."""

OUTLASTS = 1.4
"""A trial longer than this many typical ones is made wider."""


@dataclass(frozen=True)
class Waiting:
    """A trial that could start."""

    name: str
    seconds: float
    """Predicted time on one slot up to its rung."""
    max_width: int


@dataclass(frozen=True)
class Running:
    """A trial that holds slots."""

    name: str
    slots: tuple[str, ...]
    seconds_left: float


@dataclass(frozen=True)
class Decision:
    """Start this trial on these slots."""

    name: str
    slots: tuple[str, ...]
    reason: str

    @property
    def width(self) -> int:
        """Number of ranks."""
        return len(self.slots)


def plan(
    waiting: Sequence[Waiting],
    running: Sequence[Running],
    free: Sequence[str],
    *,
    total: int,
    typical: float,
    more_to_come: bool,
) -> list[Decision]:
    """Choose what starts now.

    Args:
        waiting: trials that could start.
        running: trials that hold slots.
        free: free slots, neighbours side by side.
        total: slots of the whole allocation.
        typical: seconds that a typical trial takes on one slot.
        more_to_come: whether further trials will be proposed, so that no tail is in sight.

    Each decision names its reason.
    """
    decisions: list[Decision] = []
    room = list(free)
    queue = sorted(waiting, key=lambda waits: (-waits.seconds, waits.name))
    held: Waiting | None = None
    wait = 0.0
    for place, trial in enumerate(queue):
        last = not more_to_come and place == len(queue) - 1
        width, reason = _width(trial, typical, total, len(room) if last else 0)
        if width > len(room):
            wait = _wait(width, len(room), running) if held is None else wait
            held = held or trial
            continue
        if held and not _fits_before(trial, width, wait):
            continue
        reason += f"; backfill before {held.name}" if held else ""
        decisions.append(Decision(trial.name, tuple(room[:width]), reason))
        del room[:width]
    return decisions


def _width(trial: Waiting, usual: float, total: int, idle: int) -> tuple[int, str]:
    """Give the fewest ranks that keep a trial within ``OUTLASTS`` typical ones.

    The last trial of all may take up to ``idle`` slots that nobody else will want.
    """
    width, widest = 1, _widest(trial, total)
    while 2 * width <= widest and _time(trial, width) > OUTLASTS * usual:
        width *= 2
    wider = _power_of_two(min(idle, widest)) if idle else width
    if wider > width:
        return wider, "last of the queue: takes what is idle"
    if width == 1:
        return 1, "one rank is enough"
    return width, f"{trial.seconds / usual:.1f} times a typical trial: {width} ranks"


def _widest(trial: Waiting, total: int) -> int:
    width = 1
    while 2 * width <= min(trial.max_width, total) and efficiency(2 * width) >= EFFICIENCY_FLOOR:
        width *= 2
    return width


def _time(trial: Waiting, width: int) -> float:
    return trial.seconds / (width * efficiency(width))


def _power_of_two(number: int) -> int:
    return 1 << (max(number, 1).bit_length() - 1)


def _fits_before(trial: Waiting, width: int, wait: float) -> bool:
    """Whether a short trial ends before the slots that a held one waits for are free."""
    return _time(trial, width) <= 1.1 * wait


def _wait(wanted: int, free: int, running: Sequence[Running]) -> float:
    """Give the seconds until ``wanted`` slots will be free."""
    for one in sorted(running, key=lambda r: r.seconds_left):
        free += len(one.slots)
        if free >= wanted:
            return one.seconds_left
    return 0.0
