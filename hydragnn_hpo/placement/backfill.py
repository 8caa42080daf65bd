"""Place what waits: canonical widths, the longest first, a reservation for who cannot start."""

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hydragnn_hpo.placement.deadline import PriceTable
from hydragnn_hpo.placement.pool import SlotPool
from hydragnn_hpo.placement.task import RunningTask, StartTask, Task, format_duration


@dataclass(frozen=True)
class Reservation:
    """A trial that finds too few free slots, and what may happen before its turn."""

    name: str
    slots: int
    wait: float
    """Seconds until its slots are free."""
    spare: float
    """Slots that will be free beside its own by then."""


class BackfillScheduler:
    """The free slots while they are given away."""

    def __init__(
        self,
        queue: Sequence[Task],
        busy: Sequence[RunningTask],
        priced: PriceTable,
        room: SlotPool,
        aim: float,
        kept: int,
    ) -> None:
        """Start with nothing given away.

        Args:
            queue: trials that wait, in their turn.
            busy: trials that run.
            priced: what both take, those that wait first.
            room: the slots; they are taken from here.
            aim: seconds that widths are chosen for.
            kept: free slots that were promised to trials that will start again soon.
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
        """Slots that are free and promised to nobody."""
        return max(self.room.free - self.kept, 0)

    def start(self, rows: Iterable[int]) -> None:
        """Start what fits of these trials of the queue, and hold the rest."""
        for row in rows:
            task = self.queue[row]
            free = self.available
            if not free:
                return
            if task.wished in task.widths:
                self.columns[row] = task.widths.index(task.wished)
            if self.hold is None:
                self._start_or_hold(row, free)
            elif not self._before(row, free, self.hold) or not self._take(
                row, self.columns[row], f"; backfill before {self.hold.name}"
            ):
                self.held[task.name] = f"behind {self.hold.name}, which waits for its slots"

    def _start_or_hold(self, row: int, free: int) -> None:
        """Start at the canonical width; narrower where that ends sooner than waiting for more."""
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
        """Tell whether a trial may start without making the held one wait longer."""
        slots = self.priced.slots[row, self.columns[row]]
        if slots > free:
            return False
        return bool(self.priced.seconds[row, self.columns[row]] <= hold.wait or slots <= hold.spare)

    def _take(self, row: int, column: int, ending: str) -> bool:
        """Start a trial at a width if its slots can be had."""
        task = self.queue[row]
        width, seconds = task.widths[column], float(self.priced.seconds[row, column])
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
        task, count = self.queue[row], len(self.queue)
        if task.wished == width:
            return f"goes on at {width} ranks, for which it was stopped"
        turn = "the only one" if count == 1 else f"number {row + 1} of {count} by length"
        many = "1 rank ends" if width == 1 else f"{width} ranks end"
        if seconds > self.aim:
            return f"{turn}: {many} it in {format_duration(seconds)}"
        return f"{turn}: {many} it with the others in {format_duration(self.aim)}"

    def _wait(self, wanted: int) -> tuple[float, float]:
        """Give the seconds until so many slots are free, and how many are free beside them.

        Where enough are free, but not whole devices, the next end may change that.
        """
        free = self.available
        if free >= wanted and self.ends:
            return self.ends[0][0], 0.0
        for seconds, slots in self.ends:
            free += slots
            if free >= wanted:
                return seconds, free - wanted
        return 0.0, 0.0
