"""Several aggregations of messages at once: sums of messages and squares, largest and smallest.

Torch's operations write the messages of all edges, weigh and square them, and reduce them four
times. Compiled loops make each message once, where it is reduced, and make it again for the
gradients: no array of edges is kept. A second derivative (training on forces) goes through torch's
operations: extremes are not multilinear, so there is no form (``passes``) to share.

Shapes: N nodes, E edges, P pairs, see ``scatter``, F features.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

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
        inputs, links = tensors[:5], Links(*tensors[5:])
        needed = ctx.needs_input_grad[1:6]
        if not torch.is_grad_enabled():
            slopes = torch.stack(grads, dim=1).to(shares.dtype)
            slopes[:, 2:] *= shares
            reached = (extremes, slopes)
            if ctx.kernels == "triton":
                from hydragnn_hpo.model.kernels.triton_passes import aggregate_slopes_by_triton

                to_inputs = aggregate_slopes_by_triton(inputs, links.arrays, reached, needed)
            else:
                to_inputs = _slopes_by_numba(inputs, links, reached)
            return None, *to_inputs, *[None] * 6
        # Aliases: an input may depend on another one, as features of a later layer do on weights.
        inputs = [each.view_as(each) for each in inputs]
        outputs = _aggregate_eagerly(inputs, links)
        wanted = [each for each, need in zip(inputs, needed, strict=True) if need]
        again = iter(
            torch.autograd.grad(outputs, wanted, grads, create_graph=True, materialize_grads=True)
        )
        return None, *(next(again) if need else None for need in needed), *[None] * 6


def _aggregate_by_numba(inputs: Sequence[Tensor], links: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return sums, extremes, and shares of the messages that reach these, [N, 2, F] each."""
    from hydragnn_hpo.model.kernels.numba_passes import run_loop

    factors, weights, (sender, _, order, starts, _, _) = tuple(inputs[:4]), inputs[4], links
    nodes, width = factors[0].shape
    results = weights.new_empty(3, nodes, 2, width).unbind()
    row = weights.new_empty(width)
    run_loop("aggregate", factors, weights, (sender, order, starts), results, row)
    return results


def _slopes_by_numba(
    inputs: Sequence[Tensor], links: Links, reached: tuple[Tensor, Tensor]
) -> list[Tensor]:
    """Differentiate the aggregates by the five inputs.

    ``reached`` has the extremes, [N, 2, F], and the gradients of both sums, and of both extremes
    times the share of each message that reaches them, [N, 4, F].
    """
    from hydragnn_hpo.model.kernels.numba_passes import run_loop

    *factors, weights = inputs
    slopes = [torch.zeros_like(e, memory_format=torch.contiguous_format) for e in inputs]
    *to_factors, to_weights = slopes
    row, ends = weights.new_empty(factors[0].shape[1]), (links.sender, links.receiver)
    given = (tuple(factors), weights, ends, reached, tuple(to_factors), to_weights, row)
    run_loop("aggregate_slopes", *given)
    return slopes
