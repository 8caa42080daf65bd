"""Non-linearities that torch does not ship."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function


class ShiftedSoftplus(nn.Module):
    """Softplus moved down so that 0 stays 0. Source: arXiv:1706.08566, section 3."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply to each element."""
        result: Tensor = _Shifted.apply(x)  # type: ignore[no-untyped-call]
        return result


class _Shifted(Function):
    """In one array: the softplus is moved where it stands."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.softplus(x).sub_(math.log(2.0))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(x)
