"""A cap on the neighbours of a node that keeps the graph symmetric.

Shapes: N nodes, E edges.
"""

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-3
"""Neighbours this little (angstrom) beyond the last one kept are of its shell and stay too."""


def capped(
    edge_index: NDArray[np.int64], lengths: NDArray[np.float64], num_nodes: int, cap: int
) -> NDArray[np.bool_]:
    """Tell which edges stay when every node keeps about its ``cap`` nearest neighbours, [E].

    A node keeps whole shells: all neighbours as near as its ``cap``-th one, so that more than
    ``cap`` may stay but nothing depends on the order of nodes or on a rotation. An edge stays if
    one of its ends keeps it: ``i -> j`` and ``j -> i`` stay or go together.

    Args:
        edge_index: sender and receiver, both directions of every pair, [2, E].
        lengths: angstrom, [E].
        num_nodes: N.
        cap: neighbours.
    """
    sender, receiver = edge_index
    counts = np.bincount(receiver, minlength=num_nodes)
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    # One number sorts by receiver, then length, several times faster than two; it is good to
    # about 1e-10 angstrom.
    stride = 1.0 + lengths.max(initial=0.0)
    ordered = np.sort(receiver * stride + lengths)
    reach = np.full(num_nodes, np.inf)
    crowded = np.flatnonzero(counts > cap)
    reach[crowded] = ordered[first[crowded] + cap - 1] - crowded * stride + TOLERANCE
    kept: NDArray[np.bool_] = lengths <= np.maximum(reach[sender], reach[receiver])
    return kept
