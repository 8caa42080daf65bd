"""When all of it can end: the common target that widths are chosen for.

n tasks, W widths. A task's canonical width for a time is the narrowest with which it takes no
longer; the target is the least time in which all canonical widths fit into the machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.placement.task import PlanningContext, RunningTask, Task

Floats = NDArray[np.float64]

NEAR = 0.003
"""The target is found to within this share of it."""

SEARCH = 100
"""Steps after which a search ends, whatever it is given."""

LONGER = 1.1
"""Widths are chosen for a time so many times longer at most where all can start at once then."""


@dataclass(frozen=True)
class PriceTable:
    """Tasks side by side: what every width takes."""

    seconds: Floats
    """Seconds left, start-up included where it must start, [n, W]; infinite where not allowed."""
    slots: Floats
    """Slots that a width occupies, [n, W]; infinite where there is no such width."""
    now: Floats
    """Slots held now, [n]; 0 for a task that waits."""
    left: Floats
    """Seconds left as it runs now, [n]; infinite for a task that waits."""
    movable: NDArray[np.bool_]
    """Whether its width may be chosen now, or may be later, [n]."""
    ready: NDArray[np.bool_]
    """Whether its width may be chosen now, [n]."""

    @cached_property
    def _fastest(self) -> NDArray[np.intp]:
        fastest: NDArray[np.intp] = self.seconds.argmin(axis=1)
        return fastest

    @cached_property
    def best(self) -> Floats:
        """Seconds in which each could end at its quickest width, [n]."""
        best = np.where(self.movable, self.seconds.min(axis=1), np.inf)
        return np.minimum(best, self.left)

    def column(self, seconds: float | Floats) -> NDArray[np.intp]:
        """Return the column of the canonical width for a time; the quickest where none will do."""
        enough = self.seconds <= np.broadcast_to(seconds, len(self.now))[:, None]
        narrowest = enough.argmax(axis=1)
        some = enough[np.arange(len(narrowest)), narrowest]
        columns: NDArray[np.intp] = np.where(some, narrowest, self._fastest)
        return columns

    def occupied(self, seconds: float) -> float:
        """Return the slot-seconds that all take within a time, at their canonical widths."""
        rows, columns = np.arange(len(self.now)), self.column(seconds)
        stays = ~self.movable | (self.left <= seconds)
        slots = np.where(stays, self.now, self.slots[rows, columns])
        spent = np.where(stays, self.left, self.seconds[rows, columns])
        return float((slots * np.minimum(spent, seconds)).sum())

    def all_at_once(self, count: int, seconds: float, free: int) -> float:
        """Return a time, little longer, for which the first tasks can all start now; or the same.

        Who starts at once is measured early, which is worth a little where predictions are poor.

        Args:
            count: how many tasks these are.
            seconds: the time that widths were to be chosen for.
            free: slots that they may have.
        """
        rows = np.arange(count)

        def needed(limit: float) -> float:
            return float(self.slots[rows, self.column(limit)[:count]].sum())

        if needed(seconds) <= free or needed(LONGER * seconds) > free:
            return seconds
        return smallest_fitting(lambda limit: needed(limit) <= free, seconds, LONGER * seconds)

    def quickest(self) -> float:
        """Return the seconds until the longest can end at its quickest width."""
        return float(self.best.max(initial=0.0))


def build_price_table(
    waiting: Sequence[Task], running: Sequence[RunningTask], total: int, outlook: PlanningContext
) -> PriceTable:
    """Lay tasks side by side, those that wait first.

    A running one is priced by its pace: what it takes at other widths is in proportion to its
    prices. It may move while it has restarts left, now where its pace is measured and it can stop.

    Args:
        waiting: tasks that wait.
        running: tasks that hold slots.
        total: slots of the machine.
        outlook: names the efficiency that widths keep, and the restarts that a task may have.
    """
    tasks = [*waiting, *(each.task for each in running)]
    first, count = len(waiting), len(tasks)
    seconds, slots = width_tables(tasks)
    fine = allowed_widths(seconds, slots, outlook.efficiency_floor, total)
    now, left = np.zeros(count), np.full(count, np.inf)
    now[first:] = [each.width * each.task.lanes for each in running]
    left[first:] = [max(each.seconds_left, 0.0) for each in running]
    # A trial whose end is not known is expected to keep its slots.
    left[first:][~np.isfinite(left[first:])] = 0.0
    present = np.array([each.task.at(each.width) for each in running])
    waits = np.array([each.checkpoint_in for each in running])
    stays = np.maximum(left[first:] - waits, 0.0) / np.maximum(present, 1e-9)
    again = np.array([task.requested_width is not None for task in waiting], dtype=bool)
    seconds[:first][again] += outlook.restart_seconds
    with np.errstate(invalid="ignore"):
        seconds[first:] *= stays[:, None]
    seconds[first:] += (waits + outlook.restart_seconds)[:, None]
    seconds[~fine] = np.inf
    movable, ready = np.ones(count, dtype=bool), np.ones(count, dtype=bool)
    movable[first:] = [each.task.restarts < outlook.restarts for each in running]
    movable[first:] &= np.isfinite(present)
    ready[first:] = [each.stoppable and each.task.measured for each in running]
    return PriceTable(seconds, slots, now, left, movable, ready & movable)


def width_tables(tasks: Sequence[Task]) -> tuple[Floats, Floats]:
    """Return seconds and slots of all widths, [n, W] each; infinite beyond a task's last width.

    Returns:
        Seconds, [n, W], and slots, [n, W]; n tasks, W widths of the task that has most.
    """
    shape = (len(tasks), max((len(task.widths) for task in tasks), default=1))
    seconds, slots = np.full(shape, np.inf), np.full(shape, np.inf)
    for row, task in enumerate(tasks):
        seconds[row, : len(task.widths)], slots[row, : len(task.widths)] = task.rows
    return seconds, slots


def allowed_widths(seconds: Floats, slots: Floats, floor: float, total: int) -> NDArray[np.bool_]:
    """Return which widths fit the machine and keep efficiency above a floor; the narrowest does.

    Args:
        seconds: by task and width, [n, W]; infinite where a task has no such width.
        slots: likewise, [n, W].
        floor: least efficiency over that of the narrowest width, 0 to 1.
        total: slots of the machine.

    Returns:
        Mask, [n, W].
    """
    with np.errstate(invalid="ignore"):
        efficiency = (seconds[:, :1] * slots[:, :1]) / (seconds * slots)
        fine = efficiency >= floor
    fine[:, :1] = True
    return fine & (slots <= total) & np.isfinite(seconds)


def common_deadline(prices: PriceTable, total: int, to_come: float = 0.0) -> float:
    """Return the least seconds in which all of it fits into ``total`` slots.

    What cannot end in that time even at its quickest width is counted as long as the time is.

    Args:
        prices: what every width takes.
        total: slots of the machine.
        to_come: slot-seconds of trials that are not known yet.
    """
    if not len(prices.now) or total <= 0:
        return 0.0

    def fits(seconds: float) -> bool:
        return prices.occupied(seconds) + to_come <= total * seconds

    waits = prices.now == 0
    longest = np.where(waits, prices.seconds[:, 0], prices.left)
    slots = np.where(waits, prices.slots[:, 0], prices.now)
    high = max((float((longest * slots).sum()) + to_come) / total + float(longest.max()), 1e-9)
    # Below the shortest no width changes any more; where nothing is left, a millionth will do.
    least = max(float(prices.best.min()), 1e-6 * high)
    return smallest_fitting(fits, min(least, high), high)


def smallest_fitting(
    fits: Callable[[float], bool], low: float, high: float, near: float = NEAR
) -> float:
    """Return the least time that fits, to within a share ``near``; ``high`` fits, or is doubled.

    Halves first in orders of magnitude: what fits may be far below.

    Args:
        fits: whether everything fits into a time in seconds; false below some time, true above.
        low: seconds that do not fit, or 0.
        high: seconds to begin with.
        near: share of the answer by which it may be too large.
    """
    for _ in range(SEARCH):
        if fits(high):
            break
        low, high = high, 2.0 * high
    for _ in range(SEARCH):
        if high - low <= near * high:
            break
        middle = (low * high) ** 0.5 if 4.0 * low < high else (low + high) / 2.0
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
