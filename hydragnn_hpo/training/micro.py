"""Micro-batches: into how many pieces every rank cuts its share of a step.

The loss is a sum over graphs divided by the counts of the whole step, so that gradients of pieces
add up to that of the share: the cut changes memory and speed, never the mathematics (Law 1).
"""

import numpy as np

from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.data.shares import shares
from hydragnn_hpo.training.evaluate import Feed


class MicroBatches:
    """Cuts shares and makes their batches."""

    def __init__(self, feed: Feed, pieces: int | None) -> None:
        """Begin with a number of pieces that was asked for, or with one."""
        self.feed, self.pieces = feed, pieces or 1

    def cut(self, indices: np.ndarray) -> list[np.ndarray]:
        """Give this rank's share of a step in pieces of equal cost.

        All ranks have the same number of pieces, some of them empty if there are few graphs.
        """
        mine = self.feed.share(indices)
        if self.pieces == 1:
            return [mine]
        return [mine[piece] for piece in shares(self.feed.costs[mine], self.pieces)]

    def made(self, indices: np.ndarray) -> list[Batch]:
        """Make the batches of a step in this process's memory."""
        return [self.feed.made(piece) for piece in self.cut(indices)]
