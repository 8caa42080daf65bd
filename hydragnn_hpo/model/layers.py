"""Layers that all parts of a model use: perceptron, norms, pooling, bf16 rules.

Under ``torch.autocast`` linear maps run in bf16; the scalars of the nodes, geometry and sums over
whole graphs keep the dtype of the weights.

Shapes: G graphs, N nodes, F features, n nodes of the largest graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hydragnn_hpo.data import Batch
from hydragnn_hpo.kernels.scatter import without_autocast


def to_float32(values: Tensor) -> Tensor:
    """Convert bf16 to fp32, before many values are summed; return other dtypes unchanged."""
    return values.float() if values.dtype is torch.bfloat16 else values


def apply_without_autocast(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Apply a function without autocast, with bf16 inputs converted to fp32."""
    with without_autocast(inputs[0]):
        return function(*map(to_float32, inputs))


def apply_with_float32_output(chain: nn.Sequential, values: Tensor) -> Tensor:
    """Apply a chain of layers, the last one in the dtype of its weights.

    bf16 would round the output of a head to 8 bits, which is too coarse for a prediction.
    """
    if not torch.is_autocast_enabled(values.device.type):
        result: Tensor = chain(values)
        return result
    *first, last = chain
    for layer in first:
        values = layer(values)
    return apply_without_autocast(last, values)


@dataclass(frozen=True, eq=False)
class Padding:
    """Layout of the nodes of a batch as one block of n rows per graph."""

    place: Tensor
    """Row of each node in the flat block of G * n rows, int64, [N]."""
    is_node: Tensor
    """Whether a row holds a node, bool, [G, n]."""

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
        """Return padded blocks: [N, ...] to [G, n, ...], with ``fill`` in rows without a node."""
        flat = values.new_full((self.is_node.numel(), *values.shape[1:]), fill)
        return flat.index_copy(0, self.place, values).view(*self.is_node.shape, *values.shape[1:])

    def nodes(self, block: Tensor) -> Tensor:
        """Return the rows of the nodes, the inverse of ``block``: [G, n, ...] to [N, ...]."""
        return block.reshape(-1, *block.shape[2:]).index_select(0, self.place)


def pool_sum(values: Tensor, batch: Batch) -> Tensor:
    """Sum the rows of each graph: [N, F] to [G, F]; bf16 is summed and returned in fp32."""
    values = to_float32(values)
    zeros = values.new_zeros(batch.num_graphs, values.shape[1])
    return zeros.index_add(0, batch.graph_of_node, values)


def node_counts(values: Tensor, batch: Batch) -> Tensor:
    """Return the number of nodes of each graph, at least 1, [G, 1].

    It is in fp32 where the batch has it, else counted in the dtype of ``pool_sum(values)``.
    """
    if batch.node_counts is not None:
        return batch.node_counts
    return pool_sum(values.new_ones(values.shape[0], 1), batch).clamp(min=1.0)


def pool_mean(values: Tensor, batch: Batch) -> Tensor:
    """Average the rows of each graph: [N, F] to [G, F]."""
    return pool_sum(values, batch) / node_counts(values, batch)


def pool_max(values: Tensor, batch: Batch) -> Tensor:
    """Return the largest value of each channel in each graph: [N, F] to [G, F].

    A graph without nodes gets -inf.
    """
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
        # As in any softmax, the largest score is subtracted so that no exponential overflows.
        top = pool_max(score.detach(), batch).index_select(0, batch.graph_of_node)
        weight = (score - top).exp()
        total = pool_sum(weight, batch).clamp(min=1e-12)
        return pool_sum(values * weight, batch) / total


POOLS = {"mean": pool_mean, "sum": pool_sum, "max": pool_max}
"""Functions from (values [N, F], batch) to [G, F], by the setting ``pool`` of a head."""


def mlp(widths: Sequence[int], activation: Callable[[], nn.Module] = nn.SiLU) -> nn.Sequential:
    """Chain linear maps of ``widths`` (input, hidden ..., output) with activations in between."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers.extend((nn.Linear(inputs, outputs), activation()))
    return nn.Sequential(*layers[:-1])


class NodeNorm(nn.Module):
    """Apply a norm of torch to the channels of each node."""

    def __init__(self, norm: nn.Module) -> None:
        """Wrap ``norm``, so that it takes ``(values, batch)`` as all norms here do."""
        super().__init__()
        self.norm = norm

    def forward(self, values: Tensor, batch: Batch) -> Tensor:
        """Normalise, [N, F]."""
        result: Tensor = self.norm(values)
        return result


class GraphNorm(nn.Module):
    """Subtract a learned share of each channel's mean over a graph's nodes, and scale it.

    Source: Cai et al. (2021), arXiv:2009.03294, eq. 6.
    """

    def __init__(self, features: int) -> None:
        """Initialise ``keep``, the share of the mean that is subtracted, to 1."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.keep = nn.Parameter(torch.ones(features))

    def forward(self, values: Tensor, batch: Batch) -> Tensor:
        """Normalise, [N, F]; while ``keep`` is 1 a graph of one node yields ``bias``."""
        mean = pool_mean(values, batch).index_select(0, batch.graph_of_node)
        moved = values - self.keep * mean
        variance = pool_mean(moved.square(), batch).index_select(0, batch.graph_of_node)
        return self.weight * moved * torch.rsqrt(variance + 1e-5) + self.bias


def build_norm(kind: str, features: int) -> nn.Module:
    """Build a norm that takes ``(values, batch)``: ``layer``, ``rms``, ``graph`` or ``none``."""
    if kind == "graph":
        return GraphNorm(features)
    if kind == "rms":
        return NodeNorm(nn.RMSNorm(features, eps=1e-5))
    return NodeNorm(nn.LayerNorm(features) if kind == "layer" else nn.Identity())
