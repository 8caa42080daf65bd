"""Forms of ``passes`` by torch's operations: the reference, and what torch traces.

Rows of all edges are gathered one component at a time, which fits into the cache of a CPU, and
summed by ``embedding_bag``. Derivatives that are needed together share what they gather.

Shapes: N nodes, E edges, P rows of a filter (see ``scatter``), C components, F features.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hydragnn_hpo.kernels.scatter import (
    add_products,
    expand_pairs,
    gather_rows,
    scale_rows,
    segment_sum,
    sum_pairs,
)

Arguments = Sequence[Any]
"""Tensors that a form takes. One whose derivative is needed only gives its shape; the last one, of
the shape of the sum, may then be None."""

Slopes = list[Any]
"""Derivative of a form by each of its arguments, a tensor; None where not needed."""

FormSlopes = Callable[[Arguments, Sequence[Tensor], Sequence[bool]], Slopes]
"""Implementation of a form: a function of its arguments, the six tensors of ``Links.arrays``, and
whether the derivative by each argument is needed."""

Seconds = Sequence[Tensor | None]
"""What the slope by each argument is multiplied by, a tensor of its shape; None for 0."""

FormCurvature = Callable[[Arguments, Seconds, Sequence[Tensor], Sequence[bool]], Slopes]
"""Derivatives of the sum of slopes times ``Seconds``, all at once; the rest is as in
``FormSlopes``."""


def filtered_slopes(
    arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate ``sum filters_ij * values_j * grad_i``.

    Args:
        arguments: values, [N, F] or [N, C, F], filters, [P, F], grad, of the shape of the values.
        links: the six tensors of ``Links.arrays``.
        needed: whether the derivative by each argument is needed.
    """
    values, filters, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links
    to_values, to_grad = [], []
    to_filters = torch.zeros_like(filters) if needed[1] else None
    for component in range(values.shape[1]) if values.dim() == 3 else (...,):
        place = (slice(None), component)
        if needed[0] or needed[1]:
            arrived = gather_rows(grad[place], r)
        if needed[1] or needed[2]:
            sent = gather_rows(values[place], s)
        if to_filters is not None:
            add_products(to_filters, sent, arrived)
        if needed[0]:
            to_values.append(segment_sum(scale_rows(arrived, filters), by_s, s_starts))
        if needed[2]:
            to_grad.append(segment_sum(scale_rows(sent, filters), by_r, r_starts))
    return [_join(to_values, values), to_filters, _join(to_grad, values)]


def _join(sums: Sequence[Tensor], like: Tensor) -> Tensor | None:
    """Join the components of a sum as those of ``like``; return None if there are none."""
    if like.dim() == 2 or not sums:
        return sums[0] if sums else None
    return torch.stack(list(sums), dim=1)


def directed_slopes(
    arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate ``sum direction_ij x filters_ij * values_j * grad_i``.

    Args:
        arguments: values, [N, F], filters, [P, F], directions, [E, 3], grad, [N, 3, F].
        links: the six tensors of ``Links.arrays``.
        needed: whether the derivative by each argument is needed.
    """
    values, filters, directions, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links
    axes = directions.split(1, dim=1)
    slopes: list[Any] = [None] * 4
    if needed[2] or needed[3]:
        messages = scale_rows(gather_rows(values, s), filters)
    if needed[3]:
        slopes[3] = torch.stack(
            [segment_sum(messages * axis, by_r, r_starts) for axis in axes], dim=1
        )
    if any(needed[:3]):
        arrived = [gather_rows(each, r) for each in grad.unbind(1)]
    if needed[2]:
        slopes[2] = torch.stack([(messages * rows).sum(1) for rows in arrived], dim=1)
    if needed[0] or needed[1]:
        along = torch.zeros_like(arrived[0])
        for axis, rows in zip(axes, arrived, strict=True):
            along.addcmul_(axis, rows)
    if needed[1]:
        slopes[1] = torch.zeros_like(filters)
        add_products(slopes[1], gather_rows(values, s), along)
    if needed[0]:
        slopes[0] = segment_sum(scale_rows(along, filters), by_s, s_starts)
    return slopes


def without_vectors(vectors: FormSlopes) -> FormSlopes:
    """Return the form ``directed`` by an implementation of ``vectors`` that leaves out its term."""

    def directed(arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]) -> Slopes:
        values, filters, directions, grad = arguments
        absent = (values.new_empty(0, 3, values.shape[1]), filters[:0])
        wanted = (*needed[:3], False, False, needed[3])
        slopes = vectors((values, filters, directions, *absent, grad), links, wanted)
        return [*slopes[:3], slopes[5]]

    return directed


def without_filters(attended: FormSlopes) -> FormSlopes:
    """Return the form ``weighted`` by an implementation of ``attended`` whose filters are 1."""

    def weighted(arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]) -> Slopes:
        values, weights, grad = arguments
        wanted = (needed[0], False, *needed[1:])
        slopes = attended((values, values[:0], weights, grad), links, wanted)
        return [slopes[0], *slopes[2:]]

    return weighted


def vectors_slopes(arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]) -> Slopes:
    """Differentiate the sum of the forms above, each edge gathering once for both.

    Args:
        arguments: values, [N, F], filters, [P, F], directions, [E, 3], vectors, [N, 3, F], their
            filters, [P, F], grad, [N, 3, F].
        links: the six tensors of ``Links.arrays``.
        needed: whether the derivative by each argument is needed; by the last one, no other is.
    """
    values, filters, directions, vectors, vector_filters, grad = arguments
    if needed[2]:
        first = directed_slopes((*arguments[:3], grad), links, (*needed[:3], False))
        second = filtered_slopes(arguments[3:], links, (*needed[3:5], False))
        return [*first[:3], *second]
    s, r, by_r, r_starts, by_s, s_starts = links
    axes = zip(directions.split(1, dim=1), vectors.unbind(1), strict=True)
    if needed[5]:
        messages = scale_rows(gather_rows(values, s), filters)
        sums = []
        for axis, each in axes:
            rows = scale_rows(gather_rows(each, s), vector_filters)
            sums.append(segment_sum(rows.addcmul_(messages, axis), by_r, r_starts))
        return [None] * 5 + [torch.stack(sums, dim=1)]
    along = grad.new_zeros(s.shape[0], values.shape[1])
    to_vectors = []
    to_filters = torch.zeros_like(filters)
    to_vector_filters = torch.zeros_like(filters)
    for (axis, each), slope in zip(axes, grad.unbind(1), strict=True):
        arrived = gather_rows(slope, r)
        along.addcmul_(axis, arrived)
        add_products(to_vector_filters, gather_rows(each, s), arrived)
        to_vectors.append(segment_sum(scale_rows(arrived, vector_filters), by_s, s_starts))
    add_products(to_filters, gather_rows(values, s), along)
    to_values = segment_sum(scale_rows(along, filters), by_s, s_starts)
    return [to_values, to_filters, None, torch.stack(to_vectors, dim=1), to_vector_filters, None]


def weighted_slopes(
    arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate ``sum weights_ij * values_j * grad_i``, with one weight for each head.

    Args:
        arguments: values, [N, F], weights, [P, H], grad, [N, F].
        links: the six tensors of ``Links.arrays``.
        needed: whether the derivative by each argument is needed.
    """
    values, weights, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links
    slopes: list[Any] = [None] * 3
    if needed[0]:
        slopes[0] = _sum_weighted(grad, weights, (r, by_s, s_starts))
    if needed[1]:
        rows = gather_rows(values, s).mul_(gather_rows(grad, r))
        slopes[1] = sum_pairs(_sum_heads(rows, weights.shape[1]), weights.shape[0])
    if needed[2]:
        slopes[2] = _sum_weighted(values, weights, (s, by_r, r_starts))
    return slopes


def _sum_weighted(values: Tensor, weights: Tensor, edges: Sequence[Tensor]) -> Tensor:
    """Sum rows of the other end by the weights of each head, which ``embedding_bag`` knows.

    ``edges``: the node at the other end of each edge, the edges sorted, and where a node's begin.
    """
    other, order, starts = edges
    shape = (starts.shape[0] - 1, values.shape[1])
    if not order.shape[0]:
        return values.new_zeros(shape)
    index = other.index_select(0, order)
    by_head = expand_pairs(weights, order.shape[0]).t().index_select(1, order)
    heads = values.reshape(values.shape[0], weights.shape[1], -1).transpose(0, 1).contiguous()
    sums = [
        torch.embedding_bag(head, index, starts, False, 0, False, weight, True)[0]
        for head, weight in zip(heads, by_head, strict=True)
    ]
    return sums[0] if len(sums) == 1 else torch.cat(sums, dim=1)


def _sum_heads(rows: Tensor, heads: int) -> Tensor:
    """Sum the features of each head: [E, F] to [E, H]."""
    ones = rows.new_ones(rows.shape[1] // heads)
    return rows.view(-1, len(ones)).mv(ones).view(-1, heads)


def attended_slopes(
    arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate ``sum weights_ij * filters_ij * values_j * grad_i``, one weight for each head.

    Args:
        arguments: values, [N, F], filters, [P, F], weights, [E, H], grad, [N, F].
        links: the six tensors of ``Links.arrays``.
        needed: whether the derivative by each argument is needed.
    """
    values, filters, weights, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links

    def scale(rows: Tensor) -> Tensor:
        by_head = rows.view(*weights.shape, rows.shape[1] // weights.shape[1])
        by_head.mul_(weights.unsqueeze(2))
        return rows

    slopes: list[Any] = [None] * 4
    if needed[0]:
        rows = scale(scale_rows(gather_rows(grad, r), filters))
        slopes[0] = segment_sum(rows, by_s, s_starts)
    if needed[1] or needed[2]:
        rows = gather_rows(values, s).mul_(gather_rows(grad, r))
    if needed[1]:
        slopes[1] = sum_pairs(scale(rows.clone() if needed[2] else rows), filters.shape[0])
    if needed[2]:
        slopes[2] = _sum_heads(scale_rows(rows, filters), weights.shape[1])
    if needed[3]:
        rows = scale(scale_rows(gather_rows(values, s), filters))
        slopes[3] = segment_sum(rows, by_r, r_starts)
    return slopes


def coupled_slopes(arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]) -> Slopes:
    """Differentiate ``sum filters_ij * (mixing_ij values_j) * grad_i``.

    Args:
        arguments: values, [N, A, F], filters, [P, F], mixing, [E, B, A], grad, [N, B, F].
        links: the six tensors of ``Links.arrays``.
        needed: whether the derivative by each argument is needed.
    """
    values, filters, mixing, grad = arguments
    s, r, by_r, r_starts, by_s, s_starts = links
    slopes: list[Any] = [None] * 4
    back = mixing.transpose(1, 2)
    if needed[0]:
        slopes[0] = _sum_coupled(grad, filters, back, (r, by_s, s_starts))
    if needed[1] and mixing.shape[2] <= mixing.shape[1]:
        slopes[1] = _sum_components(_mix_at_edges(grad, r, back), gather_rows(values, s), filters)
    elif needed[1]:
        slopes[1] = _sum_components(_mix_at_edges(values, s, mixing), gather_rows(grad, r), filters)
    if needed[2]:
        rows = scale_rows(gather_rows(values, s), filters.unsqueeze(1))
        slopes[2] = torch.bmm(gather_rows(grad, r), rows.transpose(1, 2))
    if needed[3]:
        slopes[3] = _sum_coupled(values, filters, mixing, (s, by_r, r_starts))
    return slopes


def _sum_coupled(
    values: Tensor, filters: Tensor, mixing: Tensor, edges: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Sum values that edges mix and filter, [N, A, F] to [N, B, F].

    Components are mixed before or after the sum over neighbours, whichever has fewer of them.

    Args:
        values: of the nodes at the other end, [N, A, F].
        filters: of the pairs, [P, F].
        mixing: of the edges, [E, B, A].
        edges: the other end of each edge, edges sorted by the end that sums, and their starts.
    """
    (other, order, starts) = edges
    (num_sums, num_sent) = mixing.shape[1:]
    if num_sent > num_sums:
        rows = scale_rows(_mix_at_edges(values, other, mixing), filters.unsqueeze(1))
        return segment_sum(rows, order, starts)
    rows = scale_rows(gather_rows(values, other), filters.unsqueeze(1)).flatten(0, 1)
    index = (order.unsqueeze(1) * num_sent + torch.arange(num_sent, device=order.device)).flatten()
    weights = mixing.index_select(0, order).transpose(0, 1).flatten(1).contiguous()
    sums = [segment_sum(rows, index, starts * num_sent, each) for each in weights]
    return torch.stack(sums, dim=1)


def _mix_at_edges(values: Tensor, nodes: Tensor, mixing: Tensor) -> Tensor:
    """Mix a node's components at each of its edges: [N, A, F] to [E, B, F]."""
    edges, num_sums, num_sent = mixing.shape
    if num_sums == num_sent == 1:
        return gather_rows(values, nodes).mul_(mixing)
    columns = torch.arange(num_sent, device=nodes.device)
    index = (nodes.unsqueeze(1) * num_sent + columns).unsqueeze(1).expand(-1, num_sums, -1)
    starts = torch.arange(0, edges * num_sums * num_sent + 1, num_sent, device=nodes.device)
    flat = values.reshape(-1, values.shape[2])
    mixed = segment_sum(flat, index.flatten(), starts, mixing.flatten())
    return mixed.view(edges, num_sums, values.shape[2])


def _sum_components(rows: Tensor, others: Tensor, like: Tensor) -> Tensor:
    """Multiply rows of edges, [E, A, F], and sum over components and pairs, [P, F]."""
    products = rows.mul_(others)
    sums = products.sum(1) if products.shape[1] > 1 else products.squeeze(1)
    return sum_pairs(sums, like.shape[0])


def triplets_slopes(
    arguments: Arguments, links: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate ``sum_ts weight_ts * filter_s,kj * message_kj * grad_ji`` over triplets t.

    No array of T * F numbers is allocated.

    Args:
        arguments: messages, [E, F], filters, [S, P, F], weights, [T, S], grad, [E, F].
        links: the six tensors of ``Links.arrays`` of triplets, sorted by their second edge.
        needed: whether the derivative by each argument is needed.
    """
    messages, filters, weights, grad = arguments
    first, second, _, starts, by_first, first_starts = links
    (size, pairs, width) = filters.shape
    slopes = list[Any]([None] * 4)
    edges = messages.shape[0]
    by_pair = filters.transpose(0, 1)
    if needed[2] or needed[3]:
        values = messages.repeat(size, 1, 1)
        scale_rows(values.transpose(0, 1), by_pair)
        values = values.view(-1, width)
        rows = (first.unsqueeze(1) + torch.arange(size, device=first.device) * edges).flatten()
    if needed[3]:
        slopes[3] = segment_sum(values, rows, starts * size, weights.flatten())
    if needed[2]:
        slopes[2] = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            grad.contiguous(), values, rows, starts * size, second.repeat_interleave(size), 0
        ).view_as(weights)
    if needed[0] or needed[1]:
        back = second.index_select(0, by_first)
        by_function = weights.index_select(0, by_first).t()
        arrived = [segment_sum(grad, back, first_starts, e.contiguous()) for e in by_function]
        sums = torch.stack(arrived).transpose(0, 1)
        products = sum_pairs(sums * messages.unsqueeze(1), pairs)
        slopes[1] = products.transpose(0, 1).contiguous()
        slopes[0] = scale_rows(sums, by_pair).sum(1)
    return [slope if need else None for slope, need in zip(slopes, needed, strict=True)]


EAGER_FORMS: dict[str, FormSlopes] = {
    "filtered": filtered_slopes,
    "directed": directed_slopes,
    "vectors": vectors_slopes,
    "weighted": weighted_slopes,
    "attended": attended_slopes,
    "coupled": coupled_slopes,
    "triplets": triplets_slopes,
}
"""Implementation of each form."""
