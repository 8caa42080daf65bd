"""Ragged nodes as a padded block per graph, and back.

Shapes: G graphs, N nodes, n nodes of the largest graph, F features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hydragnn_hpo.data.batch import Batch


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
