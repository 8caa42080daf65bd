"""Directional message passing: messages belong to edges, and pairs of edges interact at angles.

Shapes: N nodes, E edges, P pairs, T triplets, F features, K radial functions, S angular
functions, R radial functions of each, W width of a message in the sum over angles.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.angular import DimeNetPPOptions
from hydragnn_hpo.model.edges import Edges, envelope
from hydragnn_hpo.model.messages import Links, activate_rows, triplet_sum
from hydragnn_hpo.model.triplets import SphericalBessel, find_triplets, legendre


class DimeNetAngles(NamedTuple):
    """The geometry of all angles of a batch, computed in the first layer."""

    radial: Tensor
    """Functions of each pair's length, multiplied by ``envelope``, [S, P, R]."""
    envelope: Tensor
    """Weight of an edge in its angles, falling smoothly to 0 at the angle cutoff, [P, 1]."""
    angular: Tensor
    """Functions of the angles, [T, S]."""
    links: Links
    """The two edges of each triplet."""


class DirectedState(NamedTuple):
    """The state that the conv passes from layer to layer."""

    messages: Tensor
    """Messages of the edges, [E, F]."""
    angles: DimeNetAngles
    """Geometry of all angles, the same in every layer."""


class Residual(nn.Module):
    """Two linear maps with a skip connection. Source: arXiv:2003.03123, section 5."""

    def __init__(self, features: int) -> None:
        """Build both maps."""
        super().__init__()
        self.first = nn.Linear(features, features)
        self.second = nn.Linear(features, features)

    def forward(self, x: Tensor, links: Links) -> Tensor:
        """Map rows of edges, [E, F] to [E, F]."""
        inner = activate_rows(self.first(x), links)
        return x + activate_rows(self.second(inner), links)


class AngularSum(nn.Module):
    """Send the messages of edges k -> j to edges j -> i through filters of length and angle.

    Filters are linear in the functions of length and angle, so the functions of length are
    contracted on the edges, before the sum over triplets: a triplet costs S multiplications per
    channel and stores nothing.
    Source: Gasteiger et al. (2020), arXiv:2011.14115, section 3.
    """

    def __init__(self, options: DimeNetPPOptions) -> None:
        """Draw the filters' weights so that sums over about twenty neighbours are of order 1."""
        super().__init__()
        orders, count = options.num_spherical, options.num_radial
        inner, width = options.basis_emb, options.int_emb
        first = torch.randn(orders, count, inner) / (orders * count) ** 0.5
        self.first = nn.Parameter(first)
        self.second = nn.Parameter(torch.randn(inner, width) / inner**0.5)

    def forward(self, messages: Tensor, angles: DimeNetAngles) -> Tensor:
        """Sum over the triplets of each edge: messages [E, W] to [E, W]."""
        filters = torch.bmm(angles.radial, self.first @ self.second)
        return triplet_sum(messages, filters, angles.angular, angles.links)


class DimeNetPPConv(nn.Module):
    """One interaction block on the messages of edges, and one output block to the nodes.

    Layer 0 creates the messages. Unlike in the paper, later layers read the scalars of both ends of
    an edge again, so that changes of the nodes between layers (attention, conditioning) reach the
    messages.
    Source: Gasteiger et al. (2020), arXiv:2011.14115.
    """

    exports = False
    """``torch.export`` cannot trace tensors whose number of rows depends on values."""

    def __init__(self, dimensions: Dimensions, options: DimeNetPPOptions) -> None:
        """Build one layer."""
        super().__init__()
        f, k, width = dimensions.features, dimensions.basis_size, options.int_emb
        self.reach = min(options.angle_cutoff or dimensions.cutoff, dimensions.cutoff)
        self.receive = nn.Linear(f, f)
        self.send = nn.Linear(f, f, bias=False)
        first = dimensions.layer == 0
        measure = (nn.Linear(k, f), nn.SiLU(), nn.Linear(f, f, bias=False))
        self.measure = nn.Sequential(*measure) if first else None
        sizes = (options.num_spherical, options.num_radial, self.reach)
        self.bessel = SphericalBessel(*sizes) if first else None
        self.own = nn.Linear(f, f)
        self.other = nn.Linear(f, f)
        self.filter = nn.Sequential(
            nn.Linear(k, options.basis_emb, bias=False),
            nn.Linear(options.basis_emb, f, bias=False),
        )
        self.down = nn.Linear(f, width, bias=False)
        self.up = nn.Linear(width, f, bias=False)
        self.angular = AngularSum(options)
        self.before = nn.ModuleList(Residual(f) for _ in range(options.before_skip))
        self.mix = nn.Linear(f, f)
        self.after = nn.ModuleList(Residual(f) for _ in range(options.after_skip))
        self.gate = nn.Linear(k, f)
        self.out = _output_block(f, options)
        self.apply(_init_xavier)
        nn.init.ones_(self.gate.bias)

    def forward(
        self, scalars: Tensor, state: DirectedState | None, edges: Edges
    ) -> tuple[Tensor, DirectedState]:
        """Update the messages of the edges, and sum them at their receivers.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: messages and angles of the last layer; None in the first.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and the new messages, [E, F], with the same angles.
        """
        ends = (self.receive(scalars), self.send(scalars))
        links = edges.links
        if state is None:
            assert self.measure is not None
            messages = edges.sum_ends(*ends, self.measure(edges.pair_basis))
            messages = activate_rows(messages, links)
            angles = self._angles(edges)
            own = self.own(messages)
        else:
            messages, angles = state
            own = edges.sum_ends(*ends, self.own(messages))
        other = activate_rows(self.other(messages), links)
        filtered = links.filter_messages(other, self.filter(edges.pair_basis))
        angular = self.angular(activate_rows(self.down(filtered), links), angles)
        up = self.up(links.filter_messages(angular, angles.envelope))
        joint = activate_rows(own, links) + activate_rows(up, links)
        for block in self.before:
            joint = block(joint, links)
        messages = activate_rows(self.mix(joint), links) + messages
        for block in self.after:
            messages = block(messages, links)
        gate = self.gate(edges.pair_basis) * edges.pair_envelope
        return self.out(edges.sum_messages(links.filter_messages(messages, gate))), DirectedState(
            messages, angles
        )

    def _angles(self, edges: Edges) -> DimeNetAngles:
        assert self.bessel is not None
        triplets = find_triplets(edges, self.reach)
        weight = envelope(edges.pair_lengths, self.reach).unsqueeze(-1)
        orders = self.bessel.orders
        return DimeNetAngles(
            radial=self.bessel(edges.pair_lengths) * weight,
            envelope=weight,
            angular=legendre(triplets.cosines, orders),
            links=triplets.links,
        )


def _init_xavier(module: nn.Module) -> None:
    """Draw weights that preserve the variance through a deep chain of narrow maps."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_normal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _output_block(features: int, options: DimeNetPPOptions) -> nn.Sequential:
    """Build the map from the sum of messages at a node to the change of its scalars."""
    wide = options.out_emb
    layers: list[nn.Module] = [nn.Linear(features, wide, bias=False)]
    for _ in range(options.out_layers):
        layers += [nn.Linear(wide, wide), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(wide, features, bias=False))
