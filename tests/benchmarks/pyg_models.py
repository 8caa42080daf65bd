"""The peer of every conv: the same mathematics as PyG's users write it.

``MessagePassing`` subclasses or PyG's own blocks, torch's ``Linear`` on concatenated features of
edges, the basis made once per step, and our trunk around them: element embedding,
``x + conv(LayerNorm(x))``, a sum of contributions of atoms. Widths and numbers of parameters are
ours, so are the smooth envelopes.

Shapes: G graphs, N nodes, E edges, F features, K radial functions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.models.schnet import ShiftedSoftplus
from torch_geometric.utils import scatter


@dataclass(frozen=True)
class Sizes:
    """What every peer is built from."""

    features: int
    basis: int
    cutoff: float
    layers: int
    degree: float
    layer: int = 0


@dataclass(frozen=True)
class Geometry:
    """What every peer reads of the edges: lengths [E], the rest [E, ...]."""

    edge_index: Tensor
    lengths: Tensor
    directions: Tensor
    basis: Tensor
    envelope: Tensor


def perceptron(*widths: int, activation: Callable[[], nn.Module] = nn.SiLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


class PeerNet(nn.Module):
    """Energies, [G, 1], and forces, [N, 3], where asked."""

    def __init__(self, layer: type[nn.Module], sizes: Sizes) -> None:
        super().__init__()
        self.sizes, width = sizes, sizes.features
        self.embedding = nn.Embedding(119, width)
        frequencies = torch.arange(1, sizes.basis + 1) * math.pi / sizes.cutoff
        self.register_buffer("frequencies", frequencies)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(sizes.layers))
        places = (Sizes(**{**vars(sizes), "layer": place}) for place in range(sizes.layers))
        self.convs = nn.ModuleList(layer(place) for place in places)
        self.head = perceptron(width, width, 1)

    def forward(self, data: Batch, forces: bool = False) -> tuple[Tensor, Tensor | None]:
        positions = data.pos.detach().requires_grad_(True) if forces else data.pos
        geometry = self.geometry(positions, data)
        scalars, state = self.embedding(data.z), None
        for norm, conv in zip(self.norms, self.convs, strict=True):
            change, state = conv(norm(scalars), state, geometry)
            scalars = scalars + change
        energy = scatter(self.head(scalars), data.batch, dim=0, dim_size=data.num_graphs)
        if not forces:
            return energy, None
        (slope,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        return energy, -slope

    def geometry(self, positions: Tensor, data: Batch) -> Geometry:
        sender, receiver = data.edge_index
        vectors = positions[receiver] - positions[sender] + data.edge_shift
        lengths = vectors.norm(dim=-1)
        far = lengths.unsqueeze(-1)
        cutoff = self.sizes.cutoff
        basis = math.sqrt(2.0 / cutoff) * torch.sin(self.frequencies * far) / far
        return Geometry(data.edge_index, lengths, vectors / far, basis, fade(far, cutoff))


def fade(lengths: Tensor, cutoff: float) -> Tensor:
    """Our envelope (Gasteiger et al., 2020, eq. 8)."""
    x = (lengths / cutoff).clamp(max=1.0)
    return 1 - 28 * x**6 + 48 * x**7 - 21 * x**8


class SchNetPeer(MessagePassing):
    """As PyG's ``CFConv`` and ``InteractionBlock``, which know a cosine cutoff only."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(aggr="add")
        width = sizes.features
        self.filter = perceptron(sizes.basis, width, width, activation=ShiftedSoftplus)
        self.into = nn.Linear(width, width, bias=False)
        self.out = perceptron(width, width, width, activation=ShiftedSoftplus)

    def forward(self, x: Tensor, state: None, edges: Geometry) -> tuple[Tensor, None]:
        filters = self.filter(edges.basis) * edges.envelope
        return self.out(self.propagate(edges.edge_index, x=self.into(x), filters=filters)), None

    def message(self, x_j: Tensor, filters: Tensor) -> Tensor:
        return x_j * filters


class EGNNPeer(MessagePassing):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(aggr="add")
        width = sizes.features
        self.edge = nn.Sequential(*perceptron(2 * width + sizes.basis, width, width), nn.SiLU())
        self.gate = nn.Linear(width, 1)
        self.update_ = perceptron(2 * width, width, width)

    def forward(self, x: Tensor, state: None, edges: Geometry) -> tuple[Tensor, None]:
        heard = self.propagate(edges.edge_index, x=x, basis=edges.basis, envelope=edges.envelope)
        return self.update_(torch.cat((x, heard), dim=-1)), None

    def message(self, x_i: Tensor, x_j: Tensor, basis: Tensor, envelope: Tensor) -> Tensor:
        message = self.edge(torch.cat((x_i, x_j, basis), dim=-1))
        return message * self.gate(message).sigmoid() * envelope


class PaiNNPeer(MessagePassing):
    """Vectors are [N, 3, F] and start as zeros, as in the paper's own code."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(aggr="add", node_dim=0)
        width = sizes.features
        self.send = perceptron(width, width, 3 * width)
        self.filter = nn.Linear(sizes.basis, 3 * width)
        self.mix = nn.Linear(width, 2 * width, bias=False)
        self.talk = perceptron(2 * width, width, 3 * width)

    def forward(self, x: Tensor, state: Tensor | None, edges: Geometry) -> tuple[Tensor, Tensor]:
        vectors = x.new_zeros(x.shape[0], 3, x.shape[1]) if state is None else state
        heard, felt = self.propagate(
            edges.edge_index,
            sent=self.send(x),
            vectors=vectors,
            filters=self.filter(edges.basis) * edges.envelope,
            directions=edges.directions,
        )
        answer, vectors = update_vectors(self, x + heard, vectors + felt)
        return heard + answer, vectors

    def message(
        self, sent_j: Tensor, vectors_j: Tensor, filters: Tensor, directions: Tensor
    ) -> tuple[Tensor, Tensor]:
        scalars, along, carry = (sent_j * filters).chunk(3, dim=-1)
        arrows = along.unsqueeze(1) * directions.unsqueeze(2)
        return scalars, arrows + carry.unsqueeze(1) * vectors_j

    def aggregate(
        self, inputs: tuple[Tensor, Tensor], index: Tensor, dim_size: int
    ) -> tuple[Tensor, Tensor]:
        return summed(inputs[0], index, dim_size), summed(inputs[1], index, dim_size)

    def update(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return inputs


def summed(values: Tensor, index: Tensor, size: int) -> Tensor:
    return scatter(values, index, dim=0, dim_size=size, reduce="sum")


def update_vectors(conv: Any, scalars: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """PaiNN's update block."""
    left, right = conv.mix(vectors).chunk(2, dim=-1)
    length = (right.square().sum(dim=1) + 1e-8).sqrt()
    scale, mixed, own = conv.talk(torch.cat((scalars, length), dim=-1)).chunk(3, dim=-1)
    return own + mixed * (left * right).sum(dim=1), vectors + left * scale.unsqueeze(1)


def as_batch(ours: Any) -> Batch:
    """Give one of our batches as PyG has it."""
    parts = []
    for row in range(ours.num_graphs):
        nodes = (ours.graph_of_node == row).nonzero().flatten()
        chosen = ours.graph_of_node[ours.edge_index[0]] == row
        parts.append(
            Data(
                z=ours.numbers[nodes],
                pos=ours.positions[nodes],
                edge_index=ours.edge_index[:, chosen] - nodes[0],
                edge_shift=ours.edge_shift[chosen],
                energy=ours.targets["energy"][row : row + 1].float(),
                forces=ours.targets["forces"][nodes].float(),
            )
        )
    return Batch.from_data_list(parts)


def loss_of(net: PeerNet, data: Batch, scale: tuple[float, float], forces: bool) -> Tensor:
    """Give the Huber loss of energies in units of their spread, and of forces beside them."""
    mean, std = scale
    energy, found = net(data, forces)
    loss = F.huber_loss(energy, (data.energy - mean) / std)
    if found is None:
        return loss
    return 0.5 * (loss + F.huber_loss(found * std, data.forces))


PEERS: dict[str, type[nn.Module]] = {
    "schnet": SchNetPeer,
    "egnn": EGNNPeer,
    "painn": PaiNNPeer,
}
