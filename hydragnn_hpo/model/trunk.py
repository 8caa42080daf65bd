"""The trunk: element embedding and rounds of message passing.

Shapes: N nodes, E edges, F features.
"""

from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.model import MAX_ELEMENT, ModelConfig
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.model.basis import BASES
from hydragnn_hpo.model.convs import CONVS
from hydragnn_hpo.model.cutoff import envelope
from hydragnn_hpo.model.edges import Edges, pair_vectors


class Trunk(nn.Module):
    """Node features from elements and geometry.

    Each round is ``scalars + conv(norm(scalars))``. The norm acts on one node alone
    (LayerNorm), so that batches and ranks cannot change the mathematics (Laws 1 and 7).
    """

    def __init__(self, config: ModelConfig, *, vectors: bool, degree: float = 12.0) -> None:
        """Build the layers; parameters come from torch's global generator.

        Args:
            config: the trunk.
            vectors: whether a head reads vectors.
            degree: mean number of neighbours in the training data.
        """
        super().__init__()
        self.cutoff, self.has_vectors = config.cutoff, config.spec.vectors
        self.embedding = nn.Embedding(MAX_ELEMENT + 1, config.features)
        self.basis = BASES[config.basis](config.basis_size, config.cutoff)
        conv, options = CONVS[config.conv], config.conv_options
        self.norms = nn.ModuleList(nn.LayerNorm(config.features) for _ in range(config.layers))
        self.convs = nn.ModuleList(
            conv(dimensions, options) for dimensions in config.dimensions(vectors, degree)
        )

    def edges(self, batch: Batch) -> Edges:
        """Expand the geometry once for all layers."""
        links, vectors = pair_vectors(batch)
        lengths = torch.linalg.vector_norm(vectors, dim=-1)
        directions = vectors / lengths.clamp(min=1e-6).unsqueeze(-1)
        if links.sender.shape[0] > lengths.shape[0]:
            directions = torch.cat((directions, -directions))
        return Edges(
            links=links,
            directions=directions,
            pair_lengths=lengths,
            pair_basis=self.basis(lengths),
            pair_envelope=envelope(lengths, self.cutoff).unsqueeze(-1),
        )

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Give scalars, [N, F], and vectors, [N, 3, F] (zeros if the conv has none)."""
        edges = self.edges(batch)
        scalars: Tensor = self.embedding(batch.numbers)
        state: Any = None
        for norm, conv in zip(self.norms, self.convs, strict=True):
            change, state = conv(norm(scalars), state, edges)
            scalars = scalars + change
        if self.has_vectors:
            return scalars, state[:, :3]
        vectors = torch.zeros((), dtype=scalars.dtype, device=scalars.device)
        return scalars, vectors.expand(scalars.shape[0], 3, scalars.shape[1])
