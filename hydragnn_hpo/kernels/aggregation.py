"""Aggregations that are no forms: several at once, and sums with weights without a gradient.

For sums of messages and of squares, the largest and the smallest, torch's operations write the
messages of all edges, weigh and square them, and reduce them four times. Compiled loops make each
message once, where it is reduced, and make it again for the gradients and for their derivatives
(training on forces): no array of edges is kept. Extremes are not multilinear, so there is no form
(``passes``) to share. Second derivatives on GPUs, and third ones, are torch's operations.

Shapes: N nodes, E edges, P pairs, see ``scatter``, F features.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.kernels.eager_edge_functions import EdgeCall
from hydragnn_hpo.kernels.edge_functions import differentiate_eagerly
from hydragnn_hpo.kernels.scatter import Gradients, Links, Segments, segment_sum


def _sum_with_own(values: Tensor, own: Tensor | None, *segments: Tensor) -> Tensor:
    """Do the work of ``Neighbors.sum`` without a gradient, see ``_NeighborSum.forward``."""
    sums = segment_sum(values, *segments[:3])
    return sums if own is None else sums.addcmul_(values, own)


class _NeighborSum(Function):
    """``Neighbors.sum``; its gradient is the same with both ways exchanged."""

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


class Neighbors(NamedTuple):
    """The neighbours of all nodes with their weights, sorted once for all layers."""

    incoming: Segments
    """Senders of the edges that each node receives, and their weights."""
    outgoing: Segments
    """Receivers of the edges that each node sends, and their weights."""

    @classmethod
    def of(cls, links: Links, envelopes: Tensor, *, mean: bool) -> "Neighbors":
        """Sort neighbours by the nodes that see them, with their envelopes as weights.

        Args:
            links: sender and receiver of every edge.
            envelopes: of the pairs, without a gradient, [P, 1].
            mean: whether to divide weights by 1 + the sum of the receiver's.
        """
        # Where every edge has its reverse, that is as long as itself.
        symmetric = not mean and links.sender_starts is links.receiver_starts
        if links.usable_kernels((envelopes,)) == "numba":
            from hydragnn_hpo.kernels.numba_passes import sort_neighbors

            return cls(*sort_neighbors(links, envelopes, mean=mean, symmetric=symmetric))
        weights = links.expand_pairs(envelopes)
        if mean:
            weights = weights / links.at_receiver(1.0 + links.sum_messages(weights))
        weights = weights.squeeze(-1)

        def sort(other: Tensor, order: Tensor, starts: Tensor) -> Segments:
            return other.index_select(0, order), starts, weights.index_select(0, order)

        received = sort(links.sender, links.by_receiver, links.receiver_starts)
        sent = received if symmetric else sort(links.receiver, links.by_sender, links.sender_starts)
        return cls(received, sent)

    def sum(self, values: Tensor, own: Tensor | None = None) -> Tensor:
        """Sum the weighted rows of neighbours, [N, F] to [N, F].

        Args:
            values: of the nodes, [N, F].
            own: weight of the node itself, [1], which may need a gradient; None for 0.
        """
        sums: Tensor = _NeighborSum.apply(  # type: ignore[no-untyped-call]
            values, own, *self.incoming, *self.outgoing
        )
        return sums


class Aggregates(NamedTuple):
    """Aggregations of the weighted messages that each node receives, [N, F] each."""

    sums: Tensor
    """Sum of ``weight * message``."""
    squares: Tensor
    """Sum of ``weight * message ** 2``."""
    largest: Tensor
    """Maximum of 0 and ``weight * message``."""
    smallest: Tensor
    """Minimum of 0 and ``weight * message``."""


def aggregate_messages(
    received: Tensor,
    sent: Tensor,
    measured: Tensor | None,
    filters: Tensor | None,
    weights: Tensor,
    links: Links,
) -> Aggregates:
    """Aggregate the messages ``(received_i + sent_j + measured_ij) * filter_ij`` in four ways.

    Args:
        received: of the nodes, read at the receiver, [N, F].
        sent: of the nodes, read at the sender, [N, F].
        measured: of the pairs, [P, F]; None adds nothing.
        filters: of the pairs, [P, F]; None for 1.
        weights: of the pairs, [P, 1].
        links: sender and receiver of every edge.
    """
    absent = received.new_empty(0, received.shape[1])
    inputs = (
        received,
        sent,
        absent if measured is None else measured,
        absent if filters is None else filters,
        weights,
    )
    kernels = links.usable_kernels(inputs)
    if kernels != "eager":
        outputs: tuple[Tensor, ...] = _Aggregate.apply(  # type: ignore[no-untyped-call]
            kernels, *inputs, *links.arrays
        )
        return Aggregates(*outputs)
    return _aggregate_eagerly(inputs, links)


def _aggregate_eagerly(inputs: Sequence[Tensor], links: Links) -> Aggregates:
    """Aggregate by torch's operations; ``measured`` and ``filters`` may have no rows."""
    received, sent, measured, filters, weights = inputs
    empty = not weights.shape[0]  # all inputs take part, so that each gets a gradient
    messages = links.sum_ends(received, sent, measured if measured.shape[0] or empty else None)
    if filters.shape[0] or empty:
        messages = links.filter_messages(messages, filters)
    weighted = messages * links.expand_pairs(weights)
    return Aggregates(
        links.sum_messages(weighted),
        links.sum_messages(weighted * messages),
        links.largest(weighted),
        links.smallest(weighted),
    )


class _Aggregate(Function):
    """``aggregate_messages`` by compiled loops."""

    @staticmethod
    def forward(ctx: Any, kernels: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Aggregate messages.

        Args:
            ctx: keeps the inputs and the extremes for ``backward``.
            kernels: implementation, ``numba`` or ``triton``.
            tensors: the five inputs, then the six tensors of ``Links.arrays``.

        Returns:
            The four aggregates.
        """
        inputs, links = tensors[:5], tensors[5:]
        if kernels == "triton":
            from hydragnn_hpo.kernels.triton_passes import aggregate_by_triton

            results = aggregate_by_triton(inputs, links)
        else:
            results = _aggregate_by_numba(inputs, links)
        sums, extremes, shares = results
        ctx.kernels = kernels
        ctx.save_for_backward(*tensors, extremes, shares)
        dtype = functools.reduce(torch.promote_types, [each.dtype for each in inputs])
        outputs = (*sums.unbind(1), *extremes.unbind(1))
        return tuple(each.to(dtype).contiguous() for each in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        *tensors, extremes, shares = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:6]
        grad = torch.stack(grads, dim=1)
        slopes: Sequence[Tensor | None]
        if not torch.is_grad_enabled():
            slopes = _find_slopes(ctx.kernels, tensors, (grad, extremes, shares), needed)
        elif ctx.kernels == "numba":
            slopes = _AggregateSlopes.apply(  # type: ignore[no-untyped-call]
                *tensors[:5], grad, extremes, shares, *tensors[5:]
            )
        else:
            slopes = _slopes_by_torch(tensors, grads, needed)
        return (
            None,
            *(each if need else None for each, need in zip(slopes, needed, strict=True)),
            *[None] * 6,
        )


class _AggregateSlopes(Function):
    """Gradients of ``aggregate_messages`` by the loops of numba."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute the gradients of the five inputs.

        Args:
            ctx: keeps the inputs for ``backward``.
            tensors: the five inputs, the gradient of the aggregates, [N, 4, F], extremes and their
                shares, then the six tensors of ``Links.arrays``.

        Returns:
            As many tensors as there are inputs.
        """
        ctx.save_for_backward(*tensors)
        return tuple(_slopes_by_numba(tensors[:5], tensors[8:10], _reach(*tensors[5:8])))

    @staticmethod
    def backward(ctx: Any, *seconds: Tensor) -> Gradients:
        tensors = ctx.saved_tensors
        inputs, (grad, extremes, shares) = tensors[:5], tensors[5:8]
        slopes: Sequence[Tensor]
        if torch.is_grad_enabled():
            call = EdgeCall(inputs, Links(*tensors[8:]), 0.0)
            slopes = differentiate_eagerly(_stack_aggregates, call, (grad,), seconds)
        else:
            reached = _reach(grad, extremes, shares)
            slopes = _curvature_by_numba(inputs, tensors[8:10], reached, seconds)
            slopes[-1][:, 2:] *= shares
        return *slopes, *[None] * 8


def _stack_aggregates(call: EdgeCall) -> Tensor:
    """Aggregate by torch's operations, [N, 4, F]."""
    return torch.stack(_aggregate_eagerly(call.inputs, call.links), dim=1)


def _reach(grad: Tensor, extremes: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the extremes, [N, 2, F], and what each message that reaches one gets, [N, 4, F].

    Args:
        grad: gradient of the aggregates, [N, 4, F].
        extremes: largest and smallest messages, [N, 2, F].
        shares: 1 over the number of messages that reach them, [N, 2, F].
    """
    slopes = grad.to(shares.dtype, copy=True)
    slopes[:, 2:] *= shares
    return extremes, slopes


def _find_slopes(
    kernels: str, tensors: Sequence[Tensor], given: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    """Differentiate the aggregates by the five inputs, by compiled loops.

    Args:
        kernels: implementation, ``numba`` or ``triton``.
        tensors: the five inputs, then the six tensors of ``Links.arrays``.
        given: gradient of the aggregates, [N, 4, F], extremes and shares, [N, 2, F].
        needed: whether the gradient of each input is needed.
    """
    reached = _reach(*given)
    if kernels == "numba":
        return _slopes_by_numba(tensors[:5], tensors[5:7], reached)
    from hydragnn_hpo.kernels.triton_passes import aggregate_slopes_by_triton

    return aggregate_slopes_by_triton(tensors[:5], tensors[5:], reached, needed)


def _slopes_by_torch(
    tensors: Sequence[Any], grads: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    """Differentiate the aggregates by torch's operations, to be differentiated again.

    Args:
        tensors: the five inputs, then the six tensors of ``Links.arrays``.
        grads: gradients of the four aggregates, [N, F] each.
        needed: whether the gradient of each input is needed.
    """
    # Aliases: an input may depend on another one, as features of a later layer do on weights.
    inputs = [each.view_as(each) for each in tensors[:5]]
    outputs = _aggregate_eagerly(inputs, Links(*tensors[5:]))
    wanted = [each for each, need in zip(inputs, needed, strict=True) if need]
    again = iter(
        torch.autograd.grad(outputs, wanted, grads, create_graph=True, materialize_grads=True)
    )
    return [next(again) if need else None for need in needed]


def _aggregate_by_numba(inputs: Sequence[Tensor], links: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return sums, extremes, and shares of the messages that reach these, [N, 2, F] each."""
    from hydragnn_hpo.kernels.numba_passes import run_loop

    factors = tuple(inputs[:4])
    weights = inputs[4]
    (sender, _, order, starts, _, _) = links
    nodes, width = factors[0].shape
    results = weights.new_empty(3, nodes, 2, width).unbind()
    space = weights.new_empty(7, width).unbind()
    run_loop("aggregate", factors, weights, (sender, order, starts), results, space)
    return results


def _slopes_by_numba(
    inputs: Sequence[Tensor], ends: Sequence[Tensor], reached: tuple[Tensor, Tensor]
) -> list[Tensor]:
    """Differentiate the aggregates by the five inputs.

    ``ends`` are the senders and the receivers of the edges; ``reached`` has the extremes,
    [N, 2, F], and the gradients of both sums, and of both extremes times the share of each message
    that reaches them, [N, 4, F].
    """
    from hydragnn_hpo.kernels.numba_passes import run_loop

    *factors, weights = inputs
    to_factors, terms = _new_slopes(inputs)
    given = (tuple(factors), weights, tuple(ends), reached)
    run_loop("aggregate_slopes", *given, to_factors, terms, terms.new_empty(terms.shape[1]))
    return [*to_factors, terms.sum(1, keepdim=True)]


def _new_slopes(inputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return zeros for gradients of the factors, and for terms of those of the weights, [P, F]."""
    *factors, weights = inputs
    whole = torch.contiguous_format
    to_factors = tuple(torch.zeros_like(each, memory_format=whole) for each in factors)
    return to_factors, weights.new_zeros(len(weights), factors[0].shape[1])


def _curvature_by_numba(
    inputs: Sequence[Tensor],
    ends: Sequence[Tensor],
    reached: tuple[Tensor, Tensor],
    seconds: Sequence[Tensor],
) -> list[Tensor]:
    """Differentiate ``_slopes_by_numba`` by the five inputs and by the gradients of ``reached``.

    Args:
        inputs: the five inputs.
        ends: sender and receiver of every edge.
        reached: see ``_slopes_by_numba``.
        seconds: gradients of its results.
    """
    from hydragnn_hpo.kernels.numba_passes import run_loop

    *factors, weights = inputs
    to_factors, terms = _new_slopes(inputs)
    to_slopes = weights.new_zeros(4, *factors[0].shape).unbind()
    given = (tuple(factors), (weights, seconds[4]), tuple(ends), reached, tuple(seconds[:4]))
    rows = terms.new_empty(4, terms.shape[1]).unbind()
    run_loop("aggregate_curvature", *given, to_factors, terms, to_slopes, rows)
    return [*to_factors, terms.sum(1, keepdim=True), torch.stack(to_slopes, dim=1)]
