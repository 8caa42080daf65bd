"""Where a run's slot-seconds went: training, and what was lost, by cause.

Counted from the first placement to the last end of each controller, over all slots that were
there. Journal events go in one by one, each in constant time, so that a live view can follow.
Beside it, what slots did as bars over time, and which trial held which slot.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from hydragnn_hpo.campaign.journal import Event
from hydragnn_hpo.placement import Bar

CAUSES: dict[str, str] = {
    "training": "training and validation",
    "start_up": "from placed to the first step",
    "between": "between epochs: checkpoints, records",
    "ending": "after the last epoch: prediction, last checkpoint, shutting down",
    "lost": "work since the last checkpoint of an attempt that was interrupted",
    "held": "idle although trials wait",
    "brain": "idle until the brain proposes",
    "tail": "idle, nothing is left to start",
    "away": "hosts that were lost or are in quarantine",
}
"""What a slot-second can go to; every one goes to exactly one of them."""

CHECKPOINT_REASONS = ("paused", "resized", "walltime")
"""Interruptions that write a checkpoint first."""

_OPEN = "open"
"""Idle slots while nothing waits: ``brain`` if a proposal follows, else ``tail``."""


Sums = defaultdict[str, float]


@dataclass(frozen=True)
class Utilization:
    """Slot-seconds by cause."""

    by_cause: dict[str, float]
    """Keys of ``CAUSES``; sums to ``slot_seconds``."""

    @property
    def slot_seconds(self) -> float:
        """All of them."""
        return sum(self.by_cause.values())

    def share(self, cause: str) -> float:
        """Return the share of one cause; 0 before anything ran."""
        total = self.slot_seconds
        return self.by_cause[cause] / total if total > 0 else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """All shares; they sum to 1."""
        return {cause: self.share(cause) for cause in self.by_cause}

    @property
    def largest(self) -> str | None:
        """The cause with the most slot-seconds beside training; None if nothing was lost."""
        lost = {c: seconds for c, seconds in self.by_cause.items() if c != "training"}
        worst = max(lost, key=lambda cause: lost[cause])
        return worst if lost[worst] > 0 else None


@dataclass
class _Attempt:
    """What is known of one attempt that holds slots."""

    hosts: Counter[str]
    """Slots by host."""
    placed: float
    first: float | None = None
    """When its first step was done."""
    trained: float = 0.0
    """Seconds of its epochs."""
    last: float = 0.0
    """When the last of them was told."""
    saved: tuple[float, float] | None = None
    """Time of its newest checkpoint, and the seconds of training before it."""

    @property
    def slots(self) -> int:
        return self.hosts.total()

    def epoch(self, time: float, seconds: float) -> None:
        if self.first is None:
            self.first = max(self.placed, time - seconds)
        # The first epoch holds the first step, which is counted as starting up.
        self.trained = min(self.trained + seconds, time - self.first)
        self.last = time

    def checkpoint(self, time: float) -> None:
        if self.first is not None:
            since = time - max(self.last, self.first)
            self.saved = time, min(self.trained + since, time - self.first)

    def seconds(self, end: float, how: str) -> dict[str, float]:
        """Split its seconds.

        Args:
            end: when it ended, or now.
            how: ``result``, ``lost``, ``asked``, or ``open`` for one that goes on or has failed.
        """
        if self.first is None:
            return {"start_up": end - self.placed}
        parts = {"start_up": self.first - self.placed}
        last = max(self.last, self.first)
        if how in ("lost", "asked"):
            saved, trained = self.saved or (self.first, 0.0)
            gone = end if how == "lost" else max(saved, last)
            parts |= {"lost": gone - saved, "ending": end - gone}
            return parts | {"training": trained, "between": saved - self.first - trained}
        rest = "ending" if how == "result" else "training"
        parts |= {"training": self.trained, "between": last - self.first - self.trained}
        parts[rest] = parts.get(rest, 0.0) + end - last
        return parts


@dataclass
class SlotLedger:
    """Follows a journal and knows at any time where the slot-seconds went."""

    _sums: Sums = field(default_factory=lambda: Sums(float))
    _loose: Sums = field(default_factory=lambda: Sums(float))
    """Idle since nothing runs: counts once something is placed again."""
    _running: dict[str, _Attempt] = field(default_factory=dict)
    _orphans: dict[str, tuple[_Attempt, float]] = field(default_factory=dict)
    """Attempts of a controller that is gone, and when it was last heard of."""
    _waiting: set[str] = field(default_factory=set)
    _here: dict[str, int] = field(default_factory=dict)
    """Slots by host."""
    _away: set[str] = field(default_factory=set)
    _busy: Counter[str] = field(default_factory=Counter)
    """Slots that are taken, by host."""
    _idle: int = 0
    """Slots of hosts that are here and nothing runs on."""
    _idle_away: int = 0
    """The same of hosts that are away."""
    _epoch: int = 0
    _time: float = 0.0
    _counting: bool = False

    def apply(self, event: Event) -> None:
        """Apply one event."""
        if event["epoch"] != self._epoch:
            self._change_controller(event)
        self._advance(event["time"])
        name = event.get("trial")
        if name in self._orphans and event["event"] != "ended":
            self._begin(name, self._orphans.pop(name)[0])
        handler = _HANDLERS.get(event["event"])
        if handler is not None:
            handler(self, event)

    def utilization(self, now: float | None = None, *, more: bool = False) -> Utilization:
        """Return where the slot-seconds went.

        Args:
            now: count up to this time; to the last end, or the last event while trials run, if
                left out.
            more: whether trials are still to be proposed: slots that idle now wait for the brain.
        """
        sums = self._sums.copy()
        if now is not None:
            ahead = max(0.0, now - self._time)
            _add(sums, self._loose)
            _add(sums, self._idle_for(ahead))
        for attempt in self._running.values():
            parts = attempt.seconds(max(now or 0.0, self._time), _OPEN)
            _add(sums, parts, attempt.slots)
        for attempt, last in self._orphans.values():
            _add(sums, attempt.seconds(last, "lost"), attempt.slots)
        sums["brain" if more else "tail"] += sums.pop(_OPEN, 0.0)
        return Utilization({cause: max(0.0, sums[cause]) for cause in CAUSES})

    @property
    def slots(self) -> int:
        """Slots of the hosts that are here."""
        return sum(count for host, count in self._here.items() if host not in self._away)

    @property
    def hosts(self) -> tuple[int, int]:
        """Hosts that are here, and those that were lost or are in quarantine."""
        return len(self._here) - len(self._away), len(self._away)

    @property
    def training_now(self) -> float:
        """Share of the slots that are here in which something trains now."""
        trains = sum(a.slots for a in self._running.values() if a.first is not None)
        return min(1.0, trains / self.slots) if self.slots else 0.0

    @property
    def idle(self) -> tuple[str, int, int]:
        """Why slots are idle now, and how many: of hosts that are here, and that are away.

        Why is ``held``, or ``open`` until it is known whether another trial follows. Before the
        first placement of each controller none is counted.
        """
        counted = (self._idle, self._idle_away) if self._counting else (0, 0)
        return "held" if self._waiting else _OPEN, *counted

    # -- time ------------------------------------------------------------------------

    def _advance(self, time: float) -> None:
        passed, self._time = max(0.0, time - self._time), max(time, self._time)
        _add(self._sums if self._running else self._loose, self._idle_for(passed))

    def _idle_for(self, seconds: float) -> dict[str, float]:
        if not self._counting:
            return {}
        here = "held" if self._waiting else _OPEN
        return {here: self._idle * seconds, "away": self._idle_away * seconds}

    @contextmanager
    def _changing(self, hosts: Collection[str]) -> Iterator[None]:
        """Count some hosts anew around a change of them, and only them: there may be thousands."""
        self._count(hosts, -1)
        yield
        self._count(hosts, 1)

    def _count(self, hosts: Collection[str], sign: int) -> None:
        for host in hosts:
            idle = sign * max(0, self._here.get(host, 0) - self._busy[host])
            if host in self._away:
                self._idle_away += idle
            else:
                self._idle += idle

    def _change_controller(self, event: Event) -> None:
        """Skip the time between two controllers, in which trials may run on."""
        self._orphans |= {name: (a, self._time) for name, a in self._running.items()}
        for known in (self._running, self._busy, self._loose, self._here, self._away):
            known.clear()
        self._counting, self._idle, self._idle_away = False, 0, 0
        self._epoch, self._time = event["epoch"], event["time"]

    # -- attempts --------------------------------------------------------------------

    def _begin(self, name: str, attempt: _Attempt) -> None:
        _add(self._sums, self._loose)
        self._loose.clear()
        self._running[name] = attempt
        with self._changing(attempt.hosts):
            self._busy.update(attempt.hosts)
        self._counting = True

    def _placed(self, event: Event) -> None:
        self._waiting.discard(event["trial"])
        hosts = Counter(slot.rpartition(":")[0] for slot in event["slots"])
        self._begin(event["trial"], _Attempt(hosts, event["time"]))

    def _first_step(self, event: Event) -> None:
        if attempt := self._running.get(event["trial"]):
            attempt.first = min(attempt.placed + max(0.0, event["seconds"]), event["time"])

    def _epoch_ended(self, event: Event) -> None:
        if attempt := self._running.get(event["trial"]):
            attempt.epoch(event["time"], event["seconds"])

    def _checkpoint(self, event: Event) -> None:
        if attempt := self._running.get(event["trial"]):
            attempt.checkpoint(event["time"])

    def _ended(self, event: Event) -> None:
        name, outcome = event["trial"], event["outcome"]
        self._waiting.discard(name)
        if outcome == "interrupted":
            self._waiting.add(name)
        attempt, time = self._orphans.pop(name, (None, event["time"]))
        if attempt is None:
            attempt = self._running.pop(name, None)
            hosts: Mapping[str, int] = attempt.hosts if attempt else {}
            with self._changing(hosts):
                self._busy.subtract(hosts)
        if attempt is not None:
            _add(self._sums, attempt.seconds(time, _how(event)), attempt.slots)

    # -- what waits, what is there ---------------------------------------------------

    def _new(self, event: Event) -> None:
        self._waiting.add(event["trial"])
        for sums in (self._sums, self._loose):
            sums["brain"] += sums.pop(_OPEN, 0.0)

    def _promoted(self, event: Event) -> None:
        self._waiting.update(name for name in event["trials"] if name not in self._running)

    def _retried(self, event: Event) -> None:
        self._waiting.add(event["trial"])

    def _rested(self, event: Event) -> None:
        self._waiting.discard(event["trial"])

    def _added(self, event: Event) -> None:
        """Until a person asked for more trials there was nothing left to start."""
        for sums in (self._sums, self._loose):
            sums["tail"] += sums.pop(_OPEN, 0.0)

    def _opened(self, event: Event) -> None:
        found = Counter(slot.rpartition(":")[0] for slot in event.get("slots", ()))
        with self._changing(found):
            self._here.update(found)

    def _host_joined(self, event: Event) -> None:
        with self._changing((event["host"],)):
            self._here[event["host"]] = len(event["slots"])
            self._away.discard(event["host"])

    def _host_away(self, event: Event) -> None:
        if event["host"] in self._here:
            with self._changing((event["host"],)):
                self._away.add(event["host"])


def _add(sums: Sums, parts: Mapping[str, float], times: int = 1) -> None:
    for cause, seconds in parts.items():
        sums[cause] += times * seconds


def _how(event: Event) -> str:
    if event["outcome"] == "interrupted":
        return "asked" if event.get("reason") in CHECKPOINT_REASONS else "lost"
    return "result" if event["outcome"] in ("completed", "stopped") else _OPEN


_HANDLERS = {
    "opened": SlotLedger._opened,
    "proposed": SlotLedger._new,
    "placed": SlotLedger._placed,
    "first_step": SlotLedger._first_step,
    "epoch": SlotLedger._epoch_ended,
    "checkpoint": SlotLedger._checkpoint,
    "ended": SlotLedger._ended,
    "promoted": SlotLedger._promoted,
    "retried": SlotLedger._retried,
    "rested": SlotLedger._rested,
    "added": SlotLedger._added,
    "host_joined": SlotLedger._host_joined,
    "host_lost": SlotLedger._host_away,
    "quarantined": SlotLedger._host_away,
}


@dataclass
class _Open:
    """An attempt that has not ended yet."""

    trial: str
    until: int
    slots: tuple[str, ...]
    placed: float
    epoch: int
    """The controller that told of it last."""
    first: float | None = None
    saved: float | None = None

    def bars(self, end: float, *, lost: bool) -> Iterable[Bar]:
        """Return its bars; what came after its last checkpoint may be lost."""
        first = min(self.first or end, end)
        kept = max(first, self.saved or first) if lost else end
        name = f"{self.trial}@{self.until}"
        if first > self.placed:
            yield Bar(name, self.slots, self.placed, first, "start-up")
        if kept > first:
            yield Bar(name, self.slots, first, kept, "training")
        if end > kept:
            yield Bar(name, self.slots, kept, end, "lost")


def attempt_bars(events: Iterable[Event]) -> list[Bar]:
    """Return what every attempt did; seconds from the first placement on.

    An attempt whose controller died ends when that one was last heard of. Attempts that run on
    reach to the last event.
    """
    running: dict[str, _Open] = {}
    bars: list[Bar] = []
    last: dict[int, float] = {}
    begin: float | None = None
    for event in events:
        last[event["epoch"]] = time = event["time"]
        trial = running.get(event.get("trial", ""))
        if event["event"] == "placed":
            begin = time if begin is None else begin
            slots = tuple(event["slots"])
            opened = _Open(event["trial"], event["until"], slots, time, event["epoch"])
            running[event["trial"]] = opened
        elif trial is not None and event["event"] == "ended":
            lost = (
                event["outcome"] == "interrupted" and event.get("reason") not in CHECKPOINT_REASONS
            )
            bars += trial.bars(last[trial.epoch], lost=lost)
            del running[trial.trial]
        elif trial is not None:
            trial.epoch = event["epoch"]
            _take(trial, event)
    for trial in running.values():
        bars += trial.bars(last[trial.epoch], lost=False)
    start = begin or 0.0
    return [Bar(b.trial, b.slots, b.start - start, b.end - start, b.what) for b in bars]


def _take(trial: _Open, event: Event) -> None:
    if event["event"] == "first_step":
        trial.first = min(trial.placed + max(0.0, event["seconds"]), event["time"])
    elif event["event"] == "epoch" and trial.first is None:
        trial.first = max(trial.placed, event["time"] - event["seconds"])
    elif event["event"] == "checkpoint":
        trial.saved = event["time"]


REMEMBERED_SECONDS = 600.0
"""How long it is known who held a slot before: samples come late where a line was cut."""


@dataclass
class SlotHold:
    """A trial on a slot."""

    trial: str
    begun: float
    ended: float = float("inf")

    def seconds(self, begin: float, end: float) -> float:
        """Return the seconds of it within some time."""
        return max(0.0, min(self.ended, end) - max(self.begun, begin))


class SlotHolders:
    """Who holds each slot, and who did a while ago; follows the journal."""

    def __init__(self) -> None:
        """Start with no holders."""
        self._holds: defaultdict[str, deque[SlotHold]] = defaultdict(deque)
        self._slots: dict[str, tuple[str, ...]] = {}

    def apply(self, event: Event) -> None:
        """Apply one event."""
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
            holds.append(SlotHold(trial, time))

    def _end(self, trial: str, time: float) -> None:
        for slot in self._slots.pop(trial, ()):
            hold = next(hold for hold in reversed(self._holds[slot]) if hold.trial == trial)
            hold.ended = time

    def of(self, slot: str, begin: float, end: float) -> dict[str, float]:
        """Return the trials that held a slot in some time, and the seconds of each."""
        found: defaultdict[str, float] = defaultdict(float)
        for hold in self._holds.get(slot, ()):
            if (seconds := hold.seconds(begin, end)) > 0.0:
                found[hold.trial] += seconds
        return found
