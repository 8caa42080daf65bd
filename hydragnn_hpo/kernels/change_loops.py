"""Loops for second derivatives of forms: how slopes change as the arguments change.

Training on forces multiplies the slopes of a form by given tensors, and differentiates the sum of
these products. That is the change of the slopes if the arguments change by these tensors, so each
loop here is one of ``numba_loops`` or ``coupling_loops`` by the product rule, and one pass over the
edges serves all arguments.

Shapes and names of arguments: as there. One that changes is a pair of arrays of the same shape, its
values and their change: ``v, dv`` of values, ``w, dw`` of filters, ``a, da`` of weights.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from hydragnn_hpo.kernels.compiled_loops import inline_part
from hydragnn_hpo.kernels.coupling_loops import cap_functions
from hydragnn_hpo.kernels.numba_loops import Rows3, store_vectors

Array = np.ndarray[Any, Any]
Changing = tuple[Array, Array]
Ends = tuple[Array, Array]
Edges3 = tuple[Array, Array, Array]


def _filtered_change(values: Changing, filters: Changing, edges: Edges3, out: Array) -> None:
    """Sum the change of filtered rows, [N, C, F], of the nodes at the other end."""
    (v, dv), (w, dw), (other, order, starts) = values, filters, edges
    pairs = w.shape[0]
    for n in range(out.shape[0]):
        for c in range(out.shape[1]):
            for f in range(out.shape[2]):
                out[n, c, f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            e = order[k]
            j = other[e]
            p = e if e < pairs else e - pairs
            for c in range(out.shape[1]):
                for f in range(out.shape[2]):
                    out[n, c, f] += v[j, c, f] * dw[p, f] + dv[j, c, f] * w[p, f]


def _vectors_change_by_receiver(
    values: Changing,
    filters: Changing,
    directions: Changing,
    vectors: Changing,
    vector_filters: Changing,
    edges: Edges3,
    out: Array,
    space: Rows3,
) -> None:
    """Sum the change of messages at the receivers, [N, 3, F]."""
    (v, dv), (w, dw), (d, dd) = values, filters, directions
    (u, du), (z, dz), (sender, order, starts) = vectors, vector_filters, edges
    pairs = w.shape[0]
    width = w.shape[1]
    carries = u.shape[0] > 0
    (sum0, sum1, sum2) = space
    for n in range(out.shape[0]):
        for f in range(width):
            sum0[f] = sum1[f] = sum2[f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            e = order[k]
            j = sender[e]
            p = e if e < pairs else e - pairs
            d0, d1, d2 = d[e, 0], d[e, 1], d[e, 2]
            dd0, dd1, dd2 = dd[e, 0], dd[e, 1], dd[e, 2]
            for f in range(width):
                message, change = v[j, f] * w[p, f], dv[j, f] * w[p, f] + v[j, f] * dw[p, f]
                sum0[f] += d0 * change + dd0 * message
                sum1[f] += d1 * change + dd1 * message
                sum2[f] += d2 * change + dd2 * message
            if carries:
                for f in range(width):
                    factor, change = z[p, f], dz[p, f]
                    sum0[f] += u[j, 0, f] * change + du[j, 0, f] * factor
                    sum1[f] += u[j, 1, f] * change + du[j, 1, f] * factor
                    sum2[f] += u[j, 2, f] * change + du[j, 2, f] * factor
        store_vectors(space, out, n)


def _vectors_change_by_sender(
    filters: Changing,
    directions: Changing,
    to_vector_filters: Array,
    grad: Array,
    edges: Edges3,
    to_values: Array,
    to_vectors: Array,
    space: Rows3,
) -> None:
    """Change the slopes by the rows of the senders; ``to_vector_filters`` is a change."""
    (w, dw), (d, dd), (receiver, order, starts) = filters, directions, edges
    pairs = w.shape[0]
    width = w.shape[1]
    carries = to_vectors.shape[0] > 0
    sum0, sum1, sum2 = space
    for n in range(to_values.shape[0]):
        for f in range(width):
            to_values[n, f] = sum0[f] = sum1[f] = sum2[f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            e = order[k]
            i = receiver[e]
            p = e if e < pairs else e - pairs
            d0, d1, d2 = d[e, 0], d[e, 1], d[e, 2]
            dd0, dd1, dd2 = dd[e, 0], dd[e, 1], dd[e, 2]
            for f in range(width):
                along = d0 * grad[i, 0, f] + d1 * grad[i, 1, f] + d2 * grad[i, 2, f]
                turned = dd0 * grad[i, 0, f] + dd1 * grad[i, 1, f] + dd2 * grad[i, 2, f]
                to_values[n, f] += along * dw[p, f] + turned * w[p, f]
            if carries:
                for f in range(width):
                    change = to_vector_filters[p, f]
                    sum0[f] += grad[i, 0, f] * change
                    sum1[f] += grad[i, 1, f] * change
                    sum2[f] += grad[i, 2, f] * change
        if carries:
            store_vectors(space, to_vectors, n)


def _vectors_change_by_pair(
    values: Changing,
    directions: Changing,
    vectors: Array,
    grad: Array,
    ends: Ends,
    to_filters: Array,
    to_vector_filters: Array,
) -> None:
    """Change the slopes by the filters; ``vectors`` are a change."""
    (v, dv), (d, dd), (sender, receiver) = values, directions, ends
    pairs = to_filters.shape[0]
    width = to_filters.shape[1]
    carries = vectors.shape[0] > 0
    for p in range(pairs):
        for f in range(width):
            to_filters[p, f] = 0.0
        if carries:
            for f in range(width):
                to_vector_filters[p, f] = 0.0
        for e in range(p, sender.shape[0], pairs):
            j, i = sender[e], receiver[e]
            d0, d1, d2 = d[e, 0], d[e, 1], d[e, 2]
            dd0, dd1, dd2 = dd[e, 0], dd[e, 1], dd[e, 2]
            for f in range(width):
                along = d0 * grad[i, 0, f] + d1 * grad[i, 1, f] + d2 * grad[i, 2, f]
                turned = dd0 * grad[i, 0, f] + dd1 * grad[i, 1, f] + dd2 * grad[i, 2, f]
                to_filters[p, f] += along * dv[j, f] + turned * v[j, f]
            if carries:
                for f in range(width):
                    across = vectors[j, 0, f] * grad[i, 0, f] + vectors[j, 1, f] * grad[i, 1, f]
                    to_vector_filters[p, f] += across + vectors[j, 2, f] * grad[i, 2, f]


def _vectors_change_by_edge(
    values: Changing, filters: Changing, grad: Array, ends: Ends, to_directions: Array
) -> None:
    """Change the slopes by the directions."""
    (v, dv), (w, dw), (sender, receiver) = values, filters, ends
    pairs = w.shape[0]
    zero = to_directions.dtype.type(0)
    for e in range(sender.shape[0]):
        j, i = sender[e], receiver[e]
        p = e if e < pairs else e - pairs
        d0 = d1 = d2 = zero
        for f in range(w.shape[1]):
            change = dv[j, f] * w[p, f] + v[j, f] * dw[p, f]
            d0 += change * grad[i, 0, f]
            d1 += change * grad[i, 1, f]
            d2 += change * grad[i, 2, f]
        to_directions[e, 0], to_directions[e, 1], to_directions[e, 2] = d0, d1, d2


def _attended_change_by_node(
    values: Changing, filters: Changing, weights: Changing, edges: Edges3, out: Array
) -> None:
    """Sum the change of attended rows, [N, H, D], of the nodes at the other end."""
    (v, dv), (w, dw), (a, da), (other, order, starts) = values, filters, weights, edges
    pairs, rows = w.shape[0], a.shape[0]
    for n in range(out.shape[0]):
        for h in range(out.shape[1]):
            for f in range(out.shape[2]):
                out[n, h, f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            e = order[k]
            j = other[e]
            q = e if e < rows else e - rows
            p = e if e < pairs else e - pairs
            for h in range(out.shape[1]):
                weight, change = a[q, h], da[q, h]
                if pairs:
                    for f in range(out.shape[2]):
                        row = weight * dv[j, h, f] + change * v[j, h, f]
                        out[n, h, f] += row * w[p, h, f] + weight * v[j, h, f] * dw[p, h, f]
                else:
                    for f in range(out.shape[2]):
                        out[n, h, f] += weight * dv[j, h, f] + change * v[j, h, f]


def _attended_change_by_pair(
    received: Changing, sent: Changing, weights: Changing, ends: Ends, out: Array
) -> None:
    """Change the slopes by the filters, [P, H, D]."""
    (g, dg), (v, dv), (a, da), (sender, receiver) = received, sent, weights, ends
    pairs, rows = out.shape[0], a.shape[0]
    for p in range(pairs):
        for h in range(out.shape[1]):
            for f in range(out.shape[2]):
                out[p, h, f] = 0.0
        for e in range(p, sender.shape[0], pairs):
            j = sender[e]
            i = receiver[e]
            q = e if e < rows else e - rows
            for h in range(out.shape[1]):
                weight, change = a[q, h], da[q, h]
                for f in range(out.shape[2]):
                    moved = g[i, h, f] * dv[j, h, f] + dg[i, h, f] * v[j, h, f]
                    out[p, h, f] += weight * moved + change * g[i, h, f] * v[j, h, f]


def _attended_change_by_edge(
    received: Changing, sent: Changing, filters: Changing, ends: Ends, out: Array
) -> None:
    """Change the slopes by the weights, [Q, H]."""
    (g, dg), (v, dv), (w, dw), (sender, receiver) = received, sent, filters, ends
    pairs, rows = w.shape[0], out.shape[0]
    for q in range(rows):
        for h in range(out.shape[1]):
            out[q, h] = 0.0
        for e in range(q, sender.shape[0], rows):
            j = sender[e]
            i = receiver[e]
            p = e if e < pairs else e - pairs
            for h in range(out.shape[1]):
                total = out.dtype.type(0)
                if pairs:
                    for f in range(v.shape[2]):
                        moved = g[i, h, f] * dv[j, h, f] + dg[i, h, f] * v[j, h, f]
                        total += moved * w[p, h, f] + g[i, h, f] * v[j, h, f] * dw[p, h, f]
                else:
                    for f in range(v.shape[2]):
                        total += g[i, h, f] * dv[j, h, f] + dg[i, h, f] * v[j, h, f]
                out[q, h] += total


def _triplets_change_by_second(
    messages: Changing, filters: Changing, weights: Changing, edges: Edges3, out: Array
) -> None:
    """Sum the change of filtered messages at the second edges, [E, F]; S is at most 8."""
    (v, dv), (w, dw), (a, da), (first, order, starts) = messages, filters, weights, edges
    pairs = w.shape[1]
    last = w.shape[0] - 1
    zero = out.dtype.type(0)
    s1, s2, s3, s4, s5, s6, s7 = cap_functions(last)
    for n in range(out.shape[0]):
        for f in range(out.shape[1]):
            out[n, f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            t = order[k]
            j = first[t]
            p = j if j < pairs else j - pairs
            a0, da0 = a[t, 0], da[t, 0]
            a1, da1 = (a[t, 1], da[t, 1]) if last > 0 else (zero, zero)
            a2, da2 = (a[t, 2], da[t, 2]) if last > 1 else (zero, zero)
            a3, da3 = (a[t, 3], da[t, 3]) if last > 2 else (zero, zero)
            a4, da4 = (a[t, 4], da[t, 4]) if last > 3 else (zero, zero)
            a5, da5 = (a[t, 5], da[t, 5]) if last > 4 else (zero, zero)
            a6, da6 = (a[t, 6], da[t, 6]) if last > 5 else (zero, zero)
            a7, da7 = (a[t, 7], da[t, 7]) if last > 6 else (zero, zero)
            for f in range(out.shape[1]):
                w0, w1, w2, w3 = w[0, p, f], w[s1, p, f], w[s2, p, f], w[s3, p, f]
                w4, w5, w6, w7 = w[s4, p, f], w[s5, p, f], w[s6, p, f], w[s7, p, f]
                mixed = a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
                mixed += a4 * w4 + a5 * w5 + a6 * w6 + a7 * w7
                change = da0 * w0 + da1 * w1 + da2 * w2 + da3 * w3
                change += da4 * w4 + da5 * w5 + da6 * w6 + da7 * w7
                change += a0 * dw[0, p, f] + a1 * dw[s1, p, f] + a2 * dw[s2, p, f]
                change += a3 * dw[s3, p, f] + a4 * dw[s4, p, f] + a5 * dw[s5, p, f]
                change += a6 * dw[s6, p, f] + a7 * dw[s7, p, f]
                out[n, f] += mixed * dv[j, f] + change * v[j, f]


def _sum_changing(weights: Changing, grad: Array, edges: Edges3, n: int, rows: Array) -> None:
    """Sum the gradients of all triplets of first edge n, four at a time, [2 S, F].

    The first S rows are weighted by the values of the weights, the others by their change.
    """
    (a, da), (second, order, starts) = weights, edges
    count, width, begin, end = a.shape[1], rows.shape[1], starts[n], starts[n + 1]
    for s in range(2 * count):
        for f in range(width):
            rows[s, f] = 0.0
    whole = end - (end - begin) % 4
    for k in range(begin, whole, 4):
        t0, t1, t2, t3 = order[k], order[k + 1], order[k + 2], order[k + 3]
        i0, i1, i2, i3 = second[t0], second[t1], second[t2], second[t3]
        for s in range(count):
            a0, a1, a2, a3 = a[t0, s], a[t1, s], a[t2, s], a[t3, s]
            da0, da1, da2, da3 = da[t0, s], da[t1, s], da[t2, s], da[t3, s]
            for f in range(width):
                g0, g1, g2, g3 = grad[i0, f], grad[i1, f], grad[i2, f], grad[i3, f]
                rows[s, f] += a0 * g0 + a1 * g1 + a2 * g2 + a3 * g3
                rows[count + s, f] += da0 * g0 + da1 * g1 + da2 * g2 + da3 * g3
    for k in range(whole, end):
        t = order[k]
        i = second[t]
        for s in range(count):
            weight, change = a[t, s], da[t, s]
            for f in range(width):
                rows[s, f] += weight * grad[i, f]
                rows[count + s, f] += change * grad[i, f]


sum_changing: Any = inline_part(_sum_changing)
"""``_sum_changing`` as a part of compiled loops."""


def _triplets_change_by_first(
    messages: Changing,
    filters: Changing,
    weights: Changing,
    grad: Array,
    edges: Edges3,
    to_messages: Array,
    to_filters: Array,
    rows: Array,
) -> None:
    """Change the slopes by what belongs to the first edges; ``rows`` is space, [2 S, F]."""
    (v, dv), (w, dw) = messages, filters
    count, pairs, width = w.shape[0], w.shape[1], w.shape[2]
    for n in range(to_messages.shape[0]):
        p = n if n < pairs else n - pairs
        sum_changing(weights, grad, edges, n, rows)
        for f in range(width):
            to_messages[n, f] = 0.0
        for s in range(count):
            m = count + s
            for f in range(width):
                to_messages[n, f] += rows[s, f] * dw[s, p, f] + rows[m, f] * w[s, p, f]
            if n < pairs:
                for f in range(width):
                    to_filters[s, p, f] = rows[s, f] * dv[n, f] + rows[m, f] * v[n, f]
            else:
                for f in range(width):
                    to_filters[s, p, f] += rows[s, f] * dv[n, f] + rows[m, f] * v[n, f]


def _triplets_change_by_triplet(
    messages: Changing, filters: Changing, grad: Array, ends: Ends, to_weights: Array
) -> None:
    """Change the slopes by the weights."""
    (v, dv), (w, dw), (first, second) = messages, filters, ends
    pairs = w.shape[1]
    last = w.shape[0] - 1
    zero = to_weights.dtype.type(0)
    s1, s2, s3, s4, s5, s6, s7 = cap_functions(last)
    for t in range(first.shape[0]):
        j, i = first[t], second[t]
        p = j if j < pairs else j - pairs
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = zero
        for f in range(v.shape[1]):
            slope, change = grad[i, f] * v[j, f], grad[i, f] * dv[j, f]
            a0 += change * w[0, p, f] + slope * dw[0, p, f]
            a1 += change * w[s1, p, f] + slope * dw[s1, p, f]
            a2 += change * w[s2, p, f] + slope * dw[s2, p, f]
            a3 += change * w[s3, p, f] + slope * dw[s3, p, f]
            a4 += change * w[s4, p, f] + slope * dw[s4, p, f]
            a5 += change * w[s5, p, f] + slope * dw[s5, p, f]
            a6 += change * w[s6, p, f] + slope * dw[s6, p, f]
            a7 += change * w[s7, p, f] + slope * dw[s7, p, f]
        # Functions beyond the last one are the last one again.
        to_weights[t, s7], to_weights[t, s6], to_weights[t, s5], to_weights[t, s4] = a7, a6, a5, a4
        to_weights[t, s3], to_weights[t, s2], to_weights[t, s1], to_weights[t, 0] = a3, a2, a1, a0


LOOPS: dict[str, tuple[Callable[..., None], str]] = {
    "filtered_change": (_filtered_change, "33 22 iii 3"),
    "vectors_change_by_receiver": (_vectors_change_by_receiver, "22 22 22 33 22 iii 3 111"),
    "vectors_change_by_sender": (_vectors_change_by_sender, "22 22 2 3 iii 2 3 111"),
    "vectors_change_by_pair": (_vectors_change_by_pair, "22 22 3 3 ii 2 2"),
    "vectors_change_by_edge": (_vectors_change_by_edge, "22 22 3 ii 2"),
    "attended_change_by_node": (_attended_change_by_node, "33 33 22 iii 3"),
    "attended_change_by_pair": (_attended_change_by_pair, "33 33 22 ii 3"),
    "attended_change_by_edge": (_attended_change_by_edge, "33 33 33 ii 2"),
    "triplets_change_by_second": (_triplets_change_by_second, "22 33 22 iii 2"),
    "triplets_change_by_first": (_triplets_change_by_first, "22 33 22 2 iii 2 3 2"),
    "triplets_change_by_triplet": (_triplets_change_by_triplet, "22 33 2 ii 2"),
}
"""Loop and its signature by name, see ``numba_loops.LOOPS``."""
