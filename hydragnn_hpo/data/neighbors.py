"""Edges between atoms closer than a cutoff, periodic images included.

Shapes: N nodes, E edges.
"""

import sys

import numpy as np
from numpy.typing import NDArray

# Where torch is installed vesin imports it: seconds and 200 MB for each process of a build.
_TORCH = sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
try:
    import vesin
finally:
    if _TORCH is None:
        del sys.modules["torch"]


def find_edges(
    positions: NDArray[np.float64],
    cell: NDArray[np.float64],
    pbc: NDArray[np.bool_],
    cutoff: float,
) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
    """Return the directed edges, sorted by receiver, then sender, then shift.

    Args:
        positions: angstrom, [N, 3]; atoms may lie outside the cell, as far as ``data.structure``
            lets them.
        cell: lattice vectors as rows in angstrom, [3, 3].
        pbc: periodic directions, [3].
        cutoff: largest edge length in angstrom.

    Returns:
        Sender and receiver, [E, 2], and shifts in lattice vectors, [E, 3], signed as said
        in ``data.graph``. An isolated atom has no edge.
    """
    search = vesin.NeighborList(cutoff=cutoff, full_list=True, n_threads=1)  # else all cores
    pairs, shift = search.compute(positions, cell, pbc, "PS", copy=False)  # views into ``search``
    order = _sort_edges(pairs, shift, len(positions))
    return pairs.take(order, axis=0).astype(np.int32), shift.take(order, axis=0).astype(np.int16)


def _sort_edges(
    pairs: NDArray[np.uint64], shift: NDArray[np.int32], num_nodes: int
) -> NDArray[np.int64]:
    """Sort edges by receiver, then sender, then shift: by one number where it fits into 63 bits."""
    if not len(pairs):
        return np.zeros(0, dtype=np.int64)
    span = 2 * int(np.abs(shift).max()) + 1
    if num_nodes**2 * span**3 >= 2**62:
        columns = (shift[:, 2], shift[:, 1], shift[:, 0], pairs[:, 0], pairs[:, 1])
        return np.lexsort(columns)
    key = pairs.view(np.int64) @ np.array((span**3, num_nodes * span**3))
    key += shift @ np.array((span * span, span, 1))
    order: NDArray[np.int64] = key.argsort()
    return order


def edge_vectors(
    positions: NDArray[np.float64],
    cell: NDArray[np.float64],
    edges: NDArray[np.int32],
    edge_shift: NDArray[np.int16],
) -> NDArray[np.float64]:
    """Return the vector from sender to receiver of every edge in angstrom, [E, 3]."""
    sender, receiver = edges.T
    vectors: NDArray[np.float64] = positions[receiver] + edge_shift @ cell - positions[sender]
    return vectors
