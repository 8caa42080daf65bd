"""AdamW, the course of its learning rate, and averaged weights."""

import math

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.training import TrainConfig

FLOOR = 0.01
"""The cosine ends at this share of the peak."""


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Build AdamW; weights of linear maps decay, norms, biases and embeddings do not."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            matrix = isinstance(module, nn.Linear) and name == "weight"
            (decayed if matrix else free).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)


def learning_rate(config: TrainConfig, step: int, total: int) -> float:
    """Give the step size of one step.

    Args:
        config: peak, warm-up share and schedule.
        step: steps already taken, from 0.
        total: steps of the full budget.

    Returns:
        Linear rise over the warm-up, then the cosine down to 1 % of the peak, or the peak.
    """
    rise = max(1, round(config.warmup * total))
    if step < rise:
        return config.learning_rate * (step + 1) / rise
    if config.schedule == "constant":
        return config.learning_rate
    progress = min(1.0, (step - rise) / max(1, total - rise))
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.learning_rate * (FLOOR + (1.0 - FLOOR) * cosine)


class AveragedWeights:
    """Exponential moving average of the weights; early steps forget faster.

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
        keep = min(self.decay, (1.0 + step) / (10.0 + step))
        torch._foreach_lerp_(list(self.mean.values()), list(self.live.values()), 1.0 - keep)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange live and averaged weights; a second call undoes the first."""
        for name, parameter in self.live.items():
            kept = parameter.detach().clone()
            parameter.copy_(self.mean[name])
            self.mean[name].copy_(kept)

    def load(self, mean: dict[str, Tensor]) -> None:
        """Take over saved averages."""
        for name, value in mean.items():
            self.mean[name].copy_(value)
