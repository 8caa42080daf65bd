"""Polarizable interaction convolution: scalars and vectors talk to each other.

Shapes: N nodes, E edges, F features, K radial functions. Vectors are [N, 3, F].
"""

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions, PaiNNOptions
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
        weights = self.filter(edges.basis) * edges.envelope
        to_scalar, along, through = (self.send(scalars)[edges.sender] * weights).chunk(3, dim=-1)
        arrows = edges.directions.unsqueeze(-1) * along.unsqueeze(-2)
        if vectors is not None:
            arrows = torch.addcmul(arrows, vectors[edges.sender], through.unsqueeze(-2))
        heard = torch.zeros_like(scalars).index_add(0, edges.receiver, to_scalar)
        felt = arrows.new_zeros(scalars.shape[0], 3, scalars.shape[1])
        felt = felt.index_add(0, edges.receiver, arrows)
        return heard, felt if vectors is None else vectors + felt

    def _update(self, scalars: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.mix(vectors).chunk(2, dim=-1)
        length = (right.square().sum(dim=1) + 1e-8).sqrt()
        scale, mixed, own = self.update(torch.cat((scalars, length), dim=-1)).chunk(3, dim=-1)
        inner = (left * right).sum(dim=1)
        return own + mixed * inner, vectors + left * scale.unsqueeze(1)
