"""Loops over edges that Triton compiles for GPUs: the innermost code of ``triton_passes``.

A program sums the edges of one node, or computes some pairs, for one block of features. It takes
edges in tiles, adds up each row of a tile, and sums the rows at the end, in an order that depends
on the edges of the node alone. There are no atomics. So results repeat bit by bit (Law 5), and the
sums of a node do not depend on the other graphs of a batch (Law 7). Numbers are read in their own
type, computed in ``COMPUTE``, fp32 or fp64, and rounded once where they are written.

Shapes: N nodes, E edges, P rows of a filter (see ``numba_loops``: edge e has row e or e - P), C
components, F features. Arrays are contiguous, indices int64.

Arguments that many loops take:

- ``other``: the node at the other end of each edge, [E].
- ``order``: edges sorted by the end that sums, [E]; ``starts``: the position in this order where
  the edges of each node begin, and the end, [N + 1]. Loops that read it have a program for each
  node (edge, pair), the others one for each tile of pairs or edges.
- ``sender``, ``receiver``: ends of each edge, [E].
- ``vectors``, ``vector_filters``: [N, 3, F] and [P, F]; unread unless ``CARRIES``.
- ``received``, ``sent``, ``measured``, ``filters``: of messages ``(received_i + sent_j +
  measured_ij) * filter_ij``, [N, F] and [P, F]; the last two are unread unless ``MEASURED`` and
  ``FILTERED``; ``weights``, [P, 1].
- ``grad``: gradient of the sums; ``extremes`` and ``slopes``: what reached the aggregates, see
  ``aggregation``, [N, 2, F] and [N, 4, F].
- ``out``, ``to_...``: results, the gradient of the argument of that name; they are overwritten.
- ``pairs``: P; ``edges``: E; ``WAYS``: 1 if P = E, else 2; ``TILE_...``: sizes of a tile, powers
  of two.
"""

# ruff: noqa: N803  # names of constants that loops are compiled for are in capitals, as Triton's are

import triton
import triton.language as tl


@triton.jit
def edges_of_tile(
    order: tl.tensor, places: tl.tensor, last: tl.tensor, pairs: tl.tensor
) -> tl.tuple:
    """Return edges, their pairs, and whether each place of a tile holds one, [TILE_E] each.

    Args:
        order: edges sorted by the end that sums, [E].
        places: in this order, [TILE_E].
        last: place behind the last edge of the node.
        pairs: P.
    """
    there = places < last
    edge = tl.load(order + places, mask=there, other=0)
    return edge, tl.where(edge < pairs, edge, edge - pairs), there


@triton.jit
def tile_of(rows: tl.tensor, TILE_E: tl.constexpr) -> tl.tuple:
    """Return the rows of a program's tile, and whether each is one of all rows, [TILE_E] each."""
    row = tl.program_id(0).to(tl.int64) * TILE_E + tl.arange(0, TILE_E)
    return row, row < rows


@triton.jit
def ends_of(sender: tl.tensor, receiver: tl.tensor, edge: tl.tensor, there: tl.tensor) -> tl.tuple:
    """Return receivers and senders of edges, [TILE_E] each.

    Args:
        sender: of all edges, [E].
        receiver: of all edges, [E].
        edge: to read, [TILE_E].
        there: which of these to read, [TILE_E].
    """
    i = tl.load(receiver + edge, mask=there, other=0)
    return i, tl.load(sender + edge, mask=there, other=0)


@triton.jit
def rows_of(
    array: tl.tensor,
    rows: tl.tensor,
    f: tl.tensor,
    there: tl.tensor,
    F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> tl.tensor:
    """Read a block of features of some rows, [TILE_E, TILE_F].

    Args:
        array: contiguous rows of F numbers.
        rows: to read, [TILE_E].
        f: features to read, [TILE_F].
        there: which of the rows to read, [TILE_E]; 0 elsewhere, and beyond F.
        F: width of a row.
        COMPUTE: type to return.
    """
    places, mask = rows[:, None] * F + f[None, :], there[:, None] & (f < F)[None, :]
    return tl.load(array + places, mask=mask, other=0.0).to(COMPUTE)


@triton.jit
def write_rows(
    array: tl.tensor,
    rows: tl.tensor,
    f: tl.tensor,
    there: tl.tensor,
    values: tl.tensor,
    F: tl.constexpr,
) -> None:
    """Write a block of features of some rows.

    Args:
        array: contiguous rows of F numbers.
        rows: to write, [TILE_E].
        f: features to write, [TILE_F].
        there: which of the rows to write, [TILE_E].
        values: of the features, [TILE_E, TILE_F].
        F: width of a row.
    """
    places, mask = rows[:, None] * F + f[None, :], there[:, None] & (f < F)[None, :]
    tl.store(array + places, values, mask=mask)


@triton.jit
def column_of(
    array: tl.tensor, places: tl.tensor, there: tl.tensor, COMPUTE: tl.constexpr
) -> tl.tensor:
    """Read one number of each edge of a tile, [TILE_E, 1].

    Args:
        array: contiguous numbers.
        places: to read, [TILE_E].
        there: which of these to read, [TILE_E]; 0 elsewhere.
        COMPUTE: type to return.
    """
    return tl.load(array + places, mask=there, other=0.0).to(COMPUTE)[:, None]


@triton.jit(do_not_specialize=["pairs"])
def _filtered_by_node(
    values: tl.tensor, filters: tl.tensor, other: tl.tensor, order: tl.tensor,
    starts: tl.tensor, out: tl.tensor, pairs: tl.tensor,
    C: tl.constexpr, F: tl.constexpr, TILE_E: tl.constexpr, TILE_C: tl.constexpr,
    TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Sum the filtered rows, [N, C, F], of the nodes at the other end."""
    node = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    c = tl.arange(0, TILE_C)
    places = c[:, None] * F + f[None, :]
    inside = (c < C)[:, None] & (f < F)[None, :]
    total = tl.zeros((TILE_E, TILE_C, TILE_F), COMPUTE)
    last = tl.load(starts + node + 1)
    for first in range(tl.load(starts + node), last, TILE_E):
        edge, pair, there = edges_of_tile(order, first + tl.arange(0, TILE_E), last, pairs)
        j = tl.load(other + edge, mask=there, other=0)
        factor = rows_of(filters, pair, f, there, F, COMPUTE)
        rows = values + j[:, None, None] * (C * F) + places[None, :, :]
        value = tl.load(rows, mask=there[:, None, None] & inside[None, :, :], other=0.0)
        total += value.to(COMPUTE) * factor[:, None, :]
    tl.store(out + node * (C * F) + places, tl.sum(total, 0), mask=inside)


@triton.jit(do_not_specialize=["pairs", "edges"])
def _filtered_by_pair(
    sent: tl.tensor, received: tl.tensor, sender: tl.tensor, receiver: tl.tensor,
    out: tl.tensor, pairs: tl.tensor, edges: tl.tensor,
    C: tl.constexpr, F: tl.constexpr, WAYS: tl.constexpr, TILE_E: tl.constexpr,
    TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply the rows of both ends, [N, C, F], and sum by pair over components, [P, F]."""
    pair, there = tile_of(pairs, TILE_E)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    for way in tl.static_range(WAYS):
        edge = pair + way * pairs
        here = there & (edge < edges)
        i, j = ends_of(sender, receiver, edge, here)
        for c in range(C):
            first = rows_of(sent, j * C + c, f, here, F, COMPUTE)
            total += first * rows_of(received, i * C + c, f, here, F, COMPUTE)
    write_rows(out, pair, f, there, total, F)


@triton.jit(do_not_specialize=["pairs"])
def _vectors_by_receiver(
    values: tl.tensor, filters: tl.tensor, directions: tl.tensor, vectors: tl.tensor,
    vector_filters: tl.tensor, sender: tl.tensor, order: tl.tensor, starts: tl.tensor,
    out: tl.tensor, pairs: tl.tensor,
    F: tl.constexpr, CARRIES: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Sum ``direction x (filter * value) + vector_filter * vector`` at the receivers."""
    node = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    x = tl.zeros((TILE_E, TILE_F), COMPUTE)
    y, z = x, x
    last = tl.load(starts + node + 1)
    for first in range(tl.load(starts + node), last, TILE_E):
        edge, pair, there = edges_of_tile(order, first + tl.arange(0, TILE_E), last, pairs)
        j = tl.load(sender + edge, mask=there, other=0)
        message = rows_of(values, j, f, there, F, COMPUTE) * rows_of(
            filters, pair, f, there, F, COMPUTE
        )
        x += column_of(directions, edge * 3, there, COMPUTE) * message
        y += column_of(directions, edge * 3 + 1, there, COMPUTE) * message
        z += column_of(directions, edge * 3 + 2, there, COMPUTE) * message
        if CARRIES:
            factor = rows_of(vector_filters, pair, f, there, F, COMPUTE)
            x += factor * rows_of(vectors, j * 3, f, there, F, COMPUTE)
            y += factor * rows_of(vectors, j * 3 + 1, f, there, F, COMPUTE)
            z += factor * rows_of(vectors, j * 3 + 2, f, there, F, COMPUTE)
    row = out + node * (3 * F) + f
    tl.store(row, tl.sum(x, 0), mask=f < F)
    tl.store(row + F, tl.sum(y, 0), mask=f < F)
    tl.store(row + 2 * F, tl.sum(z, 0), mask=f < F)


@triton.jit
def _along(
    directions: tl.tensor,
    edge: tl.tensor,
    there: tl.tensor,
    vector: tl.tuple,
    COMPUTE: tl.constexpr,
) -> tl.tensor:
    """Return the part of vectors that is along the directions of edges, [TILE_E, TILE_F]."""
    x, y, z = vector
    along = column_of(directions, edge * 3, there, COMPUTE) * x
    along += column_of(directions, edge * 3 + 1, there, COMPUTE) * y
    return along + column_of(directions, edge * 3 + 2, there, COMPUTE) * z


@triton.jit(do_not_specialize=["pairs"])
def _vectors_by_sender(
    filters: tl.tensor, directions: tl.tensor, vector_filters: tl.tensor, grad: tl.tensor,
    receiver: tl.tensor, order: tl.tensor, starts: tl.tensor, to_values: tl.tensor,
    to_vectors: tl.tensor, pairs: tl.tensor,
    F: tl.constexpr, CARRIES: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate ``_vectors_by_receiver`` by the rows of the senders."""
    node = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    u, v, w = total, total, total
    last = tl.load(starts + node + 1)
    for first in range(tl.load(starts + node), last, TILE_E):
        edge, pair, there = edges_of_tile(order, first + tl.arange(0, TILE_E), last, pairs)
        i = tl.load(receiver + edge, mask=there, other=0)
        x = rows_of(grad, i * 3, f, there, F, COMPUTE)
        y = rows_of(grad, i * 3 + 1, f, there, F, COMPUTE)
        z = rows_of(grad, i * 3 + 2, f, there, F, COMPUTE)
        along = _along(directions, edge, there, (x, y, z), COMPUTE)
        total += along * rows_of(filters, pair, f, there, F, COMPUTE)
        if CARRIES:
            factor = rows_of(vector_filters, pair, f, there, F, COMPUTE)
            u += factor * x
            v += factor * y
            w += factor * z
    tl.store(to_values + node * F + f, tl.sum(total, 0), mask=f < F)
    if CARRIES:
        row = to_vectors + node * (3 * F) + f
        tl.store(row, tl.sum(u, 0), mask=f < F)
        tl.store(row + F, tl.sum(v, 0), mask=f < F)
        tl.store(row + 2 * F, tl.sum(w, 0), mask=f < F)


@triton.jit(do_not_specialize=["pairs", "edges"])
def _vectors_by_pair(
    values: tl.tensor, directions: tl.tensor, vectors: tl.tensor, grad: tl.tensor,
    sender: tl.tensor, receiver: tl.tensor, to_filters: tl.tensor,
    to_vector_filters: tl.tensor, pairs: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, WAYS: tl.constexpr, CARRIES: tl.constexpr, TILE_E: tl.constexpr,
    TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate ``_vectors_by_receiver`` by the filters."""
    pair, there = tile_of(pairs, TILE_E)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    carried = total
    for way in tl.static_range(WAYS):
        edge = pair + way * pairs
        here = there & (edge < edges)
        i, j = ends_of(sender, receiver, edge, here)
        x = rows_of(grad, i * 3, f, here, F, COMPUTE)
        y = rows_of(grad, i * 3 + 1, f, here, F, COMPUTE)
        z = rows_of(grad, i * 3 + 2, f, here, F, COMPUTE)
        along = _along(directions, edge, here, (x, y, z), COMPUTE)
        total += along * rows_of(values, j, f, here, F, COMPUTE)
        if CARRIES:
            carried += x * rows_of(vectors, j * 3, f, here, F, COMPUTE)
            carried += y * rows_of(vectors, j * 3 + 1, f, here, F, COMPUTE)
            carried += z * rows_of(vectors, j * 3 + 2, f, here, F, COMPUTE)
    write_rows(to_filters, pair, f, there, total, F)
    if CARRIES:
        write_rows(to_vector_filters, pair, f, there, carried, F)


@triton.jit(do_not_specialize=["pairs", "edges"])
def _vectors_by_edge(
    values: tl.tensor, filters: tl.tensor, grad: tl.tensor, sender: tl.tensor,
    receiver: tl.tensor, to_directions: tl.tensor, pairs: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate ``_vectors_by_receiver`` by the directions."""
    edge, there = tile_of(edges, TILE_E)
    pair = tl.where(edge < pairs, edge, edge - pairs)
    i, j = ends_of(sender, receiver, edge, there)
    x = tl.zeros((TILE_E, TILE_F), COMPUTE)
    y, z = x, x
    for first in range(0, F, TILE_F):
        f = first + tl.arange(0, TILE_F)
        message = rows_of(values, j, f, there, F, COMPUTE) * rows_of(
            filters, pair, f, there, F, COMPUTE
        )
        x += message * rows_of(grad, i * 3, f, there, F, COMPUTE)
        y += message * rows_of(grad, i * 3 + 1, f, there, F, COMPUTE)
        z += message * rows_of(grad, i * 3 + 2, f, there, F, COMPUTE)
    row = to_directions + edge * 3
    tl.store(row, tl.sum(x, 1), mask=there)
    tl.store(row + 1, tl.sum(y, 1), mask=there)
    tl.store(row + 2, tl.sum(z, 1), mask=there)


@triton.jit
def _messages(
    factors: tl.tuple, ends: tl.tuple, f: tl.tensor, there: tl.tensor,
    F: tl.constexpr, MEASURED: tl.constexpr, FILTERED: tl.constexpr, COMPUTE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Return messages before their filters, and the filters, [TILE_E, TILE_F] each."""
    received, sent, measured, filters = factors
    i, j, pair = ends
    plain = rows_of(received, i, f, there, F, COMPUTE) + rows_of(sent, j, f, there, F, COMPUTE)
    if MEASURED:
        plain += rows_of(measured, pair, f, there, F, COMPUTE)
    factor = tl.zeros_like(plain) + 1.0
    if FILTERED:
        factor = rows_of(filters, pair, f, there, F, COMPUTE)
    return plain, factor


@triton.jit
def _slopes_of_messages(
    message: tl.tensor, weight: tl.tensor, reached: tl.tuple, i: tl.tensor, f: tl.tensor,
    there: tl.tensor,
    F: tl.constexpr, COMPUTE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Return the gradients of the weights, before their sum over features, and of the messages."""
    extremes, slopes = reached
    value = weight * message
    of_square = rows_of(slopes, i * 4 + 1, f, there, F, COMPUTE)
    slope = rows_of(slopes, i * 4, f, there, F, COMPUTE) + of_square * message
    at_high = value == rows_of(extremes, i * 2, f, there, F, COMPUTE)
    slope += tl.where(at_high, rows_of(slopes, i * 4 + 2, f, there, F, COMPUTE), 0.0)
    at_low = value == rows_of(extremes, i * 2 + 1, f, there, F, COMPUTE)
    slope += tl.where(at_low, rows_of(slopes, i * 4 + 3, f, there, F, COMPUTE), 0.0)
    return message * slope, weight * (slope + of_square * message)


@triton.jit(do_not_specialize=["pairs"])
def _aggregate(
    received: tl.tensor, sent: tl.tensor, measured: tl.tensor, filters: tl.tensor,
    weights: tl.tensor, sender: tl.tensor, order: tl.tensor, starts: tl.tensor,
    sums: tl.tensor, extremes: tl.tensor, shares: tl.tensor, pairs: tl.tensor,
    F: tl.constexpr, MEASURED: tl.constexpr, FILTERED: tl.constexpr, TILE_E: tl.constexpr,
    TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Aggregate weighted messages at the receivers in four ways, see ``numba_loops._aggregate``."""
    node = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    squares, high, low, ties_high, ties_low = total, total, total, total, total
    last = tl.load(starts + node + 1)
    for first in range(tl.load(starts + node), last, TILE_E):
        edge, pair, there = edges_of_tile(order, first + tl.arange(0, TILE_E), last, pairs)
        j = tl.load(sender + edge, mask=there, other=0)
        i = tl.zeros_like(j) + node
        factors, ends = (received, sent, measured, filters), (i, j, pair)
        plain, factor = _messages(factors, ends, f, there, F, MEASURED, FILTERED, COMPUTE)
        message = plain * factor
        value = column_of(weights, pair, there, COMPUTE) * message
        total += value
        squares += value * message
        ties_high = tl.where(value > high, 1.0, tl.where(value == high, ties_high + 1.0, ties_high))
        ties_low = tl.where(value < low, 1.0, tl.where(value == low, ties_low + 1.0, ties_low))
        high = tl.where(value > high, value, high)
        low = tl.where(value < low, value, low)
    row = node * (2 * F) + f
    mask = f < F
    tl.store(sums + row, tl.sum(total, 0), mask=mask)
    tl.store(sums + row + F, tl.sum(squares, 0), mask=mask)
    largest = tl.max(high, 0)
    smallest = tl.min(low, 0)
    tl.store(extremes + row, largest, mask=mask)
    tl.store(extremes + row + F, smallest, mask=mask)
    ties = tl.sum(tl.where(high == largest[None, :], ties_high, 0.0), 0)
    tl.store(shares + row, tl.where(largest > 0.0, 1.0 / tl.maximum(ties, 1.0), 0.0), mask=mask)
    ties = tl.sum(tl.where(low == smallest[None, :], ties_low, 0.0), 0)
    tl.store(
        shares + row + F, tl.where(smallest < 0.0, 1.0 / tl.maximum(ties, 1.0), 0.0), mask=mask
    )


@triton.jit(do_not_specialize=["pairs"])
def _aggregate_slopes_by_node(
    received: tl.tensor, sent: tl.tensor, measured: tl.tensor, filters: tl.tensor,
    weights: tl.tensor, other: tl.tensor, order: tl.tensor, starts: tl.tensor,
    extremes: tl.tensor, slopes: tl.tensor, out: tl.tensor, pairs: tl.tensor,
    F: tl.constexpr, MEASURED: tl.constexpr, FILTERED: tl.constexpr, RECEIVES: tl.constexpr,
    TILE_E: tl.constexpr, TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate ``_aggregate`` by ``received`` if ``RECEIVES``, else by ``sent``."""
    node = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    last = tl.load(starts + node + 1)
    for first in range(tl.load(starts + node), last, TILE_E):
        edge, pair, there = edges_of_tile(order, first + tl.arange(0, TILE_E), last, pairs)
        j = tl.load(other + edge, mask=there, other=0)
        i = tl.zeros_like(j) + node
        if not RECEIVES:
            i, j = j, i
        factors, ends = (received, sent, measured, filters), (i, j, pair)
        plain, factor = _messages(factors, ends, f, there, F, MEASURED, FILTERED, COMPUTE)
        weight = column_of(weights, pair, there, COMPUTE)
        reached = (extremes, slopes)
        _, slope = _slopes_of_messages(plain * factor, weight, reached, i, f, there, F, COMPUTE)
        total += slope * factor
    tl.store(out + node * F + f, tl.sum(total, 0), mask=f < F)


@triton.jit(do_not_specialize=["pairs", "edges"])
def _aggregate_slopes_by_pair(
    received: tl.tensor, sent: tl.tensor, measured: tl.tensor, filters: tl.tensor,
    weights: tl.tensor, sender: tl.tensor, receiver: tl.tensor, extremes: tl.tensor,
    slopes: tl.tensor, to_measured: tl.tensor, to_filters: tl.tensor, to_weights: tl.tensor,
    pairs: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, MEASURED: tl.constexpr, FILTERED: tl.constexpr, WAYS: tl.constexpr,
    TILE_E: tl.constexpr, TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate ``_aggregate`` by the arguments of pairs."""
    pair, there = tile_of(pairs, TILE_E)
    weight = column_of(weights, pair, there, COMPUTE)
    of_weight = tl.zeros((TILE_E, TILE_F), COMPUTE)
    for first in range(0, F, TILE_F):
        f = first + tl.arange(0, TILE_F)
        of_measured = tl.zeros((TILE_E, TILE_F), COMPUTE)
        of_filter = of_measured
        for way in tl.static_range(WAYS):
            edge = pair + way * pairs
            here = there & (edge < edges)
            i, j = ends_of(sender, receiver, edge, here)
            factors, ends = (received, sent, measured, filters), (i, j, pair)
            plain, factor = _messages(factors, ends, f, here, F, MEASURED, FILTERED, COMPUTE)
            reached = (extremes, slopes)
            each, slope = _slopes_of_messages(
                plain * factor, weight, reached, i, f, here, F, COMPUTE
            )
            of_weight += each
            of_measured += slope * factor
            of_filter += slope * plain
        if MEASURED:
            write_rows(to_measured, pair, f, there, of_measured, F)
        if FILTERED:
            write_rows(to_filters, pair, f, there, of_filter, F)
    tl.store(to_weights + pair, tl.sum(of_weight, 1), mask=there)


@triton.jit(do_not_specialize=["pairs"])
def _attended_by_node(
    values: tl.tensor, filters: tl.tensor, weights: tl.tensor, other: tl.tensor,
    order: tl.tensor, starts: tl.tensor, out: tl.tensor, pairs: tl.tensor,
    F: tl.constexpr, HEADS: tl.constexpr, FILTERED: tl.constexpr, TILE_E: tl.constexpr,
    TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Sum the rows of the nodes at the other end by weights of heads, see ``numba_loops``.

    With filters, weights are those of edges; without, those of pairs.
    """
    node = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    head = f // (F // HEADS)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    last = tl.load(starts + node + 1)
    for first in range(tl.load(starts + node), last, TILE_E):
        edge, pair, there = edges_of_tile(order, first + tl.arange(0, TILE_E), last, pairs)
        j = tl.load(other + edge, mask=there, other=0)
        row = pair
        value = rows_of(values, j, f, there, F, COMPUTE)
        if FILTERED:
            row = edge
            value *= rows_of(filters, pair, f, there, F, COMPUTE)
        total += value * rows_of(weights, row, head, there, HEADS, COMPUTE)
    tl.store(out + node * F + f, tl.sum(total, 0), mask=f < F)


@triton.jit(do_not_specialize=["pairs", "edges"])
def _attended_by_pair(
    values: tl.tensor, weights: tl.tensor, grad: tl.tensor, sender: tl.tensor,
    receiver: tl.tensor, out: tl.tensor, pairs: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, HEADS: tl.constexpr, WAYS: tl.constexpr, TILE_E: tl.constexpr,
    TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply the rows of both ends by the weights of edges, and sum by pair, [P, F]."""
    pair, there = tile_of(pairs, TILE_E)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    head = f // (F // HEADS)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    for way in tl.static_range(WAYS):
        edge = pair + way * pairs
        here = there & (edge < edges)
        i, j = ends_of(sender, receiver, edge, here)
        both = rows_of(values, j, f, here, F, COMPUTE) * rows_of(grad, i, f, here, F, COMPUTE)
        total += both * rows_of(weights, edge, head, here, HEADS, COMPUTE)
    write_rows(out, pair, f, there, total, F)


@triton.jit(do_not_specialize=["pairs", "edges", "rows"])
def _attended_by_weight(
    values: tl.tensor, filters: tl.tensor, grad: tl.tensor, sender: tl.tensor,
    receiver: tl.tensor, out: tl.tensor, pairs: tl.tensor, edges: tl.tensor, rows: tl.tensor,
    F: tl.constexpr, HEADS: tl.constexpr, WAYS: tl.constexpr, FILTERED: tl.constexpr,
    TILE_E: tl.constexpr, TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply the rows of both ends, filtered, and sum the features of each head, [rows, HEADS].

    With filters, rows are edges and ``WAYS`` is 1; without, they are pairs.
    """
    row, there = tile_of(rows, TILE_E)
    pair = tl.where(row < pairs, row, row - pairs)
    for head in range(HEADS):
        total = tl.zeros((TILE_E, TILE_F), COMPUTE)
        for first in range(0, F // HEADS, TILE_F):
            own = first + tl.arange(0, TILE_F)
            f = tl.where(own < F // HEADS, head * (F // HEADS) + own, F)
            for way in tl.static_range(WAYS):
                edge = row + way * pairs
                here = there & (edge < edges)
                i, j = ends_of(sender, receiver, edge, here)
                both = rows_of(values, j, f, here, F, COMPUTE) * rows_of(
                    grad, i, f, here, F, COMPUTE
                )
                if FILTERED:
                    both *= rows_of(filters, pair, f, here, F, COMPUTE)
                total += both
        tl.store(out + row * HEADS + head, tl.sum(total, 1), mask=there)


LOOPS = {
    "filtered_by_node": _filtered_by_node,
    "filtered_by_pair": _filtered_by_pair,
    "vectors_by_receiver": _vectors_by_receiver,
    "vectors_by_sender": _vectors_by_sender,
    "vectors_by_pair": _vectors_by_pair,
    "vectors_by_edge": _vectors_by_edge,
    "attended_by_node": _attended_by_node,
    "attended_by_pair": _attended_by_pair,
    "attended_by_weight": _attended_by_weight,
    "aggregate": _aggregate,
    "aggregate_slopes_by_node": _aggregate_slopes_by_node,
    "aggregate_slopes_by_pair": _aggregate_slopes_by_pair,
}
"""Loop by name."""

EXACT = ("aggregate", "aggregate_slopes_by_node", "aggregate_slopes_by_pair")
"""Loops whose products are rounded one by one: a message that is made again must have the same bits
to be recognized as the largest."""


def interprets() -> bool:
    """Check whether Triton interprets loops, which runs them on a CPU."""
    return not isinstance(LOOPS["aggregate"], triton.runtime.jit.JITFunction)
