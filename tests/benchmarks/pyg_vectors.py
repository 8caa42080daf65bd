"""Peers of the convs that carry vectors, as PyG's users write them.

Shapes: N nodes, E edges, F features. Vectors are [N, 3, F].
"""

from typing import Any

import torch
from pyg_parts import Geometry, Sizes, perceptron, summed
from pyg_scalars import PNAAggregation
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing


def update_vectors(conv: Any, scalars: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """PaiNN's update block."""
    left, right = conv.mix(vectors).chunk(2, dim=-1)
    length = (right.square().sum(dim=1) + 1e-8).sqrt()
    scale, mixed, own = conv.talk(torch.cat((scalars, length), dim=-1)).chunk(3, dim=-1)
    return own + mixed * (left * right).sum(dim=1), vectors + left * scale.unsqueeze(1)


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


class PNAEqPeer(MessagePassing):
    """Scalars are aggregated as in PNA, vectors as in PaiNN."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(aggr=None, node_dim=0)
        width = sizes.features
        self.send = perceptron(width, width, 3 * width)
        self.receive = nn.Linear(width, width)
        self.filter = nn.Linear(sizes.basis, 3 * width)
        self.gather = PNAAggregation(sizes)
        self.mix = nn.Linear(width, 2 * width, bias=False)
        self.talk = perceptron(2 * width, width, 3 * width)

    def forward(self, x: Tensor, state: Tensor | None, edges: Geometry) -> tuple[Tensor, Tensor]:
        vectors = x.new_zeros(x.shape[0], 3, x.shape[1]) if state is None else state
        heard, felt = self.propagate(
            edges.edge_index,
            sent=self.send(x),
            own=self.receive(x),
            vectors=vectors,
            filters=self.filter(edges.basis),
            directions=edges.directions,
            envelope=edges.envelope,
        )
        answer, vectors = update_vectors(self, x + heard, vectors + felt)
        return heard + answer, vectors

    def message(
        self,
        sent_j: Tensor,
        own_i: Tensor,
        vectors_j: Tensor,
        filters: Tensor,
        directions: Tensor,
        envelope: Tensor,
    ) -> tuple[Tensor, Tensor]:
        said, point, carry = sent_j.chunk(3, dim=-1)
        to_scalar, along, through = filters.chunk(3, dim=-1)
        arrows = (point * along * envelope).unsqueeze(1) * directions.unsqueeze(2)
        carried = (carry * through * envelope).unsqueeze(1) * vectors_j
        return (own_i + said) * to_scalar, arrows + carried

    def aggregate(
        self, inputs: tuple[Tensor, Tensor], envelope: Tensor, index: Tensor, dim_size: int
    ) -> tuple[Tensor, Tensor]:
        scalars, vectors = inputs
        return self.gather(scalars, envelope, index, dim_size), summed(vectors, index, dim_size)

    def update(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return inputs
