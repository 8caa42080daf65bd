"""Loops over edges that numba compiles: the innermost code of ``numba_passes``.

They are plain Python with numpy arrays; only ``numba_passes`` calls them, compiled.

Shapes: N nodes, E edges, P rows of a filter (one for both edges of a pair and each edge without a
reverse: edge e has row e or e - P; or E), C components, F features, H heads of D features. Arrays
are contiguous and of one dtype, indices int64.

Arguments that many loops take:

- ``edges``: the node at the other end of each edge, [E]; edges sorted by the end that sums, [E];
  the position in this order where the edges of each node begin, and the end, [N + 1].
- ``ends``: sender and receiver of each edge, [E] each.
- ``vectors``, ``vector_filters``: [N, 3, F] and [P, F]; without rows, their term is left out.
- ``factors``: of messages ``(received_i + sent_j + measured_ij) * filter_ij``, [N, F] and [P, F],
  of which the last two may be without rows; ``weights``, [P, 1].
- ``grad``: gradient of the sums.
- ``out``, ``to_...``: results, the gradient of the argument of that name; they are overwritten.
- ``space``: three rows, [F], where a node's components are summed.

The compiler knows that arguments do not overlap (``numba_passes``), but nothing of the rows of one
array, for which a loop over features would check, at each edge: what it writes are rows of several
arrays. Parts are inlined, as a call per edge would pass a hundred numbers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from hydragnn_hpo.kernels.compiled_loops import inline_part

Array = np.ndarray[Any, Any]
Edges3 = tuple[Array, Array, Array]
Ends = tuple[Array, Array]
Factors = tuple[Array, Array, Array, Array]
Results = tuple[Array, Array, Array]
Rows3 = tuple[Array, Array, Array]


def _filtered_by_node(values: Array, filters: Array, edges: Edges3, out: Array) -> None:
    """Sum the filtered rows, [N, C, F], of the nodes at the other end."""
    pairs = filters.shape[0]
    (other, order, starts) = edges
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
                    out[n, c, f] += values[j, c, f] * filters[p, f]


def _filtered_by_pair(sent: Array, received: Array, ends: Ends, out: Array) -> None:
    """Multiply the rows of both ends, [N, C, F], and sum by pair over components, [P, F]."""
    pairs = out.shape[0]
    (sender, receiver) = ends
    for p in range(pairs):
        for f in range(out.shape[1]):
            out[p, f] = 0.0
        for e in range(p, sender.shape[0], pairs):
            j, i = sender[e], receiver[e]
            for c in range(sent.shape[1]):
                for f in range(out.shape[1]):
                    out[p, f] += sent[j, c, f] * received[i, c, f]


def _vectors_by_receiver(
    values: Array,
    filters: Array,
    directions: Array,
    vectors: Array,
    vector_filters: Array,
    edges: Edges3,
    out: Array,
    space: Rows3,
) -> None:
    """Sum ``direction x (filter * value) + vector_filter * vector`` at the receivers."""
    (sender, order, starts), (sum0, sum1, sum2) = edges, space
    pairs = filters.shape[0]
    width = filters.shape[1]
    carries = vectors.shape[0] > 0
    for n in range(out.shape[0]):
        for f in range(width):
            sum0[f] = sum1[f] = sum2[f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            e = order[k]
            j = sender[e]
            p = e if e < pairs else e - pairs
            x, y, z = directions[e, 0], directions[e, 1], directions[e, 2]
            if carries:
                for f in range(width):
                    message = values[j, f] * filters[p, f]
                    factor = vector_filters[p, f]
                    sum0[f] += x * message + vectors[j, 0, f] * factor
                    sum1[f] += y * message + vectors[j, 1, f] * factor
                    sum2[f] += z * message + vectors[j, 2, f] * factor
            else:
                for f in range(width):
                    message = values[j, f] * filters[p, f]
                    sum0[f] += x * message
                    sum1[f] += y * message
                    sum2[f] += z * message
        store_vectors(space, out, n)


def _store_vectors(rows: Rows3, out: Array, n: int) -> None:
    """Store three components of node n."""
    for c in range(3):
        row = rows[c]
        for f in range(row.shape[0]):
            out[n, c, f] = row[f]


store_vectors: Any = inline_part(_store_vectors)
"""``_store_vectors`` as a part of compiled loops."""


def _vectors_by_sender(
    filters: Array,
    directions: Array,
    vector_filters: Array,
    grad: Array,
    edges: Edges3,
    to_values: Array,
    to_vectors: Array,
    space: Rows3,
) -> None:
    """Differentiate ``_vectors_by_receiver`` by the rows of the senders."""
    (receiver, order, starts), (sum0, sum1, sum2) = edges, space
    pairs = filters.shape[0]
    width = filters.shape[1]
    carries = to_vectors.shape[0] > 0
    for n in range(to_values.shape[0]):
        for f in range(width):
            to_values[n, f] = sum0[f] = sum1[f] = sum2[f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            e = order[k]
            i = receiver[e]
            p = e if e < pairs else e - pairs
            x, y, z = directions[e, 0], directions[e, 1], directions[e, 2]
            if carries:
                for f in range(width):
                    g0, g1, g2 = grad[i, 0, f], grad[i, 1, f], grad[i, 2, f]
                    factor = vector_filters[p, f]
                    to_values[n, f] += (x * g0 + y * g1 + z * g2) * filters[p, f]
                    sum0[f] += g0 * factor
                    sum1[f] += g1 * factor
                    sum2[f] += g2 * factor
            else:
                for f in range(width):
                    along = x * grad[i, 0, f] + y * grad[i, 1, f] + z * grad[i, 2, f]
                    to_values[n, f] += along * filters[p, f]
        if carries:
            store_vectors(space, to_vectors, n)


def _vectors_by_pair(
    values: Array,
    directions: Array,
    vectors: Array,
    grad: Array,
    ends: Ends,
    to_filters: Array,
    to_vector_filters: Array,
) -> None:
    """Differentiate ``_vectors_by_receiver`` by the filters."""
    sender, receiver = ends
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
            x, y, z = directions[e, 0], directions[e, 1], directions[e, 2]
            if carries:
                for f in range(width):
                    g0, g1, g2 = grad[i, 0, f], grad[i, 1, f], grad[i, 2, f]
                    across = vectors[j, 0, f] * g0 + vectors[j, 1, f] * g1
                    to_filters[p, f] += (x * g0 + y * g1 + z * g2) * values[j, f]
                    to_vector_filters[p, f] += across + vectors[j, 2, f] * g2
            else:
                for f in range(width):
                    along = x * grad[i, 0, f] + y * grad[i, 1, f] + z * grad[i, 2, f]
                    to_filters[p, f] += along * values[j, f]


def _vectors_by_edge(
    values: Array,
    filters: Array,
    grad: Array,
    ends: Ends,
    to_directions: Array,
) -> None:
    """Differentiate ``_vectors_by_receiver`` by the directions."""
    pairs = filters.shape[0]
    (sender, receiver) = ends
    zero = to_directions.dtype.type(0)
    for e in range(sender.shape[0]):
        j, i = sender[e], receiver[e]
        p = e if e < pairs else e - pairs
        x = y = z = zero
        for f in range(filters.shape[1]):
            message = values[j, f] * filters[p, f]
            x += message * grad[i, 0, f]
            y += message * grad[i, 1, f]
            z += message * grad[i, 2, f]
        to_directions[e, 0], to_directions[e, 1], to_directions[e, 2] = x, y, z


def _attended_by_node(
    values: Array, filters: Array, weights: Array, edges: Edges3, out: Array
) -> None:
    """Sum weighted and filtered rows, [N, H, D], of the nodes at the other end.

    Filters without rows are 1. The weights, [Q, H], are of pairs or edges, as the filters are.
    """
    pairs = filters.shape[0]
    rows = weights.shape[0]
    (other, order, starts) = edges
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
                weight = weights[q, h]
                if pairs:
                    for f in range(out.shape[2]):
                        out[n, h, f] += weight * values[j, h, f] * filters[p, h, f]
                else:
                    for f in range(out.shape[2]):
                        out[n, h, f] += weight * values[j, h, f]


def _attended_by_pair(received: Array, sent: Array, weights: Array, ends: Ends, out: Array) -> None:
    """Multiply the rows of both ends, [N, H, D], and sum weighted products by pair, [P, H, D]."""
    pairs = out.shape[0]
    rows = weights.shape[0]
    (sender, receiver) = ends
    for p in range(pairs):
        for h in range(out.shape[1]):
            for f in range(out.shape[2]):
                out[p, h, f] = 0.0
        for e in range(p, sender.shape[0], pairs):
            j = sender[e]
            i = receiver[e]
            q = e if e < rows else e - rows
            for h in range(out.shape[1]):
                for f in range(out.shape[2]):
                    out[p, h, f] += weights[q, h] * received[i, h, f] * sent[j, h, f]


def _attended_by_edge(received: Array, sent: Array, filters: Array, ends: Ends, out: Array) -> None:
    """Multiply the rows of both ends and filters, and sum over each head's features, [Q, H].

    Filters without rows are 1. Q counts edges, or pairs, of which both edges are summed.
    """
    pairs = filters.shape[0]
    rows = out.shape[0]
    (sender, receiver) = ends
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
                    for f in range(sent.shape[2]):
                        total += received[i, h, f] * sent[j, h, f] * filters[p, h, f]
                else:
                    for f in range(sent.shape[2]):
                        total += received[i, h, f] * sent[j, h, f]
                out[q, h] += total


def _message(factors: Factors, ends: tuple[int, int], p: int, row: Array) -> None:
    """Make the message of an edge from its ends, sender and receiver, and its pair: a row, [F]."""
    received, sent, measured, filters = factors
    j, i = ends
    for f in range(row.shape[0]):
        row[f] = received[i, f] + sent[j, f]
    if measured.shape[0]:
        for f in range(row.shape[0]):
            row[f] += measured[p, f]
    if filters.shape[0]:
        for f in range(row.shape[0]):
            row[f] *= filters[p, f]


def _aggregate(
    factors: Factors,
    weights: Array,
    edges: Edges3,
    results: Results,
    space: tuple[Array, Array, Array, Array, Array, Array, Array],
) -> None:
    """Aggregate weighted messages at the receivers in four ways.

    ``results``, [N, 2, F] each: sums of ``weight * message`` and of ``weight * message ** 2``; the
    largest and the smallest of 0 and ``weight * message``; for these two 1 over the number of
    messages that reach them, and 0 where they are 0. ``space`` is for a message and these six.
    """
    sender, order, starts = edges
    row, total, squares, high, low, highs, lows = space
    pairs = weights.shape[0]
    width = row.shape[0]
    zero = row.dtype.type(0)
    one = row.dtype.type(1)
    for n in range(starts.shape[0] - 1):
        for f in range(width):
            total[f] = squares[f] = high[f] = low[f] = highs[f] = lows[f] = zero
        for k in range(starts[n], starts[n + 1]):
            e = order[k]
            p = e if e < pairs else e - pairs
            make_message(factors, (sender[e], n), p, row)
            for f in range(width):
                value = weights[p, 0] * row[f]
                top = high[f]
                bottom = low[f]
                total[f] += value
                squares[f] += value * row[f]
                more, fewer = highs[f], lows[f]
                highs[f] = one if value > top else more + (one if value == top else zero)
                lows[f] = one if value < bottom else fewer + (one if value == bottom else zero)
                high[f] = value if value > top else top
                low[f] = value if value < bottom else bottom
        for f in range(width):
            highs[f] = one / highs[f] if high[f] != zero else zero
            lows[f] = one / lows[f] if low[f] != zero else zero
        for place in range(6):
            values, result = space[1 + place], results[place // 2]
            for f in range(width):
                result[n, place % 2, f] = values[f]


def _aggregate_slopes(
    factors: Factors,
    weights: Array,
    ends: Ends,
    reached: tuple[Array, Array],
    to_factors: Factors,
    to_weights: Array,
    row: Array,
) -> None:
    """Differentiate ``_aggregate``, pair by pair; sums at nodes begin with 0.

    ``reached``: the extremes, [N, 2, F], and the gradients of both sums, and of both extremes times
    their shares, [N, 4, F]. ``to_weights`` are terms of each feature, [P, F]: their sum, rounded in
    a fixed order, would keep the loop from vector registers. ``row`` is space for a message, [F].
    """
    sender, receiver = ends
    extremes, slopes = reached
    pairs = weights.shape[0]
    width = row.shape[0]
    zero = row.dtype.type(0)
    for p in range(pairs):
        weight = weights[p, 0]
        for f in range(width):
            to_weights[p, f] = zero
        for e in range(p, sender.shape[0], pairs):
            j, i = sender[e], receiver[e]
            make_message(factors, (j, i), p, row)
            for f in range(width):
                value = weight * row[f]
                slope = slopes[i, 0, f] + slopes[i, 1, f] * row[f]
                slope += slopes[i, 2, f] if value == extremes[i, 0, f] else zero
                slope += slopes[i, 3, f] if value == extremes[i, 1, f] else zero
                to_weights[p, f] += row[f] * slope
                row[f] = weight * (slope + slopes[i, 1, f] * row[f])
            add_message_slopes(factors, to_factors, (j, i), p, row)


def _message_slopes(
    factors: Factors, to_factors: Factors, ends: tuple[int, int], p: int, row: Array
) -> None:
    """Add what the gradient of a message, a row, [F], gives to its factors; the row is changed."""
    received, sent, measured, filters = factors
    to_received, to_sent, to_measured, to_filters = to_factors
    j, i = ends
    if filters.shape[0]:
        for f in range(row.shape[0]):
            plain = received[i, f] + sent[j, f]
            if measured.shape[0]:
                plain += measured[p, f]
            to_filters[p, f] += row[f] * plain
            row[f] *= filters[p, f]
    if measured.shape[0]:
        for f in range(row.shape[0]):
            to_measured[p, f] += row[f]
    for f in range(row.shape[0]):
        to_received[i, f] += row[f]
        to_sent[j, f] += row[f]


def _message_change(
    factors: Factors, seconds: Factors, ends: tuple[int, int], p: int, rows: Factors
) -> None:
    """Fill rows with the message of an edge, its change, and both before they are filtered.

    ``seconds`` are the changes of the factors.
    """
    (received, sent, measured, filters), (j, i) = factors, ends
    received_change, sent_change, measured_change, filters_change = seconds
    message, change, plain, plain_change = rows
    for f in range(message.shape[0]):
        plain[f] = received[i, f] + sent[j, f]
        plain_change[f] = received_change[i, f] + sent_change[j, f]
    if measured.shape[0]:
        for f in range(message.shape[0]):
            plain[f] += measured[p, f]
            plain_change[f] += measured_change[p, f]
    for f in range(message.shape[0]):
        message[f], change[f] = plain[f], plain_change[f]
    if filters.shape[0]:
        for f in range(message.shape[0]):
            message[f] *= filters[p, f]
            change[f] = plain_change[f] * filters[p, f] + plain[f] * filters_change[p, f]


def _aggregate_curvature(
    factors: Factors,
    weights: tuple[Array, Array],
    ends: Ends,
    reached: tuple[Array, Array],
    seconds: Factors,
    to_factors: Factors,
    to_weights: Array,
    to_slopes: Factors,
    rows: Factors,
) -> None:
    """Differentiate ``_aggregate_slopes``, pair by pair; all sums begin with 0.

    ``seconds`` are the gradients of what it gives to the factors; the second of ``weights`` is that
    of what it gives to the first. ``to_weights`` are terms, [P, F], as there; ``to_slopes`` belong
    to the second of ``reached``, [N, F] each. ``rows`` are space, [F] each.
    """
    (sender, receiver), (extremes, slopes) = ends, reached
    to_sum, to_squares, to_highest, to_lowest = to_slopes
    (message, change, _, _) = rows
    zero = to_weights.dtype.type(0)
    pairs = to_weights.shape[0]
    for p in range(pairs):
        weight, late = weights[0][p, 0], weights[1][p, 0]
        for e in range(p, sender.shape[0], pairs):
            j, i = sender[e], receiver[e]
            message_change(factors, seconds, (j, i), p, rows)
            for f in range(message.shape[0]):
                x, dx = message[f], change[f]
                highest = weight * x == extremes[i, 0, f]
                lowest = weight * x == extremes[i, 1, f]
                moved, twice = weight * dx + late * x, slopes[i, 1, f] + slopes[i, 1, f]
                to_sum[i, f] += moved
                to_squares[i, f] += x * (moved + weight * dx)
                to_highest[i, f] += moved if highest else zero
                to_lowest[i, f] += moved if lowest else zero
                slope = slopes[i, 0, f] + twice * x + (slopes[i, 2, f] if highest else zero)
                slope += slopes[i, 3, f] if lowest else zero
                to_weights[p, f] += slope * dx
                message[f] = weight * twice * dx + late * slope
                change[f] = weight * slope
            add_message_curvature(factors, seconds, to_factors, (j, i), p, rows)


def _message_curvature(
    factors: Factors,
    seconds: Factors,
    to_factors: Factors,
    ends: tuple[int, int],
    p: int,
    rows: Factors,
) -> None:
    """Add what the gradients of a message and of its change give to the factors.

    ``rows``: both gradients, the first of which is changed, and the last rows of
    ``_message_change``.
    """
    (_, _, measured, filters), (_, _, _, filters_change), (j, i) = factors, seconds, ends
    to_received, to_sent, to_measured, to_filters = to_factors
    to_message, to_change, plain, plain_change = rows
    if filters.shape[0]:
        for f in range(plain.shape[0]):
            to_filters[p, f] += to_message[f] * plain[f] + to_change[f] * plain_change[f]
            to_message[f] = to_message[f] * filters[p, f] + to_change[f] * filters_change[p, f]
    if measured.shape[0]:
        for f in range(plain.shape[0]):
            to_measured[p, f] += to_message[f]
    for f in range(plain.shape[0]):
        to_received[i, f] += to_message[f]
        to_sent[j, f] += to_message[f]


make_message: Any = inline_part(_message)
"""``_message`` as a part of compiled loops."""
add_message_slopes: Any = inline_part(_message_slopes)
"""``_message_slopes`` as a part of compiled loops."""
message_change: Any = inline_part(_message_change)
"""``_message_change`` as a part of compiled loops."""
add_message_curvature: Any = inline_part(_message_curvature)
"""``_message_curvature`` as a part of compiled loops."""


LOOPS: dict[str, tuple[Callable[..., None], str]] = {
    "filtered_by_node": (_filtered_by_node, "3 2 iii 3"),
    "filtered_by_pair": (_filtered_by_pair, "3 3 ii 2"),
    "vectors_by_receiver": (_vectors_by_receiver, "2 2 2 3 2 iii 3 111"),
    "vectors_by_sender": (_vectors_by_sender, "2 2 2 3 iii 2 3 111"),
    "vectors_by_pair": (_vectors_by_pair, "2 2 3 3 ii 2 2"),
    "vectors_by_edge": (_vectors_by_edge, "2 2 3 ii 2"),
    "attended_by_node": (_attended_by_node, "3 3 2 iii 3"),
    "attended_by_pair": (_attended_by_pair, "3 3 2 ii 3"),
    "attended_by_edge": (_attended_by_edge, "3 3 3 ii 2"),
    "aggregate": (_aggregate, "2222 2 iii 333 1111111"),
    "aggregate_slopes": (_aggregate_slopes, "2222 2 ii 33 2222 2 1"),
    "aggregate_curvature": (_aggregate_curvature, "2222 22 ii 33 2222 2222 2 2222 1111"),
}
"""Loop and its signature by name: one word per argument, several letters for a tuple. A digit is an
array of floats with that many dimensions, ``i`` one of indices."""

EXACT = ("aggregate", "aggregate_slopes", "aggregate_curvature")
"""Loops whose products are rounded one by one: a message that is made again must have the same bits
to be recognized as the largest."""
