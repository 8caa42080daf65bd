"""The state of a training: its progress, and all that it has learned as named tensors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hydragnn_hpo.training import checkpoint
from hydragnn_hpo.training.averaging import AveragedWeights
from hydragnn_hpo.training.dtensors import distribute_like, has_dtensors, is_dtensor
from hydragnn_hpo.training.parallel import ModelParallelism


@dataclass
class Progress:
    """Counters, the best epoch so far, and what the epoch that has begun has summed."""

    epoch: int = 0
    """Epochs trained and validated."""
    step: int = 0
    """Steps taken since the training's beginning, so also the position inside the epoch."""
    best_epoch: int = 0
    best_objective: float = math.inf
    best_val: dict[str, float] = field(default_factory=dict)
    train_seconds: float = 0.0
    lost: int = 0
    """Epochs running in which an error was hopeless, see ``training.divergence``."""
    losses: list[list[float]] = field(default_factory=list)
    """Sums of each head's loss in the epoch that has begun, by rank; empty between epochs."""


@dataclass(frozen=True)
class TrainState:
    """Model, optimizer and averaged weights under one roof.

    Names: ``model/WEIGHT``, ``optimizer/WEIGHT/STATE``, ``average/WEIGHT``. They depend neither
    on the number of ranks nor on how these share the weights.
    """

    net: ModelParallelism
    optimizer: torch.optim.Optimizer
    average: AveragedWeights | None

    @property
    def in_parts(self) -> bool:
        """Whether no rank holds all of it."""
        return has_dtensors(self.weights().values())

    def weights(self) -> dict[str, Tensor]:
        """Return the model's live weights and buffers, sharded ones as they are."""
        return dict(self.net.model.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        """Return the live tensors, sharded ones as they are; every rank calls this."""
        tensors = checkpoint.add_prefix("model", self.weights())
        tensors |= checkpoint.optimizer_tensors(self.optimizer, self.net.model)
        if self.average:
            tensors |= checkpoint.add_prefix("average", self.average.mean)
        return tensors

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Take tensors over, whole or sharded as they are here; every rank calls this."""
        weights, spread = self.weights(), dict(tensors)
        for name, value in tensors.items():
            like = matching_weight(name, value.shape, weights)
            if like is not None and is_dtensor(like) and not is_dtensor(value):
                spread[name] = distribute_like(value.to(like.device), like)
        self.net.model.load_state_dict(checkpoint.strip_prefix("model", spread))
        checkpoint.load_optimizer(self.optimizer, self.net.model, spread)
        if self.average:
            self.average.load(checkpoint.strip_prefix("average", spread))


def matching_weight(name: str, shape: torch.Size, weights: Mapping[str, Tensor]) -> Tensor | None:
    """Return the weight whose layout a tensor of a checkpoint has, if it is of its shape."""
    part, _, weight = name.partition("/")
    if part == "optimizer":
        weight, _, _ = weight.rpartition("/")
    found = weights.get(weight) if part != "best" else None
    return found if found is not None and found.shape == shape else None
