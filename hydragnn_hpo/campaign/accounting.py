"""Account for a run's slot-seconds: training, and losses by cause.

All slots are counted, from the first placement to the last end under each controller. Each journal
event takes constant time, so that a live view can follow. ``SlotHolders`` records which trial held
which slot; ``history`` has the use of slots as bars over time.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hydragnn_hpo.campaign.journal import LONGEST_GAP
from hydragnn_hpo.journal_events import EndedEvent, JournalEvent, OpenedEvent, PlacedEvent

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
"""Causes that slot-seconds are counted under; each slot-second counts under exactly one."""

CHECKPOINT_REASONS = ("paused", "resized", "walltime")
"""Interruptions that write a checkpoint first."""

_OPEN = "open"
"""Idle slots while no trial waits; counted as ``brain`` if a proposal follows, else ``tail``."""


Sums = defaultdict[str, float]


@dataclass(frozen=True)
class Utilization:
    """Slot-seconds by cause."""

    by_cause: dict[str, float]
    """Keys of ``CAUSES``; sums to ``slot_seconds``."""

    @property
    def slot_seconds(self) -> float:
        """Slot-seconds of all causes together."""
        return sum(self.by_cause.values())

    def share(self, cause: str) -> float:
        """Return the share of one cause, 0 to 1; 0 before any trial ran."""
        total = self.slot_seconds
        return self.by_cause[cause] / total if total > 0 else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """All shares; they sum to 1.

        Returns:
            Share of the slot-seconds by cause, 0 to 1; keys of ``CAUSES``.
        """
        return {cause: self.share(cause) for cause in self.by_cause}

    @property
    def largest(self) -> str | None:
        """The cause with the most slot-seconds other than training; None if nothing was lost."""
        lost = {c: seconds for c, seconds in self.by_cause.items() if c != "training"}
        worst = max(lost, key=lambda cause: lost[cause])
        return worst if lost[worst] > 0 else None


@dataclass
class Attempt:
    """One attempt of a trial: its placement, progress and end."""

    trial: str
    number: int
    until: int
    """Epoch that it was to reach: its rung."""
    slots: tuple[str, ...]
    placed: float
    """Time of its placement. All times here are seconds since the Unix epoch."""
    predicted_epoch_seconds: float | None = None
    predicted_seconds: float | None = None
    """Seconds of the whole attempt, predicted at its placement."""
    first_step_seconds: float | None = None
    """Seconds from placement to the first optimizer step, as its ranks measured them."""
    first: float | None = None
    """When it completed its first optimizer step."""
    trained: float = 0.0
    """Seconds spent in its epochs."""
    last: float = 0.0
    """When its last epoch was reported."""
    saved: tuple[float, float] | None = None
    """Time of its newest checkpoint, and the seconds of training before it."""
    end: float | None = None
    """When it ended, or the last event of its controller if that died; None while it runs."""
    ended: float | None = None
    """When its end was written to the journal."""
    outcome: str | None = None
    """``completed``, ``stopped``, ``failed``, ``cancelled`` or ``interrupted``."""
    reason: str | None = None
    train_seconds: float | None = None
    score: float | Sequence[float] | None = None
    """Score that its trial is ranked by; journals hold several goals as a list."""
    val_mae: Mapping[str, float | None] = field(default_factory=dict)
    """Validation MAE of each head at its end."""

    @property
    def width(self) -> int:
        """Its ranks."""
        return len(self.slots)

    @property
    def slots_by_host(self) -> Counter[str]:
        """Number of slots that it holds on each host."""
        return Counter(slot.rpartition(":")[0] for slot in self.slots)

    @property
    def loses_work(self) -> bool:
        """Whether it was interrupted without time to write a checkpoint."""
        return self.outcome == "interrupted" and self.reason not in CHECKPOINT_REASONS

    def on_epoch(self, time: float, seconds: float) -> None:
        """Count an epoch that was reported."""
        if self.first is None:
            self.first = max(self.placed, time - seconds)
        # The first epoch contains the first step, which counts as start-up.
        self.trained = min(self.trained + seconds, time - self.first)
        self.last = time

    def on_checkpoint(self, time: float) -> None:
        """Record a checkpoint: the training before it cannot be lost any more."""
        if self.first is not None:
            since = time - max(self.last, self.first)
            self.saved = time, min(self.trained + since, time - self.first)

    def on_end(self, event: EndedEvent) -> None:
        """Record how it ended."""
        self.ended, self.outcome = event["time"], event["outcome"]
        self.reason = event.get("reason")
        self.train_seconds = event.get("train_seconds")
        self.score = event.get("score", event.get("objective"))
        self.val_mae = event.get("val_mae") or {}

    def split(self, end: float, *, died: bool = False) -> dict[str, float]:
        """Split its seconds by cause.

        Args:
            end: when it ended, or now.
            died: whether its controller died, so that the work since the last checkpoint is lost.

        Returns:
            Seconds by cause, keys of ``CAUSES``; they sum to the time from placed to ``end``.
        """
        # The clock of a controller that took over may be behind that of the one before it.
        end = max(end, self.last, self.first or 0.0, self.placed)
        if self.first is None:
            return {"start_up": end - self.placed}
        parts = {"start_up": self.first - self.placed}
        last = max(self.last, self.first)
        if died or self.outcome == "interrupted":
            saved, trained = self.saved or (self.first, 0.0)
            gone = end if died or self.loses_work else max(saved, last)
            parts |= {"lost": gone - saved, "ending": end - gone}
            return parts | {"training": trained, "between": saved - self.first - trained}
        rest = "ending" if self.outcome in ("completed", "stopped") else "training"
        parts |= {"training": self.trained, "between": last - self.first - self.trained}
        parts[rest] = parts.get(rest, 0.0) + end - last
        return parts


@dataclass
class SlotLedger:
    """Follows a journal and adds up slot-seconds by cause."""

    _sums: Sums = field(default_factory=lambda: Sums(float))
    _loose: Sums = field(default_factory=lambda: Sums(float))
    """Idle slot-seconds since the last trial ended; added to ``_sums`` at the next placement."""
    running: dict[str, Attempt] = field(default_factory=dict)
    """Attempts that hold slots, by trial."""
    orphans: dict[str, Attempt] = field(default_factory=dict)
    """Running attempts of an earlier controller without an event of the present one yet."""
    _waiting: set[str] = field(default_factory=set)
    _here: dict[str, int] = field(default_factory=dict)
    """Slots by host."""
    _away: set[str] = field(default_factory=set)
    _busy: Counter[str] = field(default_factory=Counter)
    """Slots that are taken, by host."""
    _idle: int = 0
    """Free slots of present hosts."""
    _idle_away: int = 0
    """Free slots of hosts that are lost or quarantined."""
    _epoch: int = 0
    time: float = 0.0
    """Time of the last event, in seconds since the Unix epoch."""
    _counting: bool = False

    def apply(self, event: JournalEvent) -> None:
        """Apply one event."""
        if event["epoch"] != self._epoch:
            self._change_controller(event)
        self._advance(event["time"])
        if self.orphans and event["event"] != "ended":
            self._take_over(event.get("trial"))
        match event["event"]:
            case "opened":
                self._opened(event)
            case "host_joined":
                with self._changing((event["host"],)):
                    self._here[event["host"]] = len(event["slots"])
                    self._away.discard(event["host"])
            case "host_lost" | "quarantined" if event["host"] in self._here:
                with self._changing((event["host"],)):
                    self._away.add(event["host"])
            case "proposed":
                self._waiting.add(event["trial"])
                self._count_open_as("brain")
            case "added":  # no trial was left to start
                self._count_open_as("tail")
            case "promoted":
                self._waiting.update(n for n in event["trials"] if n not in self.running)
            case "retried":
                self._waiting.add(event["trial"])
            case "rested":
                self._waiting.discard(event["trial"])
            case "placed":
                self._placed(event)
            case "first_step" if attempt := self.running.get(event["trial"]):
                attempt.first_step_seconds = event["seconds"]
                attempt.first = min(attempt.placed + max(0.0, event["seconds"]), event["time"])
            case "epoch" if attempt := self.running.get(event["trial"]):
                attempt.on_epoch(event["time"], event["seconds"])
            case "checkpoint" if attempt := self.running.get(event["trial"]):
                attempt.on_checkpoint(event["time"])
            case "ended":
                self._ended(event)

    def utilization(self, now: float | None = None, *, more: bool = False) -> Utilization:
        """Return the slot-seconds by cause.

        Args:
            now: count up to this time; by default to the last end, or to the last event while
                trials run, as when the clock has jumped since that event.
            more: whether trials are still to be proposed, so that idle slots wait for the brain.
        """
        sums = self._sums.copy()
        ahead = 0.0
        if now is not None:
            if 0.0 <= now - self.time <= LONGEST_GAP:
                ahead = now - self.time
            _add(sums, self._loose)
            _add(sums, self._idle_for(ahead))
        for attempt in self.running.values():
            _add(sums, attempt.split(self.time + ahead), attempt.width)
        for attempt in self.orphans.values():
            _add(sums, attempt.split(attempt.end or 0.0, died=True), attempt.width)
        sums["brain" if more else "tail"] += sums.pop(_OPEN, 0.0)
        return Utilization({cause: max(0.0, sums[cause]) for cause in CAUSES})

    @property
    def slots(self) -> int:
        """Number of slots of the present hosts."""
        return sum(count for host, count in self._here.items() if host not in self._away)

    @property
    def hosts(self) -> tuple[int, int]:
        """Numbers of present and of absent hosts; absent ones are lost or quarantined.

        Returns:
            Number of present hosts, number of absent hosts.
        """
        return len(self._here) - len(self._away), len(self._away)

    @property
    def training_now(self) -> float:
        """Share of the present slots on which a trial has completed its first step."""
        trains = sum(a.width for a in self.running.values() if a.first is not None)
        return min(1.0, trains / self.slots) if self.slots else 0.0

    @property
    def idle(self) -> tuple[str, int, int]:
        """Cause and number of the slots that are idle now.

        The cause is ``held`` while trials wait, else ``open`` until it is known whether another
        trial follows. Before the first placement of each controller no slot is counted.

        Returns:
            The cause, idle slots of present hosts, idle slots of absent hosts.
        """
        counted = (self._idle, self._idle_away) if self._counting else (0, 0)
        return "held" if self._waiting else _OPEN, *counted

    # -- time ------------------------------------------------------------------------

    def _advance(self, time: float) -> None:
        passed, self.time = max(0.0, time - self.time), max(time, self.time)
        _add(self._sums if self.running else self._loose, self._idle_for(passed))

    def _idle_for(self, seconds: float) -> dict[str, float]:
        if not self._counting:
            return {}
        here = "held" if self._waiting else _OPEN
        return {here: self._idle * seconds, "away": self._idle_away * seconds}

    @contextmanager
    def _changing(self, hosts: Collection[str]) -> Iterator[None]:
        """Recount the idle slots of some hosts around a change; of all would be too slow."""
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

    def _change_controller(self, event: JournalEvent) -> None:
        """Skip the time between two controllers: it is not counted, even if trials keep running."""
        for attempt in self.running.values():
            attempt.end = self.time
        self.orphans |= self.running
        for known in (self.running, self._busy, self._loose, self._here, self._away):
            known.clear()
        self._counting, self._idle, self._idle_away = False, 0, 0
        self._epoch, self.time = event["epoch"], event["time"]

    # -- attempts --------------------------------------------------------------------

    def _begin(self, attempt: Attempt) -> None:
        _add(self._sums, self._loose)
        self._loose.clear()
        self.running[attempt.trial] = attempt
        hosts = attempt.slots_by_host
        with self._changing(hosts):
            self._busy.update(hosts)
        self._counting = True

    def _take_over(self, trial: object) -> None:
        """Resume an orphan once the present controller writes an event about it."""
        attempt = self.orphans.pop(trial, None) if isinstance(trial, str) else None
        if attempt is not None:
            attempt.end = None
            self._begin(attempt)

    def _placed(self, event: PlacedEvent) -> None:
        self._waiting.discard(event["trial"])
        attempt = Attempt(
            trial=event["trial"],
            number=event.get("attempt", 0),
            until=event.get("until", 0),
            slots=tuple(event["slots"]),
            placed=event["time"],
            predicted_epoch_seconds=event.get("predicted_epoch_seconds"),
            predicted_seconds=event.get("predicted_seconds"),
        )
        self._begin(attempt)

    def _ended(self, event: EndedEvent) -> None:
        name, outcome = event["trial"], event["outcome"]
        self._waiting.discard(name)
        if outcome == "interrupted":
            self._waiting.add(name)
        attempt = self.orphans.pop(name, None)
        if attempt is None and (attempt := self.running.pop(name, None)) is not None:
            attempt.end = event["time"]
            hosts = attempt.slots_by_host
            with self._changing(hosts):
                self._busy.subtract(hosts)
        if attempt is not None:
            attempt.on_end(event)
            _add(self._sums, attempt.split(attempt.end or 0.0), attempt.width)

    # -- what waits, what is there ---------------------------------------------------

    def _count_open_as(self, cause: str) -> None:
        """Count idle time so far whose cause was open until now under a cause."""
        for sums in (self._sums, self._loose):
            sums[cause] += sums.pop(_OPEN, 0.0)

    def _opened(self, event: OpenedEvent) -> None:
        slots_by_host = Counter(slot.rpartition(":")[0] for slot in event.get("slots", ()))
        with self._changing(slots_by_host):
            self._here.update(slots_by_host)


def _add(sums: Sums, parts: Mapping[str, float], times: int = 1) -> None:
    for cause, seconds in parts.items():
        sums[cause] += times * seconds


REMEMBERED_SECONDS = 600.0
"""How long past holders of a slot are kept: after a lost connection, energy samples arrive late."""


@dataclass
class SlotHold:
    """The time for which a trial holds a slot."""

    trial: str
    begun: float
    ended: float = float("inf")

    def seconds(self, begin: float, end: float) -> float:
        """Return the seconds of the hold between two times."""
        return max(0.0, min(self.ended, end) - max(self.begun, begin))


class SlotHolders:
    """Follows the journal and records which trials hold, or recently held, each slot."""

    def __init__(self) -> None:
        """Start with no holders."""
        self._holds: defaultdict[str, deque[SlotHold]] = defaultdict(deque)
        self._slots: dict[str, tuple[str, ...]] = {}

    def apply(self, event: JournalEvent) -> None:
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

    def find_holders(self, slot: str, begin: float, end: float) -> dict[str, float]:
        """Return how long each trial held a slot between two times.

        Args:
            slot: ``host:number``.
            begin: start of the interval, in seconds since the Unix epoch.
            end: end of the interval, likewise.

        Returns:
            Seconds within the interval by trial; trials with 0 are left out.
        """
        held: defaultdict[str, float] = defaultdict(float)
        for hold in self._holds.get(slot, ()):
            if (seconds := hold.seconds(begin, end)) > 0.0:
                held[hold.trial] += seconds
        return held
