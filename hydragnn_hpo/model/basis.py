"""Expand edge lengths in radial functions.

Shapes: E edges, K radial functions.
"""

import math

import torch
from torch import Tensor, nn


class BesselBasis(nn.Module):
    """Spherical Bessel functions of order zero that vanish at the cutoff.

    Source: Gasteiger et al. (2020), arXiv:2003.03123, eq. 7.
    """

    frequencies: Tensor

    def __init__(self, size: int, cutoff: float) -> None:
        """Fix the frequencies n pi / cutoff for n = 1 .. size; they are not learned."""
        super().__init__()
        frequencies = torch.arange(1, size + 1, dtype=torch.float64) * math.pi / cutoff
        self.register_buffer("frequencies", frequencies.to(torch.get_default_dtype()), False)
        self.scale = math.sqrt(2.0 / cutoff)

    def forward(self, lengths: Tensor) -> Tensor:
        """Expand lengths in angstrom, [E], to dimensionless [E, K]; finite at length 0."""
        length = lengths.clamp(min=1e-6).unsqueeze(-1)
        return self.scale * torch.sin(self.frequencies * length) / length


class GaussianBasis(nn.Module):
    """Equally spaced Gaussians from contact to the cutoff, as wide as their spacing.

    Source: Schuett et al. (2017), arXiv:1706.08566, eq. 6.
    """

    centres: Tensor

    def __init__(self, size: int, cutoff: float) -> None:
        """Place the centres; they are not learned."""
        super().__init__()
        centres = torch.linspace(0.0, cutoff, size)
        self.register_buffer("centres", centres, False)
        self.exponent = -0.5 * (max(size - 1, 1) / cutoff) ** 2

    def forward(self, lengths: Tensor) -> Tensor:
        """Expand lengths in angstrom, [E], to dimensionless [E, K]."""
        return torch.exp(self.exponent * (lengths.unsqueeze(-1) - self.centres).square())


BASES = {"bessel": BesselBasis, "gaussian": GaussianBasis}
