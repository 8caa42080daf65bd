"""Loops of edge-gated convolutions that Triton compiles for GPUs, see ``triton_edge_loops``.

The gate inputs of an edge, its *joint* values, are made again where they are needed. A program that
normalizes them takes all features of a tile of edges, which it reads once for each sum over them.
``gate_loops`` has the same functions for CPUs.

Shapes: N nodes, E edges, P pairs, F features.

Arguments that many loops take, beside those of ``triton_edge_loops``:

- ``product``, ``nodes``: terms of the joint values, [E, F] and [N, 3, F]: read at the receiver,
  read at the sender, and sent.
- ``scale``, ``shift``: of the edges' layer norm, [F] each; unread unless ``NORMED``.
- ``at_product``, ``at_nodes``: gradients of the slopes of both; unread unless ``CURVED``.
- ``to_gated``, ``to_gates``, ``to_updated``: gradients of both sums, [N, F] each, and of the new
  features of the edges, [E, F].
"""

# ruff: noqa: N803  # names of constants that loops are compiled for are in capitals, as Triton's are

import triton
import triton.language as tl

from hydragnn_hpo.kernels.triton_edge_loops import joint_rows, logistic, silu
from hydragnn_hpo.kernels.triton_loops import (
    column_of,
    edges_of_tile,
    ends_of,
    rows_of,
    tile_of,
    write_rows,
)

EPSILON = tl.constexpr(1e-5)
"""Added to variances, as in ``eager_gates``."""


@triton.jit
def _joint(
    terms: tl.tuple, ends: tl.tuple, f: tl.tensor, there: tl.tensor,
    F: tl.constexpr, COMPUTE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the joint values of edges, or their change, [TILE_E, TILE_F]."""
    product, nodes = terms
    edge, i, j = ends
    rows = (i * 3, j * 3 + 1, edge)
    return joint_rows((nodes, nodes, product), rows, f, there, F, 1, 0, COMPUTE)


@triton.jit
def _gates(
    terms: tl.tuple, seconds: tl.tuple, weights: tl.tuple, ends: tl.tuple, pair: tl.tensor,
    f: tl.tensor, there: tl.tensor,
    F: tl.constexpr, CURVED: tl.constexpr, COMPUTE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Return weighted gates and, if ``CURVED``, their change, [TILE_E, TILE_F] each."""
    gate, first, _ = logistic(_joint(terms, ends, f, there, F, COMPUTE))
    weight = column_of(weights[0], pair, there, COMPUTE)
    change = gate
    if CURVED:
        change = weight * first * _joint(seconds, ends, f, there, F, COMPUTE)
        change += column_of(weights[1], pair, there, COMPUTE) * gate
    return weight * gate, change


@triton.jit(do_not_specialize=["pairs"])
def _gates_by_node(
    product: tl.tensor, nodes: tl.tensor, weights: tl.tensor, at_product: tl.tensor,
    at_nodes: tl.tensor, late: tl.tensor, sender: tl.tensor, order: tl.tensor,
    starts: tl.tensor, gated: tl.tensor, gates: tl.tensor, pairs: tl.tensor,
    F: tl.constexpr, CURVED: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Sum gated values and gates at the receivers, or the gradients of their gradients, [N, F]."""
    node = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    of_values = tl.zeros((TILE_E, TILE_F), COMPUTE)
    of_gates = of_values
    last = tl.load(starts + node + 1)
    for first in range(tl.load(starts + node), last, TILE_E):
        edge, pair, there = edges_of_tile(order, first + tl.arange(0, TILE_E), last, pairs)
        j = tl.load(sender + edge, mask=there, other=0)
        ends = (edge, tl.zeros_like(j) + node, j)
        terms, seconds = (product, nodes), (at_product, at_nodes)
        gate, change = _gates(
            terms, seconds, (weights, late), ends, pair, f, there, F, CURVED, COMPUTE
        )
        value = rows_of(nodes, j * 3 + 2, f, there, F, COMPUTE)
        if CURVED:
            of_values += change * value + gate * rows_of(at_nodes, j * 3 + 2, f, there, F, COMPUTE)
            of_gates += change
        else:
            of_values += gate * value
            of_gates += gate
    tl.store(gated + node * F + f, tl.sum(of_values, 0), mask=f < F)
    tl.store(gates + node * F + f, tl.sum(of_gates, 0), mask=f < F)


@triton.jit(do_not_specialize=["pairs"])
def _gate_slopes_by_node(
    product: tl.tensor, nodes: tl.tensor, weights: tl.tensor, at_product: tl.tensor,
    at_nodes: tl.tensor, late: tl.tensor, to_gated: tl.tensor, to_joint: tl.tensor,
    other: tl.tensor, order: tl.tensor, starts: tl.tensor, to_nodes: tl.tensor,
    pairs: tl.tensor,
    F: tl.constexpr, CURVED: tl.constexpr, RECEIVES: tl.constexpr, TILE_E: tl.constexpr,
    TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Sum what reaches the nodes, [N, 3, F]: row 0 if ``RECEIVES``, else rows 1 and 2."""
    node = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    total = tl.zeros((TILE_E, TILE_F), COMPUTE)
    sent = total
    last = tl.load(starts + node + 1)
    for first in range(tl.load(starts + node), last, TILE_E):
        edge, pair, there = edges_of_tile(order, first + tl.arange(0, TILE_E), last, pairs)
        total += rows_of(to_joint, edge, f, there, F, COMPUTE)
        if not RECEIVES:
            i = tl.load(other + edge, mask=there, other=0)
            ends = (edge, i, tl.zeros_like(i) + node)
            terms, seconds = (product, nodes), (at_product, at_nodes)
            gate, change = _gates(
                terms, seconds, (weights, late), ends, pair, f, there, F, CURVED, COMPUTE
            )
            sent += (change if CURVED else gate) * rows_of(to_gated, i, f, there, F, COMPUTE)
    row = to_nodes + node * (3 * F) + f
    if RECEIVES:
        tl.store(row, tl.sum(total, 0), mask=f < F)
    else:
        tl.store(row + F, tl.sum(total, 0), mask=f < F)
        tl.store(row + 2 * F, tl.sum(sent, 0), mask=f < F)


@triton.jit
def _mean(rows: tl.tensor, F: tl.constexpr) -> tl.tensor:
    """Return the mean over features, [TILE_E, 1], of numbers that are 0 beyond these."""
    return tl.sum(rows, 1)[:, None] / F


@triton.jit
def _moments(
    terms: tl.tuple, seconds: tl.tuple, ends: tl.tuple, there: tl.tensor,
    F: tl.constexpr, CURVED: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Return numbers of each edge, [TILE_E, 1], which the norm of its joint values needs.

    They are the mean and 1 over the deviation, and, if ``CURVED``, the mean of the values' change
    and of its product with the normal values.
    """
    sums = tl.zeros((TILE_E, TILE_F), COMPUTE)
    changes, squares, products = sums, sums, sums
    for start in range(0, F, TILE_F):
        f = start + tl.arange(0, TILE_F)
        sums += _joint(terms, ends, f, there, F, COMPUTE)
        if CURVED:
            changes += _joint(seconds, ends, f, there, F, COMPUTE)
    mean = _mean(sums, F)
    for start in range(0, F, TILE_F):
        f = start + tl.arange(0, TILE_F)
        x = _joint(terms, ends, f, there, F, COMPUTE) - mean
        x = tl.where((f < F)[None, :], x, 0.0)
        squares += x * x
        if CURVED:
            products += x * _joint(seconds, ends, f, there, F, COMPUTE)
    steep = 1.0 / tl.sqrt(_mean(squares, F) + EPSILON)
    return mean, steep, _mean(changes, F), _mean(products, F) * steep


@triton.jit
def _normal(
    terms: tl.tuple, seconds: tl.tuple, ends: tl.tuple, moments: tl.tuple, norm: tl.tuple,
    f: tl.tensor, there: tl.tensor,
    F: tl.constexpr, CURVED: tl.constexpr, COMPUTE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Return normal values and their change, scales, and SiLU of the norm with its derivatives."""
    mean, steep, mean_change, tilt = moments
    normal = (_joint(terms, ends, f, there, F, COMPUTE) - mean) * steep
    change = tl.zeros_like(normal)
    if CURVED:
        change = _joint(seconds, ends, f, there, F, COMPUTE) - mean_change - normal * tilt
        change *= steep
    scale = tl.load(norm[0] + f, mask=f < F, other=0.0).to(COMPUTE)[None, :]
    shift = tl.load(norm[1] + f, mask=f < F, other=0.0).to(COMPUTE)[None, :]
    return normal, change, scale, silu(scale * normal + shift)


@triton.jit(do_not_specialize=["edges"])
def _updated_by_edge(
    product: tl.tensor, nodes: tl.tensor, features: tl.tensor, scale: tl.tensor,
    shift: tl.tensor, at_product: tl.tensor, at_nodes: tl.tensor, at_features: tl.tensor,
    sender: tl.tensor, receiver: tl.tensor, out: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, CURVED: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Add SiLU of the norm to the features of edges; or the gradient of their gradient, [E, F]."""
    edge, there = tile_of(edges, TILE_E)
    i, j = ends_of(sender, receiver, edge, there)
    ends = (edge, i, j)
    terms, seconds = (product, nodes), (at_product, at_nodes)
    moments = _moments(terms, seconds, ends, there, F, CURVED, TILE_E, TILE_F, COMPUTE)
    for start in range(0, F, TILE_F):
        f = start + tl.arange(0, TILE_F)
        _, change, factor, activated = _normal(
            terms, seconds, ends, moments, (scale, shift), f, there, F, CURVED, COMPUTE
        )
        if CURVED:
            result = rows_of(at_features, edge, f, there, F, COMPUTE)
            result += activated[1] * factor * change
        else:
            result = rows_of(features, edge, f, there, F, COMPUTE) + activated[0]
        write_rows(out, edge, f, there, result, F)


@triton.jit
def _gate_slopes(
    terms: tl.tuple, seconds: tl.tuple, weights: tl.tuple, grads: tl.tuple, ends: tl.tuple,
    pair: tl.tensor, f: tl.tensor, there: tl.tensor,
    F: tl.constexpr, CURVED: tl.constexpr, COMPUTE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Return gradients of gate inputs by both sums, and of the weight before its sum."""
    gate, first, second = logistic(_joint(terms, ends, f, there, F, COMPUTE))
    _, i, j = ends
    weight = column_of(weights[0], pair, there, COMPUTE)
    to_gated = rows_of(grads[0], i, f, there, F, COMPUTE)
    along = to_gated * rows_of(terms[1], j * 3 + 2, f, there, F, COMPUTE)
    along += rows_of(grads[1], i, f, there, F, COMPUTE)
    to_joint, to_weight = weight * first * along, gate * along
    if CURVED:
        late = column_of(weights[1], pair, there, COMPUTE)
        change = _joint(seconds, ends, f, there, F, COMPUTE)
        moved = rows_of(seconds[1], j * 3 + 2, f, there, F, COMPUTE) * to_gated
        to_joint = along * (weight * second * change + late * first) + weight * first * moved
        to_weight = first * change * along + gate * moved
    return to_joint, to_weight


@triton.jit
def _norm_slopes(
    terms: tl.tuple, seconds: tl.tuple, ends: tl.tuple, moments: tl.tuple, norm: tl.tuple,
    f: tl.tensor, there: tl.tensor,
    F: tl.constexpr, CURVED: tl.constexpr, COMPUTE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Return normal values, gradients of these, and of scale and shift, each with its change."""
    scale, shift, to_updated = norm
    normal, change, factor, activated = _normal(
        terms, seconds, ends, moments, (scale, shift), f, there, F, CURVED, COMPUTE
    )
    grad = rows_of(to_updated, ends[0], f, there, F, COMPUTE)
    slope = activated[1] * grad
    late = tl.zeros_like(normal)
    to_scale = slope * normal
    to_shift = slope
    if CURVED:
        late = activated[2] * factor * change * grad
        to_scale = late * normal + slope * change
        to_shift = late
    return normal, change, slope * factor, late * factor, to_scale, to_shift


@triton.jit
def _norm_sums(
    terms: tl.tuple, seconds: tl.tuple, ends: tl.tuple, moments: tl.tuple, norm: tl.tuple,
    there: tl.tensor,
    F: tl.constexpr, CURVED: tl.constexpr, TILE_E: tl.constexpr, TILE_F: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Return the means of gradients of normal values, and of their products with these.

    Both have their changes behind them, [TILE_E, 1] each.
    """
    plain = tl.zeros((TILE_E, TILE_F), COMPUTE)
    along, late, turned = plain, plain, plain
    for start in range(0, F, TILE_F):
        f = start + tl.arange(0, TILE_F)
        normal, change, slope, bent, _, _ = _norm_slopes(
            terms, seconds, ends, moments, norm, f, there, F, CURVED, COMPUTE
        )
        plain += slope
        along += slope * normal
        if CURVED:
            late += bent
            turned += bent * normal + slope * change
    return _mean(plain, F), _mean(along, F), _mean(late, F), _mean(turned, F)


@triton.jit
def _through_norm(
    slopes: tl.tuple, moments: tl.tuple, sums: tl.tuple, CURVED: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """Return gradients of joint values, given what ``_norm_slopes`` returns and its means."""
    normal, change, slope, late, _, _ = slopes
    _, steep, _, tilt = moments
    mean, along, mean_late, turned = sums
    result = steep * (slope - mean - normal * along)
    if CURVED:
        result = steep * (late - mean_late - normal * turned - change * along - tilt * result)
    return result


@triton.jit(do_not_specialize=["pairs", "edges"])
def _gate_slopes_by_edge(
    product: tl.tensor, nodes: tl.tensor, weights: tl.tensor, scale: tl.tensor,
    shift: tl.tensor, at_product: tl.tensor, at_nodes: tl.tensor, late: tl.tensor,
    to_gated: tl.tensor, to_gates: tl.tensor, to_updated: tl.tensor, sender: tl.tensor,
    receiver: tl.tensor, to_joint: tl.tensor, to_weight: tl.tensor, to_norm: tl.tensor,
    pairs: tl.tensor, edges: tl.tensor,
    F: tl.constexpr, NORMED: tl.constexpr, CURVED: tl.constexpr, TILE_E: tl.constexpr,
    TILE_F: tl.constexpr, COMPUTE: tl.constexpr,
) -> None:  # fmt: skip
    """Differentiate by joint values, [E, F], weights, [E], and scale and shift, [tiles, 2, F]."""
    edge, there = tile_of(edges, TILE_E)
    i, j = ends_of(sender, receiver, edge, there)
    ends = (edge, i, j)
    pair = tl.where(edge < pairs, edge, edge - pairs)
    terms, seconds, norm = (product, nodes), (at_product, at_nodes), (scale, shift, to_updated)
    if NORMED:
        moments = _moments(terms, seconds, ends, there, F, CURVED, TILE_E, TILE_F, COMPUTE)
        sums = _norm_sums(
            terms, seconds, ends, moments, norm, there, F, CURVED, TILE_E, TILE_F, COMPUTE
        )
    of_weight = tl.zeros((TILE_E, TILE_F), COMPUTE)
    for start in range(0, F, TILE_F):
        f = start + tl.arange(0, TILE_F)
        result, each = _gate_slopes(
            terms, seconds, (weights, late), (to_gated, to_gates), ends, pair, f, there,
            F, CURVED, COMPUTE,
        )  # fmt: skip
        of_weight += each
        if NORMED:
            slopes = _norm_slopes(terms, seconds, ends, moments, norm, f, there, F, CURVED, COMPUTE)
            result += _through_norm(slopes, moments, sums, CURVED)
            row = to_norm + tl.program_id(0) * (2 * F) + f
            tl.store(row, tl.sum(slopes[4], 0), mask=f < F)
            tl.store(row + F, tl.sum(slopes[5], 0), mask=f < F)
        write_rows(to_joint, edge, f, there, result, F)
    tl.store(to_weight + edge, tl.sum(of_weight, 1), mask=there)


GATE_LOOPS = {
    "gates_by_node": _gates_by_node,
    "gate_slopes_by_node": _gate_slopes_by_node,
    "gate_slopes_by_edge": _gate_slopes_by_edge,
    "updated_by_edge": _updated_by_edge,
}
"""Loop by name."""
