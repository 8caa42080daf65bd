"""The full history in a journal: all attempts and epochs, the use of slots, and why they idled.

The report, the dashboard and ``plan`` of a run use it. A controller keeps only its state.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from hydragnn_hpo.campaign.accounting import Attempt, SlotLedger
from hydragnn_hpo.campaign.event_store import JournalFold
from hydragnn_hpo.campaign.state import Trial
from hydragnn_hpo.journal_events import EndedEvent, EpochEvent, JournalEvent
from hydragnn_hpo.placement import Bar


class SlotHistory(SlotLedger):
    """A ledger that keeps every attempt, and why slots were idle after each event."""

    def __init__(self) -> None:
        """Start before the first event."""
        super().__init__()
        self.attempts: list[Attempt] = []
        """Attempts of all trials, in the order of their placements."""
        self.ends: list[Attempt] = []
        """Attempts in the order of their ends; one without slots for a trial that never started."""
        self.idle_steps: list[tuple[float, str, int, int]] = []
        """Time of each event, and ``SlotLedger.idle`` after it."""
        self._slots: set[str] = set()

    def apply(self, event: JournalEvent) -> None:
        """Apply one event."""
        held = None
        if event["event"] == "ended":
            held = self.running.get(event["trial"]) or self.orphans.get(event["trial"])
        super().apply(event)
        match event["event"]:
            case "opened" | "host_joined":
                self._slots.update(event.get("slots", ()))
            case "placed":
                self._slots.update(event["slots"])
                self.attempts.append(self.running[event["trial"]])
            case "ended":
                if held is None:
                    held = _attempt_without_slots(event)
                self.ends.append(held)
        self.idle_steps.append((event["time"], *self.idle))

    @property
    def begin(self) -> float | None:
        """Time of the first placement; None before it."""
        return self.attempts[0].placed if self.attempts else None

    @property
    def all_slots(self) -> tuple[str, ...]:
        """All slots that ever existed, sorted by host and number.

        Returns:
            Names ``host:number``.
        """
        return tuple(sorted(self._slots, key=_slot_order))

    @property
    def slots_per_host(self) -> float:
        """Mean number of slots per host, over all hosts that ever existed."""
        hosts = {slot.rpartition(":")[0] for slot in self._slots}
        return len(self._slots) / len(hosts) if hosts else 1.0

    @property
    def bars(self) -> list[Bar]:
        """Bars of all attempts over time, in seconds since the first placement.

        An attempt whose controller died ends at that controller's last event. Bars of running
        attempts end at the last event.
        """
        order = {id(attempt): place for place, attempt in enumerate(self.ends)}
        attempts = sorted(self.attempts, key=lambda attempt: order.get(id(attempt), math.inf))
        return [bar for attempt in attempts for bar in self._bars(attempt)]

    def _bars(self, attempt: Attempt) -> list[Bar]:
        end = self.time if attempt.end is None else attempt.end
        first = end if attempt.first is None else min(attempt.first, end)
        kept = end
        if attempt.loses_work:
            kept = first if attempt.saved is None else max(first, attempt.saved[0])
        name = f"{attempt.trial}@{attempt.until}"
        slots = attempt.slots
        begin = self.begin or 0.0
        bars = (
            Bar(name, slots, attempt.placed - begin, first - begin, "start-up"),
            Bar(name, slots, first - begin, kept - begin, "training"),
            Bar(name, slots, kept - begin, end - begin, "lost"),
        )
        return [bar for bar in bars if bar.end > bar.start]


def _attempt_without_slots(event: EndedEvent) -> Attempt:
    """Return an attempt without slots for the end of a trial that never started."""
    time = event["time"]
    attempt = Attempt(event["trial"], event.get("attempt", 0), 0, (), time, end=time)
    attempt.on_end(event)
    return attempt


def _slot_order(slot: str) -> tuple[str, int, str]:
    host, _, number = slot.rpartition(":")
    return host, int(number) if number.isdigit() else 0, number


@dataclass
class TrialHistory:
    """A trial with all its attempts and epochs."""

    trial: Trial
    attempts: list[Attempt] = field(default_factory=list)
    epochs: list[EpochEvent] = field(default_factory=list)
    """Its epochs; one that was lost and trained again has two entries."""
    parameters: int | None = None
    """Number of parameters of the model; None before its first result."""
    peak_bytes: int | None = None
    """Largest memory of a rank over all attempts, in bytes."""

    @property
    def objectives(self) -> dict[int, float]:
        """Objectives of its epochs; of an epoch that was trained twice, the later one.

        Returns:
            Objective by epoch; epochs without one are left out.
        """
        reached = ((epoch["reached"], epoch["objective"]) for epoch in self.epochs)
        return {epoch: float(value) for epoch, value in reached if value is not None}

    @property
    def name(self) -> str:
        """The trial's name."""
        return self.trial.name


class JournalHistory(JournalFold):
    """Computes the state as ``JournalFold``, and keeps all events, attempts and epochs."""

    def __init__(self, events: Iterable[JournalEvent] = ()) -> None:
        """Fold some events; more may follow."""
        self.slots = SlotHistory()
        self.events: list[JournalEvent] = []
        self.trials: dict[str, TrialHistory] = {}
        """Trials by name, in the order of their proposals."""
        super().__init__(events, self.slots)

    def apply(self, event: JournalEvent) -> None:
        """Fold one event."""
        super().apply(event)
        self.events.append(event)
        match event["event"]:
            case "proposed":
                name = event["trial"]
                self.trials[name] = TrialHistory(self.state.trials[name])
            case "placed":
                self.trials[event["trial"]].attempts.append(self.slots.attempts[-1])
            case "epoch":
                self.trials[event["trial"]].epochs.append(event)
            case "ended":
                trial = self.trials[event["trial"]]
                trial.parameters = event.get("parameters") or trial.parameters
                if (peak := event.get("peak_bytes")) is not None:
                    trial.peak_bytes = max(peak, trial.peak_bytes or 0)
