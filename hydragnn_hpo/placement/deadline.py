"""Compute the common deadline of all tasks, from which their widths follow.

A task's canonical width for a time is its narrowest width that takes no longer than this time. The
deadline is the least time in which all tasks fit into the machine at their canonical widths.

Shapes: n tasks, W widths.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.placement.task import PlanningContext, RunningTask, Task

Floats = NDArray[np.float64]

NEAR = 0.003
"""Relative tolerance of the deadline."""

SEARCH = 100
"""Maximum number of steps of each loop of a search."""

LONGER = 1.1
"""Largest factor by which the time for widths is extended so that all tasks can start at once."""


@dataclass(frozen=True)
class PriceTable:
    """Time and slots of every task at every width."""

    seconds: Floats
    """Seconds left, including a restart where one is needed, [n, W]; infinite if not allowed."""
    slots: Floats
    """Slots that a width occupies, [n, W]; infinite if the task has no such width."""
    now: Floats
    """Slots held now, [n]; 0 for a waiting task."""
    left: Floats
    """Seconds left at the present width, [n]; infinite for a waiting task."""
    movable: NDArray[np.bool_]
    """Whether the task may change its width now or later, [n]."""
    ready: NDArray[np.bool_]
    """Whether the task may change its width now, [n]."""

    @cached_property
    def _fastest(self) -> NDArray[np.intp]:
        fastest: NDArray[np.intp] = self.seconds.argmin(axis=1)
        return fastest

    @cached_property
    def best(self) -> Floats:
        """Least seconds in which each task can end, at its fastest width or as it runs, [n]."""
        best = np.where(self.movable, self.seconds.min(axis=1), np.inf)
        return np.minimum(best, self.left)

    def column(self, seconds: float | Floats) -> NDArray[np.intp]:
        """Return the column of each canonical width, [n]; the fastest width if none is enough.

        Args:
            seconds: time for all tasks, or one per task, [n].
        """
        enough = self.seconds <= np.broadcast_to(seconds, len(self.now))[:, None]
        narrowest = enough.argmax(axis=1)
        some = enough[np.arange(len(narrowest)), narrowest]
        columns: NDArray[np.intp] = np.where(some, narrowest, self._fastest)
        return columns

    def occupied(self, seconds: float) -> float:
        """Return the slot-seconds that all tasks use within a time at their canonical widths."""
        rows = np.arange(len(self.now))
        columns = self.column(seconds)
        stays = ~self.movable | (self.left <= seconds)
        slots = np.where(stays, self.now, self.slots[rows, columns])
        spent = np.where(stays, self.left, self.seconds[rows, columns])
        return float((slots * np.minimum(spent, seconds)).sum())

    def all_at_once(self, count: int, seconds: float, free: int) -> float:
        """Extend a time, by at most ``LONGER``, so that the first ``count`` tasks can start now.

        Tasks that start at once are measured early, which is worth a small delay while predictions
        are poor.

        Args:
            count: number of tasks, from the first row.
            seconds: time that widths would be chosen for.
            free: slots available to these tasks.

        Returns:
            Seconds; unchanged if all can start already, or cannot even in the longest time.
        """
        rows = np.arange(count)

        def needed(limit: float) -> float:
            return float(self.slots[rows, self.column(limit)[:count]].sum())

        if needed(seconds) <= free or needed(LONGER * seconds) > free:
            return seconds
        return smallest_fitting(lambda limit: needed(limit) <= free, seconds, LONGER * seconds)

    def quickest(self) -> float:
        """Return the seconds until the last task can end if each has its fastest width."""
        return float(self.best.max(initial=0.0))


def build_price_table(
    waiting: Sequence[Task], running: Sequence[RunningTask], total: int, outlook: PlanningContext
) -> PriceTable:
    """Build the price table, waiting tasks first.

    Seconds of a running task at other widths are scaled from its seconds left by the ratio of its
    prices. It may change its width while it has restarts left; it may do so now if its speed is
    measured and it can be stopped.

    Args:
        waiting: tasks without slots.
        running: tasks that hold slots.
        total: slots of the machine.
        outlook: efficiency floor, cost of a restart and maximum number of restarts.
    """
    tasks = [*waiting, *(each.task for each in running)]
    first = len(waiting)
    count = len(tasks)
    seconds, slots = width_tables(tasks)
    fine = allowed_widths(seconds, slots, outlook.efficiency_floor, total)
    now = np.zeros(count)
    left = np.full(count, np.inf)
    now[first:] = [each.width * each.task.lanes for each in running]
    left[first:] = [max(each.seconds_left, 0.0) for each in running]
    # With 0 left, a trial of unknown length never counts as late.
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
    movable = np.ones(count, dtype=bool)
    ready = np.ones(count, dtype=bool)
    movable[first:] = [each.task.restarts < outlook.restarts for each in running]
    movable[first:] &= np.isfinite(present)
    ready[first:] = [each.stoppable and each.task.measured for each in running]
    return PriceTable(seconds, slots, now, left, movable, ready & movable)


def width_tables(tasks: Sequence[Task]) -> tuple[Floats, Floats]:
    """Return seconds and slots of all tasks at all their widths.

    Returns:
        Seconds, [n, W], and slots, [n, W]; infinite beyond a task's last width.
    """
    shape = (len(tasks), max((len(task.widths) for task in tasks), default=1))
    seconds = np.full(shape, np.inf)
    slots = np.full(shape, np.inf)
    for row, task in enumerate(tasks):
        seconds[row, : len(task.widths)], slots[row, : len(task.widths)] = task.rows
    return seconds, slots


def allowed_widths(seconds: Floats, slots: Floats, floor: float, total: int) -> NDArray[np.bool_]:
    """Return which widths fit into the machine and keep efficiency above a floor.

    Args:
        seconds: by task and width, [n, W]; infinite if a task has no such width.
        slots: by task and width, [n, W]; infinite if a task has no such width.
        floor: least efficiency relative to the narrowest width, 0 to 1.
        total: slots of the machine.

    Returns:
        Mask, [n, W]; the narrowest width always passes the efficiency test.
    """
    with np.errstate(invalid="ignore"):
        efficiency = (seconds[:, :1] * slots[:, :1]) / (seconds * slots)
        fine = efficiency >= floor
    fine[:, :1] = True
    return fine & (slots <= total) & np.isfinite(seconds)


def common_deadline(prices: PriceTable, total: int, to_come: float = 0.0) -> float:
    """Return the least seconds in which all tasks fit into ``total`` slots.

    Of a task that needs longer even at its fastest width, only the part within the time counts.

    Args:
        prices: time and slots of every task at every width.
        total: slots of the machine.
        to_come: slot-seconds of trials that are not proposed yet.
    """
    if not len(prices.now) or total <= 0:
        return 0.0

    def fits(seconds: float) -> bool:
        return prices.occupied(seconds) + to_come <= total * seconds

    waits = prices.now == 0
    longest = np.where(waits, prices.seconds[:, 0], prices.left)
    slots = np.where(waits, prices.slots[:, 0], prices.now)
    high = max((float((longest * slots).sum()) + to_come) / total + float(longest.max()), 1e-9)
    # Below the shortest task no width changes; a small share of ``high`` avoids a bound of 0.
    least = max(float(prices.best.min()), 1e-6 * high)
    return smallest_fitting(fits, min(least, high), high)


def smallest_fitting(
    fits: Callable[[float], bool], low: float, high: float, near: float = NEAR
) -> float:
    """Return the least time that fits, by bisection, too long by at most a share ``near``.

    Bounds more than a factor 4 apart are bisected on a logarithmic scale.

    Args:
        fits: whether everything fits into a time in seconds; false below some time, true above.
        low: lower bound in seconds.
        high: first upper bound in seconds; doubled until it fits.
        near: relative tolerance.
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
