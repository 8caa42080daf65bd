"""The layout of ``edge_pairs`` by one loop, which numba compiles.

Shapes: N nodes, E edges, P pairs of edges.
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from hydragnn_hpo.kernels.compiled_loops import CompiledLoops

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
    if not _find_received(ends, orders[1]):
        lone[0] = -1
        return
    _find_reverses(ends, shift, tolerance[0], orders[1], reverse, place)
    lone[0] = _place_pairs(ends, shift, reverse, orders[0], placed, moved)
    _sort_by_sender(placed[0], orders[2], orders[3], place)


@register_jitable
def _find_received(ends: Arrays2, starts: Array) -> bool:
    """Find where the edges of each receiver begin; return whether edges are sorted as they must be.

    Args:
        ends: sender and receiver, [E] each.
        starts: result, [N + 1].
    """
    sender, receiver = ends
    nodes = 0
    for e in range(len(sender)):
        i = receiver[e]
        if e and (i < receiver[e - 1] or (i == receiver[e - 1] and sender[e] < sender[e - 1])):
            return False
        while nodes <= i:
            starts[nodes] = e
            nodes += 1
    starts[nodes:] = len(sender)
    return True


@register_jitable
def _sort_by_sender(sender: Array, order: Array, starts: Array, place: Array) -> None:
    """Sort edges by sender, those of a node in the order of their rows.

    Args:
        sender: [E].
        order: result, edges, [E].
        starts: result, where the edges of each node begin, and the end, [N + 1].
        place: space for each node, [N].
    """
    starts[:] = 0
    for e in range(len(sender)):
        starts[sender[e] + 1] += 1
    for n in range(len(place)):
        starts[n + 1] += starts[n]
        place[n] = starts[n]
    for e in range(len(sender)):
        n = sender[e]
        order[place[n]] = e
        place[n] += 1


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
    if reverse[e] >= 0 or reverse[other] >= 0 or (is_loop and other <= e):
        return
    rest = max(
        abs(shift[e, 0] + shift[other, 0]),
        abs(shift[e, 1] + shift[other, 1]),
        abs(shift[e, 2] + shift[other, 2]),
    )
    if rest < tolerance:
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
        place: space for the next edge that each node receives from a higher one, [N]; these are met
            in order.
    """
    sender = ends[0]
    reverse[:] = -1
    for i in range(len(place)):
        first, stop = starts[i], starts[i + 1]
        while first < stop and sender[first] < i:
            j = sender[first]
            end = _end_of_run(sender, j, first + 1, stop)
            back = place[j]
            while back < starts[j + 1] and sender[back] < i:
                back += 1
            last = place[j] = _end_of_run(sender, i, back, starts[j + 1])
            if end - first == last - back == 1:  # as in all molecules
                _try(shift, tolerance, reverse, first, back, False)
            elif back < last:
                _match(shift, tolerance, reverse, first, end, back, last)
            first = end
        end = place[i] = _end_of_run(sender, i, first, stop)
        _match(shift, tolerance, reverse, first, end, first, end)


@register_jitable
def _end_of_run(sender: Array, node: int, first: int, stop: int) -> int:
    """Return the first edge that has another sender, from ``first``; ``stop`` if none has.

    Args:
        sender: [E].
        node: the sender.
        first: edge to begin with.
        stop: the one behind the last edge to look at.
    """
    while first < stop and sender[first] == node:
        first += 1
    return first


@register_jitable
def _place_pairs(
    ends: Arrays2, shift: Array, reverse: Array, row: Array, placed: Arrays2, moved: Array
) -> int:
    """Lay edges out in rows; return how many have no reverse.

    Args:
        ends: sender and receiver, [E] each.
        shift: [E, 3].
        reverse: of each edge, -1 for none, [E].
        row: result, the row of each edge, [E].
        placed: results, sender and receiver in the layout, [E] each.
        moved: result, shifts in the layout, [E, 3].
    """
    lone = 0
    for e in range(len(row)):
        lone += reverse[e] < 0
    pairs = (len(row) + lone) // 2
    p = 0
    single = pairs - lone
    for e in range(len(row)):
        back = reverse[e]
        if back < 0:
            _place(ends, shift, e, single, row, placed, moved)
            single += 1
        elif ends[1][e] > ends[0][e] or (ends[1][e] == ends[0][e] and e < back):
            _place(ends, shift, e, p, row, placed, moved)
            _place(ends, shift, back, pairs + p, row, placed, moved)
            p += 1
    return lone


@register_jitable
def _place(
    ends: Arrays2, shift: Array, e: int, p: int, row: Array, placed: Arrays2, moved: Array
) -> None:
    """Lay an edge out in a row, see ``_place_pairs``.

    Args:
        ends: sender and receiver, [E] each.
        shift: [E, 3].
        e: the edge.
        p: its row.
        row: of each edge, [E].
        placed: sender and receiver in the layout, [E] each.
        moved: shifts in the layout, [E, 3].
    """
    row[e] = p
    placed[0][p] = ends[0][e]
    placed[1][p] = ends[1][e]
    moved[p, 0], moved[p, 1], moved[p, 2] = shift[e, 0], shift[e, 1], shift[e, 2]


LAYOUTS = CompiledLoops({"lay_out": (_lay_out, "ii 2 1 ii i ii iiii 2")})
