"""When the ranks of a trial look up together: what is asked of them, is a checkpoint due.

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


class Looks:
    """Agreement of all ranks, once a second or so."""

    def __init__(
        self,
        ranks: Ranks,
        signal: Callable[[], Signal],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look up after the next step, and then as often as rank 0 says."""
        self.ranks, self.signal, self.clock = ranks, signal, clock
        self.next = 0
        self._seen, self._at = 0, clock()

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
        """Give the steps that fit between two looks, by the pace since the last one."""
        now = self.clock()
        pace = (step - self._seen) / max(now - self._at, 1e-9)
        self._seen, self._at = step, now
        return min(max(round(pace * SECONDS), 1), 10_000)
