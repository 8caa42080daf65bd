"""The state of a training: its progress, averaged weights, and all tensors by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.training import checkpoint
from hydragnn_hpo.training.parallel import (
    ModelParallelism,
    copy_into,
    distribute_like,
    has_dtensors,
    is_dtensor,
    local_part,
)


class AveragedWeights:
    """Exponential moving average of the weights; early steps forget faster.

    Weights that are spread over ranks have averages that are spread alike.
    Source of the ramp: (1 + t) / (10 + t), as in TensorFlow's ``ExponentialMovingAverage``.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Start from the model's present weights."""
        self.decay = decay
        self.live = dict(model.named_parameters())
        self.mean = {name: p.detach().clone() for name, p in self.live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the live weights after one step."""
        share = 1.0 - min(self.decay, (1.0 + step) / (10.0 + step))
        # On what is here: torch would work out anew how a DTensor is spread for every share.
        mean = [local_part(value) for value in self.mean.values()]
        torch._foreach_lerp_(mean, [local_part(value) for value in self.live.values()], share)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange live and averaged weights; a second call undoes the first."""
        for name, parameter in self.live.items():
            kept = parameter.detach().clone()
            parameter.copy_(self.mean[name])
            self.mean[name].copy_(kept)

    def load(self, mean: Mapping[str, Tensor]) -> None:
        """Take over saved averages, whole or as they are spread here."""
        for name, value in mean.items():
            copy_into(self.mean[name], value)


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
    def is_sharded(self) -> bool:
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

    def check_tensors(self, tensors: Mapping[str, Tensor], parts: tuple[str, ...]) -> None:
        """Check that tensors are those of this training, before any of them is taken over.

        Args:
            tensors: of a checkpoint.
            parts: beginnings of the names that must all be there.

        Raises:
            StorageError: some are missing, unknown or of another shape.
        """
        own, given = (
            {name: tuple(value.shape) for name, value in each.items() if name.startswith(parts)}
            for each in (self.tensors(), tensors)
        )
        optimized = checkpoint.strip_prefix("optimizer", tensors)
        unknown = {key.rpartition("/")[0] for key in optimized} - dict(
            self.net.model.named_parameters()
        ).keys()
        wrong = {name for name in own.keys() | given.keys() if own.get(name) != given.get(name)}
        if wrong or unknown:
            raise StorageError(f"its tensor {min(wrong or unknown)} is none of this training's.")

    def load_best(self, weights: Mapping[str, Tensor]) -> None:
        """Take the weights of the best epoch over, which are averaged where averages are kept."""
        self.net.load_full_state(weights)
        if self.average:
            self.average.load({name: weights[name] for name in self.average.mean})

    def load(self, tensors: Mapping[str, Tensor]) -> None:
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
    candidate = weights.get(weight) if part != "best" else None
    return candidate if candidate is not None and candidate.shape == shape else None
