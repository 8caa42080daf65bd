"""The peer of every conv: the same mathematics as PyG's users write it.

``MessagePassing`` subclasses or PyG's own blocks, torch's ``Linear`` on concatenated features of
edges, the basis made once per step, and our trunk around them: element embedding,
``x + conv(LayerNorm(x))``, a sum of contributions of atoms. Widths and numbers of parameters are
ours, so are the smooth envelopes.

Shapes: G graphs, N nodes, E edges.
"""

import math
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from pyg_angles import ALIGNNPeer, DimeNetPPPeer
from pyg_parts import Geometry, Sizes, fade, perceptron
from pyg_scalars import (
    CGCNNPeer,
    EGNNPeer,
    GATPeer,
    GINPeer,
    MFCPeer,
    PNAPeer,
    PNAPlusPeer,
    SAGEPeer,
    SchNetPeer,
)
from pyg_vectors import ETPeer, PaiNNPeer, PNAEqPeer, TensorNetPeer
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.utils import scatter


class PeerNet(nn.Module):
    """Energies, [G, 1], and forces, [N, 3], where asked."""

    def __init__(self, layer: type[nn.Module], sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        width = sizes.features
        self.embedding = nn.Embedding(119, width)
        frequencies = torch.arange(1, sizes.basis + 1) * math.pi / sizes.cutoff
        self.register_buffer("frequencies", frequencies)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(sizes.layers))
        places = (replace(sizes, layer=place) for place in range(sizes.layers))
        self.convs = nn.ModuleList(layer(place) for place in places)
        self.head = perceptron(width, width, 1)

    def forward(self, data: Batch, forces: bool = False) -> tuple[Tensor, Tensor | None]:
        positions = data.pos.detach().requires_grad_(True) if forces else data.pos
        geometry = self.geometry(positions, data)
        scalars = self.embedding(data.z)
        state = None
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
    """Return the Huber loss of energies in units of their spread, and of forces beside them."""
    mean, std = scale
    energy, result = net(data, forces)
    loss = F.huber_loss(energy, (data.energy - mean) / std)
    if result is None:
        return loss
    return 0.5 * (loss + F.huber_loss(result * std, data.forces))


PEERS: dict[str, type[nn.Module]] = {
    "gin": GINPeer,
    "sage": SAGEPeer,
    "gat": GATPeer,
    "mfc": MFCPeer,
    "cgcnn": CGCNNPeer,
    "pna": PNAPeer,
    "pnaplus": PNAPlusPeer,
    "schnet": SchNetPeer,
    "dimenetpp": DimeNetPPPeer,
    "egnn": EGNNPeer,
    "painn": PaiNNPeer,
    "pnaeq": PNAEqPeer,
    "et": ETPeer,
    "alignn": ALIGNNPeer,
    "tensornet": TensorNetPeer,
}
if find_spec("e3nn"):  # extra [bench]
    from pyg_mace import MACEPeer

    PEERS["mace"] = MACEPeer
