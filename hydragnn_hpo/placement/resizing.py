"""Widen what would outlast the others: at a checkpoint, when that gains more than it costs."""

from collections.abc import Sequence

import numpy as np

from hydragnn_hpo.placement.deadline import Floats, PriceTable
from hydragnn_hpo.placement.task import PlanningContext, ResizeTask, RunningTask, format_duration

WORTH = 2.0
"""A restart must gain so many times what it costs."""

GROWTH = 1.5
"""A trial that cannot get all it needs takes what is free if it is so many times wider then."""


def reserve_for_yielding(busy: Sequence[RunningTask]) -> int:
    """Give the free slots that are kept for trials that were asked to yield."""
    return sum(
        max(each.task.wished - each.width, 0) * each.task.lanes
        for each in busy
        if each.task.wished is not None
    )


class WidthPlanner:
    """The running trials while their widths are reconsidered."""

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
            busy: trials that run.
            priced: what all take; the last rows are the running ones.
            deadline: seconds until all should have ended.
            free: slots that nobody was promised.
            outlook: what a restart costs, and whether further trials will come.
        """
        self.busy, self.priced, self.deadline, self.free = busy, priced, deadline, free
        self.first = len(priced.now) - len(busy)
        self.worth = WORTH * max(outlook.restart_seconds, 1e-3)
        self.restarts = outlook.restarts
        self.columns = priced.column(deadline)
        self.changes: list[ResizeTask] = []
        self.kept = 0
        """Free slots that the changes will need."""
        self._ends: tuple[Floats, Floats] | None = None

    def decide(self) -> None:
        """Widen those that would outlast the others, the last of all first."""
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
        """Give a late trial what is free if that makes it much wider; not as its last restart."""
        if self.busy[row - self.first].task.restarts + 1 >= self.restarts:
            return
        slots, now = self.priced.slots[row], self.priced.now[row]
        column = int(slots.searchsorted(now + self.free, side="right")) - 1
        gain = self.priced.left[row] - self.priced.seconds[row, column]
        if column >= 0 and slots[column] >= GROWTH * now and gain >= self.worth:
            self._widen(row, column)

    def _comes_too_late(self, row: int, wanted: float) -> bool:
        """Tell whether a trial that waits for slots of others could not catch up any more."""
        if self._ends is None:
            rows = slice(self.first, None)
            order = np.argsort(self.priced.left[rows], kind="stable")
            self._ends = self.priced.left[rows][order], self.priced.now[rows][order].cumsum()
        seconds, slots = self._ends
        place = int(slots.searchsorted(wanted - self.free))
        if place == len(seconds):
            return True
        wait, left = float(seconds[place]), float(self.priced.left[row])
        best = wait + max(1.0 - wait / left, 0.0) * float(self.priced.best[row])
        return best > self.deadline + self.worth

    def _narrow_others(self, needed: int) -> None:
        """Take slots from those that would end early, where most can be had at once."""
        priced = self.priced
        needed -= sum(
            max(each.width - each.task.wished, 0) * each.task.lanes
            for each in self.busy
            if each.task.wished is not None
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
        left, seconds = float(self.priced.left[row]), float(self.priced.seconds[row, column])
        reason = (
            f"{how} {format_duration(left)}, the others in {format_duration(self.deadline)}: "
            f"{width} ranks end it in {format_duration(seconds)}"
        )
        self.changes.append(ResizeTask(task.name, width, reason))
