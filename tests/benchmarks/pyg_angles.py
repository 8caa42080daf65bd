"""Peers of the convs that see angles, as PyG's users write them.

Shapes: N nodes, E edges, T triplets, F features.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pyg_parts import Geometry, Sizes, fade, perceptron, summed
from scipy.special import spherical_jn
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.models.dimenet import InteractionPPBlock, OutputPPBlock

from hydragnn_hpo.model.triplets import bessel_roots


def triplets(edge_index: Tensor, size: int, short: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edges k -> j and j -> i of all triplets of short edges, as PyG's ``triplets``.

    That one is not used, because it needs ``torch_sparse``. Graphs are molecules: an edge is
    another's reverse where k is i.
    """
    sender, receiver = edge_index
    rows = short.nonzero().flatten()
    by_receiver = rows[torch.argsort(receiver[rows], stable=True)]
    count = torch.bincount(receiver[rows], minlength=size)
    start = count.cumsum(0) - count
    each = count[sender[rows]]
    second = rows.repeat_interleave(each)
    place = torch.arange(len(second)) - (each.cumsum(0) - each).repeat_interleave(each)
    first = by_receiver[start[sender[second]] + place]
    keep = sender[first] != receiver[second]
    return first[keep], second[keep]


def legendre(cosines: Tensor, orders: int) -> Tensor:
    """Give [T, orders]."""
    results = [torch.ones_like(cosines), cosines]
    for n in range(1, orders - 1):
        results.append(((2 * n + 1) * cosines * results[n] - n * results[n - 1]) / (n + 1))
    size = torch.arange(orders, device=cosines.device)
    return torch.stack(results, dim=1) * ((2 * size + 1) / (4 * math.pi)).sqrt()


class Directed(NamedTuple):
    """What is carried from layer to layer."""

    messages: Tensor
    angular: Tensor
    first: Tensor
    second: Tensor
    envelope: Tensor


class SphericalBasis(nn.Module):
    """As PyG's ``SphericalBasisLayer``, which makes its functions by sympy in 12 s, by recurrence.

    Source: Gasteiger et al. (2020), arXiv:2003.03123, eq. 6.
    """

    def __init__(self, orders: int, count: int, cutoff: float) -> None:
        super().__init__()
        roots = bessel_roots(orders, count)
        scale = math.sqrt(2.0) / np.abs(spherical_jn(np.arange(orders)[:, None] + 1, roots))
        self.roots = nn.Buffer(torch.from_numpy(roots).float())
        self.scale = nn.Buffer(torch.from_numpy(scale).float())
        self.cutoff = cutoff

    def forward(self, lengths: Tensor, cosines: Tensor, first: Tensor) -> Tensor:
        """Give [T, orders * count]."""
        far = lengths.view(-1, 1, 1) / self.cutoff
        x = (far * self.roots).clamp(min=0.5)
        orders = self.roots.shape[0]
        results = [torch.sin(x) / x, torch.sin(x) / x**2 - torch.cos(x) / x]
        for n in range(1, orders - 1):
            results.append((2 * n + 1) / x * results[n] - results[n - 1])
        radial = torch.stack([each[:, n] for n, each in enumerate(results)], dim=1)
        radial = radial * self.scale * fade(far, 1.0)
        return (radial[first] * legendre(cosines, orders).unsqueeze(-1)).flatten(1)


class DimeNetPPPeer(nn.Module):
    """PyG's interaction and output block; both ends are heard in every layer, as in ours."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.cutoff = sizes.features, sizes.cutoff
        orders, count, inner = 7, 6, 8
        self.ends = nn.Linear(2 * width, width)
        first = sizes.layer == 0
        self.measure = perceptron(sizes.basis, width, width) if first else None
        self.basis = SphericalBasis(orders, count, sizes.cutoff) if first else None
        self.block = InteractionPPBlock(width, 32, inner, orders, sizes.basis, 1, 2, F.silu)
        self.block.lin_sbf1 = nn.Linear(orders * count, inner, bias=False)
        self.out = OutputPPBlock(sizes.basis, width, 128, width, 3, F.silu, "glorot_orthogonal")

    def forward(
        self, x: Tensor, state: Directed | None, edges: Geometry
    ) -> tuple[Tensor, Directed]:
        sender, receiver = edges.edge_index
        ends = self.ends(torch.cat((x[receiver], x[sender]), dim=-1))
        if state is None:
            state = self.started(ends, edges, len(x))
            ends = torch.zeros_like(ends)
        block, old = self.block, state.messages
        own = F.silu(block.lin_ji(old) + ends)
        messages = F.silu(block.lin_kj(old)) * block.lin_rbf2(block.lin_rbf1(edges.basis))
        messages = F.silu(block.lin_down(messages))
        turned = messages[state.first] * block.lin_sbf2(block.lin_sbf1(state.angular))
        messages = summed(turned, state.second, len(old)) * state.envelope
        new = own + F.silu(block.lin_up(messages))
        for layer in block.layers_before_skip:
            new = layer(new)
        new = F.silu(block.lin(new)) + old
        for layer in block.layers_after_skip:
            new = layer(new)
        change = self.out(new * edges.envelope, edges.basis, receiver, len(x))
        return change, state._replace(messages=new)

    def started(self, ends: Tensor, edges: Geometry, size: int) -> Directed:
        measure, basis = self.measure, self.basis
        assert measure is not None, "only the first layer starts"
        assert basis is not None
        first, second = triplets(edges.edge_index, size, edges.lengths < self.cutoff)
        cosines = -(edges.directions[first] * edges.directions[second]).sum(dim=-1)
        return Directed(
            F.silu(ends + measure(edges.basis)),
            basis(edges.lengths, cosines, first),
            first,
            second,
            fade(edges.lengths.unsqueeze(-1), self.cutoff),
        )


class EdgeGatedPeer(MessagePassing):
    """As PyG's ``ResGatedGraphConv``, with features of edges that change, and gates that add up."""

    def __init__(self, width: int, keeps: bool) -> None:
        super().__init__(aggr="add")
        self.receive = nn.Linear(width, width)
        self.send = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, width, bias=False)
        self.own = nn.Linear(width, width)
        self.value = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.edge_norm = nn.LayerNorm(width) if keeps else None

    def forward(
        self, nodes: Tensor, index: Tensor, along: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        ends = (self.send(nodes), self.receive(nodes))
        met = self.edge_updater(index, ends=ends, gated=self.gate(along))
        gates = met.sigmoid() * weight
        messages = self.propagate(index, values=self.value(nodes), gates=gates)
        messages = messages / (1 + summed(gates, index[1], len(nodes)))
        change = F.silu(self.norm(self.own(nodes) + messages))
        return change, None if self.edge_norm is None else F.silu(self.edge_norm(met))

    def edge_update(self, ends_j: Tensor, ends_i: Tensor, gated: Tensor) -> Tensor:
        return ends_j + ends_i + gated

    def message(self, values_j: Tensor, gates: Tensor) -> Tensor:
        return values_j * gates


class Bonds(NamedTuple):
    """What is carried from layer to layer."""

    bonds: Tensor
    angles: Tensor
    ends: Tensor
    weight: Tensor


class ALIGNNPeer(nn.Module):
    """Edge-gated convolutions on the line graph, then on the graph."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.features
        last = sizes.layer + 1 == sizes.layers
        self.reach, self.orders = 3.5, 8
        first = sizes.layer == 0
        self.measure = perceptron(sizes.basis, width, width) if first else None
        self.bend = nn.Linear(self.orders, width) if first else None
        self.between = EdgeGatedPeer(width, not last)
        self.along = EdgeGatedPeer(width, not last)

    def forward(
        self, x: Tensor, state: Bonds | None, edges: Geometry
    ) -> tuple[Tensor, Bonds | None]:
        bonds, angles, ends, weight = self.started(edges, len(x)) if state is None else state
        change, bent = self.between(bonds, ends, angles, weight)
        bonds = bonds + change
        change, more = self.along(x, edges.edge_index, bonds, edges.envelope)
        if more is None or bent is None:
            return change, None
        return change, Bonds(bonds + more, angles + bent, ends, weight)

    def started(self, edges: Geometry, size: int) -> Bonds:
        assert self.measure is not None, "only the first layer starts"
        assert self.bend is not None
        first, second = triplets(edges.edge_index, size, edges.lengths < self.reach)
        cosines = -(edges.directions[first] * edges.directions[second]).sum(dim=-1)
        near = fade(edges.lengths.unsqueeze(-1), self.reach)
        angles = F.silu(self.bend(legendre(cosines, self.orders)))
        weight = near[first] * near[second]
        return Bonds(self.measure(edges.basis), angles, torch.stack((first, second)), weight)
