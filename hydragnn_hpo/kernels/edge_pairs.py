"""Edges laid out in pairs: an edge and its reverse, P rows apart.

One compiled loop (``pair_loops``) takes a quarter of numpy's time; both give the same layout.

Shapes: N nodes, E edges, P pairs of edges, where an edge without a reverse is one.
"""

import functools
import importlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

TOLERANCE = 1e-3
"""Largest sum, per component, of the shifts of an edge and its reverse, in angstrom."""


class PairedEdges(NamedTuple):
    """Edges in pairs, and where the edges of each node lie among them."""

    ends: IntArray
    """Sender and receiver, [2, E]: row p + P is the reverse of row p. The last of the first P edges
    have no reverse."""
    shift: NDArray[Any]
    """Shifts in angstrom, [E, 3]."""
    by_receiver: IntArray
    """Edges sorted by receiver, those of a node in the order in which they were given, [E]."""
    receiver_starts: IntArray
    """Position in ``by_receiver`` where the edges of each node begin, and the end, [N + 1]."""
    by_sender: IntArray
    """Edges sorted by sender, those of a node in the order of their rows, [E]."""
    sender_starts: IntArray
    """Position in ``by_sender`` where the edges of each node begin, and the end, [N + 1]."""
    num_lone: int
    """Number of edges without a reverse; P is half of the sum of this and E."""


def pair_edges(edge_index: IntArray, shift: NDArray[Any], num_nodes: int) -> PairedEdges | None:
    """Lay edges out in pairs, in time linear in their number where each has a reverse.

    A pair begins with the edge to the higher node; of a node's two to its own images, with the
    first. Pairs have the order in which these first edges are given.

    Args:
        edge_index: sender and receiver, sorted by receiver, sender and integer shift, [2, E].
        shift: shifts of the receivers in angstrom, fp32 or fp64, [E, 3].
        num_nodes: number of nodes, N.

    Returns:
        The layout; None where edges are not sorted by receiver and sender, as is possible in graphs
        that this package has not built.
    """
    lay_out = lay_out_by_loop if _has_loop() else lay_out_by_numpy
    return lay_out(edge_index, shift, num_nodes)


@functools.cache
def _has_loop() -> bool:
    """Check whether numba is installed and can be imported."""
    try:
        importlib.import_module("hydragnn_hpo.kernels.pair_loops")
    except ImportError:
        return False
    return True


def lay_out_by_loop(
    edge_index: IntArray, shift: NDArray[Any], num_nodes: int
) -> PairedEdges | None:
    """Do the work of ``pair_edges``, whose arguments these are, by the compiled loop.

    Args:
        edge_index: [2, E].
        shift: [E, 3].
        num_nodes: N.
    """
    from hydragnn_hpo.kernels.pair_loops import LAYOUTS

    edges = edge_index.shape[1]
    lone = np.empty(1, np.int64)
    given, shift = np.ascontiguousarray(edge_index), np.ascontiguousarray(shift)
    ends = np.empty((2, edges), np.int64)
    orders = np.empty((2, edges), np.int64)
    starts = np.empty((2, num_nodes + 1), np.int64)
    moved = np.empty_like(shift)
    sorted_by = (orders[0], starts[0], orders[1], starts[1])
    LAYOUTS.compile("lay_out", shift.dtype.name)(
        (given[0], given[1]),
        shift,
        np.full(1, TOLERANCE, shift.dtype),
        (np.empty(edges, np.int64), np.empty(num_nodes, np.int64)),
        lone,
        (ends[0], ends[1]),
        sorted_by,
        moved,
    )
    return None if lone[0] < 0 else PairedEdges(ends, moved, *sorted_by, int(lone[0]))


def lay_out_by_numpy(
    edge_index: IntArray, shift: NDArray[Any], num_nodes: int
) -> PairedEdges | None:
    """Do the work of ``pair_edges``, whose arguments these are, by numpy.

    Args:
        edge_index: [2, E].
        shift: [E, 3].
        num_nodes: N.
    """
    sender, receiver = edge_index
    step = np.diff(receiver)
    if (step < 0).any() or (np.diff(sender)[step == 0] < 0).any():
        return None
    first, second = _find_pairs(edge_index, shift, num_nodes)
    lone = np.ones(len(sender), dtype=np.bool_)
    lone[first] = lone[second] = False
    rows = np.flatnonzero(lone)
    layout = np.concatenate((first, rows, second))
    by_receiver = np.empty_like(layout)
    by_receiver[layout] = np.arange(len(layout))
    ends = edge_index.take(layout, axis=1)
    nodes = np.arange(num_nodes + 1)
    by_sender = _sort_by_sender(ends[0], np.arange(len(layout)), num_nodes)
    return PairedEdges(
        ends=ends,
        shift=shift.take(layout, axis=0),
        by_receiver=by_receiver,
        receiver_starts=np.searchsorted(receiver, nodes),
        by_sender=by_sender,
        sender_starts=np.searchsorted(ends[0].take(by_sender), nodes),
        num_lone=len(rows),
    )


def _find_pairs(
    edge_index: IntArray, shift: NDArray[Any], num_nodes: int
) -> tuple[IntArray, IntArray]:
    """Return the first edge of each pair, ascending, and its reverse."""
    sender, receiver = edge_index
    first, second = _pair_by_position(edge_index, num_nodes)
    rest = np.abs(shift.take(first, axis=0) + shift.take(second, axis=0))
    # The largest of all numbers takes a fiftieth of the time of the largest of each row of three.
    if not rest.max(initial=0.0) < TOLERANCE:
        sums = rest.max(axis=1, initial=0.0) < TOLERANCE
        first, second = first[sums], second[sums]
    if 2 * len(first) < len(sender):
        left = np.ones(len(sender), dtype=np.bool_)
        left[first] = left[second] = False
        rows = np.flatnonzero(left)
        more, reverse = _pair_by_shift(edge_index[:, rows], shift[rows])
        first = np.concatenate((first, rows[more]))
        second = np.concatenate((second, rows[reverse]))
    loops = receiver.take(first) == sender.take(first)
    swapped = loops & (first > second)
    first, second = np.where(swapped, second, first), np.where(swapped, first, second)
    order = np.argsort(first)
    return first[order], second[order]


def _pair_by_position(edge_index: IntArray, num_nodes: int) -> tuple[IntArray, IntArray]:
    """Pair the edges between two nodes with those back, where there are as many.

    Images of one pair are sorted by shift; their reverses have negative shifts, in reverse order.

    Args:
        edge_index: sender and receiver, sorted by receiver, sender and integer shift, [2, E].
        num_nodes: number of nodes, N.

    Returns:
        Edges, and as many others that are their reverses if the shifts fit.
    """
    sender, receiver = edge_index
    ahead = np.flatnonzero(receiver > sender)
    loops = np.flatnonzero(receiver == sender)
    reverse = _sort_by_sender(sender, np.flatnonzero(receiver < sender), num_nodes)
    keys = receiver[ahead] * num_nodes + sender[ahead]
    back = sender[reverse] * num_nodes + receiver[reverse]
    if not np.array_equal(keys, back):
        ahead, reverse = ahead[_as_many(keys, back)], reverse[_as_many(back, keys)]
        keys = receiver[ahead] * num_nodes + sender[ahead]
    reverse = reverse[_reverse_equal_runs(keys)]
    mirror = _reverse_equal_runs(sender[loops])
    half = mirror > np.arange(len(loops))
    first = np.concatenate((ahead, loops[half]))
    return first, np.concatenate((reverse, loops[mirror[half]]))


def _as_many(keys: IntArray, others: IntArray) -> NDArray[np.bool_]:
    """Check which keys are as often among others as among themselves; both are sorted."""
    if len(others) and all((each[1:] > each[:-1]).all() for each in (keys, others)):
        known = others.take(np.searchsorted(others, keys), mode="clip")  # no key comes twice
        same: NDArray[np.bool_] = known == keys
    else:
        counts = [
            np.searchsorted(each, keys, side="right") - np.searchsorted(each, keys)
            for each in (keys, others)
        ]
        same = counts[0] == counts[1]
    return same


def _pair_by_shift(edge_index: IntArray, shift: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Pair edges with their reverses by their shifts, rounded to the tolerance.

    Args:
        edge_index: sender and receiver, in any order, [2, E].
        shift: shifts of the receivers in angstrom, [E, 3].

    Returns:
        Edges, and their reverses.
    """
    sender, receiver = edge_index
    steps = np.rint(shift / TOLERANCE).astype(np.int64)
    # Edges that come back are turned round: those to a lower node, or of a node to its own image
    # in a negative direction, which the first step other than 0 decides.
    x, y, z = steps.T
    way = np.where(x, x, np.where(y, y, z))
    back = np.where(receiver == sender, way < 0, receiver < sender)
    steps[back] *= -1
    lower = np.minimum(sender, receiver)
    upper = np.maximum(sender, receiver)
    order = np.lexsort((back, *steps.T, upper, lower))
    bonds = np.column_stack((lower, upper, steps))[order]
    changes = (bonds[1:] != bonds[:-1]).any(axis=1)
    bond = np.concatenate(([0], np.cumsum(changes)))[: len(order)]
    # Equal edges are told apart by their number among those of one bond and way.
    key = 2 * bond + back[order]
    number = np.arange(len(order)) - np.searchsorted(key, key)
    codes = bond * (len(order) + 1) + number
    ways = back[order]
    _, there, here = np.intersect1d(
        codes[~ways], codes[ways], assume_unique=True, return_indices=True
    )
    return order[~ways][there], order[ways][here]


def _sort_by_sender(sender: IntArray, rows: IntArray, num_nodes: int) -> IntArray:
    """Sort edges by sender, in time linear in their number; equal ones keep their order.

    Args:
        sender: of all edges, [E].
        rows: edges to sort.
        num_nodes: number of nodes, N.
    """
    for bits in range(0, num_nodes.bit_length(), 16):  # numpy sorts 16 bits by counting
        digits = (sender.take(rows) >> bits).astype(np.uint16)
        rows = rows.take(np.argsort(digits, kind="stable"))
    return rows


def _reverse_equal_runs(keys: IntArray) -> IntArray:
    """Return a permutation that reverses each run of equal adjacent keys, [len(keys)]."""
    places = np.arange(len(keys))
    borders = np.flatnonzero(np.diff(keys)) + 1
    if len(borders) == len(keys) - 1:
        return places
    starts = np.concatenate(([0], borders, [len(keys)]))[: len(borders) + 2]
    lengths = np.diff(starts)
    mirrored: IntArray = np.repeat(starts[:-1] + starts[1:] - 1, lengths) - places
    return mirrored
