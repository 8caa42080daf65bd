"""Norms that look at one node, or at one graph: never at a batch (Laws 1 and 7).

Shapes: G graphs, N nodes, F features.
"""

import torch
from torch import Tensor, nn

from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.model.pooling import pool_mean


class NodeNorm(nn.Module):
    """A norm over the channels of each node: torch's own."""

    def __init__(self, norm: nn.Module) -> None:
        """Wrap it, so that all norms are called alike."""
        super().__init__()
        self.norm = norm

    def forward(self, values: Tensor, batch: Batch) -> Tensor:
        """Normalise, [N, F]."""
        result: Tensor = self.norm(values)
        return result


class GraphNorm(nn.Module):
    """Centre and scale each channel over the nodes of one graph; how much is learned.

    Source: Cai et al. (2021), arXiv:2009.03294, eq. 6.
    """

    def __init__(self, features: int) -> None:
        """Start as a full norm."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.keep = nn.Parameter(torch.ones(features))

    def forward(self, values: Tensor, batch: Batch) -> Tensor:
        """Normalise, [N, F]; a lone atom keeps its bias."""
        mean = pool_mean(values, batch).index_select(0, batch.graph_of_node)
        moved = values - self.keep * mean
        variance = pool_mean(moved.square(), batch).index_select(0, batch.graph_of_node)
        return self.weight * moved * torch.rsqrt(variance + 1e-5) + self.bias


def norm_of(kind: str, features: int) -> nn.Module:
    """Build one norm: ``layer``, ``rms``, ``graph`` or ``none``."""
    if kind == "graph":
        return GraphNorm(features)
    if kind == "rms":
        return NodeNorm(nn.RMSNorm(features, eps=1e-5))
    return NodeNorm(nn.LayerNorm(features) if kind == "layer" else nn.Identity())
