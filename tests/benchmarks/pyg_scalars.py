"""Peers of the convs that carry scalars only, as PyG's users write them.

Shapes: N nodes, E edges, F features, H heads.
"""

import math

import torch
import torch.nn.functional as F
from pyg_parts import Geometry, Sizes, perceptron, summed
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.models.schnet import ShiftedSoftplus
from torch_geometric.utils import add_self_loops, scatter


class GINPeer(MessagePassing):
    """As PyG's ``GINConv``, whose messages carry no weights."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(aggr="add")
        width = sizes.features
        self.eps = nn.Parameter(torch.zeros(1))
        self.nn = perceptron(width, width, width)

    def forward(self, x: Tensor, state: None, edges: Geometry) -> tuple[Tensor, None]:
        messages = self.propagate(edges.edge_index, x=x, envelope=edges.envelope)
        return self.nn(messages + (1 + self.eps) * x), None

    def message(self, x_j: Tensor, envelope: Tensor) -> Tensor:
        return x_j * envelope


class SAGEPeer(MessagePassing):
    """As PyG's ``SAGEConv`` with a smooth mean."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(aggr="add")
        self.own = nn.Linear(sizes.features, sizes.features, bias=False)
        self.neighbors = nn.Linear(sizes.features, sizes.features)

    def forward(self, x: Tensor, state: None, edges: Geometry) -> tuple[Tensor, None]:
        messages = self.propagate(edges.edge_index, x=x, envelope=edges.envelope)
        degree = summed(edges.envelope, edges.edge_index[1], x.shape[0])
        return F.silu(self.own(x) + self.neighbors(messages / (1 + degree))), None

    def message(self, x_j: Tensor, envelope: Tensor) -> Tensor:
        return x_j * envelope


class GATPeer(MessagePassing):
    """As PyG's ``GATv2Conv`` with self-loops; a smooth ramp, the envelope in the softmax."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(aggr="add", node_dim=0)
        width = sizes.features
        self.heads = 4
        self.send = nn.Linear(width, width)
        self.receive = nn.Linear(width, width)
        self.edge = nn.Linear(sizes.basis, width, bias=False)
        self.attention = nn.Parameter(torch.randn(1, self.heads, width // self.heads) / 4)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, state: None, edges: Geometry) -> tuple[Tensor, None]:
        count = x.shape[0]
        shape = (-1, self.heads, x.shape[1] // self.heads)
        index, _ = add_self_loops(edges.edge_index, num_nodes=count)
        loops = torch.cat((edges.envelope, x.new_ones(count, 1)))
        basis = torch.cat((edges.basis, x.new_zeros(count, edges.basis.shape[1])))
        sent = self.send(x).view(shape)
        received = self.receive(x).view(shape)
        alpha = self.edge_updater(
            index, x=(sent, received), basis=self.edge(basis).view(shape), envelope=loops
        )
        messages = self.propagate(index, x=(sent, received), alpha=alpha)
        return F.silu(messages.flatten(1) + self.bias), None

    def edge_update(
        self,
        x_j: Tensor,
        x_i: Tensor,
        basis: Tensor,
        envelope: Tensor,
        index: Tensor,
        dim_size: int,
    ) -> Tensor:
        met = x_i + x_j + basis
        met = torch.lerp(F.silu(met), met, 0.2)
        score = (met * self.attention).sum(dim=-1)
        top = scatter(score.detach(), index, dim=0, dim_size=dim_size, reduce="max")
        weight = (score - top.index_select(0, index)).exp() * envelope
        return weight / summed(weight, index, dim_size).index_select(0, index)

    def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
        return x_j * alpha.unsqueeze(-1)


class MFCPeer(MessagePassing):
    """As PyG's ``MFConv``, which goes through the degrees; neighbouring ones are blended."""

    def __init__(self, sizes: Sizes, max_degree: int = 10) -> None:
        super().__init__(aggr="add")
        width = sizes.features
        degrees = range(max_degree + 1)
        self.neighbors = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in degrees)
        self.own = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in degrees)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, state: None, edges: Geometry) -> tuple[Tensor, None]:
        messages = self.propagate(edges.edge_index, x=x, envelope=edges.envelope)
        degree = summed(edges.envelope, edges.edge_index[1], x.shape[0])
        degree = degree.clamp(max=len(self.own) - 1)
        out = torch.zeros_like(x)
        for place, (of_neighbors, of_own) in enumerate(zip(self.neighbors, self.own, strict=True)):
            far = (degree - place).abs()
            rows = (far < 1).flatten().nonzero().flatten()
            near = 1 - far[rows]
            share = near**3 * (10 - 15 * near + 6 * near**2)
            message = of_neighbors(messages.index_select(0, rows)) + of_own(x.index_select(0, rows))
            out = out.index_add(0, rows, message * share)
        return F.silu(out + self.bias), None

    def message(self, x_j: Tensor, envelope: Tensor) -> Tensor:
        return x_j * envelope


class CGCNNPeer(MessagePassing):
    """As PyG's ``CGConv``, with the envelope."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(aggr="add")
        whole = 2 * sizes.features + sizes.basis
        self.lin_f = nn.Linear(whole, sizes.features)
        self.lin_s = nn.Linear(whole, sizes.features)

    def forward(self, x: Tensor, state: None, edges: Geometry) -> tuple[Tensor, None]:
        messages = self.propagate(edges.edge_index, x=x, basis=edges.basis, envelope=edges.envelope)
        return messages, None

    def message(self, x_i: Tensor, x_j: Tensor, basis: Tensor, envelope: Tensor) -> Tensor:
        z = torch.cat((x_i, x_j, basis), dim=-1)
        return self.lin_f(z).sigmoid() * F.softplus(self.lin_s(z)) * envelope


class PNAAggregation(nn.Module):
    """Mean, spread, largest and smallest, each as it is, amplified and attenuated."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.mix = nn.Linear(12 * sizes.features, sizes.features)
        self.typical = math.log(sizes.degree + 2.0)

    def forward(self, messages: Tensor, envelope: Tensor, index: Tensor, size: int) -> Tensor:
        weighted = messages * envelope
        degree = summed(envelope, index, size)
        mean = summed(weighted, index, size) / (1 + degree)
        square = summed(weighted * messages, index, size) / (1 + degree)
        spread = (square - mean.square() + 1e-5).sqrt()
        largest = scatter(weighted, index, dim=0, dim_size=size, reduce="max").clamp(min=0)
        smallest = scatter(weighted, index, dim=0, dim_size=size, reduce="min").clamp(max=0)
        views = torch.cat((mean, spread, largest, smallest), dim=-1)
        scale = torch.log(degree + 2.0) / self.typical
        return self.mix(torch.cat((views, views * scale, views / scale), dim=-1))


class PNAPeer(MessagePassing):
    """As PyG's ``PNAConv`` with one tower, and smooth degrees."""

    filtered = False

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(aggr=None)
        width = sizes.features
        self.before = nn.Linear(2 * width + sizes.basis, width)
        self.filter = perceptron(sizes.basis, width, width) if self.filtered else None
        self.gather = PNAAggregation(sizes)
        self.after = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, state: None, edges: Geometry) -> tuple[Tensor, None]:
        messages = self.propagate(edges.edge_index, x=x, basis=edges.basis, envelope=edges.envelope)
        return self.after(torch.cat((x, messages), dim=-1)), None

    def message(self, x_i: Tensor, x_j: Tensor, basis: Tensor) -> Tensor:
        message = self.before(torch.cat((x_i, x_j, basis), dim=-1))
        return message if self.filter is None else message * self.filter(basis)

    def aggregate(self, inputs: Tensor, envelope: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return self.gather(inputs, envelope, index, dim_size)


class PNAPlusPeer(PNAPeer):
    """With a radial filter on every message."""

    filtered = True


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
        messages = self.propagate(edges.edge_index, x=x, basis=edges.basis, envelope=edges.envelope)
        return self.update_(torch.cat((x, messages), dim=-1)), None

    def message(self, x_i: Tensor, x_j: Tensor, basis: Tensor, envelope: Tensor) -> Tensor:
        message = self.edge(torch.cat((x_i, x_j, basis), dim=-1))
        return message * self.gate(message).sigmoid() * envelope
