"""Atomistic line graph convolution: angles tell bonds, bonds tell atoms.

Shapes: N nodes, E edges, P pairs, T triplets, F features, K radial functions, S functions
of an angle.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.alignn import AlignnOptions, keeps_angles, sees_angles
from hydragnn_hpo.model.angles import legendre
from hydragnn_hpo.model.cutoff import envelope
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.gating import EdgeGatedConv
from hydragnn_hpo.model.mlp import mlp
from hydragnn_hpo.model.sums import Links, take
from hydragnn_hpo.model.triplets import triplets_of


class Angles(NamedTuple):
    """The line graph: bonds are its nodes, triplets its edges."""

    features: Tensor
    """Of the triplets, [T, F]."""
    weight: Tensor
    """Takes a triplet smoothly to nothing as one of its bonds grows too long, [T, 1]."""
    links: Links
    """Which bond tells which."""


class Bonds(NamedTuple):
    """What the conv carries from layer to layer."""

    features: Tensor
    """Of the edges, [E, F]: the two edges of a pair are two bonds once angles differ."""
    angles: Angles | None
    """None where no later layer reads them."""


class Bend(nn.Module):
    """A linear map whose weight stands upright, [S, F].

    Its gradient is ``terms^T grad``; with torch's own layout it would be ``grad^T terms``, which
    takes ten times as long for a few columns and many rows.
    """

    def __init__(self, orders: int, features: int) -> None:
        """Draw weights as ``nn.Linear`` does."""
        super().__init__()
        bound = orders**-0.5
        self.weight = nn.Parameter(torch.empty(orders, features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(features).uniform_(-bound, bound))

    def forward(self, terms: Tensor) -> Tensor:
        """Map functions of angles, [T, S], to [T, F]."""
        return torch.addmm(self.bias, terms, self.weight)


class AlignnConv(nn.Module):
    """One edge-gated convolution on the line graph, and one on the graph.

    Beyond the paper: triplets are weighted by the envelopes of their bonds at the angles' own
    cutoff instead of being cut at twelve neighbours, cosines are expanded in Legendre
    polynomials, and norms act on one row.
    Source: Choudhary and DeCost (2021), npj Comput. Mater. 7, 185, eqs. 5 and 6.
    """

    exports = False
    """``torch.export`` cannot follow rows whose number depends on values."""

    def __init__(self, dimensions: Dimensions, options: AlignnOptions) -> None:
        """Build one layer."""
        super().__init__()
        features, first = dimensions.features, dimensions.layer == 0
        angles, self.keeps = sees_angles(dimensions, options), keeps_angles(dimensions, options)
        self.reach = min(options.angle_cutoff or dimensions.cutoff, dimensions.cutoff)
        self.orders = options.angle_basis
        self.measure = mlp((dimensions.basis_size, features, features)) if first else None
        self.bend = Bend(self.orders, features) if first and angles else None
        self.between = EdgeGatedConv(features, self.keeps) if angles else None
        self.along = EdgeGatedConv(features, dimensions.state_is_read)

    def forward(
        self, scalars: Tensor, state: Bonds | None, edges: Edges
    ) -> tuple[Tensor, Bonds | None]:
        """Give the change of the scalars, [N, F], and the new bonds."""
        bonds, angles = self._first(edges) if state is None else state
        if self.between is not None:
            assert angles is not None
            change, bent = self.between(bonds, angles.features, angles.weight, angles.links)
            bonds = bonds + change
            angles = None if bent is None else angles._replace(features=angles.features + bent)
        change, more = self.along(scalars, bonds, edges.envelope, edges.links)
        return change, None if more is None else Bonds(bonds + more, angles)

    def _first(self, edges: Edges) -> Bonds:
        """Make bonds of lengths, and angles of cosines."""
        assert self.measure is not None
        bonds = edges.expand_pairs(self.measure(edges.pair_basis))
        if self.bend is None:
            return Bonds(bonds, None)
        triplets = triplets_of(edges, self.reach)
        weight = envelope(edges.lengths, self.reach).unsqueeze(-1)
        both = [take(weight, triplets.links, end) for end in ("sender", "receiver")]
        features = F.silu(self.bend(legendre(triplets.cosines, self.orders)))
        return Bonds(bonds, Angles(features, both[0] * both[1], triplets.links))
