"""The layout of ``edge_pairs`` by one loop, which numba compiles.

Shapes: N nodes, E edges, P pairs of edges.
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from hydragnn_hpo.compiled_loops import CompiledLoops

Array = np.ndarray[Any, Any]
Arrays2 = tuple[Array, Array]
Arrays4 = tuple[Array, Array, Array, Array]


def _lay_out(
    ends: Arrays2,
    shift: Array,
    tolerance: Array,
    space: Arrays2,
    lone: Array,
    placed: Arrays2,
    orders: Arrays4,
    moved: Array,
) -> None:
    """Lay edges out in pairs.

    Args:
        ends: sender and receiver, [E] each.
        shift: [E, 3].
        tolerance: below which the shifts of an edge and its reverse sum up, [1].
        space: the reverse of each edge, [E], and a place in the edges of each node, [N].
        lone: number of edges without a reverse, [1]; -1 where edges are not sorted.
        placed: sender and receiver in the layout, [E] each.
        orders: ``by_receiver`` to ``sender_starts`` of ``PairedEdges``.
        moved: shifts in the layout, [E, 3].
    """
    reverse, place = space
    edges = reverse.shape[0]
    if not _is_sorted(ends[0], ends[1]):
        lone[0] = -1
        return
    _find_starts(ends[1], orders[1], place)
    _find_reverses(ends, shift, tolerance[0], orders[1], reverse, place)
    lone[0] = _place_pairs(ends, reverse, orders[0])
    for e in range(edges):
        p = orders[0][e]
        placed[0][p], placed[1][p] = ends[0][e], ends[1][e]
        for axis in range(3):
            moved[p, axis] = shift[e, axis]
    _find_starts(placed[0], orders[3], place)
    for p in range(edges):
        n = placed[0][p]
        orders[2][place[n]] = p
        place[n] += 1


@register_jitable
def _is_sorted(sender: Array, receiver: Array) -> bool:
    for e in range(1, len(sender)):
        if receiver[e] < receiver[e - 1]:
            return False
        if receiver[e] == receiver[e - 1] and sender[e] < sender[e - 1]:
            return False
    return True


@register_jitable
def _find_starts(nodes: Array, starts: Array, place: Array) -> None:
    """Find where the rows of each node would begin if they were sorted; twice, once to change."""
    starts[:] = 0
    for e in range(len(nodes)):
        starts[nodes[e] + 1] += 1
    for n in range(len(place)):
        starts[n + 1] += starts[n]
        place[n] = starts[n]


@register_jitable
def _try(shift: Array, tolerance: float, reverse: Array, e: int, other: int, is_loop: bool) -> None:
    """Make two edges each other's reverse if they are free and their shifts are opposite.

    Args:
        shift: [E, 3].
        tolerance: below which the shifts of an edge and its reverse sum up.
        reverse: of each edge, -1 for none so far, [E]; changed.
        e: an edge.
        other: another one, back.
        is_loop: whether they join a node to itself, where the first of two takes the second.
    """
    fits = reverse[e] < 0 and reverse[other] < 0 and not (is_loop and other <= e)
    for axis in range(3):
        fits = fits and abs(shift[e, axis] + shift[other, axis]) < tolerance
    if fits:
        reverse[e], reverse[other] = other, e


@register_jitable
def _match(
    shift: Array, tolerance: float, reverse: Array, first: int, end: int, back: int, last: int
) -> None:
    """Match edges from one node to another with those back.

    Both are sorted by shift: where as many come back, each is expected opposite its reverse.

    Args:
        shift: [E, 3].
        tolerance: below which the shifts of an edge and its reverse sum up.
        reverse: of each edge, -1 for none so far, [E]; changed.
        first: the first edge there.
        end: the one behind the last edge there.
        back: the first edge back, which is ``first`` for edges from a node to itself.
        last: the one behind the last edge back.
    """
    if end - first == last - back:
        for e in range(first, end):
            _try(shift, tolerance, reverse, e, last - 1 - (e - first), first == back)
    for e in range(first, end):
        for other in range(back, last):
            if reverse[e] >= 0:
                break
            _try(shift, tolerance, reverse, e, other, first == back)


@register_jitable
def _find_reverses(
    ends: Arrays2,
    shift: Array,
    tolerance: float,
    starts: Array,
    reverse: Array,
    place: Array,
) -> None:
    """Find the reverse of each edge, -1 for none, in one walk over the edges of all nodes.

    Args:
        ends: sender and receiver, sorted by receiver and sender, [E] each.
        shift: [E, 3].
        tolerance: below which the shifts of an edge and its reverse sum up.
        starts: where the edges that each node receives begin, and the end, [N + 1].
        reverse: result, [E].
        place: the first edge of each node, [N]; those to it from higher nodes are met in order.
    """
    reverse[:] = -1
    first, edges = 0, len(ends[0])
    while first < edges:
        low, high, end = ends[0][first], ends[1][first], first + 1
        while end < edges and ends[1][end] == high and ends[0][end] == low:
            end += 1
        if low == high:
            _match(shift, tolerance, reverse, first, end, first, end)
        elif low < high:
            back, stop = place[low], starts[low + 1]
            while back < stop and ends[0][back] < high:
                back += 1
            last = back
            while last < stop and ends[0][last] == high:
                last += 1
            place[low] = last
            _match(shift, tolerance, reverse, first, end, back, last)
        first = end


@register_jitable
def _place_pairs(ends: Arrays2, reverse: Array, row: Array) -> int:
    """Find the row of each edge in the layout; return how many have no reverse.

    Args:
        ends: sender and receiver, [E] each.
        reverse: of each edge, -1 for none, [E].
        row: result, [E].
    """
    lone = 0
    for e in range(len(row)):
        lone += reverse[e] < 0
    pairs = (len(row) + lone) // 2
    p, single = 0, pairs - lone
    for e in range(len(row)):
        back = reverse[e]
        if back < 0:
            row[e] = single
            single += 1
        elif ends[1][e] > ends[0][e] or (ends[1][e] == ends[0][e] and e < back):
            row[e], row[back] = p, pairs + p
            p += 1
    return lone


LAYOUTS = CompiledLoops({"lay_out": (_lay_out, "ii 2 1 ii i ii iiii 2")})
