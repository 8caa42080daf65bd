"""Sums over neighbours of features that each edge turns by a small matrix of its own.

As in ``model.sums``, a sum keeps its inputs and nothing else for the backward pass, and its
gradients are made of the same functions, so that they can be differentiated again (forces).
Weighted bags read rows of nodes where they lie: no array of E * A * B * F is ever made.

Shapes: N nodes, E edges, P rows of a filter (E, or E / 2 for one row per pair of edges),
F features, A components that are sent, B components that arrive.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.model.sums import Links, applied, turned


def coupled(values: Tensor, filters: Tensor, mixing: Tensor, links: Links) -> Tensor:
    """Sum what neighbours send: ``out_i[b] = sum_j filter_ij sum_a mixing_ij[b, a] value_j[a]``.

    Args:
        values: of the nodes, [N, A, F].
        filters: of the edges, [E, F], or one for both edges of a pair, [E / 2, F].
        mixing: of the edges, from components sent to components that arrive, [E, B, A].
        links: the edges.

    Returns:
        [N, B, F].
    """
    return applied(_Coupled, values, filters, mixing, *links.arrays)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Gather rows as a matrix, which torch copies many times faster than other layouts."""
    matrix = values.reshape(values.shape[0], values.shape[1] * values.shape[2])
    return matrix.index_select(0, index).view(index.shape[0], *values.shape[1:])


def _bags(rows: Tensor, index: Tensor, starts: Tensor, weights: Tensor | None) -> Tensor:
    """Sum weighted rows of each segment: torch's quickest kernel for it."""
    if not rows.numel() or not index.numel():
        return rows.new_zeros(starts.shape[0] - 1, rows.shape[1])
    found: Tensor = torch.embedding_bag(rows, index, starts, False, 0, False, weights, True)[0]
    return found


def _met(values: Tensor, nodes: Tensor, mixing: Tensor) -> Tensor:
    """Give each edge what it makes of a node's components: [N, A, F] to [E, B, F]."""
    edges, arrive, sent = mixing.shape
    if arrive == sent == 1:
        return _rows(values, nodes).mul_(mixing)
    columns = torch.arange(sent, device=nodes.device)
    index = (nodes.unsqueeze(1) * sent + columns).unsqueeze(1).expand(-1, arrive, -1)
    starts = torch.arange(0, edges * arrive * sent + 1, sent, device=nodes.device)
    found = _bags(values.reshape(-1, values.shape[2]), index.flatten(), starts, mixing.flatten())
    return found.view(edges, arrive, values.shape[2])


def _filter(rows: Tensor, filters: Tensor) -> Tensor:
    """Multiply rows of edges by filters of edges or of pairs, in place."""
    if rows.numel():
        rows.view(-1, *filters.shape[:1], *rows.shape[1:]).mul_(filters.unsqueeze(1))
    return rows


def _to_filter(rows: Tensor, like: Tensor) -> Tensor:
    """Sum rows of edges over components, and over both edges of a pair: [E, A, F] to [P, F]."""
    found = rows.sum(1) if rows.shape[1] > 1 else rows.squeeze(1)
    return found if found.shape == like.shape else found.view(-1, *like.shape).sum(0)


def _gathered(rows: Tensor, mixing: Tensor | None, order: Tensor, starts: Tensor) -> Tensor:
    """Sum over the edges of each node, through a matrix of each edge: [E, A, F] to [N, B, F]."""
    nodes, sent, features = starts.shape[0] - 1, *rows.shape[1:]
    if mixing is None:
        return _bags(rows.flatten(1), order, starts, None).view(nodes, sent, features)
    index = (order.unsqueeze(1) * sent + torch.arange(sent, device=order.device)).flatten()
    weights = mixing.index_select(0, order).transpose(0, 1).flatten(1).contiguous()
    found = [_bags(rows.flatten(0, 1), index, starts * sent, each) for each in weights]
    return torch.stack(found, dim=1)


class _Coupled(Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, filters: Tensor, mixing: Tensor, *links: Tensor
    ) -> Tensor:
        ctx.save_for_backward(values, filters, mixing, *links)
        sender, _, order, starts, _, _ = links
        if mixing.shape[2] <= mixing.shape[1]:
            rows = _filter(_rows(values, sender), filters)
            return _gathered(rows, mixing, order, starts)
        rows = _filter(_met(values, sender, mixing), filters)
        return _gathered(rows, None, order, starts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, filters, mixing, *links = ctx.saved_tensors
        to_values = to_filters = to_mixing = None
        if ctx.needs_input_grad[0]:
            back = mixing.transpose(1, 2).contiguous()
            to_values = applied(_Coupled, grad, filters, back, *turned(links))
        if ctx.needs_input_grad[1]:
            to_filters = applied(_ToFilters, values, grad, mixing, filters, *links)
        if ctx.needs_input_grad[2]:
            to_mixing = applied(_ToMixing, values, grad, filters, *links)
        return to_values, to_filters, to_mixing, *[None] * 6


class _ToFilters(Function):
    """Gradient of ``coupled`` for its filters: ``sum_ab grad_i[b] mixing_ij[b, a] value_j[a]``."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, grad: Tensor, mixing: Tensor, like: Tensor, *links: Tensor
    ) -> Tensor:
        ctx.save_for_backward(values, grad, mixing, *links)
        sender, receiver = links[:2]
        if mixing.shape[2] <= mixing.shape[1]:
            back = mixing.transpose(1, 2).contiguous()
            rows = _met(grad, receiver, back).mul_(_rows(values, sender))
        else:
            rows = _met(values, sender, mixing).mul_(_rows(grad, receiver))
        return _to_filter(rows, like)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor | None, ...]:
        values, grad, mixing, *links = ctx.saved_tensors
        back = mixing.transpose(1, 2).contiguous()
        to_values = applied(_Coupled, grad, second, back, *turned(links))
        to_grad = applied(_Coupled, values, second, mixing, *links)
        to_mixing = None
        if ctx.needs_input_grad[2]:
            to_mixing = applied(_ToMixing, values, grad, second, *links)
        return to_values, to_grad, to_mixing, None, *[None] * 6


class _ToMixing(Function):
    """Gradient of ``coupled`` for its matrices: ``sum_f grad_i[b] filter_ij value_j[a]``."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, grad: Tensor, filters: Tensor, *links: Tensor) -> Tensor:
        ctx.save_for_backward(values, grad, filters, *links)
        sender, receiver = links[:2]
        rows = _filter(_rows(values, sender), filters)
        return torch.bmm(_rows(grad, receiver), rows.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor | None, ...]:
        values, grad, filters, *links = ctx.saved_tensors
        back = second.transpose(1, 2).contiguous()
        to_values = applied(_Coupled, grad, filters, back, *turned(links))
        to_grad = applied(_Coupled, values, filters, second, *links)
        to_filters = applied(_ToFilters, values, grad, second, filters, *links)
        return to_values, to_grad, to_filters, *[None] * 6
