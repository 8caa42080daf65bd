"""Sync points of the ranks of a trial: check together for requests and due checkpoints.

Asking in every step would cost a collective and make a GPU wait; asking each rank for itself
would let them disagree. So rank 0 says how many steps it is until the next look.
"""

import time
from collections.abc import Callable
from typing import Literal

import torch

from hydragnn_hpo.training.ddp import Ranks

Signal = Literal["go", "stop", "interrupt"]

SECONDS = 1.0
"""About how often the ranks look up."""

_GROWTH = 4
"""Most by which the steps from look to look grow."""


class SyncPoints:
    """Agreement of all ranks, once a second or so."""

    def __init__(
        self,
        ranks: Ranks,
        signal: Callable[[], Signal],
        *,
        step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look up after the next step, and then as often as rank 0 says.

        Args:
            ranks: who looks up together.
            signal: what is asked of this rank.
            step: steps taken before.
            clock: in seconds.
        """
        self.ranks, self.signal, self.clock = ranks, signal, clock
        self.next = step + 1
        self.longest = 0.0
        """Most seconds between two looks so far, on this rank."""
        self._seen, self._at, self._before = step, clock(), 1

    def due(self, step: int) -> bool:
        """Tell whether the ranks look up after ``step`` steps of the training."""
        return step >= self.next

    def agree(self, step: int, *, save: bool) -> tuple[Signal, bool]:
        """Ask all ranks in one small all-reduce.

        Args:
            step: steps taken since the training's beginning, the same on all ranks.
            save: whether this rank wants a checkpoint; rank 0 decides.

        Returns:
            What is asked of all, and whether a checkpoint is due.
        """
        wish, first = self.signal(), self.ranks.first
        flags = torch.tensor(
            [
                float(wish == "stop"),
                float(wish == "interrupt"),
                float(save and first),
                float(self._ahead(step) if first else 0),
            ],
            device=self.ranks.device,
        )
        stop, interrupt, due, ahead = self.ranks.sum(flags).tolist()
        self.next = step + int(ahead)
        return "interrupt" if interrupt else "stop" if stop else "go", bool(due)

    def _ahead(self, step: int) -> int:
        """Give the steps that fit between two looks, by the pace since the last one.

        A few quick steps prove little, so the distance grows by a factor at most.
        """
        now = self.clock()
        passed = now - self._at
        fitting = round((step - self._seen) / max(passed, 1e-9) * SECONDS)
        self._seen, self._at, self.longest = step, now, max(self.longest, passed)
        self._before = min(max(fitting, 1), _GROWTH * self._before)
        return self._before
