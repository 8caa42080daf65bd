"""What the ranks tell each other at the end of an epoch, in one all-reduce."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.training.ranks.ddp import Ranks


def sum_together(ranks: Ranks, parts: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Add several tensors over all ranks at once.

    Args:
        ranks: all of them call this, with the same names and shapes.
        parts: tensors on any device; they are sent as fp64.

    Returns:
        The sums by name, in the tensors' shapes.
    """
    flat = [part.to(ranks.device, torch.float64).flatten() for part in parts.values()]
    values = ranks.sum(torch.cat(flat)).cpu().numpy()
    ends = np.cumsum([len(part) for part in flat])[:-1]
    pieces = np.split(values, ends)
    return {
        name: piece.reshape(part.shape)
        for (name, part), piece in zip(parts.items(), pieces, strict=True)
    }


def row_of(ranks: Ranks, values: Tensor) -> Tensor:
    """Put this rank's numbers into a table of all ranks, [world, n]; the sum fills it."""
    table = values.new_zeros(ranks.world, len(values))
    table[ranks.rank] = values
    return table
