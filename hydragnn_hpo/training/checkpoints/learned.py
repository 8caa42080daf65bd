"""All tensors that a training has learned, by name: out of its parts, and back."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hydragnn_hpo.training.checkpoints import checkpoint
from hydragnn_hpo.training.optimizers.averaging import AveragedWeights
from hydragnn_hpo.training.ranks.parallel import Parallel
from hydragnn_hpo.training.ranks.parts import in_parts, is_part, spread_like


@dataclass(frozen=True)
class Learned:
    """Model, optimizer and averaged weights under one roof.

    Names: ``model/WEIGHT``, ``optimizer/WEIGHT/STATE``, ``average/WEIGHT``. They depend neither
    on the number of ranks nor on how these share the weights.
    """

    net: Parallel
    optimizer: torch.optim.Optimizer
    average: AveragedWeights | None

    @property
    def in_parts(self) -> bool:
        """Whether no rank holds all of it."""
        return in_parts(self.weights().values())

    def weights(self) -> dict[str, Tensor]:
        """Give the model's live weights and buffers, sharded ones as they are."""
        return dict(self.net.model.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        """Give the live tensors, sharded ones as they are; every rank calls this."""
        tensors = checkpoint.prefixed("model", self.weights())
        tensors |= checkpoint.optimizer_tensors(self.optimizer, self.net.model)
        if self.average:
            tensors |= checkpoint.prefixed("average", self.average.mean)
        return tensors

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Take tensors over, whole or sharded as they are here; every rank calls this."""
        weights, spread = self.weights(), dict(tensors)
        for name, value in tensors.items():
            like = like_weight(name, value.shape, weights)
            if like is not None and is_part(like) and not is_part(value):
                spread[name] = spread_like(value.to(like.device), like)
        self.net.model.load_state_dict(checkpoint.under("model", spread))
        checkpoint.load_optimizer(self.optimizer, self.net.model, spread)
        if self.average:
            self.average.load(checkpoint.under("average", spread))


def like_weight(name: str, shape: torch.Size, weights: Mapping[str, Tensor]) -> Tensor | None:
    """Give the weight like which a tensor of a checkpoint is spread, if it is of its shape."""
    part, _, weight = name.partition("/")
    if part == "optimizer":
        weight, _, _ = weight.rpartition("/")
    found = weights.get(weight) if part != "best" else None
    return found if found is not None and found.shape == shape else None
