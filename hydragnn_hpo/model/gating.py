"""Edge-gated convolution, for graphs and for line graphs alike.

Shapes: N nodes, E edges, F features. In a line graph bonds are the nodes and triplets the edges.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn_hpo.model.sums import Links, add, applied, filtered, joined

EPSILON = 1e-5
"""Added to variances, as torch's layer norms do by default."""


class EdgeGatedConv(nn.Module):
    """Gate what nodes send by the features of edges, and change both.

    Norms act on one row. A mean over neighbours counts the node itself as one that says
    nothing, so that it is smooth where the last neighbour leaves.
    Source: Choudhary and DeCost (2021), npj Comput. Mater. 7, 185, eqs. 3 and 4; Bresson and
    Laurent (2017), arXiv:1711.07553, eq. 11.
    """

    def __init__(self, features: int, edges_are_read: bool) -> None:
        """Build it; without ``edges_are_read`` nothing is made for the change of the edges."""
        super().__init__()
        self.receive = nn.Linear(features, features)
        self.send = nn.Linear(features, features, bias=False)
        self.gate = nn.Linear(features, features, bias=False)
        self.own = nn.Linear(features, features)
        self.value = nn.Linear(features, features, bias=False)
        self.norm = nn.LayerNorm(features)
        self.edge_norm = nn.LayerNorm(features) if edges_are_read else None

    def forward(
        self, nodes: Tensor, along: Tensor, weight: Tensor, links: Links
    ) -> tuple[Tensor, Tensor | None]:
        """Give the changes of nodes, [N, F], and of edges, [E, F] or None.

        Args:
            nodes: features, [N, F].
            along: features of the edges, [E, F].
            weight: takes each edge smoothly to nothing at the cutoff, [E, 1].
            links: the edges.
        """
        met = joined(self.receive(nodes), self.send(nodes), None, links).add_(self.gate(along))
        heard = gated_mean(self.value(nodes), met, weight, links)
        change = bent(self.own(nodes) + heard, self.norm.weight, self.norm.bias)
        if self.edge_norm is None:
            return change, None
        return change, bent(met, self.edge_norm.weight, self.edge_norm.bias)


def gated_mean(values: Tensor, met: Tensor, weight: Tensor, links: Links) -> Tensor:
    """Give ``sum_j w_ij sigmoid(m_ij) v_j / (1 + sum_j w_ij sigmoid(m_ij))``, [N, F].

    Args:
        values: of the nodes, [N, F].
        met: of the edges, [E, F].
        weight: of the edges, [E, 1].
        links: the edges.
    """
    gates = applied(_Gates, met, weight)
    return filtered(values, gates, links) / (1.0 + add(gates, links))


def bent(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Give SiLU of the layer norm of each row, [n, F]; weight and bias are the norm's, [F]."""
    return applied(_Bent, rows, weight, bias)


class _Gates(Function):
    """``sigmoid(met) * weight``, of which only ``met`` is kept: the edges' norm keeps it too."""

    @staticmethod
    def forward(ctx: Any, met: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(met, weight)
        return met.sigmoid().mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        met, weight = ctx.saved_tensors
        gates = met.sigmoid()
        to_weight = (grad * gates).sum(1, keepdim=True) if ctx.needs_input_grad[1] else None
        return torch.ops.aten.sigmoid_backward(grad * weight, gates), to_weight


class _Bent(Function):
    """SiLU of a layer norm, of which only the rows are kept."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        normal, mean, scale = torch.native_layer_norm(rows, weight.shape, weight, bias, EPSILON)
        ctx.save_for_backward(rows, weight, bias, mean, scale)
        return F.silu(normal, inplace=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        rows, weight, bias, mean, scale = ctx.saved_tensors
        normal = F.layer_norm(rows, weight.shape, weight, bias, EPSILON)
        if torch.is_grad_enabled():
            half = normal.sigmoid()
            before = grad * half * (1.0 + normal * (1.0 - half))
        else:
            before = torch.ops.aten.silu_backward(grad, normal)
        found: tuple[Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
            before, rows, weight.shape, mean, scale, weight, bias, [True] * 3
        )
        return found
