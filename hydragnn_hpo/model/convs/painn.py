"""Polarizable interaction convolution: scalars and vectors talk to each other.

Shapes: N nodes, E edges, F features, K radial functions. Vectors are [N, 3, F].
"""

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.painn import PaiNNOptions
from hydragnn_hpo.model.activation import ShiftedSoftplus
from hydragnn_hpo.model.edges import Edges

ACTIVATIONS: dict[str, type[nn.Module]] = {"silu": nn.SiLU, "ssp": ShiftedSoftplus}


class PaiNNConv(nn.Module):
    """One message block and one update block.

    Scalars are invariant under rotation, vectors turn with the structure.
    Source: Schuett et al. (2021), arXiv:2102.03150, eqs. 7-10.
    """

    def __init__(self, dimensions: Dimensions, options: PaiNNOptions) -> None:
        """Build one layer."""
        super().__init__()
        features, activation = dimensions.features, ACTIVATIONS[options.activation]
        self.send = nn.Sequential(
            nn.Linear(features, features), activation(), nn.Linear(features, 3 * features)
        )
        self.filter = nn.Linear(dimensions.basis_size, 3 * features)
        self.mix = nn.Linear(features, 2 * features, bias=False)
        self.update = nn.Sequential(
            nn.Linear(2 * features, features), activation(), nn.Linear(features, 3 * features)
        )

    def forward(
        self, scalars: Tensor, vectors: Tensor | None, edges: Edges
    ) -> tuple[Tensor, Tensor]:
        """Give the change of the scalars, [N, F], and the new vectors, [N, 3, F]."""
        heard, vectors = self._message(scalars, vectors, edges)
        answer, vectors = self._update(scalars + heard, vectors)
        return heard + answer, vectors

    def _message(
        self, scalars: Tensor, vectors: Tensor | None, edges: Edges
    ) -> tuple[Tensor, Tensor]:
        filters = self.filter(edges.pair_basis) * edges.pair_envelope
        to_scalar, along, through = filters.chunk(3, dim=-1)
        say, point, carry = self.send(scalars).chunk(3, dim=-1)
        heard = edges.filtered(say, to_scalar)
        felt = edges.spread(edges.at_sender(point) * edges.both(along), edges.directions)
        if vectors is None:
            return heard, felt
        carried = vectors * carry.unsqueeze(1)
        return heard, vectors + felt + edges.filtered(carried, through)

    def _update(self, scalars: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.mix(vectors).chunk(2, dim=-1)
        length = (right.square().sum(dim=1) + 1e-8).sqrt()
        scale, mixed, own = self.update(torch.cat((scalars, length), dim=-1)).chunk(3, dim=-1)
        inner = (left * right).sum(dim=1)
        return own + mixed * inner, vectors + left * scale.unsqueeze(1)
