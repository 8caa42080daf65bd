"""Edge-gated convolution on the graph and on its line graph.

Shapes: N nodes, E edges, F features. In a line graph bonds are the nodes and triplets the edges.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.angular import AlignnOptions, keeps_angles, sees_angles
from hydragnn_hpo.model.edges import Edges, envelope
from hydragnn_hpo.model.layers import mlp
from hydragnn_hpo.model.messages import Links, silu_of_norm, update_gated_edges
from hydragnn_hpo.model.triplets import find_triplets, legendre


class EdgeGatedConv(nn.Module):
    """Gate messages of nodes by the features of edges, and update both nodes and edges.

    Norms act on single rows. A mean over neighbours counts the node itself as a neighbour with a
    zero message, so that it stays smooth where the last neighbour leaves.
    Source: Choudhary and DeCost (2021), npj Comput. Mater. 7, 185, eqs. 3 and 4; Bresson and
    Laurent (2017), arXiv:1711.07553, eq. 11.
    """

    def __init__(self, features: int, edges_are_read: bool) -> None:
        """Build the maps; the norm of the edges only if a later layer reads the edges."""
        super().__init__()
        self.receive = nn.Linear(features, features)
        self.send = nn.Linear(features, features, bias=False)
        self.gate = nn.Linear(features, features, bias=False)
        self.own = nn.Linear(features, features)
        self.value = nn.Linear(features, features, bias=False)
        self.norm = nn.LayerNorm(features)
        self.edge_norm = nn.LayerNorm(features) if edges_are_read else None

    def forward(
        self, nodes: Tensor, edge_features: Tensor, weight: Tensor, links: Links
    ) -> tuple[Tensor, Tensor | None]:
        """Run one edge-gated convolution.

        Args:
            nodes: features of the nodes, [N, F].
            edge_features: features of the edges, [E, F].
            weight: envelope of each edge, 0 from the cutoff on, [E, 1].
            links: sender and receiver of every edge.

        Returns:
            Change of the nodes, [N, F], and the new features of the edges, [E, F]; None where no
            later layer reads these.
        """
        maps = [self.receive, self.send, self.value]
        matrix = torch.cat([each.weight for each in maps])
        bias = self.receive.bias
        ends = F.linear(nodes, matrix, F.pad(bias, (0, 2 * bias.shape[0])))
        gated, gates, features = update_gated_edges(
            self.gate(edge_features), ends, weight, edge_features, self.edge_norm, links
        )
        message = gated / (1.0 + gates)
        change = silu_of_norm(self.own(nodes) + message, self.norm.weight, self.norm.bias)
        return change, features


class AngleState(NamedTuple):
    """The line graph: bonds are its nodes, triplets its edges."""

    features: Tensor
    """Features of the triplets, [T, F]."""
    weight: Tensor
    """Weight of a triplet, smoothly 0 as one of its bonds reaches the angle cutoff, [T, 1]."""
    links: Links
    """Links from bond k -> j to bond j -> i, as in ``Triplets``."""


class BondState(NamedTuple):
    """The state that the conv passes from layer to layer."""

    features: Tensor
    """Features of the bonds, one per edge, [E, F]: both edges of a pair have different angles."""
    angles: AngleState | None
    """The line graph; None where no later layer reads it."""


class AngleExpansion(nn.Module):
    """A linear map whose weight, [S, F], is stored transposed.

    The weight's gradient is ``terms^T grad``; in torch's own layout it would be ``grad^T terms``,
    which takes ten times as long for few columns and many rows.
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

    Unlike in the paper, triplets are weighted by envelopes of their bonds at a separate cutoff
    instead of being limited to twelve neighbours, cosines are expanded in Legendre polynomials,
    and norms act on single rows.
    Source: Choudhary and DeCost (2021), npj Comput. Mater. 7, 185, eqs. 5 and 6.
    """

    exports = False
    """``torch.export`` cannot trace tensors whose number of rows depends on values."""

    def __init__(self, dimensions: Dimensions, options: AlignnOptions) -> None:
        """Build one layer."""
        super().__init__()
        features = dimensions.features
        first = dimensions.layer == 0
        angles = sees_angles(dimensions, options)
        self.keeps = keeps_angles(dimensions, options)
        self.reach = min(options.angle_cutoff or dimensions.cutoff, dimensions.cutoff)
        self.orders = options.angle_basis
        self.measure = mlp((dimensions.basis_size, features, features)) if first else None
        self.bend = AngleExpansion(self.orders, features) if first and angles else None
        self.between = EdgeGatedConv(features, self.keeps) if angles else None
        self.along = EdgeGatedConv(features, dimensions.state_is_read)

    def forward(
        self, scalars: Tensor, state: BondState | None, edges: Edges
    ) -> tuple[Tensor, BondState | None]:
        """Update bonds from angles, then nodes from bonds.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: features of bonds and angles; None in the first layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and the new state; None where no later layer reads
            it.
        """
        bonds, angles = self._initial_state(edges) if state is None else state
        if self.between is not None:
            assert angles is not None
            change, bent = self.between(bonds, angles.features, angles.weight, angles.links)
            bonds = bonds + change
            angles = None if bent is None else angles._replace(features=bent)
        change, new = self.along(scalars, bonds, edges.envelope, edges.links)
        return change, None if new is None else BondState(new, angles)

    def _initial_state(self, edges: Edges) -> BondState:
        """Expand lengths into bond features and cosines into angle features."""
        assert self.measure is not None
        bonds = edges.expand_pairs(self.measure(edges.pair_basis))
        if self.bend is None:
            return BondState(bonds, None)
        triplets = find_triplets(edges, self.reach)
        weight = envelope(edges.lengths, self.reach).unsqueeze(-1)
        links = triplets.links
        weights = links.at_sender(weight) * links.at_receiver(weight)
        features = F.silu(self.bend(legendre(triplets.cosines, self.orders)))
        return BondState(bonds, AngleState(features, weights, links))
