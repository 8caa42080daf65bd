"""Functions of ``edge_functions`` by torch's operations: the reference, and what torch traces.

Shapes: N nodes, E edges, P pairs, see ``scatter``, F features.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from hydragnn_hpo.kernels.activations import ShiftedSoftplus, leaky_silu, silu
from hydragnn_hpo.kernels.eager_gates import gate_edges
from hydragnn_hpo.kernels.scatter import Links

Inputs = Sequence[Tensor]
"""Tensors in the order in which a function takes them."""

Values = Tensor | tuple[Tensor, ...]
"""What a function has as its value, or values."""


class EdgeCall(NamedTuple):
    """What a function of edges is called with."""

    inputs: Inputs
    """Tensors that it depends on."""
    links: Links
    """Sender and receiver of every edge."""
    option: float
    """Number that it depends on, of which no gradient is taken."""


class EdgeLoops(NamedTuple):
    """A function of edges by compiled loops."""

    value: Callable[[EdgeCall], Values]
    """Compute the function."""
    slopes: Callable[..., Sequence[Tensor | None]]
    """Compute the gradients of all inputs, given the call and the gradient of each value."""
    curvature: Callable[[EdgeCall, Inputs], Sequence[Tensor | None]]
    """Compute the gradients of all inputs and of the gradients of the values, given the latter and
    the gradients of the slopes of ``smooth`` inputs; None for 0."""
    smooth: tuple[int, ...]
    """Inputs whose slopes the curvature knows gradients of."""


def activate_ends(call: EdgeCall) -> Tensor:
    """Activate for each edge the sum of both ends and the pair, [E, F]."""
    received, sent, measured = call.inputs
    joint = call.links.sum_ends(received, sent, measured)
    return leaky_silu(joint, call.option) if call.option else F.silu(joint)


def sum_gated(call: EdgeCall) -> Tensor:
    """Activate, gate, weigh and sum messages, [N, F].

    Inputs are a linear map of the edges without its bias, [E, F], weights of the pairs, [P, 1], the
    bias, [F], and, where there is a gate, its weights, [1, F], and its bias, [1]. With an option
    the map has its bias already.
    """
    product, weights, bias, *gate = call.inputs
    messages = F.silu(product if call.option else product + bias)
    weight = call.links.expand_pairs(weights)
    if gate:
        # A product with one row is several times faster than one with one column.
        score = gate[0] @ messages.t() + gate[1]
        weight = weight * score.t().sigmoid()
    return call.links.sum_messages(messages * weight)


def sum_products(call: EdgeCall) -> Tensor:
    """Sum products of gates and contents, [N, F], by softplus if there is an option."""
    (received, sent, measured, weights), links = call.inputs, call.links
    gate, content = links.sum_ends(received, sent, measured).chunk(2, dim=-1)
    messages = gate.sigmoid() * (F.softplus if call.option else F.silu)(content)
    return links.outer_sum(messages, links.expand_pairs(weights)).squeeze(1)


def activate_rows(call: EdgeCall) -> Tensor:
    """Activate rows by the shifted softplus if there is an option, otherwise by SiLU."""
    activated: Tensor = (ShiftedSoftplus() if call.option else silu)(call.inputs[0])
    return activated


EAGER_FUNCTIONS: dict[str, Callable[[EdgeCall], Values]] = {
    "gated_edges": lambda call: gate_edges(call.inputs, call.links),
    "bent_ends": activate_ends,
    "gated_sum": sum_gated,
    "product_sum": sum_products,
    "active_rows": activate_rows,
}
"""Implementation of each function."""
