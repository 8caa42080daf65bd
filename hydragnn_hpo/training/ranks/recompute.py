"""Activation checkpointing: forget what a round of the trunk computed, and compute it again."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hydragnn_hpo.model.trunk import Place, Round, Trunk


def recompute_rounds(trunk: Trunk) -> None:
    """Let every round of a trunk keep its inputs alone until the backward pass.

    The same operations run twice on the same numbers, so that nothing changes but time and
    memory. Forces are differentiated twice: the first pass keeps what it computed again, because
    the second goes through it, and little memory is won.

    Source: Chen et al. (2016), arXiv:1604.06174.
    """
    setattr(trunk, "go", _again)  # noqa: B010 - a method of one net is replaced on purpose


def _again(
    take: Round, layer: int, scalars: Tensor, state: Any, place: Place
) -> tuple[Tensor, Any]:
    if not torch.is_grad_enabled():
        return take(layer, scalars, state, place)
    found: tuple[Tensor, Any] = checkpoint(take, layer, scalars, state, place, use_reentrant=False)
    return found
