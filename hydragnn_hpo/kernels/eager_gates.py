"""Edge-gated convolutions by torch's operations: the reference, and what torch traces.

Shapes: N nodes, E edges, P pairs, see ``scatter``, F features, n rows of any kind.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.kernels.passes import differentiate_form
from hydragnn_hpo.kernels.scatter import Gradients, Links, apply_function

EPSILON = 1e-5
"""Added to variances, as torch's layer norms do by default."""


def gate_edges(inputs: Sequence[Tensor], links: Links) -> tuple[Tensor, Tensor, Tensor]:
    """Sum gated values and gates of edges, and update the edges.

    Args:
        inputs: in the order of ``edge_functions.update_gated_edges``: product, nodes, weights,
            features, scale and shift of the norm; the last three may have no rows.
        links: sender and receiver of every edge.

    Returns:
        Both sums, [N, F] each, and the features of the edges.
    """
    product, nodes, weights, features, *norm = inputs
    received, sent, values = nodes.chunk(3, dim=1)
    joint = links.sum_ends(received, sent).add_(product)
    gates = apply_function(_Gates, joint, links.expand_pairs(weights))
    if norm[0].shape[0]:
        features = features + silu_of_norm(joint, *norm)
    gated = differentiate_form("filtered", (values, gates), links)
    return gated, links.sum_messages(gates), features


def silu_of_norm(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise each row and apply SiLU, saving only the rows for the backward pass.

    Args:
        rows: [n, F].
        weight: scale of the layer norm, [F].
        bias: shift of the layer norm, [F].

    Returns:
        [n, F].
    """
    return apply_function(_SiluOfNorm, rows, weight, bias)


class _Gates(Function):
    """``sigmoid(gate_inputs) * weight``; saves only its inputs, which the edges' norm shares."""

    @staticmethod
    def forward(ctx: Any, gate_inputs: Tensor, weight: Tensor) -> Tensor:
        """Multiply the sigmoid of the gate inputs by the envelopes.

        Args:
            ctx: keeps the inputs for ``backward``.
            gate_inputs: [E, F].
            weight: envelope of the edges, [E, 1].

        Returns:
            [E, F].
        """
        ctx.save_for_backward(gate_inputs, weight)
        return gate_inputs.sigmoid().mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        gate_inputs, weight = ctx.saved_tensors
        gates = gate_inputs.sigmoid()
        to_weight = (grad * gates).sum(1, keepdim=True) if ctx.needs_input_grad[1] else None
        return torch.ops.aten.sigmoid_backward(grad * weight, gates), to_weight


class _SiluOfNorm(Function):
    """SiLU of a layer norm; saves the rows and recomputes the rest."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Normalise each row and apply SiLU.

        Args:
            ctx: keeps the inputs for ``backward``.
            rows: [n, F].
            weight: scale of the layer norm, [F].
            bias: shift of the layer norm, [F].

        Returns:
            [n, F].
        """
        normal, mean, scale = torch.native_layer_norm(rows, weight.shape, weight, bias, EPSILON)
        ctx.save_for_backward(rows, weight, bias, mean, scale)
        return F.silu(normal, inplace=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        rows, weight, bias, mean, scale = ctx.saved_tensors
        normal = F.layer_norm(rows, weight.shape, weight, bias, EPSILON)
        if torch.is_grad_enabled():
            half = normal.sigmoid()
            before = grad * half * (1.0 + normal * (1.0 - half))
        else:
            before = torch.ops.aten.silu_backward(grad, normal)
        gradients: Gradients = torch.ops.aten.native_layer_norm_backward(
            before, rows, weight.shape, mean, scale, weight, bias, [True] * 3
        )
        return gradients
