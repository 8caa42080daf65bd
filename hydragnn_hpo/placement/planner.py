"""Decide which trials start now, on which slots and how wide, and which are resized; no state.

The aim is that all trials end at the same time: each gets the fewest ranks that end it by the
common deadline, the longest trial first. The first trial that finds too few free slots gets a
reservation, and shorter ones are backfilled before it. A running trial that would miss the deadline
is widened at a checkpoint if that gains more time than it costs.
"""

import bisect
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hydragnn_hpo.placement.deadline import Floats, PriceTable, build_price_table, common_deadline
from hydragnn_hpo.placement.pool import SlotPool
from hydragnn_hpo.placement.task import (
    Plan,
    PlanningContext,
    ResizeTask,
    RunningTask,
    StartTask,
    Task,
    format_duration,
    narrow_running,
    narrow_task,
)


@dataclass(frozen=True)
class Reservation:
    """Future slots of a trial that finds too few free slots now."""

    name: str
    slots: int
    wait: float
    """Seconds until its slots are free."""
    spare: float
    """Further slots that will be free at that time."""


class BackfillScheduler:
    """Assigns free slots to waiting trials: in queue order, with backfill and one reservation."""

    def __init__(
        self,
        queue: Sequence[Task],
        busy: Sequence[RunningTask],
        priced: PriceTable,
        room: SlotPool,
        aim: float,
        kept: int,
    ) -> None:
        """Start with no slots assigned.

        Args:
            queue: waiting trials, in the order of their starts.
            busy: running trials.
            priced: price table of both, waiting trials first.
            room: slots; the pool is changed.
            aim: seconds that widths are chosen for.
            kept: free slots reserved for trials that were asked to yield.
        """
        self.queue, self.priced, self.room, self.kept = queue, priced, room, kept
        self.aim = priced.all_at_once(len(queue), aim, self.available)
        self.columns = priced.column(self.aim)[: len(queue)].tolist()
        self.ends = sorted((each.seconds_left, each.width * each.task.lanes) for each in busy)
        self.starts: list[StartTask] = []
        self.held: dict[str, str] = {}
        self.hold: Reservation | None = None

    @property
    def available(self) -> int:
        """Slots that are free and not reserved."""
        return max(self.room.free - self.kept, 0)

    def start(self, rows: Iterable[int]) -> None:
        """Start the trials in these rows of the queue that fit, and note why others are held."""
        for row in rows:
            task = self.queue[row]
            free = self.available
            if not free:
                return
            if task.requested_width in task.widths:
                self.columns[row] = task.widths.index(task.requested_width)
            if self.hold is None:
                self._start_or_hold(row, free)
            elif not self._before(row, free, self.hold) or not self._take(
                row, self.columns[row], f"; backfill before {self.hold.name}"
            ):
                self.held[task.name] = f"behind {self.hold.name}, which waits for its slots"

    def _start_or_hold(self, row: int, free: int) -> None:
        """Start a trial, or reserve slots for it.

        It starts at its canonical width if that fits, else at a narrower one if it then ends
        no later than after waiting for the canonical width.
        """
        task, column = self.queue[row], self.columns[row]
        slots = int(self.priced.slots[row, column])
        if slots <= free and self._take(row, column, ""):
            return
        wait, spare = self._wait(slots)
        narrow = int(self.priced.slots[row].searchsorted(free, side="right")) - 1
        sooner = wait + self.priced.seconds[row, column]
        if narrow >= 0 and self.priced.seconds[row, narrow] <= sooner:
            ending = f"; {task.widths[column]} ranks would be free in {format_duration(wait)}"
            if self._take(row, narrow, ending):
                return
        self.hold = Reservation(task.name, slots, wait, spare)
        self.held[task.name] = (
            f"waits {format_duration(wait)} for {slots} slots: {free} of {self.room.total} are free"
        )

    def _before(self, row: int, free: int, hold: Reservation) -> bool:
        """Check whether a trial fits and does not delay the trial with the reservation."""
        slots = self.priced.slots[row, self.columns[row]]
        if slots > free:
            return False
        return bool(self.priced.seconds[row, self.columns[row]] <= hold.wait or slots <= hold.spare)

    def _take(self, row: int, column: int, ending: str) -> bool:
        """Start a trial at a width; return False if its slots are not available."""
        task = self.queue[row]
        width = task.widths[column]
        seconds = float(self.priced.seconds[row, column])
        taken = self.room.take(width, task.lanes)
        if taken is None:
            return False
        if self.hold and seconds > self.hold.wait:
            spare = self.hold.spare - len(taken)
            self.hold = Reservation(self.hold.name, self.hold.slots, self.hold.wait, spare)
        bisect.insort(self.ends, (seconds, len(taken)))
        reason = self._reason(row, width, seconds) + ending
        self.starts.append(StartTask(task.name, taken, width, reason))
        return True

    def _reason(self, row: int, width: int, seconds: float) -> str:
        task = self.queue[row]
        count = len(self.queue)
        if task.requested_width == width:
            return f"goes on at {width} ranks, for which it was stopped"
        turn = "the only one" if count == 1 else f"number {row + 1} of {count} by length"
        many = "1 rank ends" if width == 1 else f"{width} ranks end"
        if seconds > self.aim:
            return f"{turn}: {many} it in {format_duration(seconds)}"
        return f"{turn}: {many} it with the others in {format_duration(self.aim)}"

    def _wait(self, wanted: int) -> tuple[float, float]:
        """Return the seconds until ``wanted`` slots are free, and the number of further free slots.

        If enough slots are free, but not as whole devices, wait for the next trial to end.
        """
        free = self.available
        if free >= wanted and self.ends:
            return self.ends[0][0], 0.0
        for seconds, slots in self.ends:
            free += slots
            if free >= wanted:
                return seconds, free - wanted
        return 0.0, 0.0


WORTH = 2.0
"""Least gain in time of a resize, over the cost of its restart."""

GROWTH = 1.5
"""Least new width over the present one, for a late trial that cannot get its canonical width."""


def reserve_for_yielding(busy: Sequence[RunningTask]) -> int:
    """Return the number of free slots reserved for trials that were asked to yield."""
    return sum(
        max(each.task.requested_width - each.width, 0) * each.task.lanes
        for each in busy
        if each.task.requested_width is not None
    )


class WidthPlanner:
    """Chooses which running trials change their width."""

    def __init__(
        self,
        busy: Sequence[RunningTask],
        priced: PriceTable,
        *,
        deadline: float,
        free: int,
        outlook: PlanningContext,
    ) -> None:
        """Start with nothing changed.

        Args:
            busy: running trials.
            priced: price table; its last rows are the running trials.
            deadline: seconds until all trials should have ended.
            free: number of free slots that are not reserved.
            outlook: cost of a restart and maximum number of restarts.
        """
        self.busy, self.priced, self.deadline, self.free = busy, priced, deadline, free
        self.first = len(priced.now) - len(busy)
        self.worth = WORTH * max(outlook.restart_seconds, 1e-3)
        self.restarts = outlook.restarts
        self.columns = priced.column(deadline)
        self.changes: list[ResizeTask] = []
        self.kept = 0
        """Free slots that the resizes need; nothing else may start on them."""
        self._ends: tuple[Floats, Floats] | None = None

    def decide(self) -> None:
        """Widen running trials that would miss the deadline, the latest first."""
        priced = self.priced
        late = np.flatnonzero(priced.ready & (priced.left > self.deadline + self.worth))
        late = late[late >= self.first]
        needed = 0
        wanted = 0.0
        for row in late[np.argsort(-priced.left[late], kind="stable")].tolist():
            column = int(self.columns[row])
            extra = int(priced.slots[row, column] - priced.now[row])
            if extra <= 0:
                continue
            wanted += extra
            if extra <= self.free:
                self._widen(row, column)
            elif self._comes_too_late(row, wanted):
                needed += extra - self.free
                self.kept += self.free
                self.free = 0
            else:
                self._widen_partly(row)
        if needed > 0:
            self._narrow_others(needed)

    def _widen(self, row: int, column: int) -> None:
        extra = int(self.priced.slots[row, column] - self.priced.now[row])
        self.free -= extra
        self.kept += extra
        self._ask(row, column, "would end in")

    def _widen_partly(self, row: int) -> None:
        """Widen a late trial with the free slots if that gains enough; keep its last restart."""
        if self.busy[row - self.first].task.restarts + 1 >= self.restarts:
            return
        slots, now = self.priced.slots[row], self.priced.now[row]
        column = int(slots.searchsorted(now + self.free, side="right")) - 1
        gain = self.priced.left[row] - self.priced.seconds[row, column]
        if column >= 0 and slots[column] >= GROWTH * now and gain >= self.worth:
            self._widen(row, column)

    def _comes_too_late(self, row: int, wanted: float) -> bool:
        """Check whether a trial would miss the deadline even if it is widened later.

        Args:
            row: row of the late trial in the price table.
            wanted: slots that must become free first, those for even later trials included.
        """
        if self._ends is None:
            rows = slice(self.first, None)
            order = np.argsort(self.priced.left[rows], kind="stable")
            self._ends = self.priced.left[rows][order], self.priced.now[rows][order].cumsum()
        seconds, slots = self._ends
        place = int(slots.searchsorted(wanted - self.free))
        if place == len(seconds):
            return True
        wait = float(seconds[place])
        left = float(self.priced.left[row])
        best = wait + max(1.0 - wait / left, 0.0) * float(self.priced.best[row])
        return best > self.deadline + self.worth

    def _narrow_others(self, needed: int) -> None:
        """Narrow trials that still meet the deadline, those with most slots to spare first."""
        priced = self.priced
        needed -= sum(
            max(each.width - each.task.requested_width, 0) * each.task.lanes
            for each in self.busy
            if each.task.requested_width is not None
        )
        rows = np.arange(len(priced.now))
        spared = priced.now - priced.slots[rows, self.columns]
        early = (
            priced.ready & (priced.now > 0) & (priced.seconds[rows, self.columns] <= self.deadline)
        )
        early &= priced.left <= self.deadline
        spared = np.where(early, spared, 0.0)
        for row in np.argsort(-spared, kind="stable").tolist():
            if needed <= 0 or spared[row] <= 0:
                return
            needed -= int(spared[row])
            self._ask(row, int(self.columns[row]), "could spare ranks: ends in")

    def _ask(self, row: int, column: int, how: str) -> None:
        task = self.busy[row - self.first].task
        width = task.widths[column]
        left = float(self.priced.left[row])
        seconds = float(self.priced.seconds[row, column])
        reason = (
            f"{how} {format_duration(left)}, the others in {format_duration(self.deadline)}: "
            f"{width} ranks end it in {format_duration(seconds)}"
        )
        self.changes.append(ResizeTask(task.name, width, reason))


OUTLASTS = 1.4
"""Length over the median from which trials start wide while the number to come is unknown."""


def plan(
    waiting: Sequence[Task],
    running: Sequence[RunningTask],
    pool: SlotPool,
    outlook: PlanningContext,
) -> Plan:
    """Decide which trials start or are resized now; the result depends on the arguments alone.

    With one slot, trials start in the given order. This costs no time and keeps a campaign
    reproducible although measured times vary (Law 5: all randomness derives from the seed).

    Args:
        waiting: trials that could start.
        running: trials that hold slots.
        pool: slots; not changed.
        outlook: time left, trials to come, and costs of restarts and checkpoints.
    """
    if pool.widest < pool.total:  # several allocations: a trial must fit into one of them
        waiting = [narrow_task(task, pool.widest) for task in waiting]
        running = [narrow_running(each, pool.widest) for each in running]
    busy = sorted(running, key=lambda each: each.task.name)
    if outlook.time_left <= outlook.checkpoint_seconds:
        return _drain_plan(waiting, busy, outlook)
    never = _unplaceable(waiting, pool.widest)
    possible = (task for task in waiting if task.name not in never)
    queue = sorted(possible, key=_queue_order if pool.total > 1 else _yielded_first)
    priced = build_price_table(queue, busy, pool.total, outlook)
    aim = _choose_deadline(queue, busy, priced, pool.total, outlook)
    deadline = max(aim, priced.quickest())
    backfill = BackfillScheduler(queue, busy, priced, pool.copy(), aim, reserve_for_yielding(busy))
    yielded = sum(task.requested_width is not None for task in queue)
    backfill.start(range(yielded))
    widths = WidthPlanner(busy, priced, deadline=deadline, free=backfill.available, outlook=outlook)
    if busy and _may_resize(outlook):
        widths.decide()
    backfill.kept += widths.kept
    backfill.start(range(yielded, len(queue)))
    return Plan(tuple(backfill.starts), tuple(widths.changes), {**backfill.held, **never}, deadline)


def _unplaceable(waiting: Sequence[Task], total: int) -> dict[str, str]:
    """Return the reason by name of each trial that can never start on this machine."""
    never = {}
    for task in waiting:
        needed = task.widths[0] * task.lanes
        if needed > total:
            never[task.name] = f"needs {needed} slots, there are {total}"
        elif not math.isfinite(task.seconds[0]):
            never[task.name] = "nobody knows how long it takes"
    return never


def _may_resize(outlook: PlanningContext) -> bool:
    """Check whether the number of trials to come is known and the time left allows a restart."""
    needed = outlook.checkpoint_seconds + outlook.restart_seconds
    return outlook.time_left > needed and (not outlook.more_to_come or outlook.to_come > 0)


def _yielded_first(task: Task) -> bool:
    return task.requested_width is None


def _queue_order(task: Task) -> tuple[bool, float, str]:
    """Return the sort key of the queue: trials stopped for a resize first, then the longest."""
    return task.requested_width is None, -task.seconds[0] * task.widths[0] * task.lanes, task.name


def _choose_deadline(
    queue: Sequence[Task],
    busy: Sequence[RunningTask],
    priced: PriceTable,
    total: int,
    outlook: PlanningContext,
) -> float:
    """Return the seconds that widths are chosen for.

    Each trial to come counts as the mean of the waiting trials, or of the running ones if none
    wait. If the number to come is unknown, only trials much longer than the median start wide.
    """
    known = list(queue) or [each.task for each in busy]
    if not known or not outlook.more_to_come:
        return common_deadline(priced, total)
    mean = statistics.fmean(task.seconds[0] * task.widths[0] * task.lanes for task in known)
    aim = common_deadline(priced, total, outlook.to_come * mean)
    if outlook.to_come:
        return aim
    return max(aim, OUTLASTS * statistics.median(task.seconds[0] for task in known))


def _drain_plan(
    waiting: Sequence[Task], busy: Sequence[RunningTask], outlook: PlanningContext
) -> Plan:
    """Return a plan without starts: the time left is too short to reach a checkpoint."""
    left = max(outlook.time_left, 0.0)
    reason = f"no checkpoint can be reached in the {format_duration(left)} left"
    ends = max((each.seconds_left for each in busy), default=0.0)
    return Plan(held={task.name: reason for task in waiting}, ends_in=min(ends, left))
