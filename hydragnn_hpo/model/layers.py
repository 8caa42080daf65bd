"""Layers that all parts of a net share: activation, perceptron, norms."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn_hpo.data import Batch
from hydragnn_hpo.model.pooling import pool_mean


class ShiftedSoftplus(nn.Module):
    """Softplus moved down so that 0 stays 0. Source: arXiv:1706.08566, section 3."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply to each element."""
        result: Tensor = _ShiftedSoftplus.apply(x)  # type: ignore[no-untyped-call]
        return result


class _ShiftedSoftplus(Function):
    """In one array: the softplus is moved where it stands."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.softplus(x).sub_(math.log(2.0))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(x)


def mlp(widths: Sequence[int], activation: Callable[[], nn.Module] = nn.SiLU) -> nn.Sequential:
    """Chain linear maps through ``widths``, with a non-linearity between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers.extend((nn.Linear(inputs, outputs), activation()))
    return nn.Sequential(*layers[:-1])


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


def build_norm(kind: str, features: int) -> nn.Module:
    """Build one norm: ``layer``, ``rms``, ``graph`` or ``none``."""
    if kind == "graph":
        return GraphNorm(features)
    if kind == "rms":
        return NodeNorm(nn.RMSNorm(features, eps=1e-5))
    return NodeNorm(nn.LayerNorm(features) if kind == "layer" else nn.Identity())
