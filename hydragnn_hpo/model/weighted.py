"""Sums over neighbours where each edge has one weight for all channels, or one per head.

No array of edges times channels is made: torch sums rows of nodes with weights in one kernel.
Like those of ``sums``, these functions keep their inputs alone and can be differentiated again.

Shapes: N nodes, E edges, P pairs of edges, F features, H heads.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.model.sums import Links, applied, turned


def weighted(values: Tensor, weights: Tensor, links: Links) -> Tensor:
    """Sum what neighbours are by weights of the edges: ``out_i = sum_j weight_ij * value_j``.

    Args:
        values: of the nodes, [N, F]; head h owns the h-th of H equal parts of the channels.
        weights: of the edges, [E, H], or one for both edges of a pair, [P, H].
        links: the edges.

    Returns:
        [N, F].
    """
    return applied(_Weighted, values, weights, *links.arrays)


class _Weighted(Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, *links: Tensor) -> Tensor:
        ctx.save_for_backward(values, weights, *links)
        sender, _, order, starts, _, _ = links
        shape = (starts.shape[0] - 1, values.shape[1])
        if not order.shape[0]:
            return values.new_zeros(shape)
        index = sender.index_select(0, order)
        both = torch.cat((weights,) * (order.shape[0] // weights.shape[0]))
        by_head = both.t().index_select(1, order)
        heads = values.view(values.shape[0], weights.shape[1], -1).transpose(0, 1).contiguous()
        found = [
            torch.embedding_bag(head, index, starts, False, 0, False, weight, True)[0]
            for head, weight in zip(heads, by_head, strict=True)
        ]
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, weights, *links = ctx.saved_tensors
        to_values = to_weights = None
        if ctx.needs_input_grad[0]:
            to_values = applied(_Weighted, grad, weights, *turned(links))
        if ctx.needs_input_grad[1]:
            to_weights = applied(_Agreement, values, grad, weights, *links)
        return to_values, to_weights, *[None] * 6


class _Agreement(Function):
    """Gradient of ``weighted`` for its weights: products of rows, summed over channels."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, grad: Tensor, like: Tensor, *links: Tensor) -> Tensor:
        ctx.save_for_backward(values, grad, *links)
        if not links[0].shape[0]:
            return torch.zeros_like(like)
        sent = values.contiguous().index_select(0, links[0])
        rows = sent.mul_(grad.contiguous().index_select(0, links[1]))
        ones = rows.new_ones(rows.shape[1] // like.shape[1])
        return rows.view(-1, len(ones)).mv(ones).view(-1, *like.shape).sum(0)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor | None, ...]:
        values, grad, *links = ctx.saved_tensors
        to_values = applied(_Weighted, grad, second, *turned(links))
        to_grad = applied(_Weighted, values, second, *links)
        return to_values, to_grad, None, *[None] * 6
