"""Loops that Triton compiles for messages that a matrix per edge mixes, or a vector per triplet.

``coupling_loops`` has the same functions for CPUs; programs and tiles are as in ``triton_loops``.

Shapes: N nodes, E edges, P pairs, A components of a node's values, B components of a sum, T
triplets, S functions of an angle, F features. For triplets edges are in the place of nodes.

Arguments that several loops take, beside those of ``triton_loops``:

- ``mixing``: of the edges, [E, B, A].
- ``messages``, ``filters``, ``weights`` of triplets: [E, F], [S, P, F], [T, S].
- ``VALUES``, ``SUMS``: A and B; ``FUNCTIONS``: S.
"""

# ruff: noqa: N803  # names of constants that loops are compiled for are in capitals, as Triton's are

import triton
import triton.language as tl

from hydragnn_hpo.kernels.triton_loops import (
    column_of,
    edges_of_tile,
    ends_of,
    rows_of,
    tile_of,
    write_rows,
)


@triton.jit(do_not_specialize=["pairs"])
def _coupled_by_node(
    values: tl.tensor, filters: tl.tensor, mixing: tl.tensor, other: tl.tensor,
    order: tl.tensor, starts: tl.tensor, out: tl.tensor, pairs: tl.tensor,
    F: tl.constexpr, VALUES: tl.constexpr, SUMS: tl.constexpr, BACK: tl.constexpr,
    TILE_E: tl.constexpr, TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Sum the mixed and filtered values, [N, VALUES, F], of the other ends, [N, SUMS, F].

    ``BACK`` mixes by the transposed matrices: sums at senders.
    """
    node = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    last = tl.load(starts + node + 1)
    for b in range(SUMS):
        total = tl.zeros((TILE_E, TILE_F), COMPUTE)
        for first in range(tl.load(starts + node), last, TILE_E):
            edge, pair, there = edges_of_tile(order, first + tl.arange(0, TILE_E), last, pairs)
            j = tl.load(other + edge, mask=there, other=0)
            mixed = tl.zeros((TILE_E, TILE_F), COMPUTE)
            for a in range(VALUES):
                place = edge * (SUMS * VALUES) + (a * SUMS + b if BACK else b * VALUES + a)
                factor = column_of(mixing, place, there, COMPUTE)
                mixed += factor * rows_of(values, j * VALUES + a, f, there, F, COMPUTE)
            total += mixed * rows_of(filters, pair, f, there, F, COMPUTE)
        tl.store(out + (node * SUMS + b) * F + f, tl.sum(total, 0), mask=f < F)


@triton.jit(do_not_specialize=["pairs", "edges"])
def _coupled_by_pair(
    values: tl.tensor, mixing: tl.tensor, grad: tl.tensor, sender: tl.tensor,
    receiver: tl.tensor, out: tl.tensor, pairs: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, VALUES: tl.constexpr, SUMS: tl.constexpr, WAYS: tl.constexpr,
    TILE_E: tl.constexpr, TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply mixed values of the senders by gradients, [N, SUMS, F], and sum by pair, [P, F]."""
    pair, there = tile_of(pairs, TILE_E)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    for way in tl.static_range(WAYS):
        edge = pair + way * pairs
        here = there & (edge < edges)
        i, j = ends_of(sender, receiver, edge, here)
        for b in range(SUMS):
            mixed = tl.zeros((TILE_E, TILE_F), COMPUTE)
            for a in range(VALUES):
                factor = column_of(mixing, (edge * SUMS + b) * VALUES + a, here, COMPUTE)
                mixed += factor * rows_of(values, j * VALUES + a, f, here, F, COMPUTE)
            total += mixed * rows_of(grad, i * SUMS + b, f, here, F, COMPUTE)
    write_rows(out, pair, f, there, total, F)


@triton.jit(do_not_specialize=["pairs", "edges"])
def _coupled_by_edge(
    values: tl.tensor, filters: tl.tensor, grad: tl.tensor, sender: tl.tensor,
    receiver: tl.tensor, to_mixing: tl.tensor, pairs: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, VALUES: tl.constexpr, SUMS: tl.constexpr, TILE_E: tl.constexpr,
    TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply filtered values of the senders by gradients, and sum over features."""
    edge, there = tile_of(edges, TILE_E)
    pair = tl.where(edge < pairs, edge, edge - pairs)
    i, j = ends_of(sender, receiver, edge, there)
    for b in range(SUMS):
        for a in range(VALUES):
            total = tl.zeros((TILE_E, TILE_F), COMPUTE)
            for first in range(0, F, TILE_F):
                f = first + tl.arange(0, TILE_F)
                slope = rows_of(grad, i * SUMS + b, f, there, F, COMPUTE)
                slope *= rows_of(filters, pair, f, there, F, COMPUTE)
                total += slope * rows_of(values, j * VALUES + a, f, there, F, COMPUTE)
            place = to_mixing + (edge * SUMS + b) * VALUES + a
            tl.store(place, tl.sum(total, 1), mask=there)


@triton.jit(do_not_specialize=["pairs"])
def _triplets_by_second(
    messages: tl.tensor, filters: tl.tensor, weights: tl.tensor, first: tl.tensor,
    order: tl.tensor, starts: tl.tensor, out: tl.tensor, pairs: tl.tensor,
    F: tl.constexpr, FUNCTIONS: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Sum filtered messages of the first edges at the second, [E, F]."""
    own = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    last = tl.load(starts + own + 1)
    for start in range(tl.load(starts + own), last, TILE_E):
        triplet, there = _triplets_of_tile(order, start + tl.arange(0, TILE_E), last)
        j = tl.load(first + triplet, mask=there, other=0)
        pair = tl.where(j < pairs, j, j - pairs)
        mixed = tl.zeros((TILE_E, TILE_F), COMPUTE)
        for s in range(FUNCTIONS):
            weight = column_of(weights, triplet * FUNCTIONS + s, there, COMPUTE)
            mixed += weight * rows_of(filters, s * pairs + pair, f, there, F, COMPUTE)
        total += mixed * rows_of(messages, j, f, there, F, COMPUTE)
    tl.store(out + own * F + f, tl.sum(total, 0), mask=f < F)


@triton.jit
def _triplets_of_tile(order: tl.tensor, places: tl.tensor, last: tl.tensor) -> tl.tuple:
    """Return triplets, and whether each place of a tile holds one, [TILE_E] each."""
    there = places < last
    return tl.load(order + places, mask=there, other=0), there


@triton.jit(do_not_specialize=["pairs"])
def _triplets_by_first(
    filters: tl.tensor, weights: tl.tensor, grad: tl.tensor, second: tl.tensor,
    order: tl.tensor, starts: tl.tensor, to_messages: tl.tensor, pairs: tl.tensor,
    F: tl.constexpr, FUNCTIONS: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate ``_triplets_by_second`` by the messages of the first edges, [E, F]."""
    own = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    pair = tl.where(own < pairs, own, own - pairs)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    last = tl.load(starts + own + 1)
    for start in range(tl.load(starts + own), last, TILE_E):
        triplet, there = _triplets_of_tile(order, start + tl.arange(0, TILE_E), last)
        i = tl.load(second + triplet, mask=there, other=0)
        mixed = tl.zeros((TILE_E, TILE_F), COMPUTE)
        for s in range(FUNCTIONS):
            row = tl.load(filters + (s * pairs + pair) * F + f, mask=f < F, other=0.0)
            weight = column_of(weights, triplet * FUNCTIONS + s, there, COMPUTE)
            mixed += weight * row.to(COMPUTE)[None, :]
        total += mixed * rows_of(grad, i, f, there, F, COMPUTE)
    tl.store(to_messages + own * F + f, tl.sum(total, 0), mask=f < F)


@triton.jit(do_not_specialize=["pairs", "edges"])
def _triplets_by_pair(
    messages: tl.tensor, weights: tl.tensor, grad: tl.tensor, second: tl.tensor,
    order: tl.tensor, starts: tl.tensor, to_filters: tl.tensor, pairs: tl.tensor,
    edges: tl.tensor,
    F: tl.constexpr, FUNCTIONS: tl.constexpr, WAYS: tl.constexpr, TILE_E: tl.constexpr,
    TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate ``_triplets_by_second`` by the filters of a pair, [S, P, F]."""
    pair = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    for s in range(FUNCTIONS):
        result = tl.zeros((TILE_F,), COMPUTE)
        for way in tl.static_range(WAYS):
            own = pair + way * pairs
            here = own < edges
            total = tl.zeros((TILE_E, TILE_F), COMPUTE)
            last = tl.load(starts + own + 1, mask=here, other=0)
            for start in range(tl.load(starts + own, mask=here, other=0), last, TILE_E):
                triplet, there = _triplets_of_tile(order, start + tl.arange(0, TILE_E), last)
                i = tl.load(second + triplet, mask=there, other=0)
                weight = column_of(weights, triplet * FUNCTIONS + s, there, COMPUTE)
                total += weight * rows_of(grad, i, f, there, F, COMPUTE)
            message = tl.load(messages + own * F + f, mask=here & (f < F), other=0.0)
            result += tl.sum(total, 0) * message.to(COMPUTE)
        tl.store(to_filters + (s * pairs + pair) * F + f, result, mask=f < F)


@triton.jit(do_not_specialize=["pairs", "triplets"])
def _triplets_by_triplet(
    messages: tl.tensor, filters: tl.tensor, grad: tl.tensor, first: tl.tensor,
    second: tl.tensor, to_weights: tl.tensor, pairs: tl.tensor, triplets: tl.tensor,
    F: tl.constexpr, FUNCTIONS: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate ``_triplets_by_second`` by the weights, [T, S]."""
    triplet, there = tile_of(triplets, TILE_E)
    i, j = ends_of(first, second, triplet, there)
    pair = tl.where(j < pairs, j, j - pairs)
    for s in range(FUNCTIONS):
        total = tl.zeros((TILE_E, TILE_F), COMPUTE)
        for start in range(0, F, TILE_F):
            f = start + tl.arange(0, TILE_F)
            slope = rows_of(grad, i, f, there, F, COMPUTE)
            slope *= rows_of(messages, j, f, there, F, COMPUTE)
            total += slope * rows_of(filters, s * pairs + pair, f, there, F, COMPUTE)
        tl.store(to_weights + triplet * FUNCTIONS + s, tl.sum(total, 1), mask=there)


TRITON_COUPLINGS = {
    "coupled_by_node": _coupled_by_node,
    "coupled_by_pair": _coupled_by_pair,
    "coupled_by_edge": _coupled_by_edge,
    "triplets_by_second": _triplets_by_second,
    "triplets_by_first": _triplets_by_first,
    "triplets_by_pair": _triplets_by_pair,
    "triplets_by_triplet": _triplets_by_triplet,
}
"""Loop by name."""
