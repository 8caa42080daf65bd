"""Largest and smallest of what neighbours send, with 0 taking part, and their gradients.

Shapes: N nodes, E edges, F features.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.model.sums import Links, add, take


def segment_max(messages: Tensor, links: Links) -> Tensor:
    """Give the largest message that each node receives, or 0 where none is above.

    The floor makes a message of size 0 the same as none, so that nothing jumps when
    a neighbour whose message is weighted by its envelope comes or goes.

    Args:
        messages: of the edges, [E, F].
        links: the edges.

    Returns:
        [N, F], >= 0. Neighbours that say the same share the gradient, so that atoms that are
        alike feel alike; a message at or below 0 has none.
    """
    return _extreme(messages, links, "amax")


def segment_min(messages: Tensor, links: Links) -> Tensor:
    """Give the smallest message that each node receives, or 0 where none is below, [N, F]."""
    return _extreme(messages, links, "amin")


def _extreme(messages: Tensor, links: Links, reduction: str) -> Tensor:
    found: Tensor = _Extreme.apply(  # type: ignore[no-untyped-call]
        messages, reduction, *links.arrays
    )
    return found


class _Extreme(Function):
    @staticmethod
    def forward(ctx: Any, messages: Tensor, reduction: str, *links: Tensor) -> Tensor:
        receiver, starts = links[1], links[3]
        found = messages.new_zeros(starts.shape[0] - 1, messages.shape[1])
        where = receiver.unsqueeze(1).expand_as(messages)
        found.scatter_reduce_(0, where, messages, reduction)
        ctx.save_for_backward(messages, found, *links)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        messages, found, *arrays = ctx.saved_tensors
        links = Links(*arrays)
        with torch.no_grad():
            hits = found.index_select(0, links.receiver).eq_(messages)
            ties = add(hits, links)
            share = (found != 0) / ties.clamp_(min=1.0)
        return take(grad * share, links, "receiver").mul_(hits), None, *[None] * 6
