"""The journal of a run and everything that it folds to: state, slot accounts, figures."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.accounting import SlotHolders, SlotLedger
from hydragnn_hpo.campaign.journal import Event, Journal
from hydragnn_hpo.campaign.state import State


class EventStore:
    """Where all that happens is written down first, and then known."""

    def __init__(
        self,
        path: Path,
        epoch: int,
        clock: Callable[[], float],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the journal and fold what is in it.

        Args:
            path: the journal.
            epoch: the controller's.
            clock: gives seconds since the epoch.
            check: raises ``RunError`` once the journal is a newer controller's: one that was
                frozen while it was taken over must not write between that one's lines.

        Raises:
            RunError: the journal is damaged.
        """
        self.path, self.clock, self._check = path, clock, check
        self.state = State()
        self.ledger = SlotLedger()
        """Where the slot-seconds go."""
        self.holders = SlotHolders()
        """Who held which slot when."""
        self._journal = Journal(path, epoch, clock, self._take)

    def note(self, kind: str, *, durable: bool = True, **values: Any) -> None:
        """Write an event down and take it in.

        Args:
            kind: what happened.
            durable: whether it is on the disk when this returns; else after ``sync``.
            values: the event's content.

        Raises:
            RunError: a newer controller has taken over.
        """
        self._check()
        self._take(self._journal.append(kind, durable=durable, **values))

    def _take(self, event: Event) -> None:
        self.state.apply(event)
        self.ledger.apply(event)
        self.holders.apply(event)

    def sync(self) -> None:
        """Make all that was noted durable: it may be acted on."""
        self._journal.sync()

    def flush(self) -> None:
        """Make what nobody acts on durable now and then."""
        self._journal.flush()

    def close(self) -> None:
        """Make everything durable and close."""
        self._journal.close()


class JournalFold:
    """A journal, read once: the state it folds to, and where the slot-seconds went."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        """Read all events there are; more may follow."""
        self.state, self.ledger = State(), SlotLedger()
        self._widths: list[int] = []
        self._first_steps: list[float] = []
        self._imports: list[float] = []
        self._restarts: Counter[str] = Counter()
        self.take(events)

    def take(self, events: Iterable[Event]) -> None:
        """Take in what was written since."""
        for event in events:
            self.state.apply(event)
            self.ledger.apply(event)
            self._take(event)

    def _take(self, event: Event) -> None:
        match event["event"]:
            case "placed":
                self._widths.append(event["width"])
            case "first_step":
                self._first_steps.append(event["seconds"])
            case "zygote_ready":
                self._imports.append(event["import_seconds"])
            case "ended" if event["outcome"] == "interrupted":
                self._restarts[str(event.get("reason"))] += 1

    @property
    def restarts(self) -> dict[str, int]:
        """Interrupted attempts by reason."""
        return dict(self._restarts)

    def figures(self) -> dict[str, Any]:
        """Give what ``summarize`` gives."""
        losses = self.ledger.losses()
        statuses = Counter(trial.status for trial in self.state.trials.values())
        warm = statistics.median(self._first_steps) if self._first_steps else None
        cold = None
        if self._imports and warm is not None:
            cold = statistics.median(self._imports) + warm
        return {
            "trials": statuses.total(),
            **dict(sorted(statuses.items())),
            "attempts": len(self._widths),
            "wide_attempts": sum(width > 1 for width in self._widths),
            "restarts": self.restarts,
            "first_step_seconds": warm,
            "cold_start_seconds": cold,
            "slot_seconds": losses.slot_seconds,
            "utilization": losses.share("training") if losses.slot_seconds else None,
            "losses": losses.shares,
            **_energy(self.state),
        }


def _energy(state: State) -> dict[str, Any]:
    """Give what the hosts took; None where nothing was counted, never 0."""
    energy = state.energy
    known = energy.joules is not None
    return {
        "energy_joules": energy.joules,
        "energy_idle_joules": energy.idle if known else None,
        "energy_parts": list(energy.parts) if known else None,
    }


def summarize(events: Iterable[Event]) -> dict[str, Any]:
    """Compute what a campaign did with its slots.

    Args:
        events: the whole journal, read once.

    Returns:
        ``trials`` and counts by outcome; ``attempts``, ``wide_attempts`` (two ranks or more),
        ``restarts`` (interrupted attempts, by reason);
        ``first_step_seconds``: median time from "trial placed" to its first optimizer step in a
        warm rank; ``cold_start_seconds``: the same in a rank that first imports what the zygote
        holds (measured import plus the warm median); ``slot_seconds``: of all slots, from the
        first placement to the last end of each controller; ``utilization``: share of them in
        training and validation; ``losses``: all shares by cause, see ``losses.CAUSES``;
        ``energy_joules`` of all hosts, ``energy_idle_joules`` among them while no trial held the
        slots, ``energy_parts``: what of a host was counted; None where nothing was.
    """
    return JournalFold(events).figures()
