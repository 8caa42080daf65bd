"""Triplets of a batch: find them, expand their angles and lengths, and compute weighted sums.

A triplet is a pair of edges k -> j and j -> i: the first enters the node j that the second leaves.

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
from hydragnn_hpo.model.scatter import Gradients, Links, apply_function, gather_nodes


def legendre(cosines: Tensor, size: int) -> Tensor:
    """Return Legendre polynomials of degree 0 to ``size`` - 1, scaled as in spherical harmonics.

    Args:
        cosines: cosines of the angles, [T].
        size: number of polynomials, S.

    Returns:
        ``sqrt((2 l + 1) / (4 pi)) P_l(cosine)``, [T, S].

    Source: Bonnet's recurrence, dlmf.nist.gov/18.9; scale: arXiv:2003.03123, eq. 6.
    """
    polynomials = [torch.ones_like(cosines), cosines]
    for n in range(1, size - 1):
        polynomials.append(
            ((2 * n + 1) * cosines * polynomials[n] - n * polynomials[n - 1]) / (n + 1)
        )
    scales = [math.sqrt((2 * n + 1) / (4 * math.pi)) for n in range(size)]
    return torch.stack([s * p for s, p in zip(scales, polynomials, strict=False)], dim=1)


def chebyshev(values: Tensor, size: int) -> Tensor:
    """Return Chebyshev polynomials of degree 0 to ``size`` - 1: [n] to [n, size].

    Each step nearly doubles their number: ``T_(m+n) = 2 T_m T_n - T_(m-n)``.
    Source: dlmf.nist.gov/18.18, eq. 21.
    """
    polynomials = torch.stack((torch.ones_like(values), values), dim=1)
    while polynomials.shape[1] < size:
        last = polynomials[:, -1:]
        polynomials = torch.cat(
            (polynomials, 2 * last * polynomials[:, 1:] - polynomials[:, :-1].flip(1)), dim=1
        )
    return polynomials[:, :size]


def bessel_roots(orders: int, count: int) -> NDArray[np.float64]:
    """Return the first positive roots of spherical Bessel functions of order 0 to ``orders`` - 1.

    The roots of order 0 are multiples of pi; those of each next order lie between those before it.
    Source: Abramowitz and Stegun (1964), 9.5.2 and 10.1.

    Returns:
        Roots of each order, ascending, [orders, count].
    """
    roots = np.arange(1, count + orders, dtype=np.float64) * math.pi
    rows = [roots[:count]]
    for order in range(1, orders):
        brackets = zip(roots, roots[1:], strict=False)
        between = [
            brentq(lambda x, n=order: spherical_jn(n, x), *each, xtol=1e-14) for each in brackets
        ]
        roots = np.array(between)
        rows.append(roots[:count])
    return np.array(rows)


class SphericalBessel(nn.Module):
    """Spherical Bessel functions that vanish at a cutoff c: ``j_l(z_ln d / c) / |j_(l+1)(z_ln)|``.

    Recurrences in l lose all digits at short lengths d, so each function is expanded once in
    Chebyshev polynomials of d / c, which is exact to rounding for d / c from 0 to 1.
    Source: Gasteiger et al. (2020), arXiv:2003.03123, eq. 6.
    """

    coefficients: Tensor

    def __init__(self, orders: int, count: int, cutoff: float) -> None:
        """Expand ``count`` functions of each order 0 to ``orders`` - 1; nothing is learned."""
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
        scaled = 2.0 * (lengths / self.cutoff).clamp(max=1.0) - 1.0
        terms = chebyshev(scaled, self.coefficients.shape[0])
        values = apply_without_autocast(torch.mm, terms, self.coefficients)
        shape = (self.orders, values.shape[1] // self.orders)
        return values.view(lengths.shape[0], *shape).transpose(0, 1).contiguous()


@dataclass(frozen=True, eq=False)
class Triplets:
    """Pairs of edges that meet in a node, sorted by the second edge."""

    links: Links
    """Links whose nodes are edges: k -> j is the sender and j -> i the receiver of a triplet."""
    cosines: Tensor
    """Cosine of the angle at j between the directions to k and to i, [T]."""


def find_triplets(edges: Edges, reach: float) -> Triplets:
    """Find all triplets whose two edges are both shorter than ``reach``, in angstrom.

    An edge and its own reverse form no triplet. Gradients flow through the cosines only, which are
    products of unit vectors; an arc cosine would have infinite slope for three nodes in a line.
    """
    with torch.no_grad():
        links = _triplet_links(edges, edges.lengths < reach)
    first, second = (gather_nodes(edges.directions, links, end) for end in ("sender", "receiver"))
    return Triplets(links, -(first * second).sum(-1))


def _triplet_links(edges: Edges, short: Tensor) -> Links:
    """Pair every short edge j -> i with the short edges that enter j.

    Args:
        edges: edges of a batch.
        short: mask of the edges that are short enough, [E].
    """
    total = edges.sender.shape[0]
    # Short edges by receiver: those that enter j are the rows starts[j] to starts[j + 1].
    order = edges.links.by_receiver
    order = order[short.index_select(0, order)]
    starts = _segment_starts(edges.receiver.index_select(0, order), edges.num_nodes)
    second = short.nonzero().squeeze(1)
    middle = edges.sender.index_select(0, second)
    begin = starts.index_select(0, middle)
    count = starts.index_select(0, middle + 1) - begin
    # ``row`` counts up from ``begin`` for each second edge: it is 0, 1 ... T - 1 plus ``offset``,
    # which is ``begin`` minus the number of triplets of earlier second edges.
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
    """Return where each id 0 to ``count`` - 1 begins in sorted ids, and the end, [count + 1]."""
    return torch.searchsorted(ordered, torch.arange(count + 1, device=ordered.device))


def _is_reverse_edge(edges: Edges, first: Tensor, second: Tensor) -> Tensor:
    """Check which second edges are the reverse of the first, [T].

    Where edges are not stored in pairs, geometry decides: the sum of both vectors is shorter than
    0.01 angstrom. Rounding is far below that, and two images of one node are angstroms apart.
    """
    if edges.paired:
        half = edges.pair_lengths.shape[0]
        return (first + half) % max(2 * half, 1) == second
    vectors = edges.directions * edges.lengths.unsqueeze(-1)
    vector_sum = vectors.index_select(0, first) + vectors.index_select(0, second)
    same_node = edges.sender.index_select(0, first) == edges.receiver.index_select(0, second)
    return same_node & (vector_sum.square().sum(-1) < 1e-4)


@dataclass(frozen=True, eq=False)
class TripletWeights:
    """Weights of triplets and the edges they join, laid out for ``triplet_sum``.

    Each triplet counts once per angular function. Indices are int64.
    """

    weights: Tensor
    """Weight of each triplet and angular function, [T, S]."""
    by_first_weights: Tensor
    """The same weights in the order of ``by_first``, without a gradient, [S, T]."""
    rows: Tensor
    """Row of the flat values, [S * E, F], that each triplet and function reads, [T * S]."""
    seconds: Tensor
    """Second edge of each triplet, ascending, [T]."""
    starts: Tensor
    """Where each second edge begins in ``seconds``, and the end, [E + 1]."""
    by_first: Tensor
    """Triplets in the order of their first edge, [T]."""
    first_starts: Tensor
    """Where each first edge begins in ``by_first``, and the end, [E + 1]."""

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """Return the fields in the order in which the autograd functions take them.

        Returns:
            Weights, weights by first edge, rows, second edges, their starts, triplets by first
            edge, and the starts of the first edges.
        """
        return (
            self.weights,
            self.by_first_weights,
            self.rows,
            self.seconds,
            self.starts,
            self.by_first,
            self.first_starts,
        )


def sort_triplet_weights(links: Links, weights: Tensor) -> TripletWeights:
    """Lay out the weights of triplets, [T, S], for ``triplet_sum``; all layers share the result."""
    step = torch.arange(weights.shape[1], device=weights.device) * links.num_nodes
    return TripletWeights(
        weights=weights,
        by_first_weights=_transpose_weights(weights.detach(), links.by_sender),
        rows=(links.sender.unsqueeze(1) + step).view(-1),
        seconds=links.receiver,
        starts=links.receiver_starts,
        by_first=links.by_sender,
        first_starts=links.sender_starts,
    )


def _transpose_weights(weights: Tensor, by_first: Tensor) -> Tensor:
    return weights.index_select(0, by_first).t().contiguous()


def triplet_sum(values: Tensor, weights: TripletWeights) -> Tensor:
    """Sum over triplets and angular functions: ``out_ji = sum_k sum_s weight_kji,s value_s,kj``.

    Neither this sum nor its gradients of any order allocate an array of T * F numbers.

    Args:
        values: values of the first edges, for each angular function, [S, E, F].
        weights: weights of the triplets, with the edges that each of them joins.

    Returns:
        Sums at the second edges, [E, F].
    """
    return apply_function(_TripletSum, values, *weights.arrays)


def _weighted_rows_sum(values: Tensor, rows: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Sum weighted rows of each segment, [n, F]."""
    if not rows.numel():
        return values.new_zeros(starts.shape[0] - 1, values.shape[1])
    sums: Tensor = torch.embedding_bag(
        values.contiguous(), rows, starts, False, 0, False, weights.contiguous(), True
    )[0]
    return sums


class _TripletSum(Function):
    """Autograd function of ``triplet_sum``: the form below, differentiated by ``grad``.

    This function and the next two are the derivatives of the trilinear form
    ``sum_t,s weight_ts <value_s,kj(t), grad_ji(t)>`` over triplets t, so each has the other two as
    its gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weights: Tensor, by_first_weights: Tensor, *layout: Tensor
    ) -> Tensor:
        """Sum weighted values over the triplets and functions of each second edge.

        Args:
            ctx: keeps the inputs for ``backward``.
            values: values of the first edges, [S, E, F].
            weights: weights of the triplets, [T, S].
            by_first_weights: the same weights by first edge, [S, T].
            layout: ``TripletWeights.arrays`` from ``rows`` on.

        Returns:
            [E, F].
        """
        ctx.save_for_backward(values, weights, by_first_weights, *layout)
        rows, _, starts, _, _ = layout
        flat = values.reshape(-1, values.shape[2])
        return _weighted_rows_sum(flat, rows, starts * values.shape[0], weights.reshape(-1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        values, weights, by_first_weights, *layout = ctx.saved_tensors
        to_values = to_weights = None
        if ctx.needs_input_grad[0]:
            to_values = apply_function(
                _TripletValueGradient, grad, weights, by_first_weights, *layout
            )
        if ctx.needs_input_grad[1]:
            to_weights = apply_function(_TripletWeightGradient, values, grad, *layout)
        return to_values, to_weights, *[None] * 6


class _TripletValueGradient(Function):
    """The trilinear form of ``_TripletSum``, differentiated by the values."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, weights: Tensor, by_first_weights: Tensor, *layout: Tensor
    ) -> Tensor:
        """Sum weighted gradients over the triplets of each first edge.

        Args:
            ctx: keeps the inputs for ``backward``.
            grad: gradient at the second edges, [E, F].
            weights: weights of the triplets, [T, S].
            by_first_weights: the same weights by first edge, [S, T].
            layout: ``TripletWeights.arrays`` from ``rows`` on.

        Returns:
            [S, E, F].
        """
        ctx.save_for_backward(grad, weights, by_first_weights, *layout)
        _, seconds, _, by_first, starts = layout
        back = seconds.index_select(0, by_first)
        return torch.stack(
            [_weighted_rows_sum(grad, back, starts, each) for each in by_first_weights]
        )

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> Gradients:
        grad, weights, by_first_weights, *layout = ctx.saved_tensors
        to_grad = to_weights = None
        if ctx.needs_input_grad[0]:
            to_grad = apply_function(_TripletSum, second, weights, by_first_weights, *layout)
        if ctx.needs_input_grad[1]:
            to_weights = apply_function(_TripletWeightGradient, second, grad, *layout)
        return to_grad, to_weights, *[None] * 6


class _TripletWeightGradient(Function):
    """The trilinear form of ``_TripletSum``, differentiated by the weights."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, grad: Tensor, *layout: Tensor) -> Tensor:
        """Multiply values of the first edge by gradients of the second, and sum over channels.

        Args:
            ctx: keeps the inputs for ``backward``.
            values: values of the first edges, [S, E, F].
            grad: gradient at the second edges, [E, F].
            layout: ``TripletWeights.arrays`` from ``rows`` on.

        Returns:
            [T, S].
        """
        ctx.save_for_backward(values, grad, *layout)
        rows, seconds, starts, _, _ = layout
        size = values.shape[0]
        if not rows.numel():
            return values.new_zeros(0, size)
        flat = values.reshape(-1, values.shape[2])
        gradient: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            grad.contiguous(), flat, rows, starts * size, seconds.repeat_interleave(size), 0
        )
        return gradient.view(-1, size)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> Gradients:
        values, grad, *layout = ctx.saved_tensors
        by_first_weights = _transpose_weights(second.detach(), layout[3])
        to_values = to_grad = None
        if ctx.needs_input_grad[0]:
            to_values = apply_function(
                _TripletValueGradient, grad, second, by_first_weights, *layout
            )
        if ctx.needs_input_grad[1]:
            to_grad = apply_function(_TripletSum, values, second, by_first_weights, *layout)
        return to_values, to_grad, *[None] * 5
