"""The weighted multi-task loss, normalised by global counts (Law 1).

Shapes: T rows of a target (graphs or nodes), w components.
"""

from collections.abc import Callable, Mapping

import torch.nn.functional as F
from torch import Tensor

from hydragnn_hpo.config.model import HeadConfig
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.model.gnn import MultiHeadGNN

LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "mae": lambda error: error.abs(),
    "mse": lambda error: error.square(),
    "huber": lambda error: F.huber_loss(error, error.new_zeros(()).expand_as(error), "none"),
}


def head_sums(
    model: MultiHeadGNN,
    predictions: Mapping[str, Tensor],
    batch: Batch,
    heads: Mapping[str, HeadConfig],
) -> dict[str, Tensor]:
    """Sum each head's loss over the rows of this batch that have the target.

    Errors are in units of the target's standard deviation; missing targets count nothing.
    Predictions and targets are fp64, their difference is small again and as precise as the net.
    """
    sums = {}
    for name, head in heads.items():
        std = model.std(name)
        error = (predictions[name] - batch.targets[name]).to(std.dtype) / std
        sums[name] = (LOSSES[head.loss](error) * batch.masks[name].unsqueeze(-1)).sum()
    return sums


def combine(
    sums: Mapping[str, Tensor],
    counts: Mapping[str, float],
    heads: Mapping[str, HeadConfig],
    world: int,
) -> Tensor:
    """Make this rank's loss out of its sums.

    Each head's sum is divided by its *global* count in the step. The gradients of DDP are
    averaged over ranks, hence the factor ``world``: ranks with unequal shares, even empty
    ones, add up to the mean over the global batch.

    Args:
        sums: this rank's sum per head.
        counts: components with a target in the whole step, over all ranks.
        heads: weights; they are normalised to sum to 1.
        world: number of ranks.
    """
    total = sum(head.weight for head in heads.values())
    parts = [
        sums[name] * (world * head.weight / total / max(counts[name], 1.0))
        for name, head in heads.items()
    ]
    return sum(parts[1:], parts[0])
