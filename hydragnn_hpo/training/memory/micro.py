"""Micro-batches: into how many pieces every rank cuts its share of a step.

The loss is a sum over graphs divided by the counts of the whole step, so that gradients of pieces
add up to that of the share: the cut changes memory and speed, never the mathematics (Law 1).
A step that does not fit is taken again in more pieces, as long as nothing of it has gone out.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.data.load_balance import balance_load
from hydragnn_hpo.files import read_json, write_json
from hydragnn_hpo.training.evaluate import Feed
from hydragnn_hpo.training.memory.limits import give_back, is_full
from hydragnn_hpo.training.stepper import Stepper

logger = logging.getLogger(__name__)

KEPT = "micro.json"
"""File in a trial's ``checkpoints`` that says in how many pieces its steps have to be taken."""


class Halved(Exception):
    """A step did not fit after others had got some of it: next time in more pieces."""


class MicroBatches:
    """Cuts shares, makes their batches, and cuts further where memory runs out."""

    def __init__(self, feed: Feed, pieces: int | None) -> None:
        """Begin with a number of pieces that was asked for, or with one."""
        self.feed, self.asked, self.pieces = feed, pieces, pieces or 1
        self.folder: Path | None = None
        self.changed: Callable[[int], None] = lambda pieces: None

    def cut(self, indices: np.ndarray) -> list[np.ndarray]:
        """Give this rank's share of a step in pieces of equal cost, the cheapest last.

        It is in the last that gradients are sent, and what is sent cannot be taken back. Some
        are empty if there are few graphs.
        """
        return self.split(self.feed.share(indices), self.pieces)

    def split(self, mine: np.ndarray, pieces: int) -> list[np.ndarray]:
        """Give this rank's graphs in so many pieces."""
        if pieces == 1:
            return [mine]
        costs = self.feed.costs[mine]
        found = sorted(balance_load(costs, pieces), key=lambda piece: -costs[piece].sum())
        return [mine[piece] for piece in found]

    def made(self, indices: np.ndarray) -> list[Batch]:
        """Make the batches of a step in this process's memory."""
        return [self.feed.made(piece) for piece in self.cut(indices)]

    def ahead(self, indices: np.ndarray) -> list[Batch]:
        """Make them before their turn; none where there is no room for them yet."""
        try:
            return self.made(indices)
        except MemoryError:
            return []

    def through(
        self,
        indices: np.ndarray,
        batches: list[Batch],
        stepper: Stepper,
        take: Callable[[Sequence[Batch]], Tensor],
    ) -> Tensor:
        """Take a step in as many pieces as it needs.

        Args:
            indices: the graphs of all ranks.
            batches: what was made of them, perhaps when a step still had fewer pieces.
            stepper: knows how far a step has come.
            take: lets it take the step.

        Returns:
            What ``take`` gives.

        Raises:
            Halved: it has to be taken in more pieces by all ranks, from the last checkpoint.
            MemoryError: it does not fit in any number of pieces.
        """
        while True:
            try:
                if len(batches) != self.pieces:
                    batches = self.made(indices)
                return take(batches)
            except (RuntimeError, MemoryError) as error:
                if not is_full(error):
                    raise
                said = str(error) or "no memory left"
            # Only here, where the error no longer holds them, are the step's tensors free.
            self._cut_further(batches, stepper, said)
            batches = []
            give_back(self.feed.ranks.device)

    def _cut_further(self, batches: list[Batch], stepper: Stepper, said: str) -> None:
        """Find more pieces for a step that did not fit."""
        stepper.optimizer.zero_grad(set_to_none=True)
        if stepper.bound == "weights":
            raise MemoryError(
                "there is no memory for the update of the weights, which micro-batches cannot "
                f"help: take a smaller model, or shard it with parallel.shard ({said})"
            )
        piece = batches[stepper.piece] if stepper.piece < len(batches) else None
        if piece is not None and piece.num_graphs <= 1:
            raise MemoryError(f"{alone(piece)} ({said})")
        self.more(2 * self.pieces)
        logger.warning("a step did not fit into the memory: now in %d pieces", self.pieces)
        if stepper.bound == "gradients":
            raise Halved(
                f"a step did not fit into the memory while its gradients were sent; it goes on "
                f"from the last checkpoint, in {self.pieces} pieces"
            )

    def more(self, pieces: int) -> None:
        """Take every step in more pieces from now on, also after a restart."""
        self.pieces = pieces
        self.keep()
        self.changed(pieces)

    def keep(self) -> None:
        """Write down in how many pieces later attempts have to take their steps.

        They do so even if there is more memory by then: sums in another order differ in the last
        digit, and a resumed trial equals an unbroken one.
        """
        if self.folder is None or self.pieces == 1:
            return
        world = self.feed.ranks.data_world
        pieces = max(self.pieces, recalled(self.folder, world))
        write_json(self.folder / KEPT, {"pieces": pieces, "shares": world})


def recalled(folder: Path, world: int) -> int:
    """Give the pieces that a trial's steps were found to need, for ``world`` shares of a step."""
    path = folder / KEPT
    if not path.exists():
        return 1
    kept = read_json(path)
    return max(-(-int(kept["pieces"]) * int(kept["shares"]) // world), 1)


def alone(piece: Batch) -> str:
    """Say that a graph, or what stays when there is none, is too large."""
    if not piece.num_graphs:
        return "there is no memory left for an empty piece of a step: take a smaller model"
    return (
        f"structure {int(piece.graph_index[0])} of {len(piece.numbers)} atoms and "
        f"{piece.edge_index.shape[1]} edges does not fit into the memory alone: take a smaller "
        "model or cutoff, parallel.recompute, or ranks with more memory"
    )
