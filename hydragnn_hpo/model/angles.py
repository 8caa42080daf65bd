"""Functions of angles, and of length and angle together.

Shapes: P pairs of edges, T triplets, S angular functions, R radial functions of each.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import spherical_jn
from torch import Tensor, nn

from hydragnn_hpo.config.convs.dimenetpp import chebyshev_terms
from hydragnn_hpo.model.precise import exactly


def legendre(cosines: Tensor, size: int) -> Tensor:
    """Give Legendre polynomials of degree 0 to ``size`` - 1, as spherical harmonics scale them.

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
    """Give Chebyshev polynomials of degree 0 to ``size`` - 1: [n] to [n, size].

    Each step doubles their number: ``T_m+n = 2 T_m T_n - T_m-n``.
    Source: dlmf.nist.gov/18.18, eq. 21.
    """
    found = torch.stack((torch.ones_like(values), values), dim=1)
    while found.shape[1] < size:
        last = found[:, -1:]
        found = torch.cat((found, 2 * last * found[:, 1:] - found[:, :-1].flip(1)), dim=1)
    return found[:, :size]


def bessel_roots(orders: int, count: int) -> NDArray[np.float64]:
    """Give the first positive roots of spherical Bessel functions of order 0 to ``orders`` - 1.

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
        found = exactly(torch.mm, terms, self.coefficients)
        shape = (self.orders, found.shape[1] // self.orders)
        return found.view(lengths.shape[0], *shape).transpose(0, 1).contiguous()
