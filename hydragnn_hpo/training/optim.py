"""Optimizers (AdamW, Adam, SGD, Muon), also over sharded weights, and learning rates."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from hydragnn_hpo.config import TrainConfig
from hydragnn_hpo.training.parallel import (
    as_dtensor,
    distribute_like,
    gather_dtensor,
    has_dtensors,
    local_gradients,
    local_part,
)

ParameterGroup = dict[str, Any]
"""A parameter group as torch defines it: its ``params``, and settings of the optimizer by name."""


_A, _B, _C = 3.4445, -4.7750, 2.0315
"""Coefficients of the iteration; steepest at 0. Source: kellerjordan.github.io/posts/muon."""

_ROUNDS = 5
"""Number of iterations."""


class Muon(torch.optim.AdamW):
    """Two optimizers in one: groups with ``matrices`` take orthogonal steps, others AdamW's.

    Steps of matrices have the root mean square that AdamW's usually have, so that one learning rate
    and one decay serve both. The iteration runs in the dtype of the weights. torch's Muon rounds to
    bf16, so that steps on different numbers of ranks would differ in the third digit, against
    Law 1.
    Source: Jordan et al. (2024), kellerjordan.github.io/posts/muon; Liu et al. (2025),
    arXiv:2502.16982, eq. 4 for the length.
    """

    def __init__(
        self,
        groups: Iterable[ParameterGroup],
        *,
        momentum: float,
        nesterov: bool,
        **adamw: Any,
    ) -> None:
        """Store the parameter groups.

        Args:
            groups: set ``matrices`` and ``weight_decay``.
            momentum: decay of the average of gradients, for matrices.
            nesterov: whether the steps of matrices mix gradient and average.
            adamw: other settings of AdamW.
        """
        super().__init__(
            [{**group, "momentum": momentum, "nesterov": nesterov} for group in groups], **adamw
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load a state as it is: AdamW would look for the step of matrices, too."""
        torch.optim.Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step; parameters without a gradient stay. ``closure`` must be None."""
        assert closure is None
        everything = self.param_groups
        for group in everything:
            if group["matrices"]:
                self._step_matrices([p for p in group["params"] if p.grad is not None], group)
        self.param_groups = [group for group in everything if not group["matrices"]]
        super().step()
        self.param_groups = everything

    def _step_matrices(self, matrices: list[Tensor], group: ParameterGroup) -> None:
        """Step along the orthogonalized average of the gradients."""
        keep = group["momentum"]
        directions = []
        for parameter, grad in zip(matrices, local_gradients(matrices), strict=True):
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            mean = local_part(state["momentum_buffer"]).lerp_(grad, 1.0 - keep)
            direction = grad.lerp(mean, keep) if group["nesterov"] else mean
            directions.append(gather_dtensor(as_dtensor(direction, parameter)))
        for parameter, direction in zip(matrices, _orthogonalize_groups(directions), strict=True):
            length = 0.2 * math.sqrt(max(direction.shape))
            weight = local_part(parameter)
            mine = local_part(distribute_like(direction, parameter))
            weight.mul_(1.0 - group["lr"] * group["weight_decay"])
            weight.add_(mine, alpha=-group["lr"] * length)


def _orthogonalize_groups(matrices: list[Tensor]) -> list[Tensor]:
    """Orthogonalize matrices, those of equal shape in one batch."""
    by_shape: dict[torch.Size, list[int]] = {}
    for number, matrix in enumerate(matrices):
        by_shape.setdefault(matrix.shape, []).append(number)
    orthogonal = list(matrices)
    for numbers in by_shape.values():
        made = orthogonalize(torch.stack([matrices[number] for number in numbers]))
        for number, matrix in zip(numbers, made.unbind(0), strict=True):
            orthogonal[number] = matrix
    return orthogonal


def orthogonalize(matrices: Tensor) -> Tensor:
    """Set all singular values to about 1 (0.7 to 1.2), and keep the singular vectors.

    Args:
        matrices: [n, A, B].

    Returns:
        [n, A, B]; 0 where a matrix is 0.

    Source: kellerjordan.github.io/posts/muon, five steps of a quintic Newton-Schulz iteration.
    """
    upright = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if upright else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if upright else x


_OUTPUTS = 2
"""Largest width of a head's output: a prediction and its variance."""


class ParameterGroups(NamedTuple):
    """The trainable parameters of a model, by how optimizers treat them."""

    matrices: list[nn.Parameter]
    """Weights of linear maps from many channels to many."""
    outputs: list[nn.Parameter]
    """Weights of linear maps to one or two numbers: outputs of heads, gates, scores."""
    free: list[nn.Parameter]
    """All others, such as norms, biases and embeddings, which have no weight decay."""


def sort_parameters(model: nn.Module) -> ParameterGroups:
    """Sort the trainable parameters of a model into groups, each in the model's order."""
    groups = ParameterGroups([], [], [])
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            if not (isinstance(module, nn.Linear) and name == "weight"):
                groups.free.append(parameter)
            elif min(parameter.shape) <= _OUTPUTS:
                groups.outputs.append(parameter)
            else:
                groups.matrices.append(parameter)
    return groups


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Build an optimizer; weights of linear maps decay, norms, biases and embeddings do not.

    If parameters are sharded, the optimizer's state is sharded like them. Its kernels are torch's
    fastest; sharded parameters are updated one by one.
    """
    parts = has_dtensors(model.parameters())
    fused = not parts
    foreach = False if parts else None
    rate = config.learning_rate
    momentum = config.momentum
    if config.optimizer == "sgd":
        nesterov = config.nesterov and momentum > 0
        groups = _groups(model, config)
        return torch.optim.SGD(
            groups, rate, momentum, nesterov=nesterov, fused=fused, foreach=foreach
        )
    adam = {"lr": rate, "betas": (config.beta1, config.beta2), "eps": config.epsilon}
    kernels = {"fused": fused, "foreach": foreach}
    if config.optimizer == "muon":
        groups = _muon_groups(model, config)
        return Muon(groups, momentum=momentum, nesterov=config.nesterov, **adam, **kernels)
    kind: Any = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    optimizer: torch.optim.Optimizer = kind(_groups(model, config), **adam, **kernels)
    return optimizer


def _groups(model: nn.Module, config: TrainConfig) -> list[ParameterGroup]:
    """Return the group of parameters with weight decay, in the model's order, then the others."""
    sorted_parameters = sort_parameters(model)
    linear = {id(p) for p in (*sorted_parameters.matrices, *sorted_parameters.outputs)}
    decayed = [p for p in model.parameters() if id(p) in linear]
    return [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": sorted_parameters.free, "weight_decay": 0.0},
    ]


def _muon_groups(model: nn.Module, config: TrainConfig) -> list[ParameterGroup]:
    parameters = sort_parameters(model)
    decay = config.weight_decay
    return [
        {"params": parameters.matrices, "weight_decay": decay, "matrices": True},
        {"params": parameters.outputs, "weight_decay": decay, "matrices": False},
        {"params": parameters.free, "weight_decay": 0.0, "matrices": False},
    ]


_START = 25.0
"""``one_cycle`` begins at the peak divided by this, as torch's ``OneCycleLR`` does."""


class ScheduleState(TypedDict):
    """State of the schedule ``plateau`` as JSON; constant for other schedules."""

    factor: float
    """Current rate divided by the peak."""
    best: float
    """Lowest objective so far."""
    waited: int
    """Epochs since the lowest objective or the last reduction, whichever is later."""


class LearningRateSchedule:
    """Learning rate of every step.

    All schedules except ``plateau`` depend only on the step and the full budget, so that a trial
    that is stopped at a rung and resumed later has the same rates as one without a pause.
    """

    def __init__(self, config: TrainConfig, total_steps: int, graphs_per_step: float) -> None:
        """Compute the peak and the length of the warm-up.

        Args:
            config: schedule, peak, warm-up.
            total_steps: steps of the full budget.
            graphs_per_step: mean number over all ranks; ``training.scale_rate`` sets how the peak
                grows with it.
        """
        self.config, self.total = config, total_steps
        self.peak = config.learning_rate * _batch_scaling(config, graphs_per_step)
        self.rise = max(1, round(config.warmup * total_steps))
        self.factor = 1.0
        self.best = math.inf
        self.waited = 0

    def rate(self, step: int) -> float:
        """Return the learning rate of one step, counted from 0.

        It rises linearly over the warm-up and then follows the schedule. ``one_cycle`` rises along
        a cosine from a 25th of the peak, which it reaches one step after the warm-up.
        """
        if self.config.schedule == "one_cycle" and step < self.rise:
            return self.peak * _cosine_between(1.0 / _START, 1.0, step / self.rise)
        if step < self.rise:
            return self.peak * (step + 1) / self.rise
        if self.config.schedule == "constant":
            return self.peak
        if self.config.schedule == "plateau":
            return self.peak * self.factor
        progress = min(1.0, (step - self.rise) / max(1, self.total - self.rise))
        return self.peak * _cosine_between(1.0, self.config.final_rate, progress)

    def after_epoch(self, objective: float) -> None:
        """Update ``plateau`` with an epoch's objective, which may lower the following rates."""
        config = self.config
        if config.schedule != "plateau":
            return
        better = objective < self.best
        self.best, self.waited = min(objective, self.best), 0 if better else self.waited + 1
        if self.waited >= config.plateau_epochs:
            self.factor = max(self.factor * config.plateau_factor, config.final_rate)
            self.waited = 0

    def state(self) -> ScheduleState:
        """Return the state to store in a checkpoint."""
        return {"factor": self.factor, "best": self.best, "waited": self.waited}

    def load(self, state: ScheduleState) -> None:
        """Load the state of a checkpoint."""
        self.factor = float(state["factor"])
        self.best = float(state["best"])
        self.waited = int(state["waited"])


def _cosine_between(start: float, end: float, progress: float) -> float:
    """Interpolate between two shares of the peak along half a cosine; ``progress`` is 0 to 1."""
    return end + (start - end) * (0.5 * (1.0 + math.cos(math.pi * progress)))


def _batch_scaling(config: TrainConfig, graphs_per_step: float) -> float:
    """Return the factor by which the peak grows with the batch."""
    ratio = graphs_per_step / config.rate_batch
    return {"none": 1.0, "sqrt": math.sqrt(ratio), "linear": ratio}[config.scale_rate]
