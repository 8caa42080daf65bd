"""What the planner speaks: priced tasks, what runs, what it decides.

A task is what is left of a trial up to its rung; a slot holds one rank.
"""

import math
from dataclasses import dataclass, field


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
    wished: int | None = None
    """Width for which it was stopped; it comes first."""

    def at(self, width: int) -> float:
        """Give the seconds left at one of its widths; infinity at any other."""
        return self.seconds[self.widths.index(width)] if width in self.widths else math.inf


@dataclass(frozen=True)
class Running:
    """A trial that holds slots."""

    task: Task
    """What is left of it now, priced at every width."""
    width: int
    seconds_left: float
    """Until its rung at its present width; start-up included while it starts."""
    stoppable: bool = True
    """Whether it may be asked to yield: it has started, and was not asked already."""


@dataclass(frozen=True)
class Outlook:
    """What the planner must know beside tasks and slots."""

    restart_seconds: float = 10.0
    """What stopping at a checkpoint and starting again costs on all slots of a trial."""
    checkpoint_seconds: float = 0.0
    """Least time in which a trial can start and reach a checkpoint."""
    time_left: float = math.inf
    """Seconds until the allocation is drained."""
    more_to_come: bool = False
    """Whether trials will be proposed beyond those that wait."""
    efficiency_floor: float = 0.5
    """No trial is made so wide that one-slot work over slot-time falls below this."""
    restarts: int = 3
    """Most restarts of one trial for a better width."""


@dataclass(frozen=True)
class Start:
    """Start this trial on these slots."""

    name: str
    slots: tuple[str, ...]
    """``host:index``, one per rank, or ``lanes`` neighbours per rank."""
    width: int
    reason: str


@dataclass(frozen=True)
class Resize:
    """Ask this trial to yield at its next checkpoint, so that it goes on at another width."""

    name: str
    width: int
    reason: str


@dataclass(frozen=True)
class Plan:
    """What is to be done now, and why the rest waits."""

    starts: tuple[Start, ...] = ()
    resizes: tuple[Resize, ...] = ()
    held: dict[str, str] = field(default_factory=dict)
    """Trials that stay in the queue although slots are free, with the reason."""
    ends_in: float = 0.0
    """Predicted seconds until all of it is done."""
