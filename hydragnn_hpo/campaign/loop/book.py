"""The journal and the state that it folds to, always together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.accounting import Ledger
from hydragnn_hpo.campaign.journal import Event, Journal
from hydragnn_hpo.campaign.records.energy import Holders
from hydragnn_hpo.campaign.state import State


class Book:
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
        self.ledger = Ledger()
        """Where the slot-seconds go."""
        self.holders = Holders()
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
