"""Scatter and gather: plain and weighted sums, maxima and minima over neighbours.

Sums can be differentiated twice, which the training of forces needs. Each private autograd function
keeps only its inputs for the backward pass and computes its gradients by other functions of this
file, so that the gradients can be differentiated again. Its last arguments are the six tensors of
``Links.arrays``, or some of them.

Shapes: N nodes, E edges, P rows of a filter (one for both edges of a pair and each edge without a
reverse: edge e has row e or e - P; or E), F features, C components, H heads. Indices are int64.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.model.layers import unify_dtypes, without_autocast

Gradients = tuple[Tensor | None, ...]
"""Return type of ``backward`` of an autograd function: the gradient of each input of ``forward``,
in that order and of the input's shape; None for inputs without a gradient, such as indices."""


@dataclass(frozen=True, eq=False)
class Links:
    """Sender and receiver of every edge, and the edges sorted by either."""

    sender: Tensor
    """Node that sends, [E]."""
    receiver: Tensor
    """Node that receives, [E]."""
    by_receiver: Tensor
    """Edges sorted by receiver, [E]."""
    receiver_starts: Tensor
    """Position in ``by_receiver`` where the edges of each receiver begin, and the end, [N + 1]."""
    by_sender: Tensor
    """Edges sorted by sender, [E]."""
    sender_starts: Tensor
    """Position in ``by_sender`` where the edges of each sender begin, and the end, [N + 1]."""
    kernels: str = "eager"
    """Implementation of passes over these edges, see ``model.kernels``; never ``auto``."""

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """Return the tensors in the order in which autograd functions take them.

        Returns:
            Sender, receiver, order by receiver, receivers' starts, order by sender, senders'
            starts.
        """
        return (
            self.sender,
            self.receiver,
            self.by_receiver,
            self.receiver_starts,
            self.by_sender,
            self.sender_starts,
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return self.receiver_starts.shape[0] - 1


def build_links(sender: Tensor, receiver: Tensor, num_nodes: int) -> Links:
    """Return the links of edges in any order, by sorting them twice.

    Args:
        sender: node that sends, [E].
        receiver: node that receives, [E].
        num_nodes: N.
    """
    nodes = torch.arange(num_nodes + 1, device=receiver.device)
    by_receiver, by_sender = (torch.argsort(end, stable=True) for end in (receiver, sender))
    receiver_starts = torch.searchsorted(receiver.index_select(0, by_receiver), nodes)
    sender_starts = torch.searchsorted(sender.index_select(0, by_sender), nodes)
    return Links(sender, receiver, by_receiver, receiver_starts, by_sender, sender_starts)


def gather_nodes(values: Tensor, links: Links, end: str) -> Tensor:
    """Gather for each edge the row of one of its ends.

    Args:
        values: of the nodes, [N, ...].
        links: sender and receiver of every edge.
        end: ``sender`` or ``receiver``.

    Returns:
        [E, ...].
    """
    s, r, by_r, r_starts, by_s, s_starts = links.arrays
    ends = (s, by_s, s_starts) if end == "sender" else (r, by_r, r_starts)
    return apply_function(_GatherNodes, values, *ends)


def sum_messages(messages: Tensor, links: Links) -> Tensor:
    """Sum the messages that each node receives: [E, ...] to [N, ...]."""
    _, r, by_r, r_starts, _, _ = links.arrays
    return apply_function(_SumMessages, messages, r, by_r, r_starts)


def sum_ends(receiver: Tensor, sender: Tensor, pair: Tensor | None, links: Links) -> Tensor:
    """Add for each edge values of both ends and of its pair: ``a_i + b_j + c_ij``, [E, F].

    Args:
        receiver: ``a``, values of nodes, added to the edges that they receive, [N, F].
        sender: ``b``, values of nodes, added to the edges that they send, [N, F].
        pair: ``c``, of the pairs, [P, F]; None adds nothing.
        links: sender and receiver of every edge.
    """
    pair = receiver.new_zeros(0, receiver.shape[1]) if pair is None else pair
    return apply_function(_SumEnds, receiver, sender, pair, *links.arrays)


def filter_senders(values: Tensor, filters: Tensor, links: Links) -> Tensor:
    """Multiply the row of each edge's sender by its filter: ``filter_ij * value_j``, [E, F].

    Args:
        values: of the nodes, [N, F].
        filters: of the pairs, [P, F].
        links: sender and receiver of every edge.
    """
    return apply_function(_FilterSenders, values, filters, *links.arrays)


def multiply_by_filters(messages: Tensor, filters: Tensor) -> Tensor:
    """Multiply messages of edges, [E, F], by filters of pairs, [P, F] or [P, 1]."""
    return apply_function(_MultiplyByFilters, messages, filters)


def split_ways(rows: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Split rows of edges by the two ways of a pair, each part with the values of its pairs.

    Args:
        rows: of the edges, [E, ...].
        values: of the pairs, [P, ...].

    Returns:
        Views of the first P rows and all values, and of the other rows and the values of their
        pairs, if there are any.
    """
    pairs = values.shape[0]
    rest = rows.shape[0] - values.shape[0]
    first = (rows if rest == 0 else rows[:pairs], values)
    return [first] if rest == 0 else [first, (rows[pairs:], values[:rest])]


def expand_pairs(values: Tensor, edges: int) -> Tensor:
    """Repeat values of pairs, [P, ...], for both of their edges, [E, ...]; ``edges`` is E."""
    rest = edges - values.shape[0]
    return values if rest == 0 else torch.cat((values, values[:rest]))


def sum_pairs(rows: Tensor, pairs: int) -> Tensor:
    """Sum rows of edges, [E, ...], over both edges of a pair, [P, ...]; ``pairs`` is P."""
    rest = rows.shape[0] - pairs
    if rest == 0:
        return rows
    sums = rows[:rest] + rows[pairs:]
    return sums if rest == pairs else torch.cat((sums, rows[rest:pairs]))


def outer_sum(messages: Tensor, components: Tensor, links: Links) -> Tensor:
    """Sum outer products: ``out_i = sum_j components_ij x message_ij``.

    Args:
        messages: of the edges, [E, F].
        components: of the edges, [E, C]: a direction, spherical harmonics.
        links: sender and receiver of every edge.

    Returns:
        [N, C, F]; no array of E * C * F numbers is allocated.
    """
    _, r, by_r, r_starts, _, _ = links.arrays
    return apply_function(_OuterSum, messages, components, r, by_r, r_starts)


def apply_function(function: type[Function], *inputs: Tensor) -> Tensor:
    """Apply an autograd function to inputs of one dtype: bf16 if any of them is bf16.

    Autocast is off inside, as its rules differ between GPUs and CPUs. So the result and its
    gradient have the dtype of the inputs.
    """
    with without_autocast(inputs[0]):
        result: Tensor = function.apply(*unify_dtypes(inputs))  # type: ignore[no-untyped-call]
    return result


def segment_sum(
    values: Tensor, order: Tensor, starts: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Sum the rows of each segment by ``embedding_bag``, torch's fastest kernel for it.

    Args:
        values: rows, [n, ...].
        order: rows sorted by segment, [n].
        starts: position in ``order`` where each segment begins, and the end, [s + 1].
        weights: factor of each entry of ``order``, [n]; None for 1.

    Returns:
        [s, ...].
    """
    if not values.numel():
        return values.new_zeros(starts.shape[0] - 1, *values.shape[1:])
    rows = values if values.dim() == 2 else values.reshape(values.shape[0], -1)
    sums: Tensor = torch.embedding_bag(rows, order, starts, False, 0, False, weights, True)[0]
    return sums if values.dim() == 2 else sums.view(-1, *values.shape[1:])


Segments = tuple[Tensor, Tensor, Tensor]
"""Rows sorted by segment, [n], where each segment begins, and the end, [s + 1], weights, [n]."""


def _sum_with_own(values: Tensor, own: Tensor | None, *segments: Tensor) -> Tensor:
    """Do the work of ``sum_neighbors`` without a gradient, see ``_NeighborSum.forward``."""
    sums = segment_sum(values, *segments[:3])
    return sums if own is None else sums.addcmul_(values, own)


class _NeighborSum(Function):
    """``sum_neighbors``; its gradient is the same with both ways exchanged."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, own: Tensor | None, *segments: Tensor) -> Tensor:
        """Sum the neighbours of incoming edges.

        Args:
            ctx: keeps the segments for ``backward``, and the inputs if there is a weight.
            values: of the nodes, [N, F].
            own: weight of the node itself, [1], or None.
            segments: those of incoming edges, then those of outgoing ones.
        """
        ctx.save_for_backward(*segments, *(() if own is None else (values, own)))
        return _sum_with_own(values, own, *segments)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        *segments, values, own = (*ctx.saved_tensors, None, None)[:8]
        turned = (*segments[3:], *segments[:3])
        to_values: Tensor | None = None
        if ctx.needs_input_grad[0]:
            sum_up = _NeighborSum.apply if torch.is_grad_enabled() else _sum_with_own
            to_values = sum_up(grad, own, *turned)
        to_own = None
        if ctx.needs_input_grad[1]:
            to_own = torch.dot(grad.reshape(-1), values.reshape(-1)).reshape(1)
        return to_values, to_own, *[None] * 6


def sum_neighbors(
    values: Tensor, incoming: Segments, outgoing: Segments, own: Tensor | None = None
) -> Tensor:
    """Sum the weighted rows of neighbours, with weights that need no gradient.

    Args:
        values: of the nodes, [N, F].
        incoming: the senders of the edges that each node receives, and the edges' weights.
        outgoing: the receivers of the edges that each node sends, with the same weights.
        own: weight of the node itself, [1], which may need a gradient; None for 0.

    Returns:
        [N, F].
    """
    sums: Tensor = _NeighborSum.apply(  # type: ignore[no-untyped-call]
        values, own, *incoming, *outgoing
    )
    return sums


def gather_rows(values: Tensor, index: Tensor) -> Tensor:
    """Gather rows, [N, ...] to [n, ...], as a matrix, which torch copies fastest."""
    if values.dim() <= 2:
        whole = values if values.stride(-1) == 1 else values.contiguous()
        return whole.index_select(0, index)
    matrix = values.flatten(1).contiguous()
    return matrix.index_select(0, index).view(-1, *values.shape[1:])


class _GatherNodes(Function):
    """``gather_nodes``; its gradient is ``_SumMessages``."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, order: Tensor, starts: Tensor) -> Tensor:
        """Gather the row of one end of each edge.

        Args:
            ctx: keeps the inputs for ``backward``.
            values: of the nodes, [N, ...].
            index: the end of each edge, [E].
            order: edges sorted by that end, [E].
            starts: position in ``order`` where the edges of each node begin, and the end, [N + 1].

        Returns:
            [E, ...].
        """
        ctx.save_for_backward(index, order, starts)
        return gather_rows(values, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        return apply_function(_SumMessages, grad, *ctx.saved_tensors), None, None, None


class _SumMessages(Function):
    """``sum_messages``; its gradient is ``_GatherNodes``."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, order: Tensor, starts: Tensor) -> Tensor:
        """Sum the rows of the edges at one of their ends.

        Args:
            ctx: keeps the inputs for ``backward``.
            values: of the edges, [E, ...].
            index: the end of each edge, [E].
            order: edges sorted by that end, [E].
            starts: position in ``order`` where the edges of each node begin, and the end, [N + 1].

        Returns:
            [N, ...].
        """
        ctx.save_for_backward(index, order, starts)
        return segment_sum(values, order, starts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        return apply_function(_GatherNodes, grad, *ctx.saved_tensors), None, None, None


class _SumEnds(Function):
    """``sum_ends``; ``pair`` has no rows if nothing is added per pair."""

    @staticmethod
    def forward(ctx: Any, receiver: Tensor, sender: Tensor, pair: Tensor, *links: Tensor) -> Tensor:
        """Add for each edge the rows of both ends and of its pair.

        Args:
            ctx: keeps the inputs for ``backward``.
            receiver: of the node that receives, [N, F].
            sender: of the node that sends, [N, F].
            pair: of pairs or edges, [P, F], or [0, F].
            links: the six tensors of ``Links.arrays``.

        Returns:
            [E, F].
        """
        ctx.save_for_backward(*links)
        ctx.pairs = pair.shape[0]
        rows = gather_rows(receiver, links[1]).add_(gather_rows(sender, links[0]))
        if pair.shape[0]:
            for part, values in split_ways(rows, pair):
                part.add_(values)
        return rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        s, r, by_r, r_starts, by_s, s_starts = ctx.saved_tensors
        to_receiver = to_sender = to_pair = None
        if ctx.needs_input_grad[0]:
            to_receiver = apply_function(_SumMessages, grad, r, by_r, r_starts)
        if ctx.needs_input_grad[1]:
            to_sender = apply_function(_SumMessages, grad, s, by_s, s_starts)
        if ctx.needs_input_grad[2]:
            to_pair = sum_pairs(grad, ctx.pairs) if ctx.pairs else grad[:0]
        return to_receiver, to_sender, to_pair, *[None] * 6


def scale_rows(rows: Tensor, filters: Tensor) -> Tensor:
    """Multiply rows of edges, [E, ...], in place by filters, [P, ...], and return them."""
    for part, values in split_ways(rows, filters):
        part.mul_(values)
    return rows


class _MultiplyByFilters(Function):
    """``multiply_by_filters``; torch would pad and add up the gradients of both ways of a pair."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, filters: Tensor) -> Tensor:
        """Multiply the row of each edge by the filter of its pair.

        Args:
            ctx: keeps the inputs for ``backward``.
            messages: of the edges, [E, F].
            filters: of pairs or edges, [P, F] or [P, 1].

        Returns:
            [E, F].
        """
        ctx.save_for_backward(messages, filters)
        products = torch.empty_like(messages)
        ways = zip(split_ways(messages, filters), split_ways(products, filters), strict=True)
        for (rows, values), (part, _) in ways:
            torch.mul(rows, values, out=part)
        return products

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        messages, filters = ctx.saved_tensors
        to_messages = to_filters = None
        if ctx.needs_input_grad[0]:
            to_messages = apply_function(_MultiplyByFilters, grad, filters)
        if ctx.needs_input_grad[1]:
            to_filters = apply_function(_SumProducts, grad, messages, filters)
        return to_messages, to_filters


class _SumProducts(Function):
    """Gradient of ``multiply_by_filters`` by the filters."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, others: Tensor, filters: Tensor) -> Tensor:
        """Multiply two arrays of edges, and sum over the edges that share a filter.

        Args:
            ctx: keeps the inputs for ``backward``.
            rows: of the edges, [E, F].
            others: of the edges, [E, F].
            filters: of pairs or edges, [P, F] or [P, 1]; only their shape matters.

        Returns:
            Of the shape of ``filters``.
        """
        ctx.save_for_backward(rows, others)
        if filters.shape[1] < rows.shape[1]:
            return sum_pairs((rows * others).sum(1, keepdim=True), filters.shape[0])
        pairs = filters.shape[0]
        rest = rows.shape[0] - filters.shape[0]
        sums = rows[:pairs] * others[:pairs]
        if rest:
            sums[:rest].addcmul_(rows[pairs:], others[pairs:])
        return sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        to_inputs = [
            apply_function(_MultiplyByFilters, other, grad) if need else None
            for other, need in zip(ctx.saved_tensors[::-1], ctx.needs_input_grad, strict=False)
        ]
        return *to_inputs, None


class _FilterSenders(Function):
    """``filter_senders``."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, filters: Tensor, *links: Tensor) -> Tensor:
        """Multiply the row of each edge's sender by the edge's filter.

        Args:
            ctx: keeps the inputs for ``backward``.
            values: of the nodes, [N, F].
            filters: of pairs or edges, [P, F].
            links: the six tensors of ``Links.arrays``.

        Returns:
            [E, F].
        """
        ctx.save_for_backward(values, filters, *links)
        return scale_rows(gather_rows(values, links[0]), filters)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        values, filters, s, _, _, _, by_s, s_starts = ctx.saved_tensors
        to_values = to_filters = None
        if ctx.needs_input_grad[0]:
            to_values = apply_function(
                _SumMessages, multiply_by_filters(grad, filters), s, by_s, s_starts
            )
        if ctx.needs_input_grad[1]:
            product = grad * apply_function(_GatherNodes, values, s, by_s, s_starts)
            to_filters = sum_pairs(product, filters.shape[0])
        return to_values, to_filters, *[None] * 6


def add_products(total: Tensor, rows: Tensor, others: Tensor) -> None:
    """Add products of two arrays of edges to an array of pairs, in place.

    Args:
        total: of pairs or edges, [P, F]; changed.
        rows: of the edges, [E, F].
        others: of the edges, [E, F].
    """
    ways = zip(split_ways(rows, total), split_ways(others, total), strict=True)
    for (part, sums), (other, _) in ways:
        sums.addcmul_(part, other)


class _OuterSum(Function):
    """``outer_sum``."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, components: Tensor, *links: Tensor) -> Tensor:
        """Sum messages at their receivers, once for each component as a weight.

        Args:
            ctx: keeps the inputs for ``backward``.
            messages: of the edges, [E, F].
            components: of the edges, [E, C].
            links: receivers, edges sorted by receiver, and their starts, see ``Links``.

        Returns:
            [N, C, F].
        """
        ctx.save_for_backward(messages, components, *links)
        _, order, starts = links
        weights = components.index_select(0, order).t().contiguous()
        if not weights.shape[0]:
            return messages.new_zeros(starts.shape[0] - 1, 0, messages.shape[1])
        return torch.stack([segment_sum(messages, order, starts, each) for each in weights], dim=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        messages, components, *links = ctx.saved_tensors
        needed = ctx.needs_input_grad[:2]
        return *outer_sum_gradients(messages, components, grad, links, needed), None, None, None


def outer_sum_gradients(
    messages: Tensor,
    components: Tensor,
    grad: Tensor,
    links: Sequence[Tensor],
    needed: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Differentiate ``outer_sum``, in a way that can be differentiated again.

    Args:
        messages: its input, [E, F].
        components: its input, [E, C].
        grad: gradient of its output, [N, C, F].
        links: receivers, edges sorted by receiver, and their starts, see ``Links``.
        needed: whether the gradients of messages and of components are needed.

    Returns:
        Gradients of messages and of components, in their shapes; None where not needed.
    """
    to_messages = to_components = None
    arrived = [apply_function(_GatherNodes, each, *links) for each in grad.unbind(1)]
    if needed[0]:
        to_messages = torch.zeros_like(messages)
        for each, rows in zip(torch.split(components, 1, dim=1), arrived, strict=True):
            to_messages = torch.addcmul(to_messages, each, rows)
    if needed[1]:
        to_components = torch.stack([(messages * rows).sum(1) for rows in arrived], dim=1)
    return to_messages, to_components


def segment_max(messages: Tensor, links: Links) -> Tensor:
    """Return the maximum of 0 and the messages that each node receives.

    With this floor a message of 0 has the effect of no message, so that the result is continuous
    when a neighbour, whose message is weighted by its envelope, crosses the cutoff.

    Args:
        messages: of the edges, [E, F].
        links: sender and receiver of every edge.

    Returns:
        [N, F], >= 0. Equal messages share the gradient, so that equivalent atoms get equal forces;
        a message at or below 0 has none.
    """
    return _segment_extreme(messages, links, "amax")


def segment_min(messages: Tensor, links: Links) -> Tensor:
    """Return the minimum of 0 and the messages that each node receives, [N, F], <= 0."""
    return _segment_extreme(messages, links, "amin")


def _segment_extreme(messages: Tensor, links: Links, reduction: str) -> Tensor:
    extreme: Tensor = _SegmentExtreme.apply(  # type: ignore[no-untyped-call]
        messages, reduction, *links.arrays
    )
    return extreme


class _SegmentExtreme(Function):
    """``segment_max`` and ``segment_min``."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, reduction: str, *links: Tensor) -> Tensor:
        """Reduce the messages of each receiver.

        Args:
            ctx: keeps the inputs for ``backward``.
            messages: of the edges, [E, F].
            reduction: ``amax`` or ``amin``, over the messages and 0.
            links: the six tensors of ``Links.arrays``.

        Returns:
            [N, F].
        """
        receiver, starts = links[1], links[3]
        extreme = messages.new_zeros(starts.shape[0] - 1, messages.shape[1])
        where = receiver.unsqueeze(1).expand_as(messages)
        extreme.scatter_reduce_(0, where, messages, reduction)
        ctx.save_for_backward(messages, extreme, *links)
        return extreme

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        messages, extreme, *arrays = ctx.saved_tensors
        links = Links(*arrays)
        with torch.no_grad():
            hits = extreme.index_select(0, links.receiver).eq_(messages)
            ties = sum_messages(hits, links)
            share = (extreme != 0) / ties.clamp_(min=1.0)
        return gather_nodes(grad * share, links, "receiver").mul_(hits), None, *[None] * 6
