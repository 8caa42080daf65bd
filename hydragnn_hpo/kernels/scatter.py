"""Scatter and gather: plain and weighted sums, maxima and minima over neighbours.

Sums can be differentiated twice, which the training of forces needs. Each private autograd function
keeps only its inputs for the backward pass and computes its gradients by other functions of this
file, so that the gradients can be differentiated again. Its last arguments are the six tensors of
``Links.arrays``, or some of them.

Shapes: N nodes, E edges, P rows of a filter (one for both edges of a pair and each edge without a
reverse: edge e has row e or e - P; or E), F features, C components, H heads. Indices are int64.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn_hpo.kernels.kernel_choice import knows_type

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

    @classmethod
    def of(cls, sender: Tensor, receiver: Tensor, num_nodes: int) -> "Links":
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
        return cls(sender, receiver, by_receiver, receiver_starts, by_sender, sender_starts)

    def usable_kernels(self, tensors: Sequence[Tensor]) -> str:
        """Return the implementation that runs on some tensors: ``kernels``, or ``eager``.

        Loops take tensors of one device, plain and not being traced; those of numba, of one type.
        """
        if self.kernels == "eager" or torch.compiler.is_compiling():
            return "eager"
        if torch._C._len_torch_dispatch_stack():
            return "eager"
        device, dtype = tensors[0].device, tensors[0].dtype
        fits = all(
            t.device == device
            and type(t) in (Tensor, nn.Parameter)
            and (t.dtype is dtype or self.kernels == "triton")
            and knows_type(self.kernels, device.type, t.dtype)
            for t in tensors
        )
        return self.kernels if fits else "eager"

    def at_sender(self, values: Tensor) -> Tensor:
        """Gather for each edge the row of its sender: [N, ...] to [E, ...]."""
        return apply_function(_GatherNodes, values, self.sender, self.by_sender, self.sender_starts)

    def at_receiver(self, values: Tensor) -> Tensor:
        """Gather for each edge the row of its receiver: [N, ...] to [E, ...]."""
        order, starts = self.by_receiver, self.receiver_starts
        return apply_function(_GatherNodes, values, self.receiver, order, starts)

    def expand_pairs(self, values: Tensor) -> Tensor:
        """Repeat values of pairs for both of their edges: [P, ...] to [E, ...]."""
        return expand_pairs(values, self.sender.shape[0])

    def sum_messages(self, messages: Tensor) -> Tensor:
        """Sum the messages that each node receives: [E, ...] to [N, ...]."""
        order, starts = self.by_receiver, self.receiver_starts
        return apply_function(_SumMessages, messages, self.receiver, order, starts)

    def sum_ends(self, receiver: Tensor, sender: Tensor, pair: Tensor | None = None) -> Tensor:
        """Add for each edge values of both ends and of its pair: ``a_i + b_j + c_ij``, [E, F].

        Args:
            receiver: ``a``, values of nodes, added to the edges that they receive, [N, F].
            sender: ``b``, values of nodes, added to the edges that they send, [N, F].
            pair: ``c``, of the pairs, [P, F]; None adds nothing.
        """
        pair = receiver.new_zeros(0, receiver.shape[1]) if pair is None else pair
        return apply_function(_SumEnds, receiver, sender, pair, *self.arrays)

    def filter_senders(self, values: Tensor, filters: Tensor) -> Tensor:
        """Multiply the row of each edge's sender by its filter: ``filter_ij * value_j``, [E, F].

        Values are of the nodes, [N, F], and filters of the pairs, [P, F].
        """
        return self.filter_messages(self.at_sender(values), filters)

    def filter_messages(self, messages: Tensor, filters: Tensor) -> Tensor:
        """Multiply messages of edges, [E, F], by filters of pairs, [P, F] or [P, 1]."""
        return apply_function(_MultiplyByFilters, messages, filters)

    def outer_sum(self, messages: Tensor, components: Tensor) -> Tensor:
        """Sum outer products: ``out_i = sum_j components_ij x message_ij``, [N, C, F].

        Messages are of the edges, [E, F], as are components, [E, C]: a direction, spherical
        harmonics. No array of E * C * F numbers is allocated.
        """
        order, starts = self.by_receiver, self.receiver_starts
        return apply_function(_OuterSum, messages, components, self.receiver, order, starts)

    def largest(self, messages: Tensor) -> Tensor:
        """Return the maximum of 0 and the messages that each node receives, [E, F] to [N, F].

        With this floor a message of 0 has the effect of no message, so that the result is
        continuous when a neighbour, whose message is weighted by its envelope, crosses the cutoff.
        Equal messages share the gradient, so that equivalent atoms get equal forces; a message at
        or below 0 has none.
        """
        return _find_extreme(messages, "amax", self)

    def smallest(self, messages: Tensor) -> Tensor:
        """Return the minimum of 0 and the messages that each node receives, [N, F], <= 0."""
        return _find_extreme(messages, "amin", self)


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


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast for the device of ``like``."""
    kind = like.device.type
    if not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def unify_dtypes(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Convert fp32 tensors to bf16 if any tensor is bf16, as kernels take a single dtype.

    torch's kernels for sums over neighbours accumulate bf16 in fp32 and round once.
    """
    if torch.bfloat16 not in [tensor.dtype for tensor in tensors]:
        return tensors
    return [t.bfloat16() if t.dtype is torch.float32 else t for t in tensors]


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


def gather_rows(values: Tensor, index: Tensor) -> Tensor:
    """Gather rows, [N, ...] to [n, ...], as a matrix, which torch copies fastest."""
    if values.dim() <= 2:
        whole = values if values.stride(-1) == 1 else values.contiguous()
        return whole.index_select(0, index)
    matrix = values.flatten(1).contiguous()
    return matrix.index_select(0, index).view(-1, *values.shape[1:])


class _GatherNodes(Function):
    """``Links.at_sender`` and ``Links.at_receiver``; the gradient is ``_SumMessages``."""

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
    """``Links.sum_messages``; its gradient is ``_GatherNodes``."""

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
    """``Links.sum_ends``; ``pair`` has no rows if nothing is added per pair."""

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
    """``Links.filter_messages``; torch would pad and add up gradients of both ways of a pair."""

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
    """Gradient of ``Links.filter_messages`` by the filters."""

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
    """``Links.outer_sum``."""

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
        to_messages = to_components = None
        arrived = [apply_function(_GatherNodes, each, *links) for each in grad.unbind(1)]
        if ctx.needs_input_grad[0]:
            to_messages = torch.zeros_like(messages)
            for each, rows in zip(torch.split(components, 1, dim=1), arrived, strict=True):
                to_messages = torch.addcmul(to_messages, each, rows)
        if ctx.needs_input_grad[1]:
            to_components = torch.stack([(messages * rows).sum(1) for rows in arrived], dim=1)
        return to_messages, to_components, None, None, None


def _find_extreme(messages: Tensor, reduction: str, links: Links) -> Tensor:
    extreme: Tensor = _SegmentExtreme.apply(  # type: ignore[no-untyped-call]
        messages, reduction, *links.arrays
    )
    return extreme


class _SegmentExtreme(Function):
    """``Links.largest`` and ``Links.smallest``."""

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
            ties = links.sum_messages(hits)
            share = (extreme != 0) / ties.clamp_(min=1.0)
        return links.at_receiver(grad * share).mul_(hits), None, *[None] * 6
