"""Optimizers (AdamW, Adam, SGD, LAMB, Muon), also over sharded weights, and learning rates."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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


class _Moments(NamedTuple):
    """This rank's part of a group's parameters and of their state, in the group's order."""

    parameters: list[Tensor]
    means: list[Tensor]
    """Averages of the gradients."""
    squares: list[Tensor]
    """Averages of the squared gradients."""
    counts: list[Tensor]
    """Steps of each parameter, fp32 scalars: views of ``all_counts``."""
    all_counts: Tensor
    """The same in one array."""

    def pick(self, places: list[int]) -> "_Moments":
        """Return those of some parameters."""
        everything = (self.parameters, self.means, self.squares, self.counts)
        parameters, means, squares, counts = (
            [each[place] for place in places] for each in everything
        )
        return _Moments(parameters, means, squares, counts, self.all_counts)


class FusedAdam(Optimizer):
    """Adam, or AdamW, by torch's fused kernels.

    torch's own classes look up and count every parameter in each step, which takes longer than the
    update of a small model. Here a group's tensors are listed once, and counted by one operation.
    Source: Kingma and Ba (2015), arXiv:1412.6980, algorithm 1; Loshchilov and Hutter (2019),
    arXiv:1711.05101, algorithm 2.
    """

    decoupled = True
    """Whether the decay is beside the step (AdamW), not part of the gradient."""

    def __init__(
        self,
        groups: Iterable[ParameterGroup],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        **settings: Any,
    ) -> None:
        """Store the parameter groups.

        Args:
            groups: may set ``weight_decay`` (default 0).
            lr: learning rate.
            betas: decays of the averages of gradients and of squared gradients.
            eps: added to the root of the average square.
            settings: defaults of more settings of groups.
        """
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, **settings}
        super().__init__(groups, defaults)
        self._listed: dict[int, _Moments] = {}
        self._listed_state: object = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, without the record for the profiler that takes torch most time.

        Args:
            set_to_none: False fills them with 0 instead.
        """
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step; parameters without a gradient stay. ``closure`` must be None."""
        assert closure is None
        for number, group in enumerate(self.param_groups):
            self._update(number, group)

    def _update(self, number: int, group: ParameterGroup) -> None:
        """Update the parameters of a group that have a gradient, and their averages."""
        moments, gradients = self._moments(number, group), [p.grad for p in group["params"]]
        places = [place for place, grad in enumerate(gradients) if grad is not None]
        if not places:
            return
        if len(places) == len(gradients):
            moments.all_counts.add_(1)
        else:
            moments = moments.pick(places)
            torch._foreach_add_(moments.counts, 1)
        kernel = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        beta1, beta2 = group["betas"]
        kernel(
            moments.parameters,
            [local_part(gradients[place]) for place in places],
            moments.means,
            moments.squares,
            [],
            moments.counts,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _moments(self, number: int, group: ParameterGroup) -> _Moments:
        """Return the tensors of a group, listed again after a state was loaded."""
        if self._listed_state is not self.state:
            self._listed, self._listed_state = {}, self.state
        if number not in self._listed:
            self._listed[number] = self._list_moments(group["params"])
        return self._listed[number]

    def _list_moments(self, parameters: list[Tensor]) -> _Moments:
        states: list[dict[str, Tensor]] = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        steps = [state["step"].to(p.device) for state, p in zip(states, parameters, strict=True)]
        all_counts = torch.stack(steps) if steps else torch.zeros(0)
        for state, count in zip(states, all_counts.unbind(), strict=True):
            state["step"] = count
        return _Moments(
            [local_part(parameter) for parameter in parameters],
            [local_part(state["exp_avg"]) for state in states],
            [local_part(state["exp_avg_sq"]) for state in states],
            [state["step"] for state in states],
            all_counts,
        )


class CoupledAdam(FusedAdam):
    """Adam, whose decay is part of the gradient."""

    decoupled = False


class Lamb(Optimizer):
    """Layer-wise adaptive moments.

    In groups with ``adapt``, Adam's step, decay included, is scaled to the norm of the parameter.
    Other groups (norms, biases, embeddings) take Adam's step unscaled, as in the authors' code:
    parameters that start at 0 would hardly move.
    Source: You et al. (2020), arXiv:1904.00962, algorithm 2, with the identity for phi.
    """

    def __init__(
        self,
        groups: Iterable[ParameterGroup],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        """Store the parameter groups.

        Args:
            groups: may set ``weight_decay`` (default 0) and ``adapt`` (default true).
            lr: learning rate.
            betas: decays of the averages of gradients and of squared gradients.
            eps: added to the root of the average square.
        """
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adapt": True}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step; parameters without a gradient stay. ``closure`` must be None."""
        assert closure is None
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: ParameterGroup) -> None:
        """Update this rank's part of some parameters, scaled by the norms of whole parameters."""
        (beta1, beta2), grads = group["betas"], local_gradients(parameters)
        states = [self._state(parameter) for parameter in parameters]
        counts = [int(state["step"].add_(1)) for state in states]
        means = [local_part(state["exp_avg"]) for state in states]
        squares = [local_part(state["exp_avg_sq"]) for state in states]
        weights = [local_part(parameter) for parameter in parameters]
        torch._foreach_lerp_(means, grads, 1.0 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1.0 - beta2)
        spreads = torch._foreach_div(squares, [1.0 - beta2**count for count in counts])
        torch._foreach_sqrt_(spreads)
        torch._foreach_add_(spreads, group["eps"])
        steps = torch._foreach_div(means, [1.0 - beta1**count for count in counts])
        torch._foreach_div_(steps, spreads)
        torch._foreach_add_(steps, weights, alpha=group["weight_decay"])
        if group["adapt"]:
            for parameter, weight, step in zip(parameters, weights, steps, strict=True):
                step.mul_(_trust_ratio(_length(weight, parameter), _length(step, parameter)))
        torch._foreach_add_(weights, steps, alpha=-group["lr"])

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _length(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return the 2-norm of a whole tensor, of which ranks hold parts as of ``parameter``."""
    return gather_dtensor(torch.linalg.vector_norm(as_dtensor(tensor, parameter)))


def _trust_ratio(size: Tensor, step: Tensor) -> Tensor:
    """Return the norm of a weight divided by that of its step; 1 where either is 0."""
    return torch.where((size > 0) & (step > 0), size / step, 1.0)


_A, _B, _C = 3.4445, -4.7750, 2.0315
"""Coefficients of the iteration; steepest at 0. Source: kellerjordan.github.io/posts/muon."""

_ROUNDS = 5
"""Number of iterations."""


class Muon(FusedAdam):
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
        lr: float,
        momentum: float,
        nesterov: bool,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        """Store the parameter groups.

        Args:
            groups: may set ``matrices`` (default false) and ``weight_decay`` (default 0).
            lr: learning rate.
            momentum: decay of the average of gradients, for matrices.
            nesterov: whether the steps of matrices mix gradient and average.
            betas: decays of AdamW's averages.
            eps: added to the root of AdamW's average square.
        """
        settings = {"momentum": momentum, "nesterov": nesterov, "matrices": False}
        super().__init__(groups, lr=lr, betas=betas, eps=eps, **settings)

    def _update(self, number: int, group: ParameterGroup) -> None:
        if group["matrices"]:
            self._step_matrices([p for p in group["params"] if p.grad is not None], group)
        else:
            super()._update(number, group)

    def _step_matrices(self, matrices: list[Tensor], group: ParameterGroup) -> None:
        """Step along the orthogonalized average of the gradients."""
        keep, directions = group["momentum"], []
        for parameter, grad in zip(matrices, local_gradients(matrices), strict=True):
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            mean = local_part(state["momentum_buffer"]).lerp_(grad, 1.0 - keep)
            direction = grad.lerp(mean, keep) if group["nesterov"] else mean
            directions.append(gather_dtensor(as_dtensor(direction, parameter)))
        for parameter, direction in zip(matrices, _orthogonalize_groups(directions), strict=True):
            length = 0.2 * math.sqrt(max(direction.shape))
            weight, mine = local_part(parameter), local_part(distribute_like(direction, parameter))
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

    If parameters are sharded, the optimizer's state is sharded like them.
    """
    return _MAKERS[config.optimizer](model, config)


def _groups(model: nn.Module, config: TrainConfig) -> list[ParameterGroup]:
    """Return the group of parameters with weight decay, in the model's order, then the others."""
    sorted_parameters = sort_parameters(model)
    linear = {id(p) for p in (*sorted_parameters.matrices, *sorted_parameters.outputs)}
    decayed = [p for p in model.parameters() if id(p) in linear]
    return [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": sorted_parameters.free, "weight_decay": 0.0},
    ]


class _KernelOptions(TypedDict, total=False):
    fused: bool
    foreach: bool


def _kernel_options(model: nn.Module) -> _KernelOptions:
    """Return the options of torch's fastest kernels; sharded parameters are updated one by one."""
    parts = has_dtensors(model.parameters())
    return {"fused": False, "foreach": False} if parts else {"fused": True}


class _AdaptiveOptions(TypedDict):
    lr: float
    betas: tuple[float, float]
    eps: float


def _adaptive_options(config: TrainConfig) -> _AdaptiveOptions:
    betas = config.beta1, config.beta2
    return {"lr": config.learning_rate, "betas": betas, "eps": config.epsilon}


def _adamw(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    return FusedAdam(_groups(model, config), **_adaptive_options(config))


def _adam(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    return CoupledAdam(_groups(model, config), **_adaptive_options(config))


def _sgd(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        _groups(model, config),
        lr=config.learning_rate,
        momentum=config.momentum,
        nesterov=config.nesterov and config.momentum > 0,
        **_kernel_options(model),
    )


def _lamb(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    decayed, free = _groups(model, config)
    return Lamb([decayed, {**free, "adapt": False}], **_adaptive_options(config))


def _muon(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    parameters, decay = sort_parameters(model), config.weight_decay
    groups: list[ParameterGroup] = [
        {"params": parameters.matrices, "weight_decay": decay, "matrices": True},
        {"params": parameters.outputs, "weight_decay": decay},
        {"params": parameters.free},
    ]
    return Muon(
        groups, momentum=config.momentum, nesterov=config.nesterov, **_adaptive_options(config)
    )


_MAKERS: dict[str, Callable[[nn.Module, TrainConfig], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "adam": _adam,
    "sgd": _sgd,
    "lamb": _lamb,
    "muon": _muon,
}

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
        self.factor, self.best, self.waited = 1.0, math.inf, 0

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
        self.factor, self.best = float(state["factor"]), float(state["best"])
        self.waited = int(state["waited"])


def _cosine_between(start: float, end: float, progress: float) -> float:
    """Interpolate between two shares of the peak along half a cosine; ``progress`` is 0 to 1."""
    return end + (start - end) * (0.5 * (1.0 + math.cos(math.pi * progress)))


def _batch_scaling(config: TrainConfig, graphs_per_step: float) -> float:
    """Return the factor by which the peak grows with the batch."""
    ratio = graphs_per_step / config.rate_batch
    return {"none": 1.0, "sqrt": math.sqrt(ratio), "linear": ratio}[config.scale_rate]
