"""Attention along the edges without a softmax: scores of both ends, and sums weighed by them.

As in ``model.sums``, a function keeps its inputs and nothing else for the backward pass, and its
gradients are made of the same functions, so that they can be differentiated again (forces).

Shapes: N nodes, E edges, P rows of a filter (E, or E / 2 for one row per pair of edges),
F features, H heads; head h owns the h-th of H equal parts of the features.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.model.scatter import Links, apply_function, reverse_links, scale_rows


def edge_scores(
    received: Tensor, sent: Tensor, filters: Tensor, links: Links, heads: int
) -> Tensor:
    """Give how well both ends of an edge match, ``sum_f received_i sent_j filter_ij``, [E, H].

    Args:
        received: of the node that receives, its queries, [N, F].
        sent: of the node that sends, its keys, [N, F].
        filters: of the edges, [E, F], or one for both edges of a pair, [E / 2, F].
        links: the edges.
        heads: H; each sums over its own features.
    """
    like = received.new_empty(0, heads)
    return apply_function(_EdgeScores, received, sent, filters, like, *links.arrays)


def attention_sum(values: Tensor, filters: Tensor, weights: Tensor, links: Links) -> Tensor:
    """Sum what neighbours send: ``out_i = sum_j weight_ij filter_ij value_j``, [N, F].

    Args:
        values: of the nodes, [N, F].
        filters: of the edges, [E, F], or one for both edges of a pair, [E / 2, F].
        weights: of the edges, one per head, [E, H].
        links: the edges.
    """
    return apply_function(_AttentionSum, values, filters, weights, *links.arrays)


def _scale_heads(rows: Tensor, weights: Tensor) -> Tensor:
    """Multiply the part of each head by its weight, in place."""
    edges, heads = weights.shape
    rows.view(edges, heads, rows.shape[1] // heads).mul_(weights.unsqueeze(2))
    return rows


class _EdgeScores(Function):
    @staticmethod
    def forward(
        ctx: Any, received: Tensor, sent: Tensor, filters: Tensor, like: Tensor, *links: Tensor
    ) -> Tensor:
        ctx.save_for_backward(received, sent, filters, *links)
        sender, receiver = links[:2]
        rows = received.index_select(0, receiver).mul_(sent.index_select(0, sender))
        heads = like.shape[1]
        parts = scale_rows(rows, filters).view(rows.shape[0], heads, rows.shape[1] // heads)
        return parts.sum(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        received, sent, filters, *links = ctx.saved_tensors
        to_received = to_sent = to_filters = None
        if ctx.needs_input_grad[0]:
            to_received = apply_function(_AttentionSum, sent, filters, grad, *links)
        if ctx.needs_input_grad[1]:
            to_sent = apply_function(_AttentionSum, received, filters, grad, *reverse_links(links))
        if ctx.needs_input_grad[2]:
            to_filters = apply_function(
                _AttentionFilterGradient, received, sent, grad, filters, *links
            )
        return to_received, to_sent, to_filters, *[None] * 7


class _AttentionSum(Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, filters: Tensor, weights: Tensor, *links: Tensor
    ) -> Tensor:
        ctx.save_for_backward(values, filters, weights, *links)
        sender, _, order, starts, _, _ = links
        if not values.numel() or not order.numel():
            return torch.zeros_like(values)
        rows = _scale_heads(scale_rows(values.index_select(0, sender), filters), weights)
        found: Tensor = torch.embedding_bag(rows, order, starts, False, 0, False, None, True)[0]
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, filters, weights, *links = ctx.saved_tensors
        to_values = to_filters = to_weights = None
        if ctx.needs_input_grad[0]:
            to_values = apply_function(_AttentionSum, grad, filters, weights, *reverse_links(links))
        if ctx.needs_input_grad[1]:
            to_filters = apply_function(
                _AttentionFilterGradient, grad, values, weights, filters, *links
            )
        if ctx.needs_input_grad[2]:
            to_weights = apply_function(_EdgeScores, grad, values, filters, weights, *links)
        return to_values, to_filters, to_weights, *[None] * 6


class _AttentionFilterGradient(Function):
    """Gradient of both for their filters: ``weight_ij received_i sent_j``, summed over pairs."""

    @staticmethod
    def forward(
        ctx: Any, received: Tensor, sent: Tensor, weights: Tensor, like: Tensor, *links: Tensor
    ) -> Tensor:
        ctx.save_for_backward(received, sent, weights, *links)
        sender, receiver = links[:2]
        rows = received.index_select(0, receiver).mul_(sent.index_select(0, sender))
        rows = _scale_heads(rows, weights)
        return rows if rows.shape == like.shape else rows.view(-1, *like.shape).sum(0)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor | None, ...]:
        received, sent, weights, *links = ctx.saved_tensors
        to_received = to_sent = to_weights = None
        if ctx.needs_input_grad[0]:
            to_received = apply_function(_AttentionSum, sent, second, weights, *links)
        if ctx.needs_input_grad[1]:
            to_sent = apply_function(
                _AttentionSum, received, second, weights, *reverse_links(links)
            )
        if ctx.needs_input_grad[2]:
            to_weights = apply_function(_EdgeScores, received, sent, second, weights, *links)
        return to_received, to_sent, to_weights, *[None] * 7
