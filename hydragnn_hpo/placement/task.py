"""What the planner speaks: priced tasks, what runs, what it decides.

A task is what is left of a trial up to its rung; a slot holds one rank.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Task:
    """What is left of one trial, priced at every width it may have."""

    name: str
    widths: tuple[int, ...]
    """Ranks it may have, rising; never empty."""
    seconds: tuple[float, ...]
    """Predicted seconds left at each width, without start-up."""
    measured: bool = False
    """Whether its own speed is known from its first epochs."""
    restarts: int = 0
    """How often it was stopped to be resized."""
    lanes: int = 1
    """Slots that each of its ranks occupies: all that share a device where it needs it whole."""
    requested_width: int | None = None
    """Width for which it was stopped; it comes first."""

    def at(self, width: int) -> float:
        """Return the seconds left at one of its widths; infinity at any other."""
        return self.seconds[self.widths.index(width)] if width in self.widths else math.inf

    @cached_property
    def rows(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return seconds and slots at all widths, as arrays.

        Returns:
            Seconds, [W], and slots, [W]; W widths.
        """
        return np.array(self.seconds), np.array(self.widths, dtype=float) * self.lanes


def narrow_task(task: Task, slots: int) -> Task:
    """Leave a task the widths that find room in so many slots."""
    count = sum(width * task.lanes <= slots for width in task.widths)
    if count == len(task.widths) or not count:
        return task
    return replace(task, widths=task.widths[:count], seconds=task.seconds[:count])


@dataclass(frozen=True)
class RunningTask:
    """A trial that holds slots."""

    task: Task
    """Its prices; only the ratios between widths count, ``seconds_left`` says what is left."""
    width: int
    seconds_left: float
    """Until its rung at its present width; start-up included while it starts."""
    stoppable: bool = True
    """Whether it may be asked to yield: it has started, and was not asked before.

    One that was asked goes on at ``task.requested_width``; slots are kept for it.
    """
    checkpoint_in: float = 0.0
    """Seconds until it could yield, as far as known."""


def narrow_running(running: RunningTask, slots: int) -> RunningTask:
    """Leave a trial that runs its own width, and those that find room in so many slots."""
    task = running.task
    held = narrow_task(task, max(slots, running.width * task.lanes))
    return running if held is task else replace(running, task=held)


@dataclass(frozen=True)
class PlanningContext:
    """What the planner must know beside tasks and slots."""

    restart_seconds: float = 10.0
    """What stopping at a checkpoint and starting again costs on all slots of a trial."""
    checkpoint_seconds: float = 0.0
    """Least time in which a trial can start and reach a checkpoint."""
    time_left: float = math.inf
    """Seconds until the allocation is drained."""
    more_to_come: bool = False
    """Whether trials will be proposed beyond those that wait."""
    to_come: int = 0
    """How many of them, as far as known: room is left for them. 0 keeps all trials narrow."""
    efficiency_floor: float = 0.5
    """No trial is made so wide that one-slot work over slot-time falls below this."""
    restarts: int = 3
    """Most restarts of one trial for a better width."""


@dataclass(frozen=True)
class StartTask:
    """Start this trial on these slots."""

    name: str
    slots: tuple[str, ...]
    """``host:index``, one per rank, or ``lanes`` neighbours per rank."""
    width: int
    reason: str


@dataclass(frozen=True)
class ResizeTask:
    """Ask this trial to yield at its next checkpoint, so that it goes on at another width."""

    name: str
    width: int
    reason: str


@dataclass(frozen=True)
class Plan:
    """What is to be done now, and why the rest waits."""

    starts: tuple[StartTask, ...] = ()
    resizes: tuple[ResizeTask, ...] = ()
    held: dict[str, str] = field(default_factory=dict)
    """Trials that stay in the queue although slots are free, with the reason."""
    ends_in: float = 0.0
    """Predicted seconds until all of it is done."""


def format_duration(seconds: float) -> str:
    """Format a time for people: ``40 s``, ``12 min``, ``1.9 h``."""
    if seconds < 100.0:
        return f"{seconds:.0f} s"
    if seconds < 5400.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h" if seconds < 172800.0 else f"{seconds / 86400.0:.1f} days"
