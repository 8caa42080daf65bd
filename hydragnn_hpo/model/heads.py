"""Heads: numbers per graph and per node, vectors per node, and the target's unit of each.

Shapes: G graphs, N nodes, R rows of a target (graphs or nodes), w components.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.config import (
    MAX_ELEMENT,
    HeadConfig,
    ModelConfig,
    head_conv_dimensions,
    mlp_widths,
)
from hydragnn_hpo.data import Batch
from hydragnn_hpo.model.autocast import apply_with_float32_output, apply_without_autocast
from hydragnn_hpo.model.conv_registry import find_conv, options_of
from hydragnn_hpo.model.layers import build_norm, mlp
from hydragnn_hpo.model.pooling import POOLS, AttentionPool, node_counts, pool_mean, pool_sum
from hydragnn_hpo.model.trunk import TrunkFeatures


class TargetBaseline(nn.Module):
    """Turn a head's number into the target's unit: ``number * std + mean + elements``.

    The part of the elements is a lookup by atomic number, averaged over the nodes of a
    graph (summed for total energies), as in a linear regression over the composition.
    """

    mean: Tensor
    std: Tensor
    elements: Tensor

    def __init__(self, target: Mapping[str, Any], head: HeadConfig) -> None:
        """Take the numbers over from the target's statistics."""
        super().__init__()
        self.level, self.total = target["level"], target.get("energy") == "total"
        fitted = target.get("elements") if head.baseline == "elements" else None
        by_number = fitted["by_number"] if fitted else [0.0] * (MAX_ELEMENT + 1)
        self.register_buffer("elements", torch.tensor(by_number, dtype=torch.float32))
        start = fitted or target
        self.register_buffer("mean", torch.tensor(float(start["mean"])))
        self.register_buffer("std", torch.tensor(float(start["std"]) or 1.0))

    def forward(self, numbers: Tensor, batch: Batch) -> Tensor:
        """Return the prediction in the target's unit, fp64, of the shape of ``numbers``.

        The sum over many atoms has more digits than fp32: the head's small number would drown.
        """
        shift = self.elements.double()[batch.numbers].unsqueeze(-1)
        if self.level == "graph":
            shift = (pool_sum if self.total else pool_mean)(shift, batch)
        return torch.addcmul(self.mean.double() + shift, numbers.double(), self.std.double())


SMALLEST_VARIANCE = 1e-6
"""Floor of a predicted variance, in squared units of the target's spread."""


@dataclass(frozen=True, eq=False)
class HeadOutput:
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


def _split_output(numbers: Tensor, batch: Batch | None = None, power: int = 0) -> HeadOutput:
    """Split columns into prediction and variance; ``batch`` adds contributions up.

    The variance of a sum of independent contributions is the sum of theirs.
    """
    mean, raw = numbers[:, :1], numbers[:, 1:]
    variance = F.softplus(raw) if raw.shape[1] else None
    if batch is not None:
        scale = node_counts(mean, batch) ** power
        mean = pool_sum(mean, batch) / scale
        variance = None if variance is None else pool_sum(variance, batch) / scale**2
    return HeadOutput(mean, None if variance is None else variance + SMALLEST_VARIANCE)


class GraphHead(nn.Module):
    """One number per graph: pooled features through an MLP, or pooled contributions."""

    def __init__(self, plan: HeadPlan) -> None:
        """Build the MLP."""
        super().__init__()
        model, head = plan.model, plan.head
        first, *rest = mlp_widths(model.features, head)
        self.fused = len(model.attributes) if model.conditioning == "fuse" else 0
        self.contributes, self.power = head.pool == "contributions", 0 if plan.total else 1
        self.pool = (
            AttentionPool(model.features)
            if head.pool == "attention"
            else POOLS.get(head.pool, pool_mean)
        )
        self.mlp = mlp((first + self.fused, *rest))

    def forward(self, features: TrunkFeatures, batch: Batch, shared: nn.Module) -> HeadOutput:
        """Predict, [G, 1], through what the heads of its branch share."""
        if self.contributes:
            known = self._known(features, batch.graph_of_node)
            numbers = apply_with_float32_output(
                self.mlp, self._joined(shared(features.scalars), known)
            )
            return _split_output(numbers, batch, self.power)
        pooled = shared(self.pool(features.scalars, batch))
        joined = self._joined(pooled, self._known(features, None))
        return _split_output(apply_with_float32_output(self.mlp, joined))

    def _known(self, features: TrunkFeatures, rows: Tensor | None) -> Tensor | None:
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
            self.norm = build_norm(model.norm, model.features)
        self.mlp = mlp(mlp_widths(model.features, plan.head))

    def forward(self, features: TrunkFeatures, batch: Batch, shared: nn.Module) -> HeadOutput:
        """Predict, [N, 1]; nothing is shared."""
        scalars = features.scalars
        if self.conv is not None and self.norm is not None:
            change, _ = self.conv(self.norm(scalars, batch), features.state, features.edges)
            scalars = scalars + change
        return _split_output(apply_with_float32_output(self.mlp, scalars))


class NodeVectorHead(nn.Module):
    """One vector per node that turns with the structure: mixed channels times a gate."""

    def __init__(self, plan: HeadPlan) -> None:
        """Build the mix of channels and the gate."""
        super().__init__()
        features = plan.model.features
        self.mix = nn.Linear(features, 1, bias=False)
        self.gate = mlp((features, features, 2 if plan.head.has_variance else 1))

    def forward(self, features: TrunkFeatures, batch: Batch, shared: nn.Module) -> HeadOutput:
        """Predict, [N, 3]; nothing is shared."""
        gate = _split_output(apply_with_float32_output(self.gate, features.scalars))
        mixed = apply_without_autocast(self.mix, features.vectors).squeeze(-1)
        return HeadOutput(mixed * gate.mean, gate.variance)


HEADS: dict[tuple[str, str], type[nn.Module]] = {
    ("graph", "scalar"): GraphHead,
    ("node", "scalar"): NodeHead,
    ("node", "vector"): NodeVectorHead,
}


def build_branch_mlps(model: ModelConfig, heads: Mapping[str, HeadConfig]) -> nn.ModuleDict:
    """Build what the graph heads of each branch share: an MLP that ends in a non-linearity."""
    if not model.shared_layers:
        return nn.ModuleDict()
    chain = (model.features,) * (model.shared_layers + 1)
    branches = dict.fromkeys(branch_key(head) for head in heads.values())
    return nn.ModuleDict({name: nn.Sequential(*mlp(chain), nn.SiLU()) for name in branches})


def branch_key(head: HeadConfig) -> str:
    """Name the module that the graph heads of a branch share; torch wants no empty name."""
    return f"branch_{head.branch}"
