"""Loops of ``edge_functions`` that numba compiles: activations of edges, sums, derivatives.

They are plain Python with numpy arrays; only ``numba_passes`` calls them, compiled.

Shapes: N nodes, E edges, P pairs (edge e has row e or e - P), F features. Arrays are
contiguous and of one dtype, indices int64. An inner loop reads rows in place and makes what it can
in one expression: views of rows and loops over few features cost more than the arithmetic. Only
division without a check for zero can be vectorized (``numba_passes`` sees to it).

Arguments that many loops take:

- ``ends``: sender and receiver of each edge, [E] each.
- ``terms``: of the sums ``received_i + sent_j + measured_ij``, [N, F], [N, F] and [P, F].
- ``slope``: of the activation ``slope * x + (1 - slope) * silu(x)`` far below zero, [1].
- ``parameters``: bias of the activation, [F], weights of the gate, [F], and its bias, [1]; without
  an entry there, there is no gate.
- ``weights``: of the pairs, [P, 1].
- ``grad``: gradient of the value.
- ``seconds``: gradients of what a loop of slopes finds, in its order, without parameters.
- ``out``, ``to_...``: results, the gradient of the argument of that name; they begin with 0.
- ``rows``: space for numbers of an edge, [R, F].
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from hydragnn_hpo.kernels.compiled_loops import inline_part

Array = np.ndarray[Any, Any]
Pair = tuple[Array, Array]
Rows6 = tuple[Array, Array, Array, Array, Array, Array]
Triple = tuple[Array, Array, Array]


def _exponential(x: float) -> float:
    """Return e to the power of x in a way that the compiler vectorizes, unlike a call of libm.

    x is taken between the logarithms of the least and the largest normal number; NaN stays NaN.
    With n ln 2 taken off, where n is the nearest whole number, a Taylor polynomial is exact to the
    last bit; the bits of n become the exponent.

    ln 2 is taken off as a short and a long part, so that n times the short one is exact. To add
    1.5 * 2^52 (2^23 in fp32) rounds to a whole number, as no bits are left for a fraction.
    Source: Cody and Waite (1980), Software Manual for the Elementary Functions, chapter 6.
    """
    return math.exp(x)


def _exponential_fp64(x: Any) -> Any:
    x = min(max(x, -708.0), 708.0)
    shifted = x * 1.4426950408889634 + 6755399441055744.0  # n in the last bits
    n = shifted - 6755399441055744.0
    r = x - n * 0.693147180369123816490 - n * 1.90821492927058770002e-10
    p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0
    p = (p * r + 1.0 / 39916800.0) * r + 1.0 / 3628800.0
    p = (p * r + 1.0 / 362880.0) * r + 1.0 / 40320.0
    p = (p * r + 1.0 / 5040.0) * r + 1.0 / 720.0
    p = (p * r + 1.0 / 120.0) * r + 1.0 / 24.0
    p = (p * r + 1.0 / 6.0) * r + 0.5
    p = (p * r + 1.0) * r + 1.0
    bits: Any = np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)
    return np.int64(bits).view(np.float64)


def _exponential_fp32(x: Any) -> Any:
    c = np.float32
    x = min(max(x, c(-87.0)), c(87.0))
    shifted = x * c(1.4426950408889634) + c(12582912.0)  # n in the last bits
    n = shifted - c(12582912.0)
    r = x - n * c(0.693359375) + n * c(2.12194440e-4)
    p = r * c(1.0 / 5040.0) + c(1.0 / 720.0)
    p = (p * r + c(1.0 / 120.0)) * r + c(1.0 / 24.0)
    p = (p * r + c(1.0 / 6.0)) * r + c(0.5)
    p = (p * r + c(1.0)) * r + c(1.0)
    bits: Any = np.float32(p).view(np.int32) + (np.float32(shifted).view(np.int32) << np.int32(23))
    return np.int32(bits).view(np.float32)


@overload(_exponential, jit_options={"fastmath": {"contract"}})
def _choose_exponential(x: Any) -> Callable[[Any], Any]:
    return _exponential_fp32 if x == types.float32 else _exponential_fp64


exponential: Any = _exponential
"""``_exponential`` as a part of compiled loops, for numbers of numpy's types."""


def _artanh_ratio_fp64(q: Any) -> Any:
    p = q * (1.0 / 35.0) + 1.0 / 33.0
    p = (p * q + 1.0 / 31.0) * q + 1.0 / 29.0
    p = (p * q + 1.0 / 27.0) * q + 1.0 / 25.0
    p = (p * q + 1.0 / 23.0) * q + 1.0 / 21.0
    p = (p * q + 1.0 / 19.0) * q + 1.0 / 17.0
    p = (p * q + 1.0 / 15.0) * q + 1.0 / 13.0
    p = (p * q + 1.0 / 11.0) * q + 1.0 / 9.0
    p = (p * q + 1.0 / 7.0) * q + 1.0 / 5.0
    return (p * q + 1.0 / 3.0) * q + 1.0


def _artanh_ratio_fp32(q: Any) -> Any:
    c = np.float32
    p = q * c(1.0 / 15.0) + c(1.0 / 13.0)
    p = (p * q + c(1.0 / 11.0)) * q + c(1.0 / 9.0)
    p = (p * q + c(1.0 / 7.0)) * q + c(1.0 / 5.0)
    return (p * q + c(1.0 / 3.0)) * q + c(1.0)


def _artanh_ratio(q: float) -> float:
    """Return artanh(r) / r for q = r * r from 0 to 1 / 9, by its Taylor polynomial.

    Its term of order k is q^k / (2 k + 1); what is left out is below the last bit, as the next term
    is (1 / 9)^18 / 37 in fp64 and (1 / 9)^8 / 17 in fp32.
    """
    return math.atanh(math.sqrt(q)) / math.sqrt(q) if q else 1.0


@overload(_artanh_ratio, jit_options={"fastmath": {"contract"}})
def _choose_artanh_ratio(q: Any) -> Callable[[Any], Any]:
    return _artanh_ratio_fp32 if q == types.float32 else _artanh_ratio_fp64


artanh_ratio: Any = _artanh_ratio
"""``_artanh_ratio`` as a part of compiled loops, for numbers of numpy's types."""


def _logistic(x: Any, one: Any) -> tuple[Any, Any, Any]:
    """Return the logistic function of x and its first two derivatives."""
    s = one / (one + exponential(-x))
    return s, s * (one - s), s * (one - s) * (one - s - s)


logistic: Any = inline_part(_logistic)
"""``_logistic`` as a part of compiled loops; ``one`` is 1 in the type of x."""


def _silu(x: Any, one: Any) -> tuple[Any, Any, Any]:
    """Return silu(x) and its first two derivatives."""
    s = one / (one + exponential(-x))
    rest = one - s
    return x * s, s * (one + x * rest), s * rest * (one + one + x * (rest - s))


silu: Any = inline_part(_silu)
"""``_silu`` as a part of compiled loops; ``one`` is 1 in the type of x."""


def _softplus(x: Any, one: Any) -> tuple[Any, Any, Any]:
    """Return softplus(x), for which torch takes x from 20 on, and its first two derivatives."""
    zero, two = one - one, one + one
    t = exponential(-abs(x))
    r = t / (two + t)  # log(1 + t) = 2 artanh(r)
    s = (one if x > zero else t) / (one + t)
    soft = max(x, zero) + two * r * artanh_ratio(r * r)
    far = x > two * (two * two + one) * two
    return x if far else soft, one if far else s, zero if far else s * (one - s)


softplus: Any = inline_part(_softplus)
"""``_softplus`` as a part of compiled loops; ``one`` is 1 in the type of x."""


def _add_to_ends(row: Array, k: int, both: tuple[int, int], p: int, sums: Triple) -> None:
    """Add row k to the sums of the receiver, the sender and the pair of an edge."""
    (i, j), (to_received, to_sent, to_measured) = both, sums
    for f in range(row.shape[1]):
        to_received[i, f] += row[k, f]
        to_sent[j, f] += row[k, f]
        to_measured[p, f] += row[k, f]


add_to_ends: Any = inline_part(_add_to_ends)
"""``_add_to_ends`` as a part of compiled loops."""


def _bent_ends(terms: Triple, slope: Array, ends: Pair, out: Array) -> None:
    """Activate the sum of both ends and the pair, for each edge, [E, F]."""
    (received, sent, measured), (sender, receiver) = terms, ends
    pairs = measured.shape[0]
    one = out.dtype.type(1)
    low = slope[0]
    for e in range(sender.shape[0]):
        j = sender[e]
        i = receiver[e]
        p = e if e < pairs else e - pairs
        for f in range(out.shape[1]):
            x = received[i, f] + sent[j, f] + measured[p, f]
            value, _, _ = silu(x, one)
            out[e, f] = (one - low) * value + low * x


def _bent_ends_slopes(
    terms: Triple, slope: Array, ends: Pair, grad: Array, to_terms: Triple, rows: Array
) -> None:
    """Differentiate ``_bent_ends``, pair by pair, with two rows; sums of pairs are overwritten."""
    (received, sent, measured), (sender, receiver) = terms, ends
    to_received, to_sent, to_measured = to_terms
    pairs = measured.shape[0]
    one = rows.dtype.type(1)
    low = slope[0]
    for p in range(pairs):
        j = sender[p]
        i = receiver[p]
        back = p + pairs
        for f in range(rows.shape[1]):
            _, first, _ = silu(received[i, f] + sent[j, f] + measured[p, f], one)
            rows[0, f] = ((one - low) * first + low) * grad[p, f]
        if back < sender.shape[0]:
            for f in range(rows.shape[1]):
                _, first, _ = silu(received[j, f] + sent[i, f] + measured[p, f], one)
                rows[1, f] = ((one - low) * first + low) * grad[back, f]
            for f in range(rows.shape[1]):
                to_measured[p, f] = rows[0, f] + rows[1, f]
                to_received[j, f] += rows[1, f]
                to_sent[i, f] += rows[1, f]
        else:
            for f in range(rows.shape[1]):
                to_measured[p, f] = rows[0, f]
        for f in range(rows.shape[1]):
            to_received[i, f] += rows[0, f]
            to_sent[j, f] += rows[0, f]


def _bent_ends_curvature(
    terms: Triple,
    slope: Array,
    ends: Pair,
    grad: Array,
    seconds: Triple,
    to_terms: Triple,
    to_grad: Array,
    rows: Array,
) -> None:
    """Differentiate ``_bent_ends_slopes``, with two rows."""
    (received, sent, measured), (sender, receiver) = terms, ends
    at_receiver, at_sender, at_pair = seconds
    pairs = measured.shape[0]
    one = rows.dtype.type(1)
    low = slope[0]
    for e in range(sender.shape[0]):
        j = sender[e]
        i = receiver[e]
        p = e if e < pairs else e - pairs
        for f in range(rows.shape[1]):
            rows[1, f] = at_receiver[i, f] + at_sender[j, f] + at_pair[p, f]
        for f in range(rows.shape[1]):
            _, first, second = silu(received[i, f] + sent[j, f] + measured[p, f], one)
            rows[0, f] = (one - low) * second * rows[1, f]
            rows[1, f] *= (one - low) * first + low
        for f in range(rows.shape[1]):
            to_grad[e, f] = rows[1, f]
            rows[0, f] *= grad[e, f]
        add_to_ends(rows, 0, (i, j), p, to_terms)


def _open_gates(sums: Array, offset: Array, count: int) -> None:
    """Replace the first numbers of row 0, weighted sums, by gates, and those of row 1 by slopes."""
    one = sums.dtype.type(1)
    if offset.shape[0]:
        for k in range(count):
            sums[0, k], sums[1, k], _ = logistic(offset[0] + sums[0, k], one)
    else:
        for k in range(count):
            sums[0, k] = one
            sums[1, k] = one - one


open_gates: Any = inline_part(_open_gates)
"""``_open_gates`` as a part of compiled loops."""


def _gated_sum(
    z: Array,
    parameters: Triple,
    weights: Array,
    receiver: Array,
    out: Array,
    rows: Array,
    sums: Array,
) -> None:
    """Sum activated messages, times weight and gate, at the receivers, [N, F].

    A block has as many edges as there are ``rows``; ``sums`` are [3, R].
    """
    bias, gate, offset = parameters
    pairs = weights.shape[0]
    one = rows.dtype.type(1)
    for start in range(0, receiver.shape[0], rows.shape[0]):
        count = min(rows.shape[0], receiver.shape[0] - start)
        for k in range(count):
            e, total = start + k, one - one
            for f in range(rows.shape[1]):
                value, _, _ = silu(z[e, f] + bias[f], one)
                rows[k, f] = value
                total += gate[f] * value
            sums[0, k] = total
        open_gates(sums, offset, count)
        for k in range(count):
            e = start + k
            i = receiver[e]
            weight = weights[e if e < pairs else e - pairs, 0] * sums[0, k]
            for f in range(rows.shape[1]):
                out[i, f] += weight * rows[k, f]


def _gated_sum_slopes(
    given: Triple,
    parameters: Triple,
    receiver: Array,
    results: Pair,
    to_parameters: Triple,
    rows: Array,
    sums: Array,
) -> None:
    """Differentiate ``_gated_sum``, in the same blocks.

    ``given``: z, weights and the gradient of the sums; ``results`` are for the first two.
    """
    (z, weights, grad), (to_z, to_weights) = given, results
    (bias, gate, offset), (to_bias, to_gate, to_offset) = parameters, to_parameters
    pairs = weights.shape[0]
    one = rows.dtype.type(1)
    for start in range(0, receiver.shape[0], rows.shape[0]):
        count = min(rows.shape[0], receiver.shape[0] - start)
        for k in range(count):
            e = start + k
            i = receiver[start + k]
            total = one - one
            along = one - one
            for f in range(rows.shape[1]):
                value, first, _ = silu(z[e, f] + bias[f], one)
                rows[k, f], to_z[e, f] = value, first
                total += gate[f] * value
                along += grad[i, f] * value
            sums[0, k], sums[2, k] = total, along
        open_gates(sums, offset, count)
        for k in range(count):
            e = start + k
            i = receiver[start + k]
            p = e if e < pairs else e - pairs
            to_weights[p, 0] += sums[0, k] * sums[2, k]
            weight, steep = weights[p, 0] * sums[0, k], weights[p, 0] * sums[1, k] * sums[2, k]
            for f in range(rows.shape[1]):
                x = to_z[e, f] * (weight * grad[i, f] + steep * gate[f])
                to_z[e, f] = x
                to_bias[f] += x
                to_gate[f] += steep * rows[k, f]
            if offset.shape[0]:
                to_offset[0] += steep


def _gate_products(
    given: Triple, second: Array, parameters: Triple, at: tuple[int, int], rows: Array
) -> Any:
    """Fill rows with the activation of an edge, derivatives, and the change by ``second``.

    Returns:
        The argument of the gate, and products: of activation and gradient, of change and gradient,
        of change and gate.
    """
    (z, _, grad), (bias, gate, offset), (e, i) = given, parameters, at
    one = rows.dtype.type(1)
    for f in range(rows.shape[1]):
        rows[0, f], rows[1, f], rows[2, f] = silu(z[e, f] + bias[f], one)
    argument = offset[0] if offset.shape[0] else one
    along = moved = tilt = one - one
    for f in range(rows.shape[1]):
        change = second[e, f] * rows[1, f]
        rows[3, f] = change
        argument += gate[f] * rows[0, f]
        along += grad[i, f] * rows[0, f]
        moved += grad[i, f] * change
        tilt += gate[f] * change
    return argument, along, moved, tilt


gate_products: Any = inline_part(_gate_products)
"""``_gate_products`` as a part of compiled loops."""


def _gated_sum_curvature(
    given: Triple,
    parameters: Triple,
    receiver: Array,
    seconds: Pair,
    results: Triple,
    to_parameters: Triple,
    rows: Array,
) -> None:
    """Differentiate ``_gated_sum_slopes``, with four rows.

    ``given``: z, weights and the gradient of the sums; ``results`` are for these; ``seconds``:
    gradients of what the slopes give to z and weights.
    """
    (_, weights, grad), (to_z, to_weights, to_grad) = given, results
    (_, gate, offset), (to_bias, to_gate, to_offset) = parameters, to_parameters
    (second, second_weights) = seconds
    one = rows.dtype.type(1)
    gated = offset.shape[0] > 0
    pairs = weights.shape[0]
    for e in range(receiver.shape[0]):
        i = receiver[e]
        p = e if e < pairs else e - pairs
        argument, along, moved, tilt = gate_products(given, second, parameters, (e, i), rows)
        share, steep, bent = logistic(argument, one) if gated else (one, one - one, one - one)
        weight, late = weights[p, 0], second_weights[p, 0]
        to_weights[p, 0] += share * moved + steep * along * tilt
        to_argument = weight * (steep * moved + bent * along * tilt) + late * steep * along
        to_along = weight * steep * tilt + late * share
        share, steep = weight * share, weight * steep * along
        for f in range(rows.shape[1]):
            to_grad[i, f] += share * rows[3, f] + to_along * rows[0, f]
        if gated:
            to_offset[0] += to_argument
            for f in range(rows.shape[1]):
                to_gate[f] += to_argument * rows[0, f] + steep * rows[3, f]
        for f in range(rows.shape[1]):
            x = rows[2, f] * second[e, f] * (share * grad[i, f] + steep * gate[f])
            rows[2, f] = x + rows[1, f] * (to_along * grad[i, f] + to_argument * gate[f])
        for f in range(rows.shape[1]):
            to_z[e, f] = rows[2, f]
            to_bias[f] += rows[2, f]


def _product_rows(
    terms: Triple, ends: tuple[int, int], p: int, softened: bool, rows: Rows6
) -> None:
    """Fill the first rows with gate and derivatives, the others with content and derivatives."""
    (received, sent, measured), (j, i) = terms, ends
    gate, gate_slope, gate_curvature, content, slope, curvature = rows
    width = gate.shape[0]
    one = gate.dtype.type(1)
    for f in range(width):
        x = received[i, 0, f] + sent[j, 0, f] + measured[p, 0, f]
        gate[f], gate_slope[f], gate_curvature[f] = logistic(x, one)
    if softened:  # no condition inside of a loop, which would not be vectorized
        for f in range(width):
            x = received[i, 1, f] + sent[j, 1, f] + measured[p, 1, f]
            content[f], slope[f], curvature[f] = softplus(x, one)
    else:
        for f in range(width):
            x = received[i, 1, f] + sent[j, 1, f] + measured[p, 1, f]
            content[f], slope[f], curvature[f] = silu(x, one)


product_rows: Any = inline_part(_product_rows)
"""``_product_rows`` as a part of compiled loops."""


def _product_sum(
    terms: Triple, weights: Array, soft: Array, ends: Pair, out: Array, rows: Rows6
) -> None:
    """Sum weighted products of gates and contents at the receivers, [N, F]; ``rows`` are space.

    The terms, [N, 2, F] and [P, 2, F], are those of the gates, then those of the contents, which
    are activated by softplus if ``soft`` has an entry, otherwise by SiLU.
    """
    (sender, receiver) = ends
    softened = soft.shape[0] > 0
    pairs = weights.shape[0]
    gate, _, _, content, _, _ = rows
    for e in range(sender.shape[0]):
        j = sender[e]
        i = receiver[e]
        p = e if e < pairs else e - pairs
        product_rows(terms, (j, i), p, softened, rows)
        weight = weights[p, 0]
        for f in range(out.shape[1]):
            out[i, f] += weight * gate[f] * content[f]


def _add_half(row: Array, half: int, ends: tuple[int, int], p: int, sums: Triple) -> None:
    """Add a row to one half of the sums of the receiver, the sender and the pair."""
    (j, i), (to_received, to_sent, to_measured) = ends, sums
    for f in range(row.shape[0]):
        to_received[i, half, f] += row[f]
        to_sent[j, half, f] += row[f]
        to_measured[p, half, f] += row[f]


add_half: Any = inline_part(_add_half)
"""``_add_half`` as a part of compiled loops."""


def _product_sum_slopes(
    terms: Triple,
    weights: Array,
    soft: Array,
    ends: Pair,
    grad: Array,
    to_terms: Triple,
    to_weights: Array,
    rows: Rows6,
) -> None:
    """Differentiate ``_product_sum``; ``rows`` are space."""
    (sender, receiver) = ends
    softened = soft.shape[0] > 0
    gate, gate_slope, _, content, slope, _ = rows
    pairs = weights.shape[0]
    zero = gate.dtype.type(0)
    for e in range(sender.shape[0]):
        j = sender[e]
        i = receiver[e]
        p = e if e < pairs else e - pairs
        product_rows(terms, (j, i), p, softened, rows)
        weight = weights[p, 0]
        total = zero
        for f in range(grad.shape[1]):
            total += grad[i, f] * gate[f] * content[f]
            gate_slope[f] *= weight * grad[i, f] * content[f]
            slope[f] *= weight * grad[i, f] * gate[f]
        to_weights[p, 0] += total
        add_half(gate_slope, 0, (j, i), p, to_terms)
        add_half(slope, 1, (j, i), p, to_terms)


def _product_sum_curvature(
    terms: Triple,
    weights: Array,
    soft: Array,
    ends: Pair,
    grad: Array,
    seconds: Triple,
    second_weights: Array,
    to_terms: Triple,
    to_weights: Array,
    to_grad: Array,
    rows: Rows6,
) -> None:
    """Differentiate ``_product_sum_slopes``; ``rows`` are space."""
    (sender, receiver) = ends
    softened = soft.shape[0] > 0
    width = grad.shape[1]
    (at_receiver, at_sender, at_pair) = seconds
    zero = grad.dtype.type(0)
    gate, gate_slope, gate_curvature, content, slope, curvature = rows
    pairs = weights.shape[0]
    for e in range(sender.shape[0]):
        j = sender[e]
        i = receiver[e]
        p = e if e < pairs else e - pairs
        product_rows(terms, (j, i), p, softened, rows)
        weight = weights[p, 0]
        late = second_weights[p, 0]
        total = zero
        for f in range(width):
            s, s1, s2 = gate[f], gate_slope[f], gate_curvature[f]
            c, c1, c2 = content[f], slope[f], curvature[f]
            x = at_receiver[i, 0, f] + at_sender[j, 0, f] + at_pair[p, 0, f]
            y = at_receiver[i, 1, f] + at_sender[j, 1, f] + at_pair[p, 1, f]
            u, v, change = weight * x, weight * y, x * s1 * c + y * s * c1
            total += grad[i, f] * change
            to_grad[i, f] += weight * change + late * s * c
            gate_slope[f] = grad[i, f] * (u * s2 * c + v * s1 * c1 + late * s1 * c)
            slope[f] = grad[i, f] * (u * s1 * c1 + v * s * c2 + late * s * c1)
        to_weights[p, 0] += total
        add_half(gate_slope, 0, (j, i), p, to_terms)
        add_half(slope, 1, (j, i), p, to_terms)


def _soft_rows(x: Array, out: Array) -> None:
    """Apply softplus minus ln 2 to each number, [P, F]."""
    one = out.dtype.type(1)
    shift = out.dtype.type(0.6931471805599453)
    for p in range(x.shape[0]):
        for f in range(x.shape[1]):
            out[p, f] = softplus(x[p, f], one)[0] - shift


def _soft_rows_slopes(x: Array, grad: Array, to_x: Array) -> None:
    """Differentiate ``_soft_rows``."""
    one = to_x.dtype.type(1)
    for p in range(x.shape[0]):
        for f in range(x.shape[1]):
            to_x[p, f] = grad[p, f] * logistic(x[p, f], one)[0]


def _soft_rows_curvature(x: Array, grad: Array, second: Array, to_x: Array, to_grad: Array) -> None:
    """Differentiate ``_soft_rows_slopes``."""
    one = to_x.dtype.type(1)
    for p in range(x.shape[0]):
        for f in range(x.shape[1]):
            gate, slope, _ = logistic(x[p, f], one)
            to_x[p, f] = second[p, f] * grad[p, f] * slope
            to_grad[p, f] = second[p, f] * gate


def _silu_rows_curvature(x: Array, grad: Array, second: Array, to_x: Array, to_grad: Array) -> None:
    """Differentiate the gradient of SiLU, which is torch's own, as the value is."""
    one = to_x.dtype.type(1)
    for p in range(x.shape[0]):
        for f in range(x.shape[1]):
            _, slope, curvature = silu(x[p, f], one)
            to_x[p, f] = second[p, f] * grad[p, f] * curvature
            to_grad[p, f] = second[p, f] * slope


LOOPS: dict[str, tuple[Callable[..., None], str]] = {
    "bent_ends": (_bent_ends, "222 1 ii 2"),
    "bent_ends_slopes": (_bent_ends_slopes, "222 1 ii 2 222 2"),
    "bent_ends_curvature": (_bent_ends_curvature, "222 1 ii 2 222 222 2 2"),
    "gated_sum": (_gated_sum, "2 111 2 i 2 2 2"),
    "gated_sum_slopes": (_gated_sum_slopes, "222 111 i 22 111 2 2"),
    "gated_sum_curvature": (_gated_sum_curvature, "222 111 i 22 222 111 2"),
    "product_sum": (_product_sum, "333 2 1 ii 2 111111"),
    "product_sum_slopes": (_product_sum_slopes, "333 2 1 ii 2 333 2 111111"),
    "product_sum_curvature": (_product_sum_curvature, "333 2 1 ii 2 333 2 333 2 2 111111"),
    "soft_rows": (_soft_rows, "2 2"),
    "soft_rows_slopes": (_soft_rows_slopes, "2 2 2"),
    "soft_rows_curvature": (_soft_rows_curvature, "2 2 2 2 2"),
    "silu_rows_curvature": (_silu_rows_curvature, "2 2 2 2 2"),
}
"""Loop and its signature by name, as in ``numba_loops``."""
