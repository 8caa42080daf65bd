"""What neighbours send to vectors, in one sum: directions and their own vectors.

Shapes: N nodes, E edges, P rows of a filter (E, or E / 2 for one row per pair of edges),
F features.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.model.sums import (
    Links,
    add_products,
    applied,
    bag,
    filtered_slopes,
    rows_of,
    scale_rows,
    spread_slopes,
)


def arrows(
    messages: Tensor, directions: Tensor, vectors: Tensor, filters: Tensor, links: Links
) -> Tensor:
    """Sum ``direction_ij x message_ij + filter_ij * vector_j`` over neighbours, [N, 3, F].

    Both terms share their passes over the edges: the sum, and in the backward pass the slope of
    the result that each edge fetches from its receiver.

    Args:
        messages: of the edges, [E, F].
        directions: of the edges, [E, 3].
        vectors: of the nodes, [N, 3, F].
        filters: of the edges, [E, F], or one for both edges of a pair, [E / 2, F].
        links: the edges.
    """
    return applied(_Arrows, messages, directions, vectors, filters, *links.arrays)


class _Arrows(Function):
    @staticmethod
    def forward(
        ctx: Any,
        messages: Tensor,
        directions: Tensor,
        vectors: Tensor,
        filters: Tensor,
        *links: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(messages, directions, vectors, filters, *links)
        sender, _, order, starts, _, _ = links
        found = []
        for axis, values in enumerate(vectors.unbind(1)):
            rows = scale_rows(rows_of(values, sender), filters)
            rows.addcmul_(messages, directions[:, axis : axis + 1])
            found.append(bag(rows, order, starts))
        return torch.stack(found, dim=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        messages, directions, vectors, filters, *links = ctx.saved_tensors
        sender, receiver, by_receiver, receiver_starts, by_sender, starts = links
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled() or needed[1]:
            ends = (receiver, by_receiver, receiver_starts)
            first = spread_slopes(messages, directions, grad, ends, needed[:2])
            second = filtered_slopes(vectors, filters, grad, links, needed[2:4])
            return *first, *second, *[None] * 6
        to_messages, to_filters = torch.zeros_like(messages), torch.zeros_like(filters)
        to_vectors = []
        for axis, (values, slope) in enumerate(zip(vectors.unbind(1), grad.unbind(1), strict=True)):
            met = rows_of(slope, receiver)
            to_messages.addcmul_(met, directions[:, axis : axis + 1])
            add_products(to_filters, rows_of(values, sender), met)
            to_vectors.append(bag(scale_rows(met, filters), by_sender, starts))
        return to_messages, None, torch.stack(to_vectors, dim=1), to_filters, *[None] * 6
