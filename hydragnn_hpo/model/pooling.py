"""Pooling over the nodes of each graph: sums, means, maxima, attention, and padded blocks.

Shapes: G graphs, N nodes, F features, n nodes of the largest graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hydragnn_hpo.data import Batch
from hydragnn_hpo.model.autocast import to_float32


@dataclass(frozen=True, eq=False)
class Padding:
    """Where each node stands in the padded block."""

    place: Tensor
    """Row of each node in the flat block of G * n rows, [N]."""
    is_node: Tensor
    """Whether a row holds a node, [G, n]."""

    @classmethod
    def of(cls, batch: Batch) -> "Padding":
        """Lay out the nodes of a batch; graphs are contiguous and in order."""
        owner = batch.graph_of_node
        counts = torch.bincount(owner, minlength=batch.num_graphs)
        longest = int(counts.max()) if batch.num_graphs else 0
        first = counts.cumsum(0) - counts
        row = torch.arange(owner.shape[0], device=owner.device) - first[owner]
        is_node = torch.arange(longest, device=owner.device) < counts.unsqueeze(1)
        return cls(owner * longest + row, is_node)

    def block(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Pad: [N, ...] to [G, n, ...]."""
        flat = values.new_full((self.is_node.numel(), *values.shape[1:]), fill)
        return flat.index_copy(0, self.place, values).view(*self.is_node.shape, *values.shape[1:])

    def nodes(self, block: Tensor) -> Tensor:
        """Take the nodes back: [G, n, ...] to [N, ...]."""
        return block.reshape(-1, *block.shape[2:]).index_select(0, self.place)


def pool_sum(values: Tensor, batch: Batch) -> Tensor:
    """Sum the rows of each graph: [N, F] to [G, F], not in bf16."""
    values = to_float32(values)
    zeros = values.new_zeros(batch.num_graphs, values.shape[1])
    return zeros.index_add(0, batch.graph_of_node, values)


def node_counts(values: Tensor, batch: Batch) -> Tensor:
    """Count the nodes of each graph, at least 1, in the type of ``values`` but bf16, [G, 1]."""
    return pool_sum(values.new_ones(values.shape[0], 1), batch).clamp(min=1.0)


def pool_mean(values: Tensor, batch: Batch) -> Tensor:
    """Average the rows of each graph: [N, F] to [G, F]."""
    return pool_sum(values, batch) / node_counts(values, batch)


def pool_max(values: Tensor, batch: Batch) -> Tensor:
    """Return the largest value of each channel in each graph: [N, F] to [G, F]."""
    padding = Padding.of(batch)
    if not padding.is_node.numel():
        return pool_sum(values, batch)
    return padding.block(values, fill=float("-inf")).amax(dim=1)


class AttentionPool(nn.Module):
    """Average the nodes of each graph with learned weights that sum to 1.

    Source: Li et al. (2016), arXiv:1511.05493, eq. 7, with a softmax.
    """

    def __init__(self, features: int) -> None:
        """Build the map from features to a score."""
        super().__init__()
        self.score = nn.Linear(features, 1)

    def forward(self, values: Tensor, batch: Batch) -> Tensor:
        """Pool: [N, F] to [G, F]."""
        score: Tensor = self.score(values)
        top = pool_max(score.detach(), batch).index_select(0, batch.graph_of_node)
        weight = (score - top).exp()
        total = pool_sum(weight, batch).clamp(min=1e-12)
        return pool_sum(values * weight, batch) / total


POOLS = {"mean": pool_mean, "sum": pool_sum, "max": pool_max}
