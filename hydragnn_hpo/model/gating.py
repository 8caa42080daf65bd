"""Edge-gated convolution, for graphs and for line graphs alike.

Shapes: N nodes, E edges, F features. In a line graph bonds are the nodes and triplets the edges.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn_hpo.model.sums import Links, add, filtered, joined


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
        met = joined(self.receive(nodes), self.send(nodes), self.gate(along), links)
        heard = gated_mean(self.value(nodes), met, weight, links)
        change = _bent(self.norm, self.own(nodes) + heard)
        return change, None if self.edge_norm is None else _bent(self.edge_norm, met)


def gated_mean(values: Tensor, met: Tensor, weight: Tensor, links: Links) -> Tensor:
    """Give ``sum_j w_ij sigmoid(m_ij) v_j / (1 + sum_j w_ij sigmoid(m_ij))``, [N, F].

    Args:
        values: of the nodes, [N, F].
        met: of the edges, [E, F].
        weight: of the edges, [E, 1].
        links: the edges.
    """

    def mean(values: Tensor, met: Tensor, weight: Tensor) -> Tensor:
        gates = met.sigmoid() * weight
        return filtered(values, gates, links) / (1.0 + add(gates, links))

    return again(mean, values, met, weight)


def _bent(norm: nn.LayerNorm, rows: Tensor) -> Tensor:
    """Give SiLU of the norm of each row."""

    def bend(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.silu(F.layer_norm(rows, norm.normalized_shape, weight, bias, norm.eps))

    return again(bend, rows, norm.weight, norm.bias)


def again(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Apply a function that keeps its inputs only: it is computed anew in the backward pass.

    Its gradient can be differentiated again, as the function's own.

    Args:
        function: gives a tensor; what it needs a gradient for is among ``inputs``.
        inputs: its arguments.
    """
    result: Tensor = _Again.apply(function, *inputs)  # type: ignore[no-untyped-call]
    return result


class _Again(Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needs, twice = ctx.needs_input_grad[1:], torch.is_grad_enabled()
        inputs = ctx.saved_tensors
        with torch.enable_grad():
            if not twice:
                inputs = [x.detach().requires_grad_(n) for x, n in zip(inputs, needs, strict=True)]
            found = torch.autograd.grad(
                ctx.function(*inputs),
                [x for x, need in zip(inputs, needs, strict=True) if need],
                grad,
                create_graph=twice,
            )
        rest = iter(found)
        return None, *(next(rest) if need else None for need in needs)
