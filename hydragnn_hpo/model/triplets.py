"""Triplets of a batch: finding them, functions of angles and lengths, and weighted sums.

Shapes: E edges, P pairs of edges, F features, T triplets, S angular functions, R radial functions
of each; n rows of any kind.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import spherical_jn
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn_hpo.config.convs.angular import chebyshev_terms
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.layers import apply_without_autocast
from hydragnn_hpo.model.scatter import Links, apply_function, gather_nodes


def legendre(cosines: Tensor, size: int) -> Tensor:
    """Return Legendre polynomials of degree 0 to ``size`` - 1, as spherical harmonics scale them.

    Args:
        cosines: of angles, [T].
        size: how many, S.

    Returns:
        ``sqrt((2 l + 1) / (4 pi)) P_l(cosine)``, [T, S].

    Source: Bonnet's recurrence, dlmf.nist.gov/18.9; scale: arXiv:2003.03123, eq. 6.
    """
    found = [torch.ones_like(cosines), cosines]
    for n in range(1, size - 1):
        found.append(((2 * n + 1) * cosines * found[n] - n * found[n - 1]) / (n + 1))
    scales = [math.sqrt((2 * n + 1) / (4 * math.pi)) for n in range(size)]
    return torch.stack([s * p for s, p in zip(scales, found, strict=False)], dim=1)


def chebyshev(values: Tensor, size: int) -> Tensor:
    """Return Chebyshev polynomials of degree 0 to ``size`` - 1: [n] to [n, size].

    Each step doubles their number: ``T_m+n = 2 T_m T_n - T_m-n``.
    Source: dlmf.nist.gov/18.18, eq. 21.
    """
    found = torch.stack((torch.ones_like(values), values), dim=1)
    while found.shape[1] < size:
        last = found[:, -1:]
        found = torch.cat((found, 2 * last * found[:, 1:] - found[:, :-1].flip(1)), dim=1)
    return found[:, :size]


def bessel_roots(orders: int, count: int) -> NDArray[np.float64]:
    """Return the first positive roots of spherical Bessel functions of order 0 to ``orders`` - 1.

    The roots of order 0 are multiples of pi; those of the next order lie between them.
    Source: Abramowitz and Stegun (1964), 9.5.2 and 10.1.

    Returns:
        [orders, count].
    """
    roots = np.arange(1, count + orders, dtype=np.float64) * math.pi
    rows = [roots[:count]]
    for order in range(1, orders):
        brackets = zip(roots, roots[1:], strict=False)
        found = [
            brentq(lambda x, n=order: spherical_jn(n, x), *each, xtol=1e-14) for each in brackets
        ]
        roots = np.array(found)
        rows.append(roots[:count])
    return np.array(rows)


class SphericalBessel(nn.Module):
    """Spherical Bessel functions that vanish at a length: ``j_l(z_ln d / c) / |j_l+1(z_ln)|``.

    Recurrences in l lose all digits at short lengths, so the functions are expanded once in
    Chebyshev polynomials of d / c, which are exact to rounding from 0 to 1.
    Source: Gasteiger et al. (2020), arXiv:2003.03123, eq. 6.
    """

    coefficients: Tensor

    def __init__(self, orders: int, count: int, cutoff: float) -> None:
        """Expand ``count`` functions of each order 0 to ``orders`` - 1; they are not learned."""
        super().__init__()
        self.cutoff, self.orders = cutoff, orders
        roots, terms = bessel_roots(orders, count), chebyshev_terms(orders, count)
        nodes = np.cos((np.arange(terms) + 0.5) * math.pi / terms)
        degree = np.arange(orders)[:, None]
        scale = math.sqrt(2.0) / np.abs(spherical_jn(degree + 1, roots))
        points = (nodes[:, None, None] + 1.0) / 2.0
        values = (scale * spherical_jn(degree, roots * points)).reshape(terms, -1)
        transform = np.cos(np.arange(terms)[:, None] * np.arccos(nodes)) * (2.0 / terms)
        transform[0] /= 2.0
        coefficients = torch.from_numpy(transform @ values).to(torch.get_default_dtype())
        self.register_buffer("coefficients", coefficients, False)

    def forward(self, lengths: Tensor) -> Tensor:
        """Expand lengths in angstrom, [P], to dimensionless [S, P, R]."""
        place = 2.0 * (lengths / self.cutoff).clamp(max=1.0) - 1.0
        terms = chebyshev(place, self.coefficients.shape[0])
        found = apply_without_autocast(torch.mm, terms, self.coefficients)
        shape = (self.orders, found.shape[1] // self.orders)
        return found.view(lengths.shape[0], *shape).transpose(0, 1).contiguous()


@dataclass(frozen=True, eq=False)
class Triplets:
    """Pairs of edges that meet in a node, in the order of the second edge."""

    links: Links
    """Edge k -> j as the sender and edge j -> i as the receiver of every triplet."""
    cosines: Tensor
    """Cosine of the angle at j between the directions to k and to i, [T]."""


def find_triplets(edges: Edges, reach: float) -> Triplets:
    """Find all triplets whose two edges are both shorter than ``reach``, in angstrom.

    Nothing is differentiated but the cosines, which are products of unit vectors: there is no
    arc cosine whose slope is infinite for three nodes in a line.
    """
    with torch.no_grad():
        links = _triplet_links(edges, edges.lengths < reach)
    first, second = (gather_nodes(edges.directions, links, end) for end in ("sender", "receiver"))
    return Triplets(links, -(first * second).sum(-1))


def _triplet_links(edges: Edges, short: Tensor) -> Links:
    """Pair every short edge j -> i with the short edges that enter j."""
    total = edges.sender.shape[0]
    order = edges.links.by_receiver
    order = order[short.index_select(0, order)]
    starts = _segment_starts(edges.receiver.index_select(0, order), edges.num_nodes)
    second = short.nonzero().squeeze(1)
    middle = edges.sender.index_select(0, second)
    begin = starts.index_select(0, middle)
    count = starts.index_select(0, middle + 1) - begin
    offset = begin - (count.cumsum(0) - count)
    row = torch.repeat_interleave(offset, count)
    row += torch.arange(row.shape[0], device=row.device)
    first, second = order.index_select(0, row), torch.repeat_interleave(second, count)
    keep = ~_is_reverse_edge(edges, first, second)
    first, second = first[keep], second[keep]
    by_first = torch.argsort(first, stable=True)
    return Links(
        sender=first,
        receiver=second,
        by_receiver=torch.arange(first.shape[0], device=first.device),
        receiver_starts=_segment_starts(second, total),
        by_sender=by_first,
        sender_starts=_segment_starts(first.index_select(0, by_first), total),
    )


def _segment_starts(ordered: Tensor, count: int) -> Tensor:
    """Return where each of ``count`` begins among ordered numbers, and the end, [count + 1]."""
    return torch.searchsorted(ordered, torch.arange(count + 1, device=ordered.device))


def _is_reverse_edge(edges: Edges, first: Tensor, second: Tensor) -> Tensor:
    """Check which second edges are the first ones turned round, [T].

    Where edges are not stored in pairs, geometry decides: the way there and back ends where it
    began. Two images of one node are angstroms apart, rounding is far below a hundredth of one.
    """
    if edges.paired:
        half = edges.pair_lengths.shape[0]
        return (first + half) % max(2 * half, 1) == second
    vectors = edges.directions * edges.lengths.unsqueeze(-1)
    way = vectors.index_select(0, first) + vectors.index_select(0, second)
    home = edges.sender.index_select(0, first) == edges.receiver.index_select(0, second)
    return home & (way.square().sum(-1) < 1e-4)


@dataclass(frozen=True, eq=False)
class TripletWeights:
    """Weights as ``triplet_sum`` needs them: each triplet counts once per angular function."""

    weights: Tensor
    """Of the triplets, one per angular function, [T, S]."""
    turned: Tensor
    """The same numbers in the order of the first edge, without a gradient, [S, T]."""
    rows: Tensor
    """Row of the values, [S * E], that triplet and function read; by second edge, [T * S]."""
    seconds: Tensor
    """Second edges, in their order, [T]."""
    starts: Tensor
    """Where each of them begins, and the end, [E + 1]."""
    by_first: Tensor
    """Triplets in the order of their first edge, [T]."""
    first_starts: Tensor
    """Where each first edge begins in that order, and the end, [E + 1]."""

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """Return the tensors in the order of the fields."""
        return (
            self.weights,
            self.turned,
            self.rows,
            self.seconds,
            self.starts,
            self.by_first,
            self.first_starts,
        )


def sort_triplet_weights(links: Links, weights: Tensor) -> TripletWeights:
    """Lay out the weights of triplets, [T, S], once for all layers."""
    step = torch.arange(weights.shape[1], device=weights.device) * links.num_nodes
    return TripletWeights(
        weights=weights,
        turned=_transpose_weights(weights.detach(), links.by_sender),
        rows=(links.sender.unsqueeze(1) + step).view(-1),
        seconds=links.receiver,
        starts=links.receiver_starts,
        by_first=links.by_sender,
        first_starts=links.sender_starts,
    )


def _transpose_weights(weights: Tensor, by_first: Tensor) -> Tensor:
    return weights.index_select(0, by_first).t().contiguous()


def triplet_sum(values: Tensor, fan: TripletWeights) -> Tensor:
    """Sum over triplets and angular functions: ``out_ji = sum_k sum_s weight_kji,s value_s,kj``.

    No array of T * F numbers is made, neither here nor in the gradients of any order.

    Args:
        values: of the first edges, one for each angular function, [S, E, F].
        fan: the weights, and who meets whom.

    Returns:
        Of the second edges, [E, F].
    """
    return apply_function(_TripletSum, values, *fan.arrays)


def _weighted_rows_sum(values: Tensor, rows: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Sum weighted rows of each segment, [n, F]."""
    if not rows.numel():
        return values.new_zeros(starts.shape[0] - 1, values.shape[1])
    found: Tensor = torch.embedding_bag(
        values.contiguous(), rows, starts, False, 0, False, weights.contiguous(), True
    )[0]
    return found


class _TripletSum(Function):
    """The form ``sum_t,s weight_ts <value_s,kj(t), grad_ji(t)>``, differentiated by grad."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, turned: Tensor, *fan: Tensor) -> Tensor:
        ctx.save_for_backward(values, weights, turned, *fan)
        rows, _, starts, _, _ = fan
        flat = values.reshape(-1, values.shape[2])
        return _weighted_rows_sum(flat, rows, starts * values.shape[0], weights.reshape(-1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, weights, turned, *fan = ctx.saved_tensors
        to_values = to_weights = None
        if ctx.needs_input_grad[0]:
            to_values = apply_function(_TripletValueGradient, grad, weights, turned, *fan)
        if ctx.needs_input_grad[1]:
            to_weights = apply_function(_TripletWeightGradient, values, grad, *fan)
        return to_values, to_weights, *[None] * 6


class _TripletValueGradient(Function):
    """The same form, differentiated by the values: [S, E, F]."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, weights: Tensor, turned: Tensor, *fan: Tensor) -> Tensor:
        ctx.save_for_backward(grad, weights, turned, *fan)
        _, seconds, _, by_first, starts = fan
        back = seconds.index_select(0, by_first)
        return torch.stack([_weighted_rows_sum(grad, back, starts, each) for each in turned])

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor | None, ...]:
        grad, weights, turned, *fan = ctx.saved_tensors
        to_grad = to_weights = None
        if ctx.needs_input_grad[0]:
            to_grad = apply_function(_TripletSum, second, weights, turned, *fan)
        if ctx.needs_input_grad[1]:
            to_weights = apply_function(_TripletWeightGradient, second, grad, *fan)
        return to_grad, to_weights, *[None] * 6


class _TripletWeightGradient(Function):
    """The same form, differentiated by the weights: [T, S]."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, grad: Tensor, *fan: Tensor) -> Tensor:
        ctx.save_for_backward(values, grad, *fan)
        rows, seconds, starts, _, _ = fan
        size = values.shape[0]
        if not rows.numel():
            return values.new_zeros(0, size)
        flat = values.reshape(-1, values.shape[2])
        found: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            grad.contiguous(), flat, rows, starts * size, seconds.repeat_interleave(size), 0
        )
        return found.view(-1, size)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor | None, ...]:
        values, grad, *fan = ctx.saved_tensors
        turned = _transpose_weights(second.detach(), fan[3])
        to_values = to_grad = None
        if ctx.needs_input_grad[0]:
            to_values = apply_function(_TripletValueGradient, grad, second, turned, *fan)
        if ctx.needs_input_grad[1]:
            to_grad = apply_function(_TripletSum, values, second, turned, *fan)
        return to_values, to_grad, *[None] * 5
