"""Non-linearities that torch does not ship."""

import math

import torch.nn.functional as F
from torch import Tensor, nn


class ShiftedSoftplus(nn.Module):
    """Softplus moved down so that 0 stays 0. Source: arXiv:1706.08566, section 3."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply to each element."""
        return F.softplus(x) - math.log(2.0)
