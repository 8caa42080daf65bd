"""Loops over edges that numba compiles: the innermost code of ``numba_passes``.

They are plain Python with numpy arrays; only ``numba_passes`` calls them, compiled.

Shapes: N nodes, E edges, P rows of a filter (E, or E / 2 for one row per pair of edges: edge e has
row e or e - P), C components, F features. Arrays are contiguous and of one dtype, indices int64.

Arguments that many loops take:

- ``edges``: the node at the other end of each edge, [E]; edges sorted by the end that sums, [E];
  the position in this order where the edges of each node begin, and the end, [N + 1].
- ``ends``: sender and receiver of each edge, [E] each.
- ``vectors``, ``vector_filters``: [N, 3, F] and [P, F]; without rows, their term is left out.
- ``grad``: gradient of the sums.
- ``out``, ``to_...``: results, the gradient of the argument of that name; they are overwritten.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Edges3 = tuple[Array, Array, Array]
Ends = tuple[Array, Array]


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
        for way in range(sender.shape[0] // pairs):
            j, i = sender[p + way * pairs], receiver[p + way * pairs]
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
        for way in range(sender.shape[0] // pairs):
            e = p + way * pairs
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


LOOPS = {
    "filtered_by_node": (_filtered_by_node, "3 2 iii 3"),
    "filtered_by_pair": (_filtered_by_pair, "3 3 ii 2"),
    "vectors_by_receiver": (_vectors_by_receiver, "2 2 2 3 2 iii 3"),
    "vectors_by_sender": (_vectors_by_sender, "2 2 2 3 iii 2 3"),
    "vectors_by_pair": (_vectors_by_pair, "2 2 3 3 ii 2 2"),
    "vectors_by_edge": (_vectors_by_edge, "2 2 3 ii 2"),
}
"""Loop and its signature by name: one word per argument, several letters for a tuple. A digit is an
array of floats with that many dimensions, ``i`` one of indices."""
