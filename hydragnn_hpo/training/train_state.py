"""The state of a training: its progress, averaged weights, and all tensors by name."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    """Exponential moving average of the weights, with a smaller decay in the first steps.

    If weights are sharded, their averages are sharded in the same way.
    Source of the ramp: (1 + t) / (10 + t), as in TensorFlow's ``ExponentialMovingAverage``.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Initialise the average with the model's current weights.

        Args:
            model: model whose weights are averaged.
            decay: share of the average that a step keeps, below 1.
        """
        self.decay = decay
        self.live = dict(model.named_parameters())
        self.mean = {name: p.detach().clone() for name, p in self.live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the live weights after one step."""
        share = 1.0 - min(self.decay, (1.0 + step) / (10.0 + step))
        # On local parts: for a DTensor torch would derive the layout again for each value of share.
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
        """Load averages of a checkpoint by name, whole or sharded as the weights are."""
        for name, value in mean.items():
            copy_into(self.mean[name], value)


@dataclass
class Progress:
    """Counters, the best epoch so far, and loss sums of the current epoch; saved as JSON."""

    epoch: int = 0
    """Epochs trained and validated."""
    step: int = 0
    """Steps taken since the start of the training, from which the position in the epoch follows."""
    best_epoch: int = 0
    """Epoch with the lowest objective, from 1; 0 before the first."""
    best_objective: float = math.inf
    """Objective of that epoch, see ``epoch.compute_objective``."""
    best_val: dict[str, float] = field(default_factory=dict)
    """Validation MAE of that epoch by head, in the target's unit."""
    train_seconds: float = 0.0
    """Seconds of training and validation, over all attempts."""
    lost: int = 0
    """Consecutive last epochs in which an error was hopeless, see ``training.divergence``."""
    losses: list[list[float]] = field(default_factory=list)
    """Loss sums of the current epoch, one row per rank, [world, H]; empty between epochs."""


@dataclass(frozen=True)
class TrainState:
    """All tensors of a training by name: of model, optimizer and averaged weights.

    Names are ``model/WEIGHT``, ``optimizer/WEIGHT/STATE`` and ``average/WEIGHT``. They depend
    neither on the number of ranks nor on how weights are sharded.
    """

    net: ModelParallelism
    """The model over all ranks."""
    optimizer: torch.optim.Optimizer
    """Optimizer of the model's parameters."""
    average: AveragedWeights | None
    """Averaged weights; None where none are kept."""

    @property
    def is_sharded(self) -> bool:
        """Whether weights are sharded, so that no rank holds all of them."""
        return has_dtensors(self.weights().values())

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Hold the averaged weights in the model, if averages are kept; the live ones after it."""
        if self.average:
            self.average.swap()
        yield
        if self.average:
            self.average.swap()

    def averaged_state(self) -> dict[str, Tensor]:
        """Copy the weights that are validated: the averaged ones if averages are kept.

        Returns:
            Whole tensors by name, see ``ModelParallelism.full_state``; every rank calls this.
        """
        with self.averaged():
            return self.net.full_state()

    def weights(self) -> dict[str, Tensor]:
        """Return weights and buffers of the model.

        Returns:
            Tensors by their name in the model, not copied; sharded tensors stay sharded.
        """
        return dict(self.net.model.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the training; every rank calls this.

        Returns:
            Tensors by the names of this class, not copied; sharded tensors stay sharded.
        """
        tensors = checkpoint.add_prefix("model", self.weights())
        tensors |= checkpoint.optimizer_tensors(self.optimizer, self.net.model)
        if self.average:
            tensors |= checkpoint.add_prefix("average", self.average.mean)
        return tensors

    def check_tensors(self, tensors: Mapping[str, Tensor], parts: tuple[str, ...]) -> None:
        """Check that tensors fit this training, before any of them is loaded.

        Args:
            tensors: of a checkpoint, by name.
            parts: prefixes of the names that are compared, such as ``model/``.

        Raises:
            StorageError: a tensor is missing, unknown or of another shape.
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
            raise StorageError(
                f"its tensor {min(wrong or unknown)} is none of this training's: remove the "
                "checkpoint to start over."
            )

    def load_best(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights of the best epoch by their name in the model; set the averages to them."""
        self.net.load_full_state(weights)
        if self.average:
            self.average.load({name: weights[name] for name in self.average.mean})

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load tensors by name, whole or sharded as the weights are; every rank calls this."""
        weights = self.weights()
        spread = dict(tensors)
        for name, value in tensors.items():
            like = matching_weight(name, value.shape, weights)
            if like is not None and is_dtensor(like) and not is_dtensor(value):
                spread[name] = distribute_like(value.to(like.device), like)
        self.net.model.load_state_dict(checkpoint.strip_prefix("model", spread))
        checkpoint.load_optimizer(self.optimizer, self.net.model, spread)
        if self.average:
            self.average.load(checkpoint.strip_prefix("average", spread))


def matching_weight(name: str, shape: torch.Size, weights: Mapping[str, Tensor]) -> Tensor | None:
    """Return the weight whose layout over ranks a tensor of a checkpoint has.

    Args:
        name: name of the tensor, as in ``TrainState``, or ``best/WEIGHT``.
        shape: shape of the tensor.
        weights: weights of the model by name.

    Returns:
        The weight in the tensor's name; None if its shape differs from the tensor's, and for
        tensors of ``best``, which are not sharded.
    """
    part, _, weight = name.partition("/")
    if part == "optimizer":
        weight, _, _ = weight.rpartition("/")
    candidate = weights.get(weight) if part != "best" else None
    return candidate if candidate is not None and candidate.shape == shape else None
