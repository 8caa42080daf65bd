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
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

Array = np.ndarray[Any, Any]
Edges3 = tuple[Array, Array, Array]
Ends = tuple[Array, Array]
Factors = tuple[Array, Array, Array, Array]
Results = tuple[Array, Array, Array]


def _filtered_by_node(values: Array, filters: Array, edges: Edges3, out: Array) -> None:
    """Sum the filtered rows, [N, C, F], of the nodes at the other end."""
    pairs, (other, order, starts) = filters.shape[0], edges
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
    pairs, (sender, receiver) = out.shape[0], ends
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
) -> None:
    """Sum ``direction x (filter * value) + vector_filter * vector`` at the receivers."""
    sender, order, starts = edges
    pairs, width, carries = filters.shape[0], filters.shape[1], vectors.shape[0] > 0
    for n in range(out.shape[0]):
        for c in range(3):
            for f in range(width):
                out[n, c, f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            e = order[k]
            j = sender[e]
            p = e if e < pairs else e - pairs
            x, y, z = directions[e, 0], directions[e, 1], directions[e, 2]
            for f in range(width):
                message = values[j, f] * filters[p, f]
                out[n, 0, f] += x * message
                out[n, 1, f] += y * message
                out[n, 2, f] += z * message
            if carries:
                for f in range(width):
                    factor = vector_filters[p, f]
                    out[n, 0, f] += vectors[j, 0, f] * factor
                    out[n, 1, f] += vectors[j, 1, f] * factor
                    out[n, 2, f] += vectors[j, 2, f] * factor


def _vectors_by_sender(
    filters: Array,
    directions: Array,
    vector_filters: Array,
    grad: Array,
    edges: Edges3,
    to_values: Array,
    to_vectors: Array,
) -> None:
    """Differentiate ``_vectors_by_receiver`` by the rows of the senders."""
    receiver, order, starts = edges
    pairs, width, carries = filters.shape[0], filters.shape[1], to_vectors.shape[0] > 0
    for n in range(to_values.shape[0]):
        for f in range(width):
            to_values[n, f] = 0.0
        if carries:
            for c in range(3):
                for f in range(width):
                    to_vectors[n, c, f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            e = order[k]
            i = receiver[e]
            p = e if e < pairs else e - pairs
            x, y, z = directions[e, 0], directions[e, 1], directions[e, 2]
            for f in range(width):
                along = x * grad[i, 0, f] + y * grad[i, 1, f] + z * grad[i, 2, f]
                to_values[n, f] += along * filters[p, f]
            if carries:
                for f in range(width):
                    factor = vector_filters[p, f]
                    to_vectors[n, 0, f] += grad[i, 0, f] * factor
                    to_vectors[n, 1, f] += grad[i, 1, f] * factor
                    to_vectors[n, 2, f] += grad[i, 2, f] * factor


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
    pairs, width, carries = to_filters.shape[0], to_filters.shape[1], vectors.shape[0] > 0
    for p in range(pairs):
        for f in range(width):
            to_filters[p, f] = 0.0
        if carries:
            for f in range(width):
                to_vector_filters[p, f] = 0.0
        for e in range(p, sender.shape[0], pairs):
            j, i = sender[e], receiver[e]
            x, y, z = directions[e, 0], directions[e, 1], directions[e, 2]
            for f in range(width):
                along = x * grad[i, 0, f] + y * grad[i, 1, f] + z * grad[i, 2, f]
                to_filters[p, f] += along * values[j, f]
            if carries:
                for f in range(width):
                    to_vector_filters[p, f] += (
                        vectors[j, 0, f] * grad[i, 0, f]
                        + vectors[j, 1, f] * grad[i, 1, f]
                        + vectors[j, 2, f] * grad[i, 2, f]
                    )


def _vectors_by_edge(
    values: Array,
    filters: Array,
    grad: Array,
    ends: Ends,
    to_directions: Array,
) -> None:
    """Differentiate ``_vectors_by_receiver`` by the directions."""
    pairs, (sender, receiver) = filters.shape[0], ends
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
    pairs, rows, (other, order, starts) = filters.shape[0], weights.shape[0], edges
    for n in range(out.shape[0]):
        for h in range(out.shape[1]):
            for f in range(out.shape[2]):
                out[n, h, f] = 0.0
        for k in range(starts[n], starts[n + 1]):
            e = order[k]
            j, q = other[e], e if e < rows else e - rows
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
    pairs, rows, (sender, receiver) = out.shape[0], weights.shape[0], ends
    for p in range(pairs):
        for h in range(out.shape[1]):
            for f in range(out.shape[2]):
                out[p, h, f] = 0.0
        for e in range(p, sender.shape[0], pairs):
            j, i, q = sender[e], receiver[e], e if e < rows else e - rows
            for h in range(out.shape[1]):
                for f in range(out.shape[2]):
                    out[p, h, f] += weights[q, h] * received[i, h, f] * sent[j, h, f]


def _attended_by_edge(received: Array, sent: Array, filters: Array, ends: Ends, out: Array) -> None:
    """Multiply the rows of both ends and filters, and sum over each head's features, [Q, H].

    Filters without rows are 1. Q counts edges, or pairs, of which both edges are summed.
    """
    pairs, rows, (sender, receiver) = filters.shape[0], out.shape[0], ends
    for q in range(rows):
        for h in range(out.shape[1]):
            out[q, h] = 0.0
        for e in range(q, sender.shape[0], rows):
            j, i, p = sender[e], receiver[e], e if e < pairs else e - pairs
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
    factors: Factors, weights: Array, edges: Edges3, results: Results, row: Array
) -> None:
    """Aggregate weighted messages at the receivers in four ways.

    ``results``, [N, 2, F] each: sums of ``weight * message`` and of ``weight * message ** 2``; the
    largest and the smallest of 0 and ``weight * message``; for these two 1 over the number of
    messages that reach them, and 0 where they are 0. ``row`` is space for a message, [F].
    """
    sender, order, starts = edges
    sums, extremes, shares = results
    pairs, width, zero, one = weights.shape[0], row.shape[0], row.dtype.type(0), row.dtype.type(1)
    for n in range(sums.shape[0]):
        for result in results:
            for c in range(2):
                for f in range(width):
                    result[n, c, f] = zero
        for k in range(starts[n], starts[n + 1]):
            e = order[k]
            p = e if e < pairs else e - pairs
            make_message(factors, (sender[e], n), p, row)
            for f in range(width):
                value = weights[p, 0] * row[f]
                sums[n, 0, f] += value
                sums[n, 1, f] += value * row[f]
                high, low = extremes[n, 0, f], extremes[n, 1, f]
                ties, more = shares[n, 0, f], shares[n, 1, f]
                shares[n, 0, f] = one if value > high else ties + (one if value == high else zero)
                shares[n, 1, f] = one if value < low else more + (one if value == low else zero)
                extremes[n, 0, f] = value if value > high else high
                extremes[n, 1, f] = value if value < low else low
        for c in range(2):
            for f in range(width):
                reached = extremes[n, c, f] != zero
                shares[n, c, f] = one / shares[n, c, f] if reached else zero


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
    their shares, [N, 4, F]. ``row`` is space for a message, [F].
    """
    sender, receiver = ends
    extremes, slopes = reached
    pairs, width, zero = weights.shape[0], row.shape[0], row.dtype.type(0)
    for p in range(pairs):
        weight, total = weights[p, 0], zero
        for e in range(p, sender.shape[0], pairs):
            j, i = sender[e], receiver[e]
            make_message(factors, (j, i), p, row)
            for f in range(width):
                value = weight * row[f]
                slope = slopes[i, 0, f] + slopes[i, 1, f] * row[f]
                slope += slopes[i, 2, f] if value == extremes[i, 0, f] else zero
                slope += slopes[i, 3, f] if value == extremes[i, 1, f] else zero
                total += row[f] * slope
                row[f] = weight * (slope + slopes[i, 1, f] * row[f])
            add_message_slopes(factors, to_factors, (j, i), p, row)
        to_weights[p, 0] = total


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
    factors: Factors, seconds: Factors, ends: tuple[int, int], p: int, rows: Array
) -> None:
    """Fill rows with the message of an edge, its change, and both before they are filtered.

    ``seconds`` are the changes of the factors.
    """
    (received, sent, measured, filters), (j, i) = factors, ends
    received_change, sent_change, measured_change, filters_change = seconds
    for f in range(rows.shape[1]):
        rows[2, f] = received[i, f] + sent[j, f]
        rows[3, f] = received_change[i, f] + sent_change[j, f]
    if measured.shape[0]:
        for f in range(rows.shape[1]):
            rows[2, f] += measured[p, f]
            rows[3, f] += measured_change[p, f]
    for f in range(rows.shape[1]):
        rows[0, f] = rows[2, f]
        rows[1, f] = rows[3, f]
    if filters.shape[0]:
        for f in range(rows.shape[1]):
            rows[0, f] *= filters[p, f]
            rows[1, f] = rows[3, f] * filters[p, f] + rows[2, f] * filters_change[p, f]


def _aggregate_curvature(
    factors: Factors,
    weights: tuple[Array, Array],
    ends: Ends,
    reached: tuple[Array, Array],
    seconds: Factors,
    to_factors: Factors,
    to_weights: Array,
    to_slopes: Array,
    rows: Array,
) -> None:
    """Differentiate ``_aggregate_slopes``, pair by pair; all sums begin with 0; four rows.

    ``seconds`` are the gradients of what it gives to the factors; the second of ``weights`` is that
    of what it gives to the first. ``to_slopes``, [N, 4, F], is for the second of ``reached``.
    """
    (sender, receiver), (extremes, slopes) = ends, reached
    pairs, zero = to_weights.shape[0], rows.dtype.type(0)
    for p in range(pairs):
        weight, late, total = weights[0][p, 0], weights[1][p, 0], zero
        for e in range(p, sender.shape[0], pairs):
            j, i = sender[e], receiver[e]
            message_change(factors, seconds, (j, i), p, rows)
            for f in range(rows.shape[1]):
                message, change = rows[0, f], rows[1, f]
                largest = weight * message == extremes[i, 0, f]
                smallest = weight * message == extremes[i, 1, f]
                moved, twice = weight * change + late * message, slopes[i, 1, f] + slopes[i, 1, f]
                to_slopes[i, 0, f] += moved
                to_slopes[i, 1, f] += message * (moved + weight * change)
                to_slopes[i, 2, f] += moved if largest else zero
                to_slopes[i, 3, f] += moved if smallest else zero
                slope = slopes[i, 0, f] + twice * message
                slope += slopes[i, 2, f] if largest else zero
                slope += slopes[i, 3, f] if smallest else zero
                total += slope * change
                rows[0, f] = weight * twice * change + late * slope
                rows[1, f] = weight * slope
            add_message_curvature(factors, seconds, to_factors, (j, i), p, rows)
        to_weights[p, 0] = total


def _message_curvature(
    factors: Factors,
    seconds: Factors,
    to_factors: Factors,
    ends: tuple[int, int],
    p: int,
    rows: Array,
) -> None:
    """Add what the gradients of a message and of its change give to the factors.

    ``rows``: both gradients, the first of which is changed, and the last rows of
    ``_message_change``.
    """
    (_, _, measured, filters), (_, _, _, filters_change), (j, i) = factors, seconds, ends
    to_received, to_sent, to_measured, to_filters = to_factors
    if filters.shape[0]:
        for f in range(rows.shape[1]):
            to_filters[p, f] += rows[0, f] * rows[2, f] + rows[1, f] * rows[3, f]
            rows[0, f] = rows[0, f] * filters[p, f] + rows[1, f] * filters_change[p, f]
    if measured.shape[0]:
        for f in range(rows.shape[1]):
            to_measured[p, f] += rows[0, f]
    for f in range(rows.shape[1]):
        to_received[i, f] += rows[0, f]
        to_sent[j, f] += rows[0, f]


make_message: Any = register_jitable(_message)
"""``_message`` as a part of compiled loops."""
add_message_slopes: Any = register_jitable(_message_slopes)
"""``_message_slopes`` as a part of compiled loops."""
message_change: Any = register_jitable(_message_change)
"""``_message_change`` as a part of compiled loops."""
add_message_curvature: Any = register_jitable(_message_curvature)
"""``_message_curvature`` as a part of compiled loops."""


LOOPS: dict[str, tuple[Callable[..., None], str]] = {
    "filtered_by_node": (_filtered_by_node, "3 2 iii 3"),
    "filtered_by_pair": (_filtered_by_pair, "3 3 ii 2"),
    "vectors_by_receiver": (_vectors_by_receiver, "2 2 2 3 2 iii 3"),
    "vectors_by_sender": (_vectors_by_sender, "2 2 2 3 iii 2 3"),
    "vectors_by_pair": (_vectors_by_pair, "2 2 3 3 ii 2 2"),
    "vectors_by_edge": (_vectors_by_edge, "2 2 3 ii 2"),
    "attended_by_node": (_attended_by_node, "3 3 2 iii 3"),
    "attended_by_pair": (_attended_by_pair, "3 3 2 ii 3"),
    "attended_by_edge": (_attended_by_edge, "3 3 3 ii 2"),
    "aggregate": (_aggregate, "2222 2 iii 333 1"),
    "aggregate_slopes": (_aggregate_slopes, "2222 2 ii 33 2222 2 1"),
    "aggregate_curvature": (_aggregate_curvature, "2222 22 ii 33 2222 2222 2 3 2"),
}
"""Loop and its signature by name: one word per argument, several letters for a tuple. A digit is an
array of floats with that many dimensions, ``i`` one of indices."""

EXACT = ("aggregate", "aggregate_slopes", "aggregate_curvature")
"""Loops whose products are rounded one by one: a message that is made again must have the same bits
to be recognized as the largest."""
