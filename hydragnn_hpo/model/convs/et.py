"""Equivariant transformer convolution: attention that never jumps, over scalars and vectors.

Shapes: N nodes, E edges, P pairs, F features, K radial functions, H heads. Vectors are [N, 3, F].
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.et import ETOptions
from hydragnn_hpo.config.convs.painn import sent_channels
from hydragnn_hpo.model.edge_attention import attention_sum, edge_scores
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.vectors import RadialFilters, VectorUpdate, send_vectors


class ETConv(nn.Module):
    """Attend to neighbours by dot products in which the distance takes part.

    There is no softmax: a neighbour's weight is ``1 + silu(query . key)`` under the envelope, so
    that it neither depends on the other neighbours nor jumps when one of them leaves. The 1 lets
    a net start as a sum over neighbours, and the update is PaiNN's: both were measured to help.

    Source: Thoelke and De Fabritiis (2022), arXiv:2202.02541, eqs. 6-8, without the 1; Schuett
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
        """Give the change of the scalars, [N, F], and the new vectors, [N, 3, F]."""
        near = F.silu(self.near(edges.pair_basis))
        match = edge_scores(self.query(scalars), self.key(scalars), near, edges.links, self.heads)
        to_scalar, *to_vectors = self.filters(edges)
        say, *turn = (self.send(scalars) * self.scale).chunk(self.sent, dim=-1)
        heard = self.out(attention_sum(say, to_scalar, 1.0 + F.silu(match), edges.links))
        vectors = send_vectors(state, turn, to_vectors, edges)
        answer, vectors = self.update(scalars + heard, vectors)
        return heard + answer, vectors
