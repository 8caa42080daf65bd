"""Heads: each turns node features into one target, in units of its standard deviation.

Shapes: G graphs, N nodes, R rows of a target (G or N), F features.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.config.counting import head_conv_dimensions, widths
from hydragnn_hpo.config.model import HeadConfig, ModelConfig
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.model.find import find_conv, options_of
from hydragnn_hpo.model.mlp import mlp
from hydragnn_hpo.model.norms import norm_of
from hydragnn_hpo.model.pooling import POOLS, AttentionPool, node_counts, pool_mean, pool_sum
from hydragnn_hpo.model.precise import ending_exactly, exactly
from hydragnn_hpo.model.trunk import Features

SMALLEST_VARIANCE = 1e-6
"""Floor of a predicted variance, in squared units of the target's spread."""


@dataclass(frozen=True, eq=False)
class Output:
    """What a head says, in units of the target's spread."""

    mean: Tensor
    """The prediction, [R, w]."""
    variance: Tensor | None = None
    """Its variance, [R, 1], one for all components of a vector."""


@dataclass(frozen=True)
class HeadPlan:
    """What a head is built from."""

    model: ModelConfig
    """The trunk it stands on."""
    head: HeadConfig
    """Its own settings."""
    total: bool
    """Whether contributions of nodes add up to a total, else to their mean."""
    degree: float
    """Mean number of neighbours in the training data."""


def _output(numbers: Tensor, batch: Batch | None = None, power: int = 0) -> Output:
    """Split columns into prediction and variance; ``batch`` adds contributions up.

    The variance of a sum of independent contributions is the sum of theirs.
    """
    mean, raw = numbers[:, :1], numbers[:, 1:]
    variance = F.softplus(raw) if raw.shape[1] else None
    if batch is not None:
        scale = node_counts(mean, batch) ** power
        mean = pool_sum(mean, batch) / scale
        variance = None if variance is None else pool_sum(variance, batch) / scale**2
    return Output(mean, None if variance is None else variance + SMALLEST_VARIANCE)


class GraphHead(nn.Module):
    """One number per graph: pooled features through an MLP, or pooled contributions."""

    def __init__(self, plan: HeadPlan) -> None:
        """Build the MLP."""
        super().__init__()
        model, head = plan.model, plan.head
        first, *rest = widths(model.features, head)
        self.fused = len(model.attributes) if model.conditioning == "fuse" else 0
        self.contributes, self.power = head.pool == "contributions", 0 if plan.total else 1
        self.pool = (
            AttentionPool(model.features)
            if head.pool == "attention"
            else POOLS.get(head.pool, pool_mean)
        )
        self.mlp = mlp((first + self.fused, *rest))

    def forward(self, features: Features, batch: Batch, shared: nn.Module) -> Output:
        """Predict, [G, 1], through what the heads of its branch share."""
        if self.contributes:
            known = self._known(features, batch.graph_of_node)
            numbers = ending_exactly(self.mlp, self._joined(shared(features.scalars), known))
            return _output(numbers, batch, self.power)
        pooled = shared(self.pool(features.scalars, batch))
        joined = self._joined(pooled, self._known(features, None))
        return _output(ending_exactly(self.mlp, joined))

    def _known(self, features: Features, rows: Tensor | None) -> Tensor | None:
        if not self.fused or features.known is None:
            return None
        return features.known if rows is None else features.known.index_select(0, rows)

    @staticmethod
    def _joined(values: Tensor, known: Tensor | None) -> Tensor:
        return values if known is None else torch.cat((values, known), dim=-1)


class NodeHead(nn.Module):
    """One number per node, from that node's features, or after one more conv of its own."""

    def __init__(self, plan: HeadPlan) -> None:
        """Build the MLP, and the conv where there is one."""
        super().__init__()
        model = plan.model
        self.conv = self.norm = None
        if plan.head.kind == "conv":
            place = head_conv_dimensions(model, plan.degree)
            self.conv = find_conv(model.conv)(place, options_of(model))
            self.norm = norm_of(model.norm, model.features)
        self.mlp = mlp(widths(model.features, plan.head))

    def forward(self, features: Features, batch: Batch, shared: nn.Module) -> Output:
        """Predict, [N, 1]; nothing is shared."""
        scalars = features.scalars
        if self.conv is not None and self.norm is not None:
            change, _ = self.conv(self.norm(scalars, batch), features.state, features.edges)
            scalars = scalars + change
        return _output(ending_exactly(self.mlp, scalars))


class NodeVectorHead(nn.Module):
    """One vector per node that turns with the structure: mixed channels times a gate."""

    def __init__(self, plan: HeadPlan) -> None:
        """Build the mix of channels and the gate."""
        super().__init__()
        features = plan.model.features
        self.mix = nn.Linear(features, 1, bias=False)
        self.gate = mlp((features, features, 2 if plan.head.has_variance else 1))

    def forward(self, features: Features, batch: Batch, shared: nn.Module) -> Output:
        """Predict, [N, 3]; nothing is shared."""
        gate = _output(ending_exactly(self.gate, features.scalars))
        mixed = exactly(self.mix, features.vectors).squeeze(-1)
        return Output(mixed * gate.mean, gate.variance)


HEADS: dict[tuple[str, str], type[nn.Module]] = {
    ("graph", "scalar"): GraphHead,
    ("node", "scalar"): NodeHead,
    ("node", "vector"): NodeVectorHead,
}


def shared_mlps(model: ModelConfig, heads: Mapping[str, HeadConfig]) -> nn.ModuleDict:
    """Build what the graph heads of each branch share: an MLP that ends in a non-linearity."""
    if not model.shared_layers:
        return nn.ModuleDict()
    chain = (model.features,) * (model.shared_layers + 1)
    branches = dict.fromkeys(shared_by(head) for head in heads.values())
    return nn.ModuleDict({name: nn.Sequential(*mlp(chain), nn.SiLU()) for name in branches})


def shared_by(head: HeadConfig) -> str:
    """Name the module that the graph heads of a branch share; torch wants no empty name."""
    return f"branch_{head.branch}"
