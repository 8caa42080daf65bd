"""Triplets of nodes k -> j -> i: pairs of edges that meet, their angles, sums over them.

A triplet is an ordered pair of edges, k -> j and j -> i, of which the second is not the first
turned round; another image of the same node is another node. In ``Links`` of triplets edges
stand where nodes stand elsewhere: edge k -> j sends to edge j -> i.

Shapes: N nodes, E edges, T triplets, S angular functions, F features.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.sums import Links, applied, take


@dataclass(frozen=True, eq=False)
class Triplets:
    """Pairs of edges that meet in a node, in the order of the second edge."""

    links: Links
    """Edge k -> j as the sender and edge j -> i as the receiver of every triplet."""
    cosines: Tensor
    """Cosine of the angle at j between the directions to k and to i, [T]."""


def triplets_of(edges: Edges, reach: float) -> Triplets:
    """Find all triplets whose two edges are both shorter than ``reach``, in angstrom.

    Nothing is differentiated but the cosines, which are products of unit vectors: there is no
    arc cosine whose slope is infinite for three nodes in a line.
    """
    with torch.no_grad():
        links = _links(edges, edges.lengths < reach)
    first, second = (take(edges.directions, links, end) for end in ("sender", "receiver"))
    return Triplets(links, -(first * second).sum(-1))


def _links(edges: Edges, short: Tensor) -> Links:
    """Pair every short edge j -> i with the short edges that enter j."""
    total = edges.sender.shape[0]
    order = edges.links.by_receiver
    order = order[short.index_select(0, order)]
    starts = _starts(edges.receiver.index_select(0, order), edges.num_nodes)
    second = short.nonzero().squeeze(1)
    middle = edges.sender.index_select(0, second)
    begin = starts.index_select(0, middle)
    count = starts.index_select(0, middle + 1) - begin
    offset = begin - (count.cumsum(0) - count)
    row = torch.repeat_interleave(offset, count)
    row += torch.arange(row.shape[0], device=row.device)
    first, second = order.index_select(0, row), torch.repeat_interleave(second, count)
    keep = ~_turned(edges, first, second)
    first, second = first[keep], second[keep]
    by_first = torch.argsort(first, stable=True)
    return Links(
        sender=first,
        receiver=second,
        by_receiver=torch.arange(first.shape[0], device=first.device),
        receiver_starts=_starts(second, total),
        by_sender=by_first,
        sender_starts=_starts(first.index_select(0, by_first), total),
    )


def _starts(ordered: Tensor, count: int) -> Tensor:
    """Give where each of ``count`` begins among ordered numbers, and the end, [count + 1]."""
    return torch.searchsorted(ordered, torch.arange(count + 1, device=ordered.device))


def _turned(edges: Edges, first: Tensor, second: Tensor) -> Tensor:
    """Tell which second edges are the first ones turned round, [T].

    Where edges are not stored in pairs, geometry decides: the way there and back ends where it
    began. Two images of one node are angstroms apart, rounding is far below a hundredth of one.
    """
    if edges.paired:
        half = edges.pair_lengths.shape[0]
        return (first + half) % max(2 * half, 1) == second
    vectors = edges.directions * edges.lengths.unsqueeze(-1)
    way = vectors.index_select(0, first) + vectors.index_select(0, second)
    home = edges.sender.index_select(0, first) == edges.receiver.index_select(0, second)
    return home & (way.square().sum(-1) < 1e-4)


@dataclass(frozen=True, eq=False)
class Fan:
    """What ``fanned`` needs: each triplet takes part once per angular function."""

    weights: Tensor
    """Of the triplets, one per angular function, [T, S]."""
    turned: Tensor
    """The same numbers in the order of the first edge, without a gradient, [S, T]."""
    rows: Tensor
    """Row of the values, [S * E], that triplet and function read; by second edge, [T * S]."""
    seconds: Tensor
    """Second edges, in their order, [T]."""
    starts: Tensor
    """Where each of them begins, and the end, [E + 1]."""
    by_first: Tensor
    """Triplets in the order of their first edge, [T]."""
    first_starts: Tensor
    """Where each first edge begins in that order, and the end, [E + 1]."""

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """Give the tensors in the order of the fields."""
        return (
            self.weights,
            self.turned,
            self.rows,
            self.seconds,
            self.starts,
            self.by_first,
            self.first_starts,
        )


def fan_of(links: Links, weights: Tensor) -> Fan:
    """Lay out the weights of triplets, [T, S], once for all layers."""
    step = torch.arange(weights.shape[1], device=weights.device) * links.num_nodes
    return Fan(
        weights=weights,
        turned=_turned_weights(weights.detach(), links.by_sender),
        rows=(links.sender.unsqueeze(1) + step).view(-1),
        seconds=links.receiver,
        starts=links.receiver_starts,
        by_first=links.by_sender,
        first_starts=links.sender_starts,
    )


def _turned_weights(weights: Tensor, by_first: Tensor) -> Tensor:
    return weights.index_select(0, by_first).t().contiguous()


def fanned(values: Tensor, fan: Fan) -> Tensor:
    """Sum over triplets and angular functions: ``out_ji = sum_k sum_s weight_kji,s value_s,kj``.

    No array of T * F numbers is made, neither here nor in the gradients of any order.

    Args:
        values: of the first edges, one for each angular function, [S, E, F].
        fan: the weights, and who meets whom.

    Returns:
        Of the second edges, [E, F].
    """
    return applied(_Fanned, values, *fan.arrays)


def _bag(values: Tensor, rows: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Sum weighted rows of each segment, [n, F]."""
    if not rows.numel():
        return values.new_zeros(starts.shape[0] - 1, values.shape[1])
    found: Tensor = torch.embedding_bag(
        values.contiguous(), rows, starts, False, 0, False, weights.contiguous(), True
    )[0]
    return found


class _Fanned(Function):
    """The form ``sum_t,s weight_ts <value_s,kj(t), grad_ji(t)>``, differentiated by grad."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, turned: Tensor, *fan: Tensor) -> Tensor:
        ctx.save_for_backward(values, weights, turned, *fan)
        rows, _, starts, _, _ = fan
        flat = values.reshape(-1, values.shape[2])
        return _bag(flat, rows, starts * values.shape[0], weights.reshape(-1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, weights, turned, *fan = ctx.saved_tensors
        to_values = to_weights = None
        if ctx.needs_input_grad[0]:
            to_values = applied(_Returned, grad, weights, turned, *fan)
        if ctx.needs_input_grad[1]:
            to_weights = applied(_Overlap, values, grad, *fan)
        return to_values, to_weights, *[None] * 6


class _Returned(Function):
    """The same form, differentiated by the values: [S, E, F]."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, weights: Tensor, turned: Tensor, *fan: Tensor) -> Tensor:
        ctx.save_for_backward(grad, weights, turned, *fan)
        _, seconds, _, by_first, starts = fan
        back = seconds.index_select(0, by_first)
        return torch.stack([_bag(grad, back, starts, each) for each in turned])

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor | None, ...]:
        grad, weights, turned, *fan = ctx.saved_tensors
        to_grad = to_weights = None
        if ctx.needs_input_grad[0]:
            to_grad = applied(_Fanned, second, weights, turned, *fan)
        if ctx.needs_input_grad[1]:
            to_weights = applied(_Overlap, second, grad, *fan)
        return to_grad, to_weights, *[None] * 6


class _Overlap(Function):
    """The same form, differentiated by the weights: [T, S]."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, grad: Tensor, *fan: Tensor) -> Tensor:
        ctx.save_for_backward(values, grad, *fan)
        rows, seconds, starts, _, _ = fan
        size = values.shape[0]
        if not rows.numel():
            return values.new_zeros(0, size)
        flat = values.reshape(-1, values.shape[2])
        found: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            grad.contiguous(), flat, rows, starts * size, seconds.repeat_interleave(size), 0
        )
        return found.view(-1, size)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor | None, ...]:
        values, grad, *fan = ctx.saved_tensors
        turned = _turned_weights(second.detach(), fan[3])
        to_values = to_grad = None
        if ctx.needs_input_grad[0]:
            to_values = applied(_Returned, grad, second, turned, *fan)
        if ctx.needs_input_grad[1]:
            to_grad = applied(_Fanned, values, second, turned, *fan)
        return to_values, to_grad, *[None] * 5
