"""Tell a model what is known of whole structures: charge, spin, temperature.

Shapes: G graphs, N nodes, A attributes, F features.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model.layers import mlp


class GraphAttributes(nn.Module):
    """The attributes of a batch's graphs, centred and scaled as in the training data."""

    mean: Tensor
    std: Tensor

    def __init__(self, names: tuple[str, ...], stats: Mapping[str, Mapping[str, Any]]) -> None:
        """Take centre and spread over, as buffers; 0 and 1 where they are not known."""
        super().__init__()
        self.names = names
        found = [stats.get(name, {}) for name in names]
        self.register_buffer("mean", torch.tensor([float(s.get("mean", 0.0)) for s in found]))
        spread = [float(s.get("std", 1.0)) or 1.0 for s in found]
        self.register_buffer("std", torch.tensor(spread))

    def forward(self, batch: Batch) -> Tensor:
        """Give them side by side, [G, A].

        Raises:
            ConfigError: the graphs lack one.
        """
        for name in self.names:
            if name not in batch.attributes:
                raise ConfigError(
                    f"the model is conditioned on '{name}', which the structures do not have: add "
                    "it to them, and to the attributes of their card."
                )
        values = torch.stack([batch.attributes[name] for name in self.names], dim=-1)
        return (values - self.mean) / self.std


class ConcatConditioning(nn.Module):
    """Mix the attributes into the embedding of every node: ``concat``."""

    def __init__(self, features: int, told: int) -> None:
        """Build the linear map back to the width."""
        super().__init__()
        self.map = nn.Linear(features + told, features)

    def forward(self, scalars: Tensor, known: Tensor, batch: Batch) -> Tensor:
        """Give the new embedding, [N, F]."""
        per_node = known.index_select(0, batch.graph_of_node)
        result: Tensor = self.map(torch.cat((scalars, per_node), dim=-1))
        return result


class FiLM(nn.Module):
    """Scale and shift the channels of a round by what is known.

    Source: Perez et al. (2018), arXiv:1709.07871, eq. 2.
    """

    def __init__(self, features: int, told: int) -> None:
        """Build the perceptron that makes scale and shift."""
        super().__init__()
        self.map = mlp((told, features, 2 * features))

    def forward(self, scalars: Tensor, known: Tensor, batch: Batch) -> Tensor:
        """Give the changed channels, [N, F]."""
        per_node = self.map(known).index_select(0, batch.graph_of_node)
        scale, shift = per_node.chunk(2, dim=-1)
        result: Tensor = scalars * (1.0 + scale) + shift
        return result
