"""Loops of ``edge_functions`` that Triton compiles for GPUs, see ``triton_loops``.

An activation is made again where it is needed: at the node at either end, the pair, or the edge.
``edge_loops`` has the same functions for CPUs.

Shapes: N nodes, E edges, P pairs, F features.

Arguments that many loops take, beside those of ``triton_loops``:

- ``received``, ``sent``, ``measured``: terms of the sums of both ends and the pair, [N, F], [N, F]
  and [P, F]; of products [N, 2, F] and [P, 2, F], the terms of the gate, then of the content.
- ``at_received``, ``at_sent``, ``at_measured``: gradients of the slopes of the terms; unread unless
  ``CURVED``, which differentiates slopes, and not values.
- ``late``: gradient of the slopes of the weights, [P, 1], likewise.
- ``numbers``: of the edges, [E, 4].
- ``values``: rows of the pairs, [P, F].
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


@triton.jit
def logistic(x: tl.tensor) -> tl.tuple:
    """Return the logistic function and its first two derivatives."""
    s = 1.0 / (1.0 + tl.exp(-x))
    return s, s * (1.0 - s), s * (1.0 - s) * (1.0 - s - s)


@triton.jit
def silu(x: tl.tensor) -> tl.tuple:
    """Return SiLU and its first two derivatives."""
    s = 1.0 / (1.0 + tl.exp(-x))
    rest = 1.0 - s
    return x * s, s * (1.0 + x * rest), s * rest * (2.0 + x * (rest - s))


@triton.jit
def softplus(x: tl.tensor) -> tl.tuple:
    """Return softplus, for which torch takes x from 20 on, and its first two derivatives."""
    t = tl.exp(-tl.abs(x))
    s = tl.where(x > 0.0, 1.0, t) / (1.0 + t)
    above = (1.0 + t) - 1.0  # log(1 + t) is t log(1 + above) / above, which rounds alike
    log = tl.where(above == 0.0, t, t * tl.log(1.0 + t) / tl.where(above == 0.0, 1.0, above))
    far = x > 20.0
    value = tl.where(far, x, tl.maximum(x, 0.0) + log)
    return value, tl.where(far, 1.0, s), tl.where(far, 0.0, s * (1.0 - s))


@triton.jit
def joint_rows(
    terms: tl.tuple, ends: tl.tuple, f: tl.tensor, there: tl.tensor,
    F: tl.constexpr, STEP: tl.constexpr, HALF: tl.constexpr, COMPUTE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the sum of both ends and the pair, [TILE_E, TILE_F].

    Args:
        terms: ``received``, ``sent`` and ``measured``.
        ends: receiver, sender and pair of each edge, [TILE_E] each.
        f: features to read, [TILE_F].
        there: which of the edges to read, [TILE_E]; 0 elsewhere.
        F: width of a row.
        STEP: rows of an end in its term.
        HALF: which of these to read.
        COMPUTE: type to return.
    """
    received, sent, measured = terms
    i, j, pair = ends
    total = rows_of(received, i * STEP + HALF, f, there, F, COMPUTE)
    total += rows_of(sent, j * STEP + HALF, f, there, F, COMPUTE)
    return total + rows_of(measured, pair * STEP + HALF, f, there, F, COMPUTE)


@triton.jit(do_not_specialize=["pairs", "edges"])
def _bent_by_edge(
    received: tl.tensor, sent: tl.tensor, measured: tl.tensor, at_received: tl.tensor,
    at_sent: tl.tensor, at_measured: tl.tensor, sender: tl.tensor, receiver: tl.tensor,
    out: tl.tensor, pairs: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, LOW: tl.constexpr, CURVED: tl.constexpr, TILE_E: tl.constexpr,
    TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Activate the sums of both ends and the pair, [E, F]; or the gradient of their gradient."""
    edge, there = tile_of(edges, TILE_E)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    pair = tl.where(edge < pairs, edge, edge - pairs)
    i, j = ends_of(sender, receiver, edge, there)
    ends = (i, j, pair)
    x = joint_rows((received, sent, measured), ends, f, there, F, 1, 0, COMPUTE)
    value, first, _ = silu(x)
    result = (1.0 - LOW) * value + LOW * x
    if CURVED:
        late = joint_rows((at_received, at_sent, at_measured), ends, f, there, F, 1, 0, COMPUTE)
        result = ((1.0 - LOW) * first + LOW) * late
    write_rows(out, edge, f, there, result, F)


@triton.jit
def _bent_slope(
    terms: tl.tuple, seconds: tl.tuple, ends: tl.tuple, f: tl.tensor, there: tl.tensor,
    F: tl.constexpr, LOW: tl.constexpr, CURVED: tl.constexpr, COMPUTE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the factor of a gradient of ``_bent_by_edge``, [TILE_E, TILE_F]."""
    _, first, second = silu(joint_rows(terms, ends, f, there, F, 1, 0, COMPUTE))
    slope = (1.0 - LOW) * first + LOW
    if CURVED:
        slope = (1.0 - LOW) * second * joint_rows(seconds, ends, f, there, F, 1, 0, COMPUTE)
    return slope


@triton.jit(do_not_specialize=["pairs"])
def _bent_slopes_by_node(
    received: tl.tensor, sent: tl.tensor, measured: tl.tensor, at_received: tl.tensor,
    at_sent: tl.tensor, at_measured: tl.tensor, grad: tl.tensor, other: tl.tensor,
    order: tl.tensor, starts: tl.tensor, out: tl.tensor, pairs: tl.tensor,
    F: tl.constexpr, LOW: tl.constexpr, CURVED: tl.constexpr, RECEIVES: tl.constexpr,
    TILE_E: tl.constexpr, TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate by ``received`` if ``RECEIVES``, else by ``sent``."""
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
        terms, seconds = (received, sent, measured), (at_received, at_sent, at_measured)
        slope = _bent_slope(terms, seconds, (i, j, pair), f, there, F, LOW, CURVED, COMPUTE)
        total += slope * rows_of(grad, edge, f, there, F, COMPUTE)
    tl.store(out + node * F + f, tl.sum(total, 0), mask=f < F)


@triton.jit(do_not_specialize=["pairs", "edges"])
def _bent_slopes_by_pair(
    received: tl.tensor, sent: tl.tensor, measured: tl.tensor, at_received: tl.tensor,
    at_sent: tl.tensor, at_measured: tl.tensor, grad: tl.tensor, sender: tl.tensor,
    receiver: tl.tensor, out: tl.tensor, pairs: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, LOW: tl.constexpr, CURVED: tl.constexpr, WAYS: tl.constexpr,
    TILE_E: tl.constexpr, TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate by ``measured``."""
    pair, there = tile_of(pairs, TILE_E)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    for way in tl.static_range(WAYS):
        edge = pair + way * pairs
        here = there & (edge < edges)
        i, j = ends_of(sender, receiver, edge, here)
        ends = (i, j, pair)
        terms, seconds = (received, sent, measured), (at_received, at_sent, at_measured)
        slope = _bent_slope(terms, seconds, ends, f, here, F, LOW, CURVED, COMPUTE)
        total += slope * rows_of(grad, edge, f, here, F, COMPUTE)
    write_rows(out, pair, f, there, total, F)


@triton.jit(do_not_specialize=["edges"])
def _gate_numbers(
    product: tl.tensor, bias: tl.tensor, gate: tl.tensor, seconds: tl.tensor, grad: tl.tensor,
    receiver: tl.tensor, out: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, CURVED: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Sum products over the features of each edge, [E, 4].

    They are those of the activated message with gate and gradient, and, if ``CURVED``, of its
    change by ``seconds`` with the same.
    """
    edge, there = tile_of(edges, TILE_E)
    i = tl.load(receiver + edge, mask=there, other=0)
    a = tl.zeros((TILE_E, TILE_F), COMPUTE)
    b, c, d = a, a, a
    for start in range(0, F, TILE_F):
        f = start + tl.arange(0, TILE_F)
        x = rows_of(product, edge, f, there, F, COMPUTE)
        x += tl.load(bias + f, mask=f < F, other=0.0).to(COMPUTE)[None, :]
        value, first, _ = silu(x)
        weight = tl.load(gate + f, mask=f < F, other=0.0).to(COMPUTE)[None, :]
        slope = rows_of(grad, i, f, there, F, COMPUTE)
        a += value * weight
        b += value * slope
        if CURVED:
            change = first * rows_of(seconds, edge, f, there, F, COMPUTE)
            c += change * weight
            d += change * slope
    tl.store(out + edge * 4, tl.sum(a, 1), mask=there)
    tl.store(out + edge * 4 + 1, tl.sum(b, 1), mask=there)
    tl.store(out + edge * 4 + 2, tl.sum(c, 1), mask=there)
    tl.store(out + edge * 4 + 3, tl.sum(d, 1), mask=there)


@triton.jit
def _gated_by_node(
    product: tl.tensor, bias: tl.tensor, seconds: tl.tensor, numbers: tl.tensor,
    order: tl.tensor, starts: tl.tensor, out: tl.tensor,
    F: tl.constexpr, CURVED: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Sum activated messages times number 0, and, if ``CURVED``, their change times number 1."""
    node = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    shift = tl.load(bias + f, mask=f < F, other=0.0).to(COMPUTE)[None, :]
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    last = tl.load(starts + node + 1)
    for start in range(tl.load(starts + node), last, TILE_E):
        place = start + tl.arange(0, TILE_E)
        there = place < last
        edge = tl.load(order + place, mask=there, other=0)
        value, first, _ = silu(rows_of(product, edge, f, there, F, COMPUTE) + shift)
        total += value * column_of(numbers, edge * 4, there, COMPUTE)
        if CURVED:
            change = first * rows_of(seconds, edge, f, there, F, COMPUTE)
            total += change * column_of(numbers, edge * 4 + 1, there, COMPUTE)
    tl.store(out + node * F + f, tl.sum(total, 0), mask=f < F)


@triton.jit(do_not_specialize=["edges"])
def _gated_by_edge(
    product: tl.tensor, bias: tl.tensor, gate: tl.tensor, seconds: tl.tensor, grad: tl.tensor,
    receiver: tl.tensor, numbers: tl.tensor, out: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, CURVED: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate by the product: its slope times numbers 0 of the gradient and 1 of the gate.

    If ``CURVED``, numbers 2 and 3 of the same multiply the slope's change by ``seconds``.
    """
    edge, there = tile_of(edges, TILE_E)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    i = tl.load(receiver + edge, mask=there, other=0)
    x = rows_of(product, edge, f, there, F, COMPUTE)
    x += tl.load(bias + f, mask=f < F, other=0.0).to(COMPUTE)[None, :]
    _, first, second = silu(x)
    weight = tl.load(gate + f, mask=f < F, other=0.0).to(COMPUTE)[None, :]
    slope = rows_of(grad, i, f, there, F, COMPUTE)
    along = column_of(numbers, edge * 4, there, COMPUTE) * slope
    along += column_of(numbers, edge * 4 + 1, there, COMPUTE) * weight
    result = first * along
    if CURVED:
        along = column_of(numbers, edge * 4 + 2, there, COMPUTE) * slope
        along += column_of(numbers, edge * 4 + 3, there, COMPUTE) * weight
        result += second * rows_of(seconds, edge, f, there, F, COMPUTE) * along
    write_rows(out, edge, f, there, result, F)


@triton.jit
def _product_values(
    terms: tl.tuple, ends: tl.tuple, f: tl.tensor, there: tl.tensor,
    F: tl.constexpr, SOFT: tl.constexpr, COMPUTE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Return gates and contents with their first two derivatives, [TILE_E, TILE_F] each."""
    gate = logistic(joint_rows(terms, ends, f, there, F, 2, 0, COMPUTE))
    x = joint_rows(terms, ends, f, there, F, 2, 1, COMPUTE)
    content = softplus(x) if SOFT else silu(x)
    return gate, content


@triton.jit(do_not_specialize=["pairs"])
def _products_by_node(
    received: tl.tensor, sent: tl.tensor, measured: tl.tensor, weights: tl.tensor,
    at_received: tl.tensor, at_sent: tl.tensor, at_measured: tl.tensor, late: tl.tensor,
    other: tl.tensor, order: tl.tensor, starts: tl.tensor, out: tl.tensor, pairs: tl.tensor,
    F: tl.constexpr, SOFT: tl.constexpr, CURVED: tl.constexpr, TILE_E: tl.constexpr,
    TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Sum weighted products at the receivers, or the gradient of their gradient, [N, F]."""
    node = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    last = tl.load(starts + node + 1)
    for first in range(tl.load(starts + node), last, TILE_E):
        edge, pair, there = edges_of_tile(order, first + tl.arange(0, TILE_E), last, pairs)
        j = tl.load(other + edge, mask=there, other=0)
        terms = (received, sent, measured)
        ends = (tl.zeros_like(j) + node, j, pair)
        gate, content = _product_values(terms, ends, f, there, F, SOFT, COMPUTE)
        weight = column_of(weights, pair, there, COMPUTE)
        if CURVED:
            seconds = (at_received, at_sent, at_measured)
            u = weight * joint_rows(seconds, ends, f, there, F, 2, 0, COMPUTE)
            v = weight * joint_rows(seconds, ends, f, there, F, 2, 1, COMPUTE)
            each = u * gate[1] * content[0] + v * gate[0] * content[1]
            total += each + column_of(late, pair, there, COMPUTE) * gate[0] * content[0]
        else:
            total += weight * gate[0] * content[0]
    tl.store(out + node * F + f, tl.sum(total, 0), mask=f < F)


@triton.jit
def _product_slopes(
    terms: tl.tuple, seconds: tl.tuple, weights: tl.tuple, ends: tl.tuple, slope: tl.tensor,
    f: tl.tensor, there: tl.tensor,
    F: tl.constexpr, SOFT: tl.constexpr, CURVED: tl.constexpr, COMPUTE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Return gradients of gate and content, and of the weight before its sum over features."""
    gate, content = _product_values(terms, ends, f, there, F, SOFT, COMPUTE)
    _, _, pair = ends
    weight = column_of(weights[0], pair, there, COMPUTE)
    to_gate = weight * slope * gate[1] * content[0]
    to_content = weight * slope * gate[0] * content[1]
    to_weight = slope * gate[0] * content[0]
    if CURVED:
        late = column_of(weights[1], pair, there, COMPUTE)
        y = joint_rows(seconds, ends, f, there, F, 2, 0, COMPUTE)
        z = joint_rows(seconds, ends, f, there, F, 2, 1, COMPUTE)
        u, v = weight * y, weight * z
        to_gate = u * gate[2] * content[0] + (v * content[1] + late * content[0]) * gate[1]
        to_gate *= slope
        to_content = (u * gate[1] + late * gate[0]) * content[1] + v * gate[0] * content[2]
        to_content *= slope
        to_weight = slope * (y * gate[1] * content[0] + z * gate[0] * content[1])
    return to_gate, to_content, to_weight


@triton.jit(do_not_specialize=["pairs"])
def _product_slopes_by_node(
    received: tl.tensor, sent: tl.tensor, measured: tl.tensor, weights: tl.tensor,
    at_received: tl.tensor, at_sent: tl.tensor, at_measured: tl.tensor, late: tl.tensor,
    grad: tl.tensor, other: tl.tensor, order: tl.tensor, starts: tl.tensor, out: tl.tensor,
    pairs: tl.tensor,
    F: tl.constexpr, SOFT: tl.constexpr, CURVED: tl.constexpr, RECEIVES: tl.constexpr,
    TILE_E: tl.constexpr, TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate products by ``received`` if ``RECEIVES``, else by ``sent``, [N, 2, F]."""
    node = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    to_gate = tl.zeros((TILE_E, TILE_F), COMPUTE)
    to_content = to_gate
    last = tl.load(starts + node + 1)
    for first in range(tl.load(starts + node), last, TILE_E):
        edge, pair, there = edges_of_tile(order, first + tl.arange(0, TILE_E), last, pairs)
        j = tl.load(other + edge, mask=there, other=0)
        i = tl.zeros_like(j) + node
        if not RECEIVES:
            i, j = j, i
        terms, seconds = (received, sent, measured), (at_received, at_sent, at_measured)
        slope = rows_of(grad, i, f, there, F, COMPUTE)
        gate, content, _ = _product_slopes(
            terms, seconds, (weights, late), (i, j, pair), slope, f, there,
            F, SOFT, CURVED, COMPUTE,
        )  # fmt: skip
        to_gate += gate
        to_content += content
    row = out + node * (2 * F) + f
    tl.store(row, tl.sum(to_gate, 0), mask=f < F)
    tl.store(row + F, tl.sum(to_content, 0), mask=f < F)


@triton.jit(do_not_specialize=["pairs", "edges"])
def _product_slopes_by_pair(
    received: tl.tensor, sent: tl.tensor, measured: tl.tensor, weights: tl.tensor,
    at_received: tl.tensor, at_sent: tl.tensor, at_measured: tl.tensor, late: tl.tensor,
    grad: tl.tensor, sender: tl.tensor, receiver: tl.tensor, to_measured: tl.tensor,
    to_weights: tl.tensor, pairs: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, SOFT: tl.constexpr, CURVED: tl.constexpr, WAYS: tl.constexpr,
    TILE_E: tl.constexpr, TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate products by ``measured``, [P, 2, F], and by the weights, [P, 1]."""
    pair, there = tile_of(pairs, TILE_E)
    of_weight = tl.zeros((TILE_E, TILE_F), COMPUTE)
    for start in range(0, F, TILE_F):
        f = start + tl.arange(0, TILE_F)
        to_gate = tl.zeros((TILE_E, TILE_F), COMPUTE)
        to_content = to_gate
        for way in tl.static_range(WAYS):
            edge = pair + way * pairs
            here = there & (edge < edges)
            i, j = ends_of(sender, receiver, edge, here)
            terms, seconds = (received, sent, measured), (at_received, at_sent, at_measured)
            slope = rows_of(grad, i, f, here, F, COMPUTE)
            gate, content, each = _product_slopes(
                terms, seconds, (weights, late), (i, j, pair), slope, f, here,
                F, SOFT, CURVED, COMPUTE,
            )  # fmt: skip
            to_gate += gate
            to_content += content
            of_weight += each
        write_rows(to_measured, pair * 2, f, there, to_gate, F)
        write_rows(to_measured, pair * 2 + 1, f, there, to_content, F)
    tl.store(to_weights + pair, tl.sum(of_weight, 1), mask=there)


@triton.jit(do_not_specialize=["pairs"])
def _active_rows(
    values: tl.tensor, grad: tl.tensor, seconds: tl.tensor, out: tl.tensor, to_grad: tl.tensor,
    rows: tl.tensor,
    F: tl.constexpr, SOFT: tl.constexpr, SLOPES: tl.constexpr, CURVED: tl.constexpr,
    TILE_E: tl.constexpr, TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Return SiLU, or softplus minus ln 2; its gradient if ``SLOPES``, or both gradients of it."""
    pair, there = tile_of(rows, TILE_E)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    x = rows_of(values, pair, f, there, F, COMPUTE)
    active = softplus(x) if SOFT else silu(x)
    result = active[0] - 0.6931471805599453 if SOFT else active[0]
    if SLOPES:
        _, first, second = active
        factor = rows_of(grad, pair, f, there, F, COMPUTE)
        result = first * factor
        if CURVED:
            late = rows_of(seconds, pair, f, there, F, COMPUTE)
            result = second * factor * late
            write_rows(to_grad, pair, f, there, first * late, F)
    write_rows(out, pair, f, there, result, F)


EDGE_FUNCTION_LOOPS = {
    "bent_by_edge": _bent_by_edge,
    "bent_slopes_by_node": _bent_slopes_by_node,
    "bent_slopes_by_pair": _bent_slopes_by_pair,
    "gate_numbers": _gate_numbers,
    "gated_by_node": _gated_by_node,
    "gated_by_edge": _gated_by_edge,
    "products_by_node": _products_by_node,
    "product_slopes_by_node": _product_slopes_by_node,
    "product_slopes_by_pair": _product_slopes_by_pair,
    "active_rows": _active_rows,
}
"""Loop by name."""
