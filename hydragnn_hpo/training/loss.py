"""The weighted multi-task loss, normalised by global counts (Law 1).

Shapes: R rows of a target (graphs or nodes), w components, H heads.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from hydragnn_hpo.config.model_config import HeadConfig
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.model.gnn import MultiHeadGNN, variance_key

LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "mae": lambda error: error.abs(),
    "mse": lambda error: error.square(),
    "huber": lambda error: F.huber_loss(error, error.new_zeros(()).expand_as(error), "none"),
}


def gaussian_nll(error: Tensor, variance: Tensor, beta: float) -> Tensor:
    """Give the negative log-likelihood of errors under predicted variances, [R, w].

    The constant is left out. ``beta`` weighs each row by its variance to that power, which is
    taken as it is and not learned through: rows with a large variance are not given up on.

    Source: Nix and Weigend (1994); Seitzer et al. (2022), arXiv:2203.09168, eq. 5.
    """
    likelihood = 0.5 * (variance.log() + error.square() / variance)
    return likelihood * variance.detach() ** beta if beta else likelihood


def head_sums(
    model: MultiHeadGNN,
    predictions: Mapping[str, Tensor],
    batch: Batch,
    heads: Mapping[str, HeadConfig],
    balance: str = "scale",
) -> dict[str, Tensor]:
    """Sum each head's loss over the rows of this batch that have the target.

    Errors are in units of the target's standard deviation, or with ``balance = "unit"`` in the
    target's own; missing targets count nothing. Predictions and targets are fp64, their
    difference is small again and as precise as the net.
    """
    sums = {}
    for name, head in heads.items():
        std = model.std(name)
        unit = torch.ones_like(std) if balance == "unit" else std
        error = (predictions[name] - batch.targets[name]).to(std.dtype) / unit
        if head.has_variance:
            variance = (predictions[variance_key(name)] / unit.double() ** 2).to(std.dtype)
            loss = gaussian_nll(error, variance, head.beta if head.loss == "beta_nll" else 0.0)
        else:
            loss = LOSSES[head.loss](error)
        sums[name] = (loss * batch.masks[name].unsqueeze(-1)).sum()
    return sums


def combine_losses(
    sums: Mapping[str, Tensor],
    counts: Mapping[str, float],
    heads: Mapping[str, HeadConfig],
    world: int,
    log_variances: Tensor | None = None,
    priced: bool = True,
) -> Tensor:
    """Make this rank's loss out of its sums.

    Each head's sum is divided by its *global* count in the step. The gradients of DDP are
    averaged over ranks, hence the factor ``world``: ranks with unequal shares, even empty
    ones, add up to the mean over the global batch.

    Args:
        sums: this rank's sum per head.
        counts: components with a target in the whole step, over all ranks.
        heads: weights; they are normalised to sum to 1.
        world: number of ranks that hold unlike shares.
        log_variances: learned logarithm of each head's variance, [H]: a head counts by
            ``exp(-s)`` and pays ``s / 2`` for it. That term is the same on all ranks, so that it
            needs no factor.
        priced: whether that term is paid here: once per step, in one of its micro-batches.
    """
    total = sum(head.weight for head in heads.values())
    loss = next(iter(sums.values())).new_zeros(())
    for row, (name, head) in enumerate(heads.items()):
        share = head.weight / total
        part = sums[name] * (world * share / max(counts[name], 1.0))
        if log_variances is None:
            loss = loss + part
        else:
            price = 0.5 * share * float(priced and counts[name] > 0)
            loss = loss + part * torch.exp(-log_variances[row]) + price * log_variances[row]
    return loss
