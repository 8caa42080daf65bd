"""Linear maps with activations between them, as loops that numba compiles.

Rows go through all layers while they are in the fastest cache, some at a time. Products are those
of ``product_loops``.

Shapes: R rows, K inputs, H hidden channels and N outputs, all but K multiples of ``LANES``.
Matrices are contiguous, [outputs, inputs]; biases may be empty.
"""

import math
from typing import Any

import numpy as np
from numba.extending import register_jitable

from hydragnn_hpo.compiled_loops import CompiledLoops
from hydragnn_hpo.model.kernels import edge_loops, product_loops
from hydragnn_hpo.model.kernels.edge_loops import silu, softplus
from hydragnn_hpo.model.kernels.product_loops import (
    CHUNK,
    Array,
    add_map_slopes,
    add_rows,
    bias_or_zeros,
    multiply_panels,
    transpose,
)

_LN2 = math.log(2.0)


@register_jitable(noalias=True)
def _apply_silu(sums: Array, out: Array) -> None:
    one = out.dtype.type(1)
    for row in range(out.shape[0]):
        for column in range(out.shape[1]):
            out[row, column] = silu(sums[row, column], one)[0]


@register_jitable(noalias=True)
def _apply_softplus(sums: Array, out: Array) -> None:
    one, shift = out.dtype.type(1), out.dtype.type(_LN2)
    for row in range(out.shape[0]):
        for column in range(out.shape[1]):
            out[row, column] = softplus(sums[row, column], one)[0] - shift


@register_jitable(noalias=True)
def _multiply_by_slopes(sums: Array, grad: Array, out: Array) -> None:
    """Multiply a gradient by the slope of SiLU."""
    one = out.dtype.type(1)
    for row in range(out.shape[0]):
        for column in range(out.shape[1]):
            out[row, column] = grad[row, column] * silu(sums[row, column], one)[1]


def _activate_sum(maps: Any, bias: Array, sums: Array, out: Array) -> None:
    """Activate the sum of two linear maps by SiLU.

    Args:
        maps: rows, [R, K], and matrix, [H, K], of both.
        bias: [H].
        sums: result, before the activation, [R, H], or without rows.
        out: result, [R, H].
    """
    first, second, (count, width) = transpose(maps[1]), transpose(maps[3]), out.shape
    space, inner, last = np.empty((CHUNK, width), out.dtype), len(first), len(second)
    base = bias_or_zeros(bias, width)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        kept = sums[start : start + size] if len(sums) else space[:size]
        at, steps = (start * inner, 0, 0, 0), (inner, 1, width, 0, width)
        multiply_panels(maps[0], first, base, kept, at, steps, (size, inner))
        at, steps = (start * last, 0, 0, 0), (last, 1, width, width, width)
        multiply_panels(maps[2], second, kept, kept, at, steps, (size, last))
        _apply_silu(kept, out[start : start + size])


def _sum_slopes(grad: Array, sums: Array, maps: Any, results: Any, to_bias: Array) -> None:
    """Differentiate ``_activate_sum``; K is a multiple of ``LANES``, too.

    Args:
        grad: gradient of its result, [R, H].
        sums: as it has found them, [R, H].
        maps: rows and matrix of both.
        results: the gradients of these; those of rows may be without rows.
        to_bias: result, [H], or empty.
    """
    count, width = grad.shape
    slopes = np.empty((CHUNK, width), grad.dtype)
    results[1][:] = 0.0
    results[3][:] = 0.0
    to_bias[:] = 0.0
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        here = slice(start, start + size)
        _multiply_by_slopes(sums[here], grad[here], slopes[:size])
        add_map_slopes(slopes, maps[:2], results[:2], start, size)
        add_map_slopes(slopes, maps[2:], results[2:], start, size)
        add_rows(slopes[:size], to_bias)


def _map_twice(rows: Array, weights: Any, biases: Any, kind: Array, out: Array) -> None:
    """Apply a linear map, an activation, and another linear map.

    Args:
        rows: [R, K].
        weights: of both maps, [H, K] and [N, H].
        biases: of both.
        kind: empty for SiLU; with an entry the activation is softplus minus ln 2.
        out: result, [R, N].
    """
    first, second, count = transpose(weights[0]), transpose(weights[1]), len(rows)
    (inputs, hidden), outputs = first.shape, out.shape[1]
    sums, active = np.empty((CHUNK, hidden), out.dtype), np.empty((CHUNK, hidden), out.dtype)
    bases = (bias_or_zeros(biases[0], hidden), bias_or_zeros(biases[1], outputs))
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        at, steps = (start * inputs, 0, 0, 0), (inputs, 1, hidden, 0, hidden)
        multiply_panels(rows, first, bases[0], sums, at, steps, (size, inputs))
        if len(kind):
            _apply_softplus(sums[:size], active[:size])
        else:
            _apply_silu(sums[:size], active[:size])
        at, steps = (0, 0, 0, start * outputs), (hidden, 1, outputs, 0, outputs)
        multiply_panels(active, second, bases[1], out, at, steps, (size, hidden))


PERCEPTRONS = CompiledLoops(
    {
        "activate_sum": (_activate_sum, "2222 1 2 2"),
        "sum_slopes": (_sum_slopes, "2 2 2222 2222 1"),
        "map_twice": (_map_twice, "2 22 11 1 2"),
    },
    parts=(edge_loops.__name__, product_loops.__name__),
)
"""Loops over numpy arrays as machine code."""
