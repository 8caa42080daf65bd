"""Loops over pairs that numba compiles: lengths, directions and envelopes.

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
    pairs, reverses = lengths.shape[0], directions.shape[0] - lengths.shape[0]
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
        x6 = x * x * x * x * x * x
        envelopes[p] = 1.0 - x6 * (28.0 - x * (48.0 - x * 21.0))


LOOPS: dict[str, tuple[Callable[..., None], str]] = {
    "measure_pairs": (_measure_pairs, "22 ii 1 2 1 1"),
}
"""Loops and their signatures, see ``numba_loops``."""
