"""Activations that can be differentiated twice with few operations, as training on forces does."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn_hpo.kernels.scatter import Gradients


class ShiftedSoftplus(nn.Module):
    """Softplus minus ln 2, which maps 0 to 0. Source: arXiv:1706.08566, section 3."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply to each element; return a tensor of the same shape."""
        result: Tensor = _ShiftedSoftplus.apply(x)  # type: ignore[no-untyped-call]
        return result


class _ShiftedSoftplus(Function):
    """Shift the softplus in place, so that the forward pass allocates a single array."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.softplus(x).sub_(math.log(2.0))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(x)


def silu(values: Tensor) -> Tensor:
    """Return SiLU, ``x sigmoid(x)``, which takes half of torch's operations to differentiate twice.

    Training on forces differentiates twice, and torch then takes the first derivative apart.
    """
    if not values.requires_grad or torch.compiler.is_compiling():
        return F.silu(values)
    activated: Tensor = _Silu.apply(values)  # type: ignore[no-untyped-call]
    return activated


class _Silu(Function):
    """``silu``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.silu(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return silu_gradient(grad, x)


class _SiluGradient(Function):
    """Gradient of ``silu``; its own by x is ``s (1 - s) (2 + x (1 - 2 s))`` with s the sigmoid."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor) -> Tensor:
        """Differentiate SiLU.

        Args:
            ctx: keeps the inputs for ``backward``.
            grad: gradient of the activations, of any shape.
            x: input of the activation, of the same shape.
        """
        ctx.save_for_backward(grad, x)
        gradient: Tensor = torch.ops.aten.silu_backward(grad, x)
        return gradient

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor, Tensor]:
        """Differentiate the gradient.

        Returns:
            The gradients by both inputs of ``forward``.
        """
        grad, x = ctx.saved_tensors
        gate = x.sigmoid()
        curvature = torch.addcmul(x.new_full((), 2.0), x, torch.rsub(gate, 1.0, alpha=2.0))
        to_x = torch.ops.aten.sigmoid_backward(second * grad, gate) * curvature
        return silu_gradient(second, x), to_x


def silu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Differentiate SiLU, in a way that can be differentiated again.

    Args:
        grad: gradient of the activations, of any shape.
        x: input of the activation, of the same shape.
    """
    gradient: Tensor = _SiluGradient.apply(grad, x)  # type: ignore[no-untyped-call]
    return gradient


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
