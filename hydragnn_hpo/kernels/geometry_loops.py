"""Loops that numba compiles: lengths, directions and envelopes of pairs; neighbours of nodes.

They are plain Python with numpy arrays; only ``numba_passes`` calls them, compiled.

Shapes: N nodes, E edges, P pairs (edge e belongs to pair e or e - P).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Ends = tuple[Array, Array]


def _measure_pairs(
    nodes: tuple[Array, Array],
    ends: Ends,
    cutoff: Array,
    directions: Array,
    lengths: Array,
    envelopes: Array,
) -> None:
    """Measure pairs as ``edges.make_edges`` does.

    Args:
        nodes: positions, [N, 3], and shifts of periodic images, [P or more, 3].
        ends: sender and receiver of each edge, [E] each.
        cutoff: [1].
        directions: result, [E, 3], or without rows.
        lengths: result, [P].
        envelopes: result, [P].
    """
    (places, shifts), (sender, receiver) = nodes, ends
    pairs = lengths.shape[0]
    reverses = directions.shape[0] - lengths.shape[0]
    for p in range(pairs):
        i, j = receiver[p], sender[p]
        x = places[i, 0] - places[j, 0] + shifts[p, 0]
        y = places[i, 1] - places[j, 1] + shifts[p, 1]
        z = places[i, 2] - places[j, 2] + shifts[p, 2]
        lengths[p] = math.sqrt(x * x + y * y + z * z)
        if directions.shape[0]:
            length = max(lengths[p], 1e-6)
            directions[p, 0], directions[p, 1], directions[p, 2] = (
                x / length,
                y / length,
                z / length,
            )
            if p < reverses:
                directions[p + pairs, 0] = -directions[p, 0]
                directions[p + pairs, 1] = -directions[p, 1]
                directions[p + pairs, 2] = -directions[p, 2]
    for p in range(pairs):
        x = min(lengths[p] / cutoff[0], 1.0)
        envelopes[p] = 1.0 - x * x * x * x * x * x * (28.0 - x * (48.0 - x * 21.0))


def _sort_neighbors(
    ends: Ends,
    orders: Ends,
    starts: Array,
    envelopes: Array,
    neighbors: Ends,
    weights: tuple[Array, Array],
    shares: Array,
) -> None:
    """List the neighbours of all nodes with their weights, see ``edges.Edges.faded_neighbors``.

    Args:
        ends: sender and receiver of each edge, [E] each.
        orders: edges sorted by receiver, and by sender, [E] each.
        starts: position in the first order where the edges of each node begin, and the end.
        envelopes: [P].
        neighbors: results, senders of received edges, and receivers of sent ones, [E] or [0].
        weights: results, of both.
        shares: for means, result, the inverse sum of each node's envelopes and 1, [N]; else [0].
    """
    (sender, receiver) = ends
    pairs = envelopes.shape[0]
    for i in range(starts.shape[0] - 1):
        total = envelopes.dtype.type(1)
        for k in range(starts[i], starts[i + 1]):
            e = orders[0][k]
            neighbors[0][k] = sender[e]
            weights[0][k] = envelopes[e if e < pairs else e - pairs]
            total += weights[0][k]
        if shares.shape[0]:
            shares[i] = envelopes.dtype.type(1) / total
            for k in range(starts[i], starts[i + 1]):
                weights[0][k] *= shares[i]
    for k in range(neighbors[1].shape[0]):
        e = orders[1][k]
        neighbors[1][k] = receiver[e]
        weights[1][k] = envelopes[e if e < pairs else e - pairs]
        if shares.shape[0]:
            weights[1][k] *= shares[receiver[e]]


LOOPS: dict[str, tuple[Callable[..., None], str]] = {
    "measure_pairs": (_measure_pairs, "22 ii 1 2 1 1"),
    "sort_neighbors": (_sort_neighbors, "ii ii i 1 ii 11 1"),
}
"""Loops and their signatures, see ``numba_loops``."""
