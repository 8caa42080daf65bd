"""The journal of a run and everything that it folds to: state, slot accounts, figures."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.accounting import SlotHolders, SlotLedger
from hydragnn_hpo.campaign.journal import Journal, read_journal
from hydragnn_hpo.campaign.state import State, first_goal, fold
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.journal_events import JournalEvent
from hydragnn_hpo.layout import RunDir


class JournalFold:
    """What a journal folds to: the state, where the slot-seconds went, figures."""

    def __init__(
        self, events: Iterable[JournalEvent] = (), ledger: SlotLedger | None = None
    ) -> None:
        """Fold some events; more may follow."""
        self.state = State()
        self.ledger = SlotLedger() if ledger is None else ledger
        """Where the slot-seconds go."""
        self.best_so_far: list[float] = []
        """The best score after each result, by the first goal."""
        self._widths: list[int] = []
        self._first_steps: list[float] = []
        self._imports: list[float] = []
        self._restarts: Counter[str] = Counter()
        for event in events:
            self.apply(event)

    def apply(self, event: JournalEvent) -> None:
        """Fold one event."""
        self.state.apply(event)
        self.ledger.apply(event)
        match event["event"]:
            case "placed":
                self._widths.append(event["width"])
            case "first_step":
                self._first_steps.append(event["seconds"])
            case "zygote_ready":
                self._imports.append(event["import_seconds"])
            case "ended" if event["outcome"] == "interrupted":
                self._restarts[str(event.get("reason"))] += 1
            case "ended" if event["outcome"] in ("completed", "stopped"):
                score = first_goal(event.get("score", event.get("objective")))
                if score is not None and math.isfinite(score):
                    best = self.best_so_far
                    best.append(min(score, best[-1]) if best else score)

    @property
    def restarts(self) -> dict[str, int]:
        """Interrupted attempts by reason."""
        return dict(self._restarts)

    def figures(self) -> dict[str, Any]:
        """Compute what the campaign did with its slots.

        Returns:
            ``trials`` and counts by outcome; ``attempts``, ``wide_attempts`` (two ranks or more),
            ``restarts`` (interrupted attempts, by reason);
            ``first_step_seconds``: median time from "trial placed" to its first optimizer step in
            a warm rank; ``cold_start_seconds``: the same in a rank that first imports what the
            zygote holds (measured import plus the warm median); ``slot_seconds``: of all slots,
            from the first placement to the last end of each controller; ``utilization``: share of
            them in training and validation; ``losses``: all shares by cause, see
            ``accounting.CAUSES``; ``energy_joules`` of all hosts, ``energy_idle_joules`` among
            them while no trial held the slots, ``energy_parts``: what of a host was counted; None
            where nothing was.
        """
        used = self.ledger.utilization()
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
            "slot_seconds": used.slot_seconds,
            "utilization": used.share("training") if used.slot_seconds else None,
            "losses": used.shares,
            **_energy_figures(self.state),
        }


def _energy_figures(state: State) -> dict[str, Any]:
    """Return what the hosts took; None where nothing was counted, never 0."""
    energy = state.energy
    known = energy.joules is not None
    return {
        "energy_joules": energy.joules,
        "energy_idle_joules": energy.idle if known else None,
        "energy_parts": list(energy.parts) if known else None,
    }


class EventStore(JournalFold):
    """A journal open for writing: every event is written first, and then folded."""

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
        super().__init__()
        self.path, self.clock, self._check = path, clock, check
        self.holders = SlotHolders()
        """Who held which slot when."""
        self._journal = Journal(path, epoch, clock, self.apply)

    def append(self, kind: str, *, durable: bool = True, **values: Any) -> None:
        """Write an event, then fold it.

        Args:
            kind: what happened.
            durable: whether it is on the disk when this returns; else after ``sync``.
            values: the event's content.

        Raises:
            RunError: a newer controller has taken over.
        """
        self._check()
        self.apply(self._journal.append(kind, durable=durable, **values))

    def apply(self, event: JournalEvent) -> None:
        """Fold one event."""
        super().apply(event)
        self.holders.apply(event)

    def sync(self) -> None:
        """Make all that was appended durable: it may be acted on."""
        self._journal.sync()

    def flush(self) -> None:
        """Fsync, from time to time, events that no action waits for."""
        self._journal.flush()

    def close(self) -> None:
        """Make everything durable and close."""
        self._journal.close()


def read_state(run: RunDir) -> State:
    """Fold the journal of a run directory.

    Raises:
        RunError: there is no campaign, or its journal is damaged.
    """
    require_campaign(run)
    return fold(read_journal(run.journal))


def require_campaign(run: RunDir) -> None:
    """Check whether a directory holds a campaign.

    Raises:
        RunError: it holds none.
    """
    if not run.campaign.exists():
        raise RunError(f"{run.path}: holds no campaign; give the directory of a run.")
