"""One trial of a simulation: how far it is, where it runs, and what is believed of it."""

import math
from dataclasses import replace

from hydragnn_hpo.placement.simulated import Work
from hydragnn_hpo.placement.task import Running, Task


class SimulatedTrial:
    """What is true of a trial, and what its planner may know."""

    def __init__(self, work: Work) -> None:
        """Start with nothing done."""
        self.work, self.name = work, work.name
        self.done, self.attempts, self.resized = 0.0, 0, 0
        self.wished: int | None = None
        self.slots: tuple[str, ...] = ()
        self.hosts: frozenset[str] = frozenset()
        self.started = self.setup = self.whole = self.end = 0.0
        self.width = 0
        self._known = Task(self.name, work.widths, work.believed(), lanes=work.lanes)

    def start(self, now: float, setup: float, width: int, slots: tuple[str, ...]) -> None:
        """Begin an attempt."""
        self.attempts += 1
        self.wished = None
        self.started, self.setup, self.width, self.slots = now, setup, width, slots
        self.hosts = frozenset(name.rpartition(":")[0] for name in slots)
        self.whole = self.work.true(width)
        self.end = now + setup + (1.0 - self.done) * self.whole

    def time_of(self, done: float) -> float:
        """Give the time at which so much of the trial is done."""
        return self.started + self.setup + (done - self.done) * self.whole

    def done_at(self, time: float) -> float:
        """Give the share of the trial that is done at a time of its attempt."""
        return min(1.0, self.done + max(0.0, time - self.started - self.setup) / self.whole)

    def last_checkpoint(self, now: float, every: float) -> float:
        """Give the time of the last checkpoint."""
        trained = max(0.0, now - self.started - self.setup)
        return self.started + self.setup + math.floor(trained / every) * every

    def next_checkpoint(self, now: float, every: float) -> float:
        """Give the time of the next checkpoint."""
        trained = max(0.0, now - self.started - self.setup)
        return self.started + self.setup + max(1, math.ceil(trained / every)) * every

    def measure(self) -> None:
        """Correct what is believed by the speed at the present width."""
        known = self._known
        factor = self.whole / known.at(self.width)
        if factor != 1.0:
            seconds = tuple(factor * each for each in known.seconds)
            known = replace(known, seconds=seconds)
        self._known = replace(known, measured=True)

    def task(self) -> Task:
        """Say what a planner may know while the trial waits."""
        left = 1.0 - self.done
        seconds = self._known.seconds
        if self.done:
            seconds = tuple(left * each for each in seconds)
        elif self.wished is None and not self.resized:
            return self._known
        return replace(self._known, seconds=seconds, restarts=self.resized, wished=self.wished)

    def running(self, now: float, every: float) -> Running:
        """Say what a planner may know while the trial runs."""
        if self.wished != self._known.wished or self.resized != self._known.restarts:
            self._known = replace(self._known, wished=self.wished, restarts=self.resized)
        trained = now - self.started - self.setup
        left = (1.0 - self.done) * self._known.at(self.width)
        if trained < 0.0:
            return Running(self._known, self.width, left - trained, stoppable=False)
        # What is believed may be too short: a trial that runs on has something left.
        left = max(left - trained, 0.01 * left)
        wait = self.next_checkpoint(now, every) - now
        return Running(self._known, self.width, left, self.wished is None, wait)
