"""Loops for messages that a matrix per edge mixes, or a vector per triplet; the list of triplets.

Loops over edges serve every table of paths: a path couples components of the sender to components
of the sum, and the matrices of the edges hold products of its coefficients and the harmonics.

Shapes: N nodes, E edges, P rows of a filter (see ``numba_loops``), A components of a node's values,
B components of a sum, T triplets, S functions of an angle, F features. Arrays are contiguous and of
one dtype, indices int64.

Arguments that several loops take:

- ``edges``, ``ends``: see ``numba_loops``; for triplets, edges are in the place of nodes.
- ``mixing``: of the edges, [E, B * A], in the order of [B, A].
- ``messages``, ``filters``, ``weights`` of triplets: [E, F], [S, P, F], [T, S].

Components are taken three at a time, functions of an angle all at once, and triplets of a first
edge four at a time: each access to a sum then serves several products.
No row of an array is sliced and no function is called for it: the compiler would not see what
overlaps, and the inner loops would not use vector registers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from hydragnn_hpo.kernels.compiled_loops import inline_part

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
    (other, order, starts) = edges
    pairs = filters.shape[0]
    count = values.shape[1]
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
    (sender, receiver) = ends
    pairs = out.shape[0]
    count = values.shape[1]
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
    (sender, receiver) = ends
    pairs = filters.shape[0]
    count = values.shape[1]
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


def _cap_functions(last: int) -> tuple[int, int, int, int, int, int, int]:
    """Return 1 to 7; functions beyond the last one are the last one again."""
    low = (min(1, last), min(2, last), min(3, last), min(4, last))
    return (*low, min(5, last), min(6, last), min(7, last))


cap_functions: Any = inline_part(_cap_functions)
"""``_cap_functions`` as a part of compiled loops."""


def _triplets_by_second(
    messages: Array, filters: Array, weights: Array, edges: Edges3, out: Array
) -> None:
    """Sum filtered messages of the first edges at the second, [E, F]; S is at most 8."""
    (first, order, starts) = edges
    pairs = filters.shape[1]
    last = filters.shape[0] - 1
    s1, s2, s3, s4, s5, s6, s7 = cap_functions(last)
    zero = out.dtype.type(0)
    for n in range(out.shape[0]):
        for f in range(out.shape[1]):
            out[n, f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            t = order[k]
            j = first[t]
            p = j if j < pairs else j - pairs
            a = weights[t, 0]
            b = weights[t, 1] if last > 0 else zero
            c = weights[t, 2] if last > 1 else zero
            d = weights[t, 3] if last > 2 else zero
            u = weights[t, 4] if last > 3 else zero
            v = weights[t, 5] if last > 4 else zero
            w = weights[t, 6] if last > 5 else zero
            x = weights[t, 7] if last > 6 else zero
            for f in range(out.shape[1]):
                mixed = a * filters[0, p, f] + b * filters[s1, p, f] + c * filters[s2, p, f]
                mixed += d * filters[s3, p, f] + u * filters[s4, p, f] + v * filters[s5, p, f]
                mixed += w * filters[s6, p, f] + x * filters[s7, p, f]
                out[n, f] += mixed * messages[j, f]


def _sum_gradients(weights: Array, grad: Array, edges: Edges3, n: int, rows: Array) -> None:
    """Sum the weighted gradients of all triplets of first edge n, four at a time, [S, F]."""
    second, order, starts = edges
    (count, width) = rows.shape
    begin = starts[n]
    end = starts[n + 1]
    for s in range(count):
        for f in range(width):
            rows[s, f] = 0.0
    whole = end - (end - begin) % 4
    for k in range(begin, whole, 4):
        t0, t1, t2, t3 = order[k], order[k + 1], order[k + 2], order[k + 3]
        i0, i1, i2, i3 = second[t0], second[t1], second[t2], second[t3]
        for s in range(count):
            a, b, c, d = weights[t0, s], weights[t1, s], weights[t2, s], weights[t3, s]
            for f in range(width):
                total = a * grad[i0, f] + b * grad[i1, f]
                rows[s, f] += total + c * grad[i2, f] + d * grad[i3, f]
    for k in range(whole, end):
        t = order[k]
        i = second[t]
        for s in range(count):
            weight = weights[t, s]
            for f in range(width):
                rows[s, f] += weight * grad[i, f]


sum_gradients: Any = inline_part(_sum_gradients)
"""``_sum_gradients`` as a part of compiled loops."""


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
    pairs = filters.shape[1]
    (count, width) = rows.shape
    for n in range(to_messages.shape[0]):
        p = n if n < pairs else n - pairs
        sum_gradients(weights, grad, edges, n, rows)
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
    (first, second) = ends
    pairs = filters.shape[1]
    last = filters.shape[0] - 1
    s1, s2, s3, s4, s5, s6, s7 = cap_functions(last)
    zero = to_weights.dtype.type(0)
    for t in range(first.shape[0]):
        j, i = first[t], second[t]
        p = j if j < pairs else j - pairs
        a = b = c = d = u = v = w = x = zero
        for f in range(messages.shape[1]):
            slope = grad[i, f] * messages[j, f]
            a += slope * filters[0, p, f]
            b += slope * filters[s1, p, f]
            c += slope * filters[s2, p, f]
            d += slope * filters[s3, p, f]
            u += slope * filters[s4, p, f]
            v += slope * filters[s5, p, f]
            w += slope * filters[s6, p, f]
            x += slope * filters[s7, p, f]
        # Functions beyond the last one are the last one again.
        to_weights[t, s7], to_weights[t, s6], to_weights[t, s5], to_weights[t, s4] = x, w, v, u
        to_weights[t, s3], to_weights[t, s2], to_weights[t, s1], to_weights[t, 0] = d, c, b, a


def _count_triplets(short: Array, edges: Edges3, first_starts: Array, second_starts: Array) -> None:
    """Count the triplets of each first and of each second edge, and sum them up, [E + 1] each.

    Args:
        short: whether the edges of a pair are short enough, 0 or 1, [P].
        edges: sender of each edge; edges sorted by receiver, and their starts.
        first_starts: results, which begin with 0.
        second_starts: results, which begin with 0.
    """
    (sender, order, starts) = edges
    pairs = short.shape[0]
    for n in range(sender.shape[0]):
        reverse = n + pairs if n < pairs else n - pairs
        if short[min(n, reverse)]:
            for k in range(starts[sender[n]], starts[sender[n] + 1]):
                e = order[k]
                if e != reverse and short[e if e < pairs else e - pairs]:
                    first_starts[e + 1] += 1
                    second_starts[n + 1] += 1
    for n in range(sender.shape[0]):
        first_starts[n + 1] += first_starts[n]
        second_starts[n + 1] += second_starts[n]


def _list_triplets(short: Array, edges: Edges3, ends: Ends, by_first: Array, places: Array) -> None:
    """List the triplets that ``_count_triplets`` counts, by their second edge, then by their first.

    Args:
        short: as there.
        edges: as there.
        ends: results: first and second edge of each triplet, [T].
        by_first: result: triplets sorted by their first edge, [T].
        places: ``first_starts`` of ``_count_triplets``, [E + 1]; changed.
    """
    (sender, order, starts) = edges
    (first, second) = ends
    pairs = short.shape[0]
    t = 0
    for n in range(sender.shape[0]):
        reverse = n + pairs if n < pairs else n - pairs
        if short[min(n, reverse)]:
            for k in range(starts[sender[n]], starts[sender[n] + 1]):
                e = order[k]
                if e != reverse and short[e if e < pairs else e - pairs]:
                    first[t], second[t] = e, n
                    by_first[places[e]] = t
                    places[e] += 1
                    t += 1


COUPLING_LOOPS: dict[str, tuple[Callable[..., None], str]] = {
    "coupled_by_node": (_coupled_by_node, "3 2 2 i iii 3"),
    "coupled_by_pair": (_coupled_by_pair, "3 3 2 ii 2"),
    "coupled_by_edge": (_coupled_by_edge, "3 2 3 ii 2"),
    "triplets_by_second": (_triplets_by_second, "2 3 2 iii 2"),
    "triplets_by_first": (_triplets_by_first, "2 3 2 2 iii 2 3 2"),
    "triplets_by_triplet": (_triplets_by_triplet, "2 3 2 ii 2"),
    "count_triplets": (_count_triplets, "i iii i i"),
    "list_triplets": (_list_triplets, "i iii ii i i"),
}
"""Loop and its signature by name, see ``numba_loops.LOOPS``."""
