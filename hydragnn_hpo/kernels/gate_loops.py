"""Loops of edge-gated convolutions that numba compiles: gates, sums, norms, derivatives.

They are plain Python with numpy arrays; only ``numba_passes`` calls them, compiled. All follow the
rules in ``edge_loops``: rows of an edge stay in the first cache, and are made again for gradients.

Shapes: N nodes, E edges, P pairs (edge e has row e or e - P), F features. Arrays are contiguous and
of one dtype, indices int64.

Arguments that the loops take, beside those in ``edge_loops``:

- ``product``: linear map of the edges' features, [E, F].
- ``nodes``: read at the receiver, read at the sender, and sent, [N, 3, F].
- ``norm``: scale and shift of the edges' layer norm, [F] each; without entries, edges stay.
- ``grads``: gradients of both sums, [N, F] each, and of the new features, [E, F] or [0, F].
"""

import math
from collections.abc import Callable
from typing import Any

from hydragnn_hpo.kernels.compiled_loops import inline_part
from hydragnn_hpo.kernels.edge_loops import Array, Pair, Triple, logistic, silu

EPSILON = 1e-5
"""Added to variances, as in ``eager_gates``; numba's cache notices a change of this file alone."""


def _normalize(rows: Array, k: int) -> Any:
    """Fill row k with row 0 minus its mean, over its deviation; return 1 over the deviation."""
    width = rows.shape[1]
    total = rows.dtype.type(0)
    square = total
    one = rows.dtype.type(1)
    share = one / rows.dtype.type(width)
    for f in range(width):
        total += rows[0, f]
    mean = total * share
    for f in range(width):
        square += (rows[0, f] - mean) * (rows[0, f] - mean)
    scale = one / math.sqrt(square * share + rows.dtype.type(EPSILON))
    for f in range(width):
        rows[k, f] = (rows[0, f] - mean) * scale
    return scale


normalize: Any = inline_part(_normalize)
"""``_normalize`` as a part of compiled loops."""


def _gated_edges(
    product: Array,
    nodes: Array,
    weights: Array,
    ends: Pair,
    norm: Pair,
    features: Array,
    sums: Pair,
    updated: Array,
    rows: Array,
) -> None:
    """Sum gated values and gates at the receivers, [N, F] each, and update the edges, [E, F].

    ``features`` are those of the edges, [E, F], to which their change is added. There are two rows.
    """
    (sender, receiver), (gated, gates), (scale, shift) = ends, sums, norm
    pairs = weights.shape[0]
    one = rows.dtype.type(1)
    width = rows.shape[1]
    for e in range(sender.shape[0]):
        j = sender[e]
        i = receiver[e]
        p = e if e < pairs else e - pairs
        weight = weights[p, 0]
        for f in range(width):
            rows[0, f] = product[e, f] + nodes[i, 0, f] + nodes[j, 1, f]
        for f in range(width):
            rows[1, f] = weight * logistic(rows[0, f], one)[0]
        for f in range(width):
            gated[i, f] += rows[1, f] * nodes[j, 2, f]
        for f in range(width):
            gates[i, f] += rows[1, f]
        if updated.shape[0]:
            normalize(rows, 1)
            for f in range(width):
                change, _, _ = silu(scale[f] * rows[1, f] + shift[f], one)
                updated[e, f] = features[e, f] + change


def _add_norm_slopes(rows: Array, norm: Pair, grad: Array, e: int, to_norm: Pair) -> None:
    """Add to row 2 the gradient of the update of edge e by its gate inputs, row 0."""
    (scale, shift) = norm
    (to_scale, to_shift) = to_norm
    one = rows.dtype.type(1)
    width = rows.shape[1]
    total = rows.dtype.type(0)
    along = total
    share = one / rows.dtype.type(width)
    steep = normalize(rows, 1)
    for f in range(width):
        rows[0, f] = grad[e, f] * silu(scale[f] * rows[1, f] + shift[f], one)[1]
    for f in range(width):
        total += rows[0, f] * scale[f]
        along += rows[0, f] * scale[f] * rows[1, f]
    total, along = total * share, along * share
    for f in range(width):
        rows[2, f] += steep * (rows[0, f] * scale[f] - total - rows[1, f] * along)
    for f in range(width):
        to_scale[f] += rows[0, f] * rows[1, f]
    for f in range(width):
        to_shift[f] += rows[0, f]


add_norm_slopes: Any = inline_part(_add_norm_slopes)
"""``_add_norm_slopes`` as a part of compiled loops."""


def _add_to_nodes(rows: Array, k: int, ends: tuple[int, int], to_nodes: Array) -> None:
    """Add row k to what both ends of an edge read, row k + 1 to what the sender sends."""
    i, j = ends
    for f in range(rows.shape[1]):
        to_nodes[i, 0, f] += rows[k, f]
    for f in range(rows.shape[1]):
        to_nodes[j, 1, f] += rows[k, f]
    for f in range(rows.shape[1]):
        to_nodes[j, 2, f] += rows[k + 1, f]


add_to_nodes: Any = inline_part(_add_to_nodes)
"""``_add_to_nodes`` as a part of compiled loops."""


def _gated_edges_slopes(
    product: Array,
    nodes: Array,
    weights: Array,
    ends: Pair,
    norm: Pair,
    grads: Triple,
    to_product: Array,
    to_nodes: Array,
    to_weights: Array,
    to_norm: Pair,
    rows: Array,
) -> None:
    """Differentiate ``_gated_edges``, with four rows."""
    (sender, receiver), (to_gated, to_gates, to_updated) = ends, grads
    pairs = weights.shape[0]
    one = rows.dtype.type(1)
    width = rows.shape[1]
    for e in range(sender.shape[0]):
        j = sender[e]
        i = receiver[e]
        p = e if e < pairs else e - pairs
        weight = weights[p, 0]
        total = one - one
        for f in range(width):
            rows[0, f] = product[e, f] + nodes[i, 0, f] + nodes[j, 1, f]
        for f in range(width):
            gate, slope, _ = logistic(rows[0, f], one)
            along = to_gated[i, f] * nodes[j, 2, f] + to_gates[i, f]
            rows[2, f] = weight * slope * along
            rows[3, f] = weight * gate * to_gated[i, f]
            total += gate * along
        to_weights[p, 0] += total
        if to_updated.shape[0]:
            add_norm_slopes(rows, norm, to_updated, e, to_norm)
        for f in range(width):
            to_product[e, f] = rows[2, f]
        add_to_nodes(rows, 2, (i, j), to_nodes)


def _add_norm_curvature(rows: Array, norm: Pair, grad: Array, e: int, to_norm: Pair) -> None:
    """Differentiate what ``_add_norm_slopes`` adds to row 2, given the gradient of that in row 1.

    Adds to row 2 the gradient of row 0, and fills row 5 with that of ``grad``.
    """
    (scale, shift) = norm
    (to_scale, to_shift) = to_norm
    one = rows.dtype.type(1)
    width = rows.shape[1]
    zero = rows.dtype.type(0)
    share = one / rows.dtype.type(width)
    steep = normalize(rows, 4)
    mean = tilt = zero
    for f in range(width):
        mean += rows[1, f]
        tilt += rows[1, f] * rows[4, f]
    mean, tilt = mean * share, tilt * share
    for f in range(width):
        rows[1, f] = steep * (rows[1, f] - mean - rows[4, f] * tilt)
    for f in range(width):
        _, first, second = silu(scale[f] * rows[4, f] + shift[f], one)
        rows[5, f] = first * scale[f] * rows[1, f]
        rows[6, f] = first * grad[e, f]
        rows[7, f] = second * scale[f] * rows[1, f] * grad[e, f]
    mean = along = mean_slope = along_slope = change = zero
    for f in range(width):
        to_normal, slope = rows[7, f] * scale[f], rows[6, f] * scale[f]
        mean += to_normal
        along += to_normal * rows[4, f]
        mean_slope += slope
        along_slope += slope * rows[4, f]
        change += slope * rows[1, f]
    mean, along, change = mean * share, along * share, change * share
    mean_slope, along_slope = mean_slope * share, along_slope * share
    for f in range(width):
        slope = steep * (rows[6, f] * scale[f] - mean_slope - rows[4, f] * along_slope)
        bent = rows[7, f] * scale[f] - mean - rows[4, f] * (along + change)
        rows[2, f] += steep * (bent - tilt * slope - along_slope * rows[1, f])
    for f in range(width):
        to_scale[f] += rows[6, f] * rows[1, f] + rows[7, f] * rows[4, f]
    for f in range(width):
        to_shift[f] += rows[7, f]


add_norm_curvature: Any = inline_part(_add_norm_curvature)
"""``_add_norm_curvature`` as a part of compiled loops."""


def _bend_gates(
    nodes: Pair, grads: Triple, ends: tuple[int, int], weights: tuple[float, float], rows: Array
) -> Any:
    """Fill rows 2 and 3 with gradients of row 0 and of what is sent, rows 8 and 9 with ``grads``.

    Args:
        nodes: values of the nodes, and the gradients of their slopes.
        grads: gradients of both sums, and of the edges.
        ends: receiver and sender of an edge.
        weights: its weight, and the gradient of the slope of this.
        rows: gate inputs in row 0, and gradients of their slopes in row 1.

    Returns:
        The gradient of the weight.
    """
    (values, seconds), (to_gated, to_gates, _) = nodes, grads
    (i, j) = ends
    (weight, late) = weights
    one = rows.dtype.type(1)
    total = one - one
    for f in range(rows.shape[1]):
        gate, first, second = logistic(rows[0, f], one)
        along = to_gated[i, f] * values[j, 2, f] + to_gates[i, f]
        rows[8, f] = weight * first * rows[1, f] + late * gate
        rows[9, f] = rows[8, f] * values[j, 2, f] + weight * gate * seconds[j, 2, f]
        rows[3, f] = rows[8, f] * to_gated[i, f]
        rows[2, f] = along * (weight * second * rows[1, f] + late * first)
        rows[2, f] += weight * first * seconds[j, 2, f] * to_gated[i, f]
        total += first * rows[1, f] * along + gate * seconds[j, 2, f] * to_gated[i, f]
    return total


bend_gates: Any = inline_part(_bend_gates)
"""``_bend_gates`` as a part of compiled loops."""


def _gated_edges_curvature(
    product: Array,
    nodes: Pair,
    weights: Array,
    ends: Pair,
    norm: Pair,
    grads: Triple,
    seconds: Triple,
    to_edges: Pair,
    to_nodes: Array,
    to_norm: Pair,
    to_grads: Triple,
    rows: Array,
) -> None:
    """Differentiate ``_gated_edges_slopes``, with ten rows.

    ``seconds``: gradients of what the slopes give to product, weights and features; the second of
    ``nodes``: to nodes. ``to_edges``: to product and weights.
    """
    (sender, receiver) = ends
    (values, second_nodes) = nodes
    updated = grads[2].shape[0] > 0
    pairs, width = weights.shape[0], rows.shape[1]
    for e in range(sender.shape[0]):
        j = sender[e]
        i = receiver[e]
        p = e if e < pairs else e - pairs
        for f in range(width):
            rows[0, f] = product[e, f] + values[i, 0, f] + values[j, 1, f]
        for f in range(width):
            rows[1, f] = seconds[0][e, f] + second_nodes[i, 0, f] + second_nodes[j, 1, f]
        both = (weights[p, 0], seconds[1][p, 0])
        to_edges[1][p, 0] += bend_gates(nodes, grads, (i, j), both, rows)
        for f in range(width):
            to_grads[0][i, f] += rows[9, f]
            to_grads[1][i, f] += rows[8, f]
        if updated:
            add_norm_curvature(rows, norm, grads[2], e, to_norm)
            for f in range(width):
                to_grads[2][e, f] = rows[5, f] + seconds[2][e, f]
        for f in range(width):
            to_edges[0][e, f] = rows[2, f]
        add_to_nodes(rows, 2, (i, j), to_nodes)


LOOPS: dict[str, tuple[Callable[..., None], str]] = {
    "gated_edges": (_gated_edges, "2 3 2 ii 11 2 22 2 2"),
    "gated_edges_slopes": (_gated_edges_slopes, "2 3 2 ii 11 222 2 3 2 11 2"),
    "gated_edges_curvature": (_gated_edges_curvature, "2 33 2 ii 11 222 222 22 3 11 222 2"),
}
"""Loop and its signature by name, as in ``numba_loops``."""
