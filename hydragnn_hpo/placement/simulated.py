"""What a simulation is given and what it gives: work, a setting, bars, and where time went."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CAUSES = ("training", "start-up", "tail", "held", "failures", "brain")
"""Where slot-seconds go; together they are all there are.

``training`` that counted; ``start-up`` of trials and of the machine; ``tail``: idle, nothing waits
and nothing is to come; ``held``: idle although trials wait (for more slots than are free);
``failures``: work lost since the last checkpoint, and hosts that are away; ``brain``: idle,
nothing waits, but trials are still to be proposed.
"""

What = Literal["start-up", "training", "lost"]


@dataclass(frozen=True)
class Work:
    """One trial of a simulated campaign, as it truly is and as it is believed to be."""

    name: str
    widths: tuple[int, ...]
    """Ranks it may have, rising."""
    seconds: tuple[float, ...]
    """What all of it truly takes at each width, without start-up."""
    predicted: tuple[float, ...] = ()
    """What is believed until it is measured; the truth if left out."""
    lanes: int = 1
    """Slots that each of its ranks occupies."""

    def believed(self) -> tuple[float, ...]:
        """Give the seconds that the planner starts from."""
        return self.predicted or self.seconds

    def true(self, width: int) -> float:
        """Give the seconds that all of it takes at one of its widths."""
        return self.seconds[self.widths.index(width)]

    @property
    def useful(self) -> float:
        """Slot-seconds at its narrowest width, where nothing is spent on ranks that talk."""
        return self.seconds[0] * self.widths[0] * self.lanes


@dataclass(frozen=True)
class Setting:
    """The machine of a simulation, and its habits; times in seconds."""

    hosts: int
    slots_per_host: int
    hosts_per_group: int = 0
    slot_order: tuple[int, ...] = ()
    cold_seconds: float = 0.0
    """Until the first trial can start: agents, environment, data on every host."""
    start_seconds: float = 0.0
    """A trial's start, on all its slots."""
    restart_seconds: float = 10.0
    """What ending at a checkpoint and starting again costs on all slots."""
    checkpoint_every: float = 60.0
    """Training between two checkpoints; a trial that is asked to yield does so at the next."""
    probe: float = 0.02
    """Share of a trial after which its speed is measured."""
    tick: float = 1.0
    """Events of so long are answered by one decision."""
    wave: int = 0
    """Trials that the brain proposes ahead of those that run; 0: all are there at once."""
    brain_seconds: float = 0.0
    """How long the brain takes to answer."""
    wall_time: float = math.inf
    """When the allocation ends."""
    failures: float = 0.0
    """Host failures per host and hour."""
    repair_seconds: float = math.inf
    """How long a host that failed stays away."""
    efficiency_floor: float = 0.5
    restarts: int = 3
    """Most restarts of one trial for a better width."""
    seed: int = 0
    """Of the failures."""

    @property
    def slots(self) -> int:
        """Slots of the whole machine."""
        return self.hosts * self.slots_per_host


@dataclass(frozen=True)
class Bar:
    """Something that a trial did with its slots for a while."""

    trial: str
    slots: tuple[str, ...]
    """``host:index``."""
    start: float
    end: float
    what: What

    @property
    def slot_seconds(self) -> float:
        """Give its area."""
        return len(self.slots) * (self.end - self.start)


@dataclass(frozen=True)
class Simulated:
    """A campaign as it went in a simulation."""

    bars: tuple[Bar, ...]
    """In the order of their ends."""
    makespan: float
    """Seconds from the first start to the last end."""
    slots: int
    spent: Mapping[str, float]
    """Slot-seconds by cause, see ``CAUSES``; their sum is ``slots * makespan``."""
    useful_seconds: float
    """One-slot work that was done, in slot-seconds."""
    restarts: int
    """Restarts for a better width, all trials together."""
    failed_hosts: int = 0
    decisions: int = 0
    """How often the planner was asked."""
    unfinished: Mapping[str, float] = field(default_factory=dict)
    """Share left of trials that the wall time, or the loss of all hosts, left undone."""

    @property
    def slot_hours(self) -> float:
        """Give what the campaign is billed for."""
        return self.slots * self.makespan / 3600.0

    @property
    def useful(self) -> float:
        """Give the share of all slot-time that one-slot work takes."""
        return self.useful_seconds / max(self.slots * self.makespan, 1e-9)

    @property
    def shares(self) -> dict[str, float]:
        """Give the share of slot-time by cause; they add up to 1."""
        whole = max(self.slots * self.makespan, 1e-9)
        return {cause: self.spent.get(cause, 0.0) / whole for cause in CAUSES}

    @property
    def widths(self) -> dict[str, int]:
        """Give the slots that every trial ended with."""
        return {bar.trial: len(bar.slots) for bar in self.bars if bar.what == "training"}
