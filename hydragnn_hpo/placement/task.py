"""Inputs and output of the planner: tasks with their prices, running tasks, context, plan.

A task is the remainder of a trial up to its rung; a slot holds one rank.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Task:
    """The remainder of one trial, with its predicted time at each allowed width."""

    name: str
    widths: tuple[int, ...]
    """Allowed numbers of ranks, ascending; never empty."""
    seconds: tuple[float, ...]
    """Predicted seconds left at each width, without start-up."""
    measured: bool = False
    """Whether its speed was measured in its first epochs."""
    restarts: int = 0
    """Number of times that it was stopped to be resized."""
    lanes: int = 1
    """Slots of each rank; more than one if a rank needs a whole device that slots share."""
    requested_width: int | None = None
    """Width for which it was, or will be, stopped; such a task starts before all others."""

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
    """Keep the widths that fit into ``slots``; a task of which none fits stays as it is."""
    count = sum(width * task.lanes <= slots for width in task.widths)
    if count == len(task.widths) or not count:
        return task
    return replace(task, widths=task.widths[:count], seconds=task.seconds[:count])


@dataclass(frozen=True)
class RunningTask:
    """A trial that holds slots."""

    task: Task
    """Its prices; only the ratios between widths are used, with ``seconds_left`` as the scale."""
    width: int
    seconds_left: float
    """Seconds until its rung at its present width, including what is left of its start-up."""
    stoppable: bool = True
    """Whether it may be asked to yield: it has started, and was not asked yet.

    After the request it restarts at ``task.requested_width``, for which slots are reserved.
    """
    checkpoint_in: float = 0.0
    """Estimated seconds until its next checkpoint, where it can yield."""


def narrow_running(running: RunningTask, slots: int) -> RunningTask:
    """Keep the widths that fit into ``slots``, and the present width."""
    task = running.task
    held = narrow_task(task, max(slots, running.width * task.lanes))
    return running if held is task else replace(running, task=held)


@dataclass(frozen=True)
class PlanningContext:
    """Inputs of the planner in addition to tasks and slots."""

    restart_seconds: float = 10.0
    """Seconds to stop a trial at a checkpoint and start it again; all its slots are idle then."""
    checkpoint_seconds: float = 0.0
    """Least seconds in which a trial can start and reach a checkpoint."""
    time_left: float = math.inf
    """Seconds until the allocation is drained."""
    more_to_come: bool = False
    """Whether further trials will be proposed after those that wait."""
    to_come: int = 0
    """Number of these, so that slots are left for them; 0 (unknown) keeps most trials narrow."""
    efficiency_floor: float = 0.5
    """Least efficiency of a width: slot-seconds at the narrowest width over those at this one."""
    restarts: int = 3
    """Maximum number of restarts of one trial for a better width."""


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
    """Stop this trial at its next checkpoint and restart it at another width."""

    name: str
    width: int
    reason: str


@dataclass(frozen=True)
class Plan:
    """Decisions of the planner: trials to start and to resize, and why others wait."""

    starts: tuple[StartTask, ...] = ()
    resizes: tuple[ResizeTask, ...] = ()
    held: dict[str, str] = field(default_factory=dict)
    """Reason by name of each trial that waits although slots are free."""
    ends_in: float = 0.0
    """Predicted seconds until all tasks are done."""


def format_duration(seconds: float) -> str:
    """Format a duration as readable text: ``40 s``, ``12 min``, ``1.9 h``, ``3.0 days``."""
    if seconds < 100.0:
        return f"{seconds:.0f} s"
    if seconds < 5400.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h" if seconds < 172800.0 else f"{seconds / 86400.0:.1f} days"


What = Literal["start-up", "training", "lost"]


@dataclass(frozen=True)
class Bar:
    """A span of time in which a trial held slots for one purpose; times in seconds."""

    trial: str
    slots: tuple[str, ...]
    """``host:index``."""
    start: float
    end: float
    what: What

    @property
    def slot_seconds(self) -> float:
        """Slots times seconds."""
        return len(self.slots) * (self.end - self.start)
