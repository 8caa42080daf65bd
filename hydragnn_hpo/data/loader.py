"""Which graphs are in which step, and which rank holds which of them (Law 1).

Shapes: G graphs.
"""

import heapq

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hydragnn_hpo.data.columns import Columns


def epoch_steps(
    train_indices: ArrayLike, global_batch: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """Give the graphs of every step of an epoch; the last step may be smaller.

    Depends on the seed and the epoch alone: never on how many ranks there are.
    """
    shuffled = np.random.default_rng([seed, epoch]).permutation(
        np.asarray(train_indices, dtype=np.int64)
    )
    return [
        shuffled[start : start + global_batch] for start in range(0, len(shuffled), global_batch)
    ]


def shares(costs: ArrayLike, world: int) -> list[NDArray[np.int64]]:
    """Share the graphs of a step among ranks so that the costs balance.

    The costliest graph goes first, each to the rank with the least so far; the first rank
    wins a tie. Shares may be empty.

    Args:
        costs: cost of each graph of the step, [G].
        world: number of ranks.

    Returns:
        For each rank its positions in the step, ascending.
    """
    weights = np.asarray(costs, dtype=np.float64)
    ranks = [(0.0, rank) for rank in range(world)]
    owned: list[list[int]] = [[] for _ in range(world)]
    for position in np.argsort(-weights, kind="stable").tolist():
        load, rank = ranks[0]
        owned[rank].append(position)
        heapq.heapreplace(ranks, (load + weights[position], rank))
    return [np.array(sorted(mine), dtype=np.int64) for mine in owned]


def graph_costs(columns: Columns) -> NDArray[np.int64]:
    """Estimate what a graph costs to train on: its nodes and its edges, [G]."""
    return columns.num_nodes() + columns.num_edges()
