"""Peers of the convs that carry vectors, as PyG's users write them.

Shapes: N nodes, E edges, F features. Vectors are [N, 3, F].
"""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from pyg_parts import Geometry, Sizes, perceptron, summed
from pyg_scalars import PNAAggregation
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

Known = Optional[Tensor]  # noqa: UP045, PyG reads no other spelling


def update_vectors(conv: Any, scalars: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """PaiNN's update block."""
    left, right = conv.mix(vectors).chunk(2, dim=-1)
    length = (right.square().sum(dim=1) + 1e-8).sqrt()
    scale, mixed, own = conv.context(torch.cat((scalars, length), dim=-1)).chunk(3, dim=-1)
    return own + mixed * (left * right).sum(dim=1), vectors + left * scale.unsqueeze(1)


class VectorPeer(MessagePassing):
    """Vectors are [N, 3, F]; the first layer has none to send on, and nothing for them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(aggr=None, node_dim=0)
        width = sizes.features
        self.parts = 3 if sizes.layer else 2
        self.filter = nn.Linear(sizes.basis, self.parts * width)
        self.mix = nn.Linear(width, 2 * width, bias=False)
        self.context = perceptron(2 * width, width, 3 * width)

    def finish(
        self, x: Tensor, state: Tensor | None, messages: Tensor, felt: Tensor
    ) -> tuple[Tensor, Tensor]:
        vectors = felt if state is None else state + felt
        answer, vectors = update_vectors(self, x + messages, vectors)
        return messages + answer, vectors

    def aggregate(
        self, inputs: tuple[Tensor, Tensor], index: Tensor, dim_size: int
    ) -> tuple[Tensor, Tensor]:
        return summed(inputs[0], index, dim_size), summed(inputs[1], index, dim_size)

    def update(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return inputs


class PaiNNPeer(VectorPeer):
    """PaiNN as PyG's users write it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        width = sizes.features
        self.send = perceptron(width, width, self.parts * width)

    def forward(self, x: Tensor, state: Tensor | None, edges: Geometry) -> tuple[Tensor, Tensor]:
        messages, felt = self.propagate(
            edges.edge_index,
            sent=self.send(x),
            vectors=state,
            filters=self.filter(edges.basis) * edges.envelope,
            directions=edges.directions,
        )
        return self.finish(x, state, messages, felt)

    def message(
        self, sent_j: Tensor, vectors_j: Known, filters: Tensor, directions: Tensor
    ) -> tuple[Tensor, Tensor]:
        scalars, along, *carry = (sent_j * filters).chunk(self.parts, dim=-1)
        arrows = along.unsqueeze(1) * directions.unsqueeze(2)
        if vectors_j is None:
            return scalars, arrows
        return scalars, arrows + carry[0].unsqueeze(1) * vectors_j


class PNAEqPeer(VectorPeer):
    """Scalars are aggregated as in PNA, vectors as in PaiNN."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        width = sizes.features
        self.send = perceptron(width, width, self.parts * width)
        self.receive = nn.Linear(width, width)
        self.gather = PNAAggregation(sizes)

    def forward(self, x: Tensor, state: Tensor | None, edges: Geometry) -> tuple[Tensor, Tensor]:
        messages, felt = self.propagate(
            edges.edge_index,
            sent=self.send(x),
            own=self.receive(x),
            vectors=state,
            filters=self.filter(edges.basis),
            directions=edges.directions,
            envelope=edges.envelope,
        )
        return self.finish(x, state, messages, felt)

    def message(
        self,
        sent_j: Tensor,
        own_i: Tensor,
        vectors_j: Known,
        filters: Tensor,
        directions: Tensor,
        envelope: Tensor,
    ) -> tuple[Tensor, Tensor]:
        message, point, *carry = sent_j.chunk(self.parts, dim=-1)
        to_scalar, along, *through = filters.chunk(self.parts, dim=-1)
        arrows = (point * along * envelope).unsqueeze(1) * directions.unsqueeze(2)
        scalars = (own_i + message) * to_scalar
        if vectors_j is None:
            return scalars, arrows
        return scalars, arrows + (carry[0] * through[0] * envelope).unsqueeze(1) * vectors_j

    def aggregate(  # type: ignore[override]  # PyG passes what each one names
        self, inputs: tuple[Tensor, Tensor], envelope: Tensor, index: Tensor, dim_size: int
    ) -> tuple[Tensor, Tensor]:
        scalars, vectors = inputs
        return self.gather(scalars, envelope, index, dim_size), summed(vectors, index, dim_size)


class ETPeer(VectorPeer):
    """As PyG's ``ViS_MP``: attention without a softmax, over what PaiNN sends; 1 is added."""

    def __init__(self, sizes: Sizes, heads: int = 8) -> None:
        super().__init__(sizes)
        width = sizes.features
        self.heads = heads
        self.scale = sizes.degree**-0.5
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.near = nn.Linear(sizes.basis, width)
        self.send = nn.Linear(width, self.parts * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, state: Tensor | None, edges: Geometry) -> tuple[Tensor, Tensor]:
        shape = (-1, self.heads, x.shape[1] // self.heads)
        messages, felt = self.propagate(
            edges.edge_index,
            query=self.query(x).view(shape),
            key=self.key(x).view(shape),
            near=F.silu(self.near(edges.basis)).view(shape),
            sent=self.send(x) * self.scale,
            vectors=state,
            filters=self.filter(edges.basis) * edges.envelope,
            directions=edges.directions,
        )
        return self.finish(x, state, self.out(messages), felt)

    def message(
        self,
        query_i: Tensor,
        key_j: Tensor,
        near: Tensor,
        sent_j: Tensor,
        vectors_j: Known,
        filters: Tensor,
        directions: Tensor,
    ) -> tuple[Tensor, Tensor]:
        attention = 1 + F.silu((query_i * key_j * near).sum(dim=-1, keepdim=True))
        scalars, along, *carry = (sent_j * filters).chunk(self.parts, dim=-1)
        messages = (scalars.view_as(near) * attention).flatten(1)
        arrows = along.unsqueeze(1) * directions.unsqueeze(2)
        if vectors_j is None:
            return messages, arrows
        return messages, arrows + carry[0].unsqueeze(1) * vectors_j


def split_tensors(tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split tensors, [N, F, 3, 3], into a multiple of the identity, A and S."""
    one = torch.eye(3, dtype=tensors.dtype, device=tensors.device)
    scalar = tensors.diagonal(dim1=2, dim2=3).mean(-1)[..., None, None] * one
    turned = tensors.transpose(2, 3)
    return scalar, (tensors - turned) / 2, (tensors + turned) / 2 - scalar


def square_norms(tensors: Tensor) -> Tensor:
    return tensors.square().sum(dim=(2, 3))


class TensorNetPeer(MessagePassing):
    """TensorNet as its authors write it, with tensors [N, F, 3, 3]; mixes and filters are ours."""

    def __init__(self, sizes: Sizes, radial: int = 64) -> None:
        super().__init__(aggr=None, node_dim=0)
        width = sizes.features
        self.first = sizes.layer == 0
        if self.first:
            self.send = nn.Linear(width, width)
        self.filter = (
            nn.Linear(sizes.basis, 3 * width)
            if self.first
            else perceptron(sizes.basis, radial, 3 * width)
        )
        self.factors = perceptron((2 if self.first else 1) * width, width, 3 * width)
        maps = 3 if self.first else 6
        self.mixes = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(maps))
        self.read = perceptron(3 * width, width, width)

    def forward(self, x: Tensor, state: Tensor | None, edges: Geometry) -> tuple[Tensor, Tensor]:
        filters = self.filter(edges.basis) * edges.envelope
        tensors = (
            self.embed(x, filters, edges) if state is None else self.meet(x, state, filters, edges)
        )
        norms = torch.cat([square_norms(part) for part in split_tensors(tensors)], dim=-1)
        return self.read(norms.log1p()), tensors

    def embed(self, x: Tensor, filters: Tensor, edges: Geometry) -> Tensor:
        ways = edges.directions
        zero = torch.zeros_like(ways[:, 0])
        one, two, three = ways.unbind(1)
        skew = torch.stack((zero, -three, two, three, zero, -one, -two, one, zero), dim=1)
        identity = torch.eye(3, dtype=ways.dtype, device=ways.device)
        parts = (
            identity.expand(len(ways), 3, 3),
            skew.view(-1, 3, 3),
            ways.unsqueeze(2) * ways.unsqueeze(1) - identity / 3,
        )
        along = [
            f[..., None, None] * p[:, None]
            for f, p in zip(filters.chunk(3, -1), parts, strict=True)
        ]
        sums = self.propagate(
            edges.edge_index, sent=self.send(x)[..., None, None], filters=sum(along)
        )
        known = torch.cat((x, square_norms(sums).log1p()), dim=-1)
        return self.mix(1 + self.factors(known), sums, 0)

    def meet(self, x: Tensor, state: Tensor, filters: Tensor, edges: Geometry) -> Tensor:
        own = self.mix(1 + self.factors(x), self.bound(state), 0)
        parts = torch.stack(split_tensors(own), dim=1)
        weights = filters.view(len(filters), 3, -1)[..., None, None]
        sums = self.propagate(edges.edge_index, sent=parts, filters=weights).sum(dim=1)
        change = self.mix(None, self.bound(own @ sums + sums @ own), 3)
        return state + change + change @ change

    def bound(self, tensors: Tensor) -> Tensor:
        return tensors / (1 + square_norms(tensors))[..., None, None]

    def mix(self, factors: Known, tensors: Tensor, first: int) -> Tensor:
        maps = self.mixes[first : first + 3]
        parts = [
            mix(part.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            for mix, part in zip(maps, split_tensors(tensors), strict=True)
        ]
        if factors is None:
            return parts[0] + parts[1] + parts[2]
        scales = factors.chunk(3, dim=-1)
        return sum(f[..., None, None] * part for f, part in zip(scales, parts, strict=True))

    def message(self, sent_j: Tensor, filters: Tensor) -> Tensor:
        return sent_j * filters

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return summed(inputs, index, dim_size)
