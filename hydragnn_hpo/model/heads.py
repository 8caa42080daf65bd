"""Heads: each turns node features into one target, in units of its standard deviation.

Shapes: G graphs, N nodes, F features.
"""

from torch import Tensor, nn

from hydragnn_hpo.config.model import HeadConfig
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.model.mlp import mlp


def pool_sum(values: Tensor, batch: Batch) -> Tensor:
    """Sum the rows of each graph: [N, F] to [G, F]."""
    zeros = values.new_zeros(batch.num_graphs, values.shape[1])
    return zeros.index_add(0, batch.graph_of_node, values)


def pool_mean(values: Tensor, batch: Batch) -> Tensor:
    """Average the rows of each graph: [N, F] to [G, F]."""
    ones = values.new_ones(values.shape[0], 1)
    return pool_sum(values, batch) / pool_sum(ones, batch).clamp(min=1.0)


def _widths(features: int, config: HeadConfig) -> tuple[int, ...]:
    return (features, *[config.hidden or features] * (config.layers - 1), 1)


class GraphHead(nn.Module):
    """One number per graph: pooled features through an MLP, or pooled contributions."""

    def __init__(self, features: int, config: HeadConfig, total: bool = False) -> None:
        """Build the MLP; contributions add up to a ``total``, else to their mean."""
        super().__init__()
        self.pool, self.gather = config.pool, pool_sum if total else pool_mean
        self.mlp = mlp(_widths(features, config))

    def forward(self, scalars: Tensor, vectors: Tensor, batch: Batch) -> Tensor:
        """Predict, [G, 1]."""
        if self.pool == "contributions":
            return self.gather(self.mlp(scalars), batch)
        pool = pool_mean if self.pool == "mean" else pool_sum
        result: Tensor = self.mlp(pool(scalars, batch))
        return result


class NodeHead(nn.Module):
    """One number per node, from that node's features."""

    def __init__(self, features: int, config: HeadConfig, total: bool = False) -> None:
        """Build the MLP."""
        super().__init__()
        self.mlp = mlp(_widths(features, config))

    def forward(self, scalars: Tensor, vectors: Tensor, batch: Batch) -> Tensor:
        """Predict, [N, 1]."""
        result: Tensor = self.mlp(scalars)
        return result


class NodeVectorHead(nn.Module):
    """One vector per node that turns with the structure: mixed channels times a gate."""

    def __init__(self, features: int, config: HeadConfig, total: bool = False) -> None:
        """Build the mix of channels and the gate."""
        super().__init__()
        self.mix = nn.Linear(features, 1, bias=False)
        self.gate = mlp((features, features, 1))

    def forward(self, scalars: Tensor, vectors: Tensor, batch: Batch) -> Tensor:
        """Predict, [N, 3]."""
        result: Tensor = self.mix(vectors).squeeze(-1) * self.gate(scalars)
        return result


HEADS: dict[tuple[str, str], type[nn.Module]] = {
    ("graph", "scalar"): GraphHead,
    ("node", "scalar"): NodeHead,
    ("node", "vector"): NodeVectorHead,
}
