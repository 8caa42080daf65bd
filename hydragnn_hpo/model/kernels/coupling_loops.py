"""Loops for messages that a matrix per edge mixes, or a vector per triplet.

Loops over edges serve every table of paths: a path couples components of the sender to components
of the sum, and the matrices of the edges hold products of its coefficients and the harmonics.

Shapes: N nodes, E edges, P rows of a filter (see ``numba_loops``), A components of a node's values,
B components of a sum, T triplets, S functions of an angle, F features. Arrays are contiguous and of
one dtype, indices int64.

Arguments that several loops take:

- ``edges``, ``ends``: see ``numba_loops``; for triplets, edges are in the place of nodes.
- ``mixing``: of the edges, [E, B * A], in the order of [B, A].
- ``messages``, ``filters``, ``weights`` of triplets: [E, F], [S, P, F], [T, S].

Components are taken three at a time: each access to a sum then serves three products.
No row of an array is sliced and no function is called for it: the compiler would not see what
overlaps, and the inner loops would not use vector registers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Edges3 = tuple[Array, Array, Array]
Ends = tuple[Array, Array]


def _coupled_by_node(
    values: Array, filters: Array, mixing: Array, steps: Array, edges: Edges3, out: Array
) -> None:
    """Sum the mixed and filtered values, [N, A, F], of the nodes at the other end, [N, B, F].

    ``steps`` are the distances in a row of ``mixing`` of two components of the sum, and of two of
    the values: one loop serves sums at receivers, and at senders by the transposed matrices.
    """
    (other, order, starts), pairs, count = edges, filters.shape[0], values.shape[1]
    to_next_sum, step = steps[0], steps[1]
    for n in range(out.shape[0]):
        for b in range(out.shape[1]):
            for f in range(out.shape[2]):
                out[n, b, f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            e = order[k]
            j = other[e]
            p = e if e < pairs else e - pairs
            for b in range(out.shape[1]):
                for a in range(0, count - 2, 3):
                    m = b * to_next_sum + a * step
                    x, y, z = mixing[e, m], mixing[e, m + step], mixing[e, m + 2 * step]
                    for f in range(out.shape[2]):
                        mixed = x * values[j, a, f] + y * values[j, a + 1, f]
                        mixed += z * values[j, a + 2, f]
                        out[n, b, f] += mixed * filters[p, f]
                for a in range(count - count % 3, count):
                    x = mixing[e, b * to_next_sum + a * step]
                    for f in range(out.shape[2]):
                        out[n, b, f] += x * values[j, a, f] * filters[p, f]


def _coupled_by_pair(values: Array, grad: Array, mixing: Array, ends: Ends, out: Array) -> None:
    """Multiply mixed values of the senders by gradients, [N, B, F], and sum by pair, [P, F]."""
    (sender, receiver), pairs, count = ends, out.shape[0], values.shape[1]
    for p in range(pairs):
        for f in range(out.shape[1]):
            out[p, f] = 0.0
        for e in range(p, sender.shape[0], pairs):
            j, i = sender[e], receiver[e]
            for b in range(grad.shape[1]):
                for a in range(0, count - 2, 3):
                    m = b * count + a
                    x, y, z = mixing[e, m], mixing[e, m + 1], mixing[e, m + 2]
                    for f in range(out.shape[1]):
                        mixed = x * values[j, a, f] + y * values[j, a + 1, f]
                        mixed += z * values[j, a + 2, f]
                        out[p, f] += mixed * grad[i, b, f]
                for a in range(count - count % 3, count):
                    x = mixing[e, b * count + a]
                    for f in range(out.shape[1]):
                        out[p, f] += x * values[j, a, f] * grad[i, b, f]


def _coupled_by_edge(
    values: Array, filters: Array, grad: Array, ends: Ends, to_mixing: Array
) -> None:
    """Multiply filtered values of the senders by gradients, and sum over features, [E, B * A]."""
    (sender, receiver), pairs, count = ends, filters.shape[0], values.shape[1]
    zero = to_mixing.dtype.type(0)
    for e in range(sender.shape[0]):
        j, i = sender[e], receiver[e]
        p = e if e < pairs else e - pairs
        for b in range(grad.shape[1]):
            for a in range(0, count - 2, 3):
                x = y = z = zero
                for f in range(values.shape[2]):
                    slope = grad[i, b, f] * filters[p, f]
                    x += slope * values[j, a, f]
                    y += slope * values[j, a + 1, f]
                    z += slope * values[j, a + 2, f]
                m = b * count + a
                to_mixing[e, m], to_mixing[e, m + 1], to_mixing[e, m + 2] = x, y, z
            for a in range(count - count % 3, count):
                x = zero
                for f in range(values.shape[2]):
                    x += grad[i, b, f] * filters[p, f] * values[j, a, f]
                to_mixing[e, b * count + a] = x


def _triplets_by_second(
    messages: Array, filters: Array, weights: Array, edges: Edges3, out: Array
) -> None:
    """Sum filtered messages of the first edges at the second, [E, F]."""
    (first, order, starts), pairs, count = edges, filters.shape[1], filters.shape[0]
    for n in range(out.shape[0]):
        for f in range(out.shape[1]):
            out[n, f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            t = order[k]
            j = first[t]
            p = j if j < pairs else j - pairs
            for s in range(0, count - 2, 3):
                x, y, z = weights[t, s], weights[t, s + 1], weights[t, s + 2]
                for f in range(out.shape[1]):
                    mixed = x * filters[s, p, f] + y * filters[s + 1, p, f]
                    mixed += z * filters[s + 2, p, f]
                    out[n, f] += mixed * messages[j, f]
            for s in range(count - count % 3, count):
                x = weights[t, s]
                for f in range(out.shape[1]):
                    out[n, f] += x * filters[s, p, f] * messages[j, f]


def _triplets_by_first(
    messages: Array,
    filters: Array,
    weights: Array,
    grad: Array,
    edges: Edges3,
    to_messages: Array,
    to_filters: Array,
    rows: Array,
) -> None:
    """Differentiate ``_triplets_by_second`` by what belongs to the first edges.

    ``rows`` is space for the weighted gradients of one edge, [S, F].
    """
    (second, order, starts), pairs = edges, filters.shape[1]
    count, width = rows.shape
    for n in range(to_messages.shape[0]):
        p = n if n < pairs else n - pairs
        for s in range(count):
            for f in range(width):
                rows[s, f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            t = order[k]
            i = second[t]
            for s in range(count):
                weight = weights[t, s]
                for f in range(width):
                    rows[s, f] += weight * grad[i, f]
        for f in range(width):
            to_messages[n, f] = 0.0
        for s in range(count):
            for f in range(width):
                to_messages[n, f] += rows[s, f] * filters[s, p, f]
            if n < pairs:
                for f in range(width):
                    to_filters[s, p, f] = rows[s, f] * messages[n, f]
            else:
                for f in range(width):
                    to_filters[s, p, f] += rows[s, f] * messages[n, f]


def _triplets_by_triplet(
    messages: Array, filters: Array, grad: Array, ends: Ends, to_weights: Array
) -> None:
    """Differentiate ``_triplets_by_second`` by the weights."""
    (first, second), pairs, count = ends, filters.shape[1], filters.shape[0]
    zero = to_weights.dtype.type(0)
    for t in range(first.shape[0]):
        j, i = first[t], second[t]
        p = j if j < pairs else j - pairs
        for s in range(0, count - 2, 3):
            x = y = z = zero
            for f in range(messages.shape[1]):
                slope = grad[i, f] * messages[j, f]
                x += slope * filters[s, p, f]
                y += slope * filters[s + 1, p, f]
                z += slope * filters[s + 2, p, f]
            to_weights[t, s], to_weights[t, s + 1], to_weights[t, s + 2] = x, y, z
        for s in range(count - count % 3, count):
            x = zero
            for f in range(messages.shape[1]):
                x += grad[i, f] * messages[j, f] * filters[s, p, f]
            to_weights[t, s] = x


COUPLING_LOOPS: dict[str, tuple[Callable[..., None], str]] = {
    "coupled_by_node": (_coupled_by_node, "3 2 2 i iii 3"),
    "coupled_by_pair": (_coupled_by_pair, "3 3 2 ii 2"),
    "coupled_by_edge": (_coupled_by_edge, "3 2 3 ii 2"),
    "triplets_by_second": (_triplets_by_second, "2 3 2 iii 2"),
    "triplets_by_first": (_triplets_by_first, "2 3 2 2 iii 2 3 2"),
    "triplets_by_triplet": (_triplets_by_triplet, "2 3 2 ii 2"),
}
"""Loop and its signature by name, see ``numba_loops.LOOPS``."""
