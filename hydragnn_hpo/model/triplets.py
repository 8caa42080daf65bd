"""Triplets of a batch: find them, and expand their angles and lengths.

A triplet is a pair of edges k -> j and j -> i: the first enters the node j that the second leaves.

Shapes: E edges, P pairs of edges, F features, T triplets, S angular functions, R radial functions
of each; n rows of any kind.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import spherical_jn
from torch import Tensor, nn

from hydragnn_hpo.config.convs.angular import chebyshev_terms
from hydragnn_hpo.kernels import Links
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.layers import apply_without_autocast


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
        roots = bessel_roots(orders, count)
        terms = chebyshev_terms(orders, count)
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
        links = _triplet_links(edges, edges.pair_lengths < reach)
    first = links.at_sender(edges.directions)
    second = links.at_receiver(edges.directions)
    return Triplets(links, -(first * second).sum(-1))


def _triplet_links(edges: Edges, short: Tensor) -> Links:
    """Pair every short edge j -> i with the short edges that enter j.

    Args:
        edges: edges of a batch.
        short: mask of the pairs that are short enough, [P].
    """
    kernels = edges.links.kernels
    if edges.paired and edges.links.usable_kernels((edges.directions,)) == "numba":
        from hydragnn_hpo.kernels.numba_passes import list_triplets

        return list_triplets(short, edges.links)
    short, total = edges.expand_pairs(short), edges.sender.shape[0]
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
        kernels=kernels,
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
        pairs = edges.pair_lengths.shape[0]
        return torch.where(first < pairs, first + pairs, first - pairs) == second
    vectors = edges.directions * edges.lengths.unsqueeze(-1)
    vector_sum = vectors.index_select(0, first) + vectors.index_select(0, second)
    same_node = edges.sender.index_select(0, first) == edges.receiver.index_select(0, second)
    return same_node & (vector_sum.square().sum(-1) < 1e-4)
