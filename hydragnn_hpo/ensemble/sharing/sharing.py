"""One rank's share of the pieces: whatever nobody else is at, until all are done."""

import time
from collections.abc import Callable
from typing import Protocol

from hydragnn_hpo.ensemble.sharing.claims import Claims
from hydragnn_hpo.ensemble.streaming.parts import Header, Piece

LOOK_SECONDS = 0.2
MOST_LOOK_SECONDS = 2.0
"""Between two looks at pieces that others are at: short at first, then longer."""


class Work(Protocol):
    """What is shared: pieces of lots, see ``streaming.lots``."""

    @property
    def lots(self) -> int:
        """How many lots there are."""

    def header(self, piece: Piece) -> Header | None:
        """Say what became of a piece; None while it is not done."""

    def finish(self, piece: Piece) -> Header:
        """Predict a piece and keep the result; one behind its lot's end is empty and the last."""


class Share:
    """Goes through the pieces in their order, so that a file is read once from its beginning."""

    def __init__(self, work: Work, claims: Claims) -> None:
        """Begin with nothing known.

        Args:
            work: what is to be done.
            claims: ours, entered.
        """
        self._work, self._claims = work, claims
        self._done: set[Piece] = set()
        self._ends: dict[int, int] = {}

    def do_all(self, pause: Callable[[float], None] = time.sleep) -> list[Piece]:
        """Do what is to be done, wait for the others, and do what they leave undone.

        Returns:
            Pieces at which too many ranks have ended, so that nobody tries again.
        """
        wait = LOOK_SECONDS
        while True:
            before = len(self._done)
            waits, lost = self._go_through()
            if not waits:
                return lost
            wait = LOOK_SECONDS if len(self._done) > before else min(2 * wait, MOST_LOOK_SECONDS)
            pause(wait)

    def _go_through(self) -> tuple[bool, list[Piece]]:
        """Do every piece that is free; tell whether others are at work, and what is lost."""
        waits, lost = False, list[Piece]()
        for lot in range(self._work.lots):
            number = 0
            while number < self._ends.get(lot, number + 1):
                piece = Piece(lot, number)
                if not self._is_done(piece):
                    gone = self._claims.is_lost(name_of(piece))
                    lost += [piece] * gone
                    waits = waits or not gone
                number += 1
        return waits, lost

    def _is_done(self, piece: Piece) -> bool:
        """Tell whether a piece is done; if it is free, do it."""
        if piece in self._done:
            return True
        header, name = self._work.header(piece), name_of(piece)
        if header is None and self._claims.take(name):
            try:
                header = self._work.header(piece) or self._work.finish(piece)
            except (SystemExit, KeyboardInterrupt):  # asked to end: not the piece's doing
                self._claims.drop(name)
                raise
            self._claims.drop(name)
        if header is None:
            return False
        self._done.add(piece)
        if header.last:
            end = piece.number + 1
            self._ends[piece.lot] = min(end, self._ends.get(piece.lot, end))
        return True


def name_of(piece: Piece) -> str:
    """Name the claim of a piece."""
    return f"{piece.lot}-{piece.number}"
