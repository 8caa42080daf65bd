"""The journal of a run and all that is computed from it: state, slot accounts, figures."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from hydragnn_hpo.campaign.accounting import SlotHolders, SlotLedger
from hydragnn_hpo.campaign.journal import Journal, read_journal
from hydragnn_hpo.campaign.state import State, first_goal, fold
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.file_records import RunFigures, StatusCounts
from hydragnn_hpo.journal_events import JournalEvent
from hydragnn_hpo.layout import RunDir

FINISH_IMPORTS = 1.5
"""Time of ensemble and report over that in which a rank's process imports torch: both grow alike
with the load of a computer. With 15 programs on two cores 78 s and 29 s, 20 s and 22 s."""


class JournalFold:
    """Computes state, slot accounts and figures from journal events."""

    def __init__(
        self, events: Iterable[JournalEvent] = (), ledger: SlotLedger | None = None
    ) -> None:
        """Fold some events; more may follow."""
        self.state = State()
        self.ledger = SlotLedger() if ledger is None else ledger
        """Slot-seconds by cause."""
        self.best_so_far: list[float] = []
        """Best score by the first goal, after each result of a trial that is ranked."""
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
                ranked = self.state.trials[event["trial"]].is_ranked
                if ranked and score is not None and math.isfinite(score):
                    best = self.best_so_far
                    best.append(min(score, best[-1]) if best else score)
            case "objective_changed":
                trials = self.state.trials
                scores = [by for name, by in event["scores"].items() if trials[name].is_ranked]
                points = [first_goal(point) for by in scores for point in by.values()]
                finite = [point for point in points if point is not None]
                self.best_so_far = list(itertools.accumulate(finite, min))

    @property
    def restarts(self) -> dict[str, int]:
        """Number of interrupted attempts by reason.

        Returns:
            Number of interruptions by reason.
        """
        return dict(self._restarts)

    @property
    def finish_seconds(self) -> float:
        """Predicted seconds from the last trial to the end; 0 before a host has imported torch."""
        return FINISH_IMPORTS * statistics.median(self._imports) if self._imports else 0.0

    def figures(self) -> RunFigures:
        """Return the key figures of the campaign so far."""
        used = self.ledger.utilization()
        statuses = Counter(trial.status for trial in self.state.trials.values())
        warm = statistics.median(self._first_steps) if self._first_steps else None
        cold = None
        if self._imports and warm is not None:
            cold = statistics.median(self._imports) + warm
        energy = self.state.energy
        known = energy.joules is not None
        counts = cast("StatusCounts", dict(sorted(statuses.items())))
        return {
            "trials": statuses.total(),
            **counts,
            "attempts": len(self._widths),
            "wide_attempts": sum(width > 1 for width in self._widths),
            "restarts": self.restarts,
            "first_step_seconds": warm,
            "cold_start_seconds": cold,
            "slot_seconds": used.slot_seconds,
            "utilization": used.share("training") if used.slot_seconds else None,
            "losses": used.shares,
            "energy_joules": energy.joules,
            "energy_idle_joules": energy.idle if known else None,
            "energy_parts": list(energy.parts) if known else None,
        }


class EventStore(JournalFold):
    """A journal open for writing; each event is written before it is applied to the state."""

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
            epoch: number of the controller.
            clock: returns seconds since the Unix epoch.
            check: raises ``RunError`` once a newer controller owns the journal: a controller that
                was frozen during the takeover must not write into it.

        Raises:
            RunError: the journal is damaged.
        """
        super().__init__()
        self.path, self.clock, self._check = path, clock, check
        self.holders = SlotHolders()
        """Trials that held each slot, with times."""
        self._journal = Journal(path, epoch, clock, self.apply)

    def append(self, kind: str, *, durable: bool = True, **values: Any) -> None:
        """Write an event to the journal, then apply it.

        Args:
            kind: name of the event.
            durable: whether it is on the disk when this returns; otherwise after ``sync``.
            values: fields of the event.

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
        """Fsync all events appended so far; then they may be acted on."""
        self._journal.sync()

    def flush(self) -> None:
        """Fsync events that no action waits for, at most once per ``journal.GROUP_SECONDS``."""
        self._journal.flush()

    def close(self) -> None:
        """Fsync and close the journal."""
        self._journal.close()


def read_state(run: RunDir) -> State:
    """Return the state of the campaign in a run directory.

    Raises:
        RunError: the directory holds no campaign, or its journal is damaged.
    """
    require_campaign(run)
    return fold(read_journal(run.journal))


def require_campaign(run: RunDir) -> None:
    """Raise an error if a directory holds no campaign.

    Raises:
        RunError: it holds none.
    """
    if not run.campaign.exists():
        raise RunError(f"{run.path}: holds no campaign; give the directory of a run.")
