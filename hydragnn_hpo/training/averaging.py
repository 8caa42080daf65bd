"""Exponential moving average of the weights of a training."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hydragnn_hpo.training.dtensors import copy_into, local_part


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
