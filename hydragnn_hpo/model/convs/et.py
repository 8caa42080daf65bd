"""Equivariant transformer: attention along the edges without a softmax, with a vector channel.

Shapes: N nodes, E edges, P rows of a filter (see ``messages``),
F features, H heads; head h owns the h-th of H equal parts of the features.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.vector import ETOptions, sent_channels
from hydragnn_hpo.model.convs.painn import RadialFilters, VectorUpdate, send_vectors
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.messages import attention_sum, edge_scores


class ETConv(nn.Module):
    """Attend to neighbours by dot products that include a filter of the distance.

    There is no softmax: a neighbour's weight is ``1 + silu(query . key)`` times the envelope, so
    it neither depends on the other neighbours nor jumps when one of them leaves. The added 1 makes
    an untrained net a plain sum over neighbours; the update block is PaiNN's. Measurements showed
    that both help.

    Source: Thoelke and De Fabritiis (2022), arXiv:2202.02541, eqs. 6-8, which have no 1; Schuett
    et al. (2021), arXiv:2102.03150, eqs. 9 and 10.
    """

    scale: Tensor

    def __init__(self, dimensions: Dimensions, options: ETOptions) -> None:
        """Build one layer; the heads divide the features."""
        super().__init__()
        features, self.heads = dimensions.features, options.heads
        self.register_buffer("scale", torch.tensor(max(dimensions.degree, 1.0) ** -0.5))
        self.query = nn.Linear(features, features)
        self.key = nn.Linear(features, features)
        self.near = nn.Linear(dimensions.basis_size, features)
        self.sent = sent_channels(dimensions)
        self.send = nn.Linear(features, self.sent * features)
        self.filters = RadialFilters(dimensions.basis_size, features, self.sent)
        self.out = nn.Linear(features, features)
        self.update = VectorUpdate(features, nn.SiLU)

    def forward(self, scalars: Tensor, state: Tensor | None, edges: Edges) -> tuple[Tensor, Tensor]:
        """Attend to the neighbours, send vectors, and mix both in each node.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: vectors of the nodes, [N, 3, F]; None in the first layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and the new vectors, [N, 3, F].
        """
        near = F.silu(self.near(edges.pair_basis))
        match = edge_scores(self.query(scalars), self.key(scalars), near, edges.links, self.heads)
        to_scalar, *to_vectors = self.filters(edges)
        scalar_values, *vector_values = (self.send(scalars) * self.scale).chunk(self.sent, dim=-1)
        message = self.out(
            attention_sum(scalar_values, to_scalar, 1.0 + F.silu(match), edges.links)
        )
        vectors = send_vectors(state, vector_values, to_vectors, edges)
        change, vectors = self.update(scalars + message, vectors)
        return message + change, vectors
