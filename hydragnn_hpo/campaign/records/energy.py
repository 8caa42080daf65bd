"""Whose energy it was: joules of hosts and cards, charged to the trials that held their slots.

Every slot has an equal part of its card, and of what its host takes beside its cards. Whoever
holds a slot is charged for its part, for as long as he holds it; parts that nobody holds are
idle. So what trials are charged and what is idle sum to what was counted.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hydragnn_hpo.campaign.journal import Event
from hydragnn_hpo.launching.host.counters.sample import Sample
from hydragnn_hpo.launching.job import Slot

REMEMBERED_SECONDS = 600.0
"""How long it is known who held a slot before: samples come late where a line was cut."""

Portion = tuple[float, tuple[str, ...]]
"""Joules, and the slots that share them; none where nobody can hold what took them."""


@dataclass
class Hold:
    """A trial on a slot."""

    trial: str
    begun: float
    ended: float = float("inf")

    def seconds(self, begin: float, end: float) -> float:
        """Give the seconds of it within some time."""
        return max(0.0, min(self.ended, end) - max(self.begun, begin))


class Holders:
    """Who holds each slot, and who did a while ago; follows the journal."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._holds: defaultdict[str, deque[Hold]] = defaultdict(deque)
        self._slots: dict[str, tuple[str, ...]] = {}

    def apply(self, event: Event) -> None:
        """Take one event in."""
        match event["event"]:
            case "placed":
                self._end(event["trial"], event["time"])
                self._begin(event["trial"], tuple(event["slots"]), event["time"])
            case "ended":
                self._end(event["trial"], event["time"])

    def _begin(self, trial: str, slots: tuple[str, ...], time: float) -> None:
        self._slots[trial] = slots
        for slot in slots:
            holds = self._holds[slot]
            while holds and holds[0].ended < time - REMEMBERED_SECONDS:
                holds.popleft()
            holds.append(Hold(trial, time))

    def _end(self, trial: str, time: float) -> None:
        for slot in self._slots.pop(trial, ()):
            hold = next(hold for hold in reversed(self._holds[slot]) if hold.trial == trial)
            hold.ended = time

    def of(self, slot: str, begin: float, end: float) -> dict[str, float]:
        """Give the trials that held a slot in some time, and the seconds of each."""
        found: defaultdict[str, float] = defaultdict(float)
        for hold in self._holds.get(slot, ()):
            if (seconds := hold.seconds(begin, end)) > 0.0:
                found[hold.trial] += seconds
        return found


def portions(sample: Sample, slots: Sequence[Slot]) -> list[Portion]:
    """Split what a host took by the slots that share it.

    Args:
        sample: of the host.
        slots: all of the host. Cards that none of them names belong to those whose card has
            another name than counters know (a slice of a GPU); without such slots, to nobody.
    """
    named = {device for devices, _ in sample.cards for device in devices}
    strange = tuple(slot.name for slot in slots if slot.visible and slot.visible not in named)
    found: list[Portion] = []
    for devices, joules in sample.cards:
        ours = tuple(slot.name for slot in slots if slot.visible and slot.visible in devices)
        found.append((joules, ours or strange))
    if sample.rest is not None:
        found.append((sample.rest, tuple(slot.name for slot in slots)))
    return found


@dataclass
class Shares:
    """Joules by whom they are charged to."""

    trials: dict[str, float] = field(default_factory=dict)
    idle: float = 0.0


def divide(
    parts: Iterable[Portion], held: Mapping[str, Mapping[str, float]], seconds: float
) -> Shares:
    """Charge joules to trials.

    Args:
        parts: joules, and the slots that share them equally.
        held: by slot, the seconds for which each trial held it; at most ``seconds`` in all.
        seconds: in which the joules were taken, evenly.
    """
    trials: defaultdict[str, float] = defaultdict(float)
    idle = 0.0
    for joules, slots in parts:
        charged = 0.0
        for slot in slots:
            for trial, its in held.get(slot, {}).items():
                part = joules / len(slots) * its / seconds
                trials[trial] += part
                charged += part
        idle += joules - charged
    return Shares(dict(trials), idle)


@dataclass
class Energy:
    """What all hosts took, as far as it was counted; a fold over the journal."""

    joules: float | None = None
    """Of trials, and idle; None as long as nothing was counted."""

    idle: float = 0.0
    """While no trial held the slots: waiting, building data sets and ensembles."""

    watts: float | None = None
    """At the newest event, of ``hosts`` hosts."""

    hosts: int = 0

    parts: tuple[str, ...] = ()
    """What was counted of a host: see ``Sample.parts``."""

    unread: str | None = None
    """Why a host counts less than it could."""

    def apply(self, event: Event) -> None:
        """Take in an event ``energy``."""
        spent = sum(joules for joules, _ in event["trials"].values()) + event["idle"]
        self.joules = (self.joules or 0.0) + spent
        self.idle += event["idle"]
        self.watts, self.hosts = event["watts"], event["hosts"]
        self.parts = tuple(sorted({*self.parts, *event["parts"]}))
