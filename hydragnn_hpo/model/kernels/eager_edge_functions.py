"""Functions of ``edge_functions`` by torch's operations: the reference, and what torch traces.

Shapes: N nodes, E edges, P pairs, see ``scatter``, F features.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.model.activations import ShiftedSoftplus, silu
from hydragnn_hpo.model.kernels.eager_gates import gate_edges
from hydragnn_hpo.model.scatter import (
    Gradients,
    Links,
    expand_pairs,
    outer_sum,
    sum_ends,
    sum_messages,
)

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
    joint = sum_ends(received, sent, measured, call.links)
    return leaky_silu(joint, call.option) if call.option else F.silu(joint)


def leaky_silu(x: Tensor, slope: float) -> Tensor:
    """Return ``slope * x + (1 - slope) * silu(x)``, of which only x is kept for the gradient."""
    bent: Tensor = _LeakySiLU.apply(x, slope)  # type: ignore[no-untyped-call]
    return bent


class _LeakySiLU(Function):
    """``leaky_silu``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        """Blend x and its SiLU.

        Args:
            ctx: keeps the inputs for ``backward``.
            x: any numbers.
            slope: share of x, 0 to 1.

        Returns:
            The shape of x.
        """
        ctx.save_for_backward(x)
        ctx.slope = slope
        return F.silu(x).lerp_(x, slope)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            gate = x.sigmoid()
            gradient = grad * (gate * (1.0 + x * (1.0 - gate)))
        else:
            gradient = torch.ops.aten.silu_backward(grad, x)
        return gradient.lerp_(grad, ctx.slope), None


def sum_gated(call: EdgeCall) -> Tensor:
    """Sum gated messages, [N, F], given their linear map without its bias."""
    product, weights, bias, *gate = call.inputs
    return sum_activated(product + bias, weights, gate, call.links)


def sum_activated(product: Tensor, weights: Tensor, gate: Inputs, links: Links) -> Tensor:
    """Activate, gate, weigh and sum messages.

    Args:
        product: linear map of the edges, [E, F].
        weights: of the pairs, [P, 1].
        gate: weights, [1, F], and bias, [1], of the gate; nothing for no gate.
        links: sender and receiver of every edge.

    Returns:
        [N, F].
    """
    messages = F.silu(product)
    weight = expand_pairs(weights, product.shape[0])
    if gate:
        # A product with one row is several times faster than one with one column.
        score = gate[0] @ messages.t() + gate[1]
        weight = weight * score.t().sigmoid()
    return sum_messages(messages * weight, links)


def sum_products(call: EdgeCall) -> Tensor:
    """Sum products of gates and contents, [N, F], by softplus if there is an option."""
    (received, sent, measured, weights), links = call.inputs, call.links
    gate, content = sum_ends(received, sent, measured, links).chunk(2, dim=-1)
    messages = gate.sigmoid() * (F.softplus if call.option else F.silu)(content)
    return outer_sum(messages, expand_pairs(weights, messages.shape[0]), links).squeeze(1)


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
