"""Every edge and its reverse as one pair: what depends on the length alone is made once.

Shapes: N nodes, E edges.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

TOLERANCE = 1e-3
"""Shifts of an edge and its reverse cancel to this, in angstrom."""

Edges = NDArray[np.int64]


def pairs_of(edge_index: Edges, shift: NDArray[np.floating], num_nodes: int) -> Edges | None:
    """Lay edges out in pairs, in time linear in their number.

    Args:
        edge_index: sender and receiver, sorted by receiver, sender and integer shift, [2, E].
        shift: translations of the receivers in angstrom, [E, 3].
        num_nodes: N.

    Returns:
        Two permutations, [2, E]. The first lays the edges out: row p of its first half is an
        edge, row p of its second half the reverse of that edge. The second gives the rows of
        that layout in the order of their receivers. None where the edges are no such pairs:
        a graph from elsewhere may have an edge without its reverse, or another order.
    """
    sender, receiver = edge_index
    if len(sender) % 2 or (np.diff(receiver) < 0).any():
        return None
    ahead = np.flatnonzero(receiver > sender)
    behind = np.flatnonzero(receiver < sender)
    loops = np.flatnonzero(receiver == sender)
    if len(ahead) != len(behind) or len(loops) % 2:
        return None
    reverse = _turned(sender, receiver, behind, num_nodes)
    keys = receiver[ahead] * num_nodes + sender[ahead]
    reverse = reverse[_mirrored(keys)]
    mirror = _mirrored(sender[loops])
    half = mirror > np.arange(len(loops))
    layout = np.concatenate((ahead, loops[half], reverse, loops[mirror[half]]))
    if not _is_paired(edge_index, shift, layout):
        return None
    order = np.empty_like(layout)
    order[layout] = np.arange(len(layout))
    return np.stack((layout, order))


def _turned(sender: Edges, receiver: Edges, rows: Edges, num_nodes: int) -> Edges:
    """Sort edges by sender, then receiver; equal ones keep their order. A counting sort."""
    starts = np.searchsorted(receiver[rows], np.arange(num_nodes + 1))
    table = csr_array((rows, sender[rows], starts), shape=(num_nodes, num_nodes))
    found: Edges = table.tocsc().data
    return found


def _mirrored(keys: Edges) -> Edges:
    """Give places such that each run of equal, neighbouring keys is read backwards."""
    places = np.arange(len(keys))
    borders = np.flatnonzero(np.diff(keys)) + 1
    if len(borders) == len(keys) - 1:
        return places
    starts = np.concatenate(([0], borders, [len(keys)]))[: len(borders) + 2]
    lengths = np.diff(starts)
    mirrored: Edges = np.repeat(starts[:-1] + starts[1:] - 1, lengths) - places
    return mirrored


def _is_paired(edge_index: Edges, shift: NDArray[np.floating], layout: Edges) -> bool:
    """Check that both halves are permutations of all edges, turned round row by row."""
    if len(layout) != edge_index.shape[1]:
        return False
    first, second = np.split(layout, 2)
    turned = edge_index.take(second, axis=1)[::-1]
    if not np.array_equal(edge_index.take(first, axis=1), turned):
        return False
    rest = np.abs(shift.take(first, axis=0) + shift.take(second, axis=0))
    return bool(rest.max(initial=0.0) < TOLERANCE)
