"""Several aggregations of messages at once: sums of messages and squares, largest and smallest.

Torch's operations write the messages of all edges, weigh and square them, and reduce them four
times. Compiled loops make each message once, where it is reduced, and make it again for the
gradients and for their derivatives (training on forces): no array of edges is kept. Extremes are
not multilinear, so there is no form (``passes``) to share. Second derivatives on GPUs, and third
ones, are torch's operations.

Shapes: N nodes, E edges, P pairs, see ``scatter``, F features.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.model.kernels.eager_edge_functions import EdgeCall
from hydragnn_hpo.model.kernels.edge_functions import differentiate_eagerly
from hydragnn_hpo.model.kernels.passes import usable_kernels
from hydragnn_hpo.model.scatter import (
    Gradients,
    Links,
    expand_pairs,
    multiply_by_filters,
    segment_max,
    segment_min,
    sum_ends,
    sum_messages,
)


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
    kernels = usable_kernels(links.kernels, inputs)
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
    messages = sum_ends(received, sent, measured if measured.shape[0] or empty else None, links)
    if filters.shape[0] or empty:
        messages = multiply_by_filters(messages, filters)
    weighted = messages * expand_pairs(weights, messages.shape[0])
    return Aggregates(
        sum_messages(weighted, links),
        sum_messages(weighted * messages, links),
        segment_max(weighted, links),
        segment_min(weighted, links),
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
            from hydragnn_hpo.model.kernels.triton_passes import aggregate_by_triton

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
    from hydragnn_hpo.model.kernels.triton_passes import aggregate_slopes_by_triton

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
    from hydragnn_hpo.model.kernels.numba_passes import run_loop

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
    from hydragnn_hpo.model.kernels.numba_passes import run_loop

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
    from hydragnn_hpo.model.kernels.numba_passes import run_loop

    *factors, weights = inputs
    to_factors, terms = _new_slopes(inputs)
    to_slopes = weights.new_zeros(4, *factors[0].shape).unbind()
    given = (tuple(factors), (weights, seconds[4]), tuple(ends), reached, tuple(seconds[:4]))
    rows = terms.new_empty(4, terms.shape[1]).unbind()
    run_loop("aggregate_curvature", *given, to_factors, terms, to_slopes, rows)
    return [*to_factors, terms.sum(1, keepdim=True), torch.stack(to_slopes, dim=1)]
