"""Who makes steps of gradients: AdamW, Adam, SGD, LAMB or Muon."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from hydragnn_hpo.config.training import TrainConfig
from hydragnn_hpo.training.optimizers.lamb import Lamb
from hydragnn_hpo.training.optimizers.muon import Muon
from hydragnn_hpo.training.ranks.parts import here, in_parts

_OUTPUTS = 2
"""Most numbers that a head's last map gives: a prediction and its variance."""


class Sorted(NamedTuple):
    """The parameters of a model that learn, by what optimizers do with them."""

    matrices: list[nn.Parameter]
    """Weights of linear maps from many channels to many."""
    outputs: list[nn.Parameter]
    """Weights of linear maps to one or two numbers: outputs of heads, gates, scores."""
    free: list[nn.Parameter]
    """Norms, biases, embeddings and the like: never decayed."""


def sort_parameters(model: nn.Module) -> Sorted:
    """Sort the parameters of a model that learn, in the model's own order."""
    found = Sorted([], [], [])
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            if not (isinstance(module, nn.Linear) and name == "weight"):
                found.free.append(parameter)
            elif min(parameter.shape) <= _OUTPUTS:
                found.outputs.append(parameter)
            else:
                found.matrices.append(parameter)
    return found


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Build an optimizer; weights of linear maps decay, norms, biases and embeddings do not.

    Parameters may be spread over ranks: the optimizer's state is then spread like them.
    """
    return _MAKERS[config.optimizer](model, config)


def _groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """Part what decays, in the order of the model, from what does not."""
    found = sort_parameters(model)
    linear = {id(p) for p in (*found.matrices, *found.outputs)}
    decayed = [p for p in model.parameters() if id(p) in linear]
    return [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": found.free, "weight_decay": 0.0},
    ]


def _ways(model: nn.Module) -> dict[str, Any]:
    """Choose torch's quickest kernels; what is spread over ranks is moved one by one."""
    parts = in_parts(model.parameters())
    return {"fused": False, "foreach": False} if parts else {"fused": True}


class _OnParts:
    """Works on what this rank holds of each tensor: every number of it goes its own way.

    A ``DTensor`` says the same, and takes some hundred microseconds per operation to find out.
    """

    def _init_group(self, group: dict[str, Any], *lists: list[Any]) -> bool:
        is_complex: bool = super()._init_group(group, *lists)  # type: ignore[misc]
        for tensors in lists:
            tensors[:] = [here(tensor) for tensor in tensors]
        return is_complex


class AdamWOnParts(_OnParts, torch.optim.AdamW):
    """AdamW for weights that are spread over ranks."""


class AdamOnParts(_OnParts, torch.optim.Adam):
    """Adam for weights that are spread over ranks."""


def _adaptive(config: TrainConfig) -> dict[str, Any]:
    betas = config.beta1, config.beta2
    return {"lr": config.learning_rate, "betas": betas, "eps": config.epsilon}


def _adamw(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    kind = AdamWOnParts if in_parts(model.parameters()) else torch.optim.AdamW
    return kind(_groups(model, config), **_adaptive(config), fused=True)


def _adam(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    kind = AdamOnParts if in_parts(model.parameters()) else torch.optim.Adam
    return kind(_groups(model, config), **_adaptive(config), fused=True)


def _sgd(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        _groups(model, config),
        lr=config.learning_rate,
        momentum=config.momentum,
        nesterov=config.nesterov and config.momentum > 0,
        **_ways(model),
    )


def _lamb(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    decayed, free = _groups(model, config)
    return Lamb([decayed, {**free, "adapt": False}], **_adaptive(config))


def _muon(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    found, decay = sort_parameters(model), config.weight_decay
    groups: list[dict[str, Any]] = [
        {"params": found.matrices, "weight_decay": decay, "matrices": True},
        {"params": found.outputs, "weight_decay": decay},
        {"params": found.free},
    ]
    return Muon(groups, momentum=config.momentum, nesterov=config.nesterov, **_adaptive(config))


_MAKERS: dict[str, Callable[[nn.Module, TrainConfig], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "adam": _adam,
    "sgd": _sgd,
    "lamb": _lamb,
    "muon": _muon,
}
