"""Momentum made orthogonal for matrices, AdamW for the rest."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from hydragnn_hpo.training.ranks.parts import as_part, gradients_here, here, spread_like, whole

_A, _B, _C = 3.4445, -4.7750, 2.0315
"""Coefficients of the iteration; steepest at 0. Source: kellerjordan.github.io/posts/muon."""

_ROUNDS = 5


class Muon(Optimizer):
    """Two optimizers in one: groups with ``matrices`` take orthogonal steps, others AdamW's.

    Steps of matrices are as long, in the root mean square, as AdamW's usually are, so that one
    learning rate and one decay serve both. The iteration runs in the weights' own type: torch's
    Muon rounds to bf16, where a gradient's last digit, which depends on the number of ranks,
    would become its third (Law 1).
    Source: Jordan et al. (2024), kellerjordan.github.io/posts/muon; Liu et al. (2025),
    arXiv:2502.16982, eq. 4 for the length.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        nesterov: bool,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        """Hold the parameters; groups name ``matrices`` and ``weight_decay``."""
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "betas": betas,
            "eps": eps,
            "weight_decay": 0.0,
            "matrices": False,
        }
        super().__init__(groups, defaults)
        for group in self.param_groups:
            group["fused"] = True  # Tells torch to keep the count of steps where parameters are.

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step; parameters without a gradient stay."""
        assert closure is None
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            (self._turn if group["matrices"] else self._adamw)(parameters, group)

    def _turn(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """Move matrices along their momentum made orthogonal."""
        keep, ways = group["momentum"], []
        for parameter, grad in zip(matrices, gradients_here(matrices), strict=True):
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            mean = here(state["momentum_buffer"]).lerp_(grad, 1.0 - keep)
            way = grad.lerp(mean, keep) if group["nesterov"] else mean
            ways.append(whole(as_part(way, parameter)))
        for parameter, way in zip(matrices, _all_orthogonal(ways), strict=True):
            length = 0.2 * math.sqrt(max(way.shape))
            weight, mine = here(parameter), here(spread_like(way, parameter))
            weight.mul_(1.0 - group["lr"] * group["weight_decay"])
            weight.add_(mine, alpha=-group["lr"] * length)

    def _adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Move what is no matrix as AdamW does."""
        states = [self._state(parameter) for parameter in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            [here(parameter) for parameter in parameters],
            gradients_here(parameters),
            [here(state["exp_avg"]) for state in states],
            [here(state["exp_avg_sq"]) for state in states],
            [],
            [state["step"] for state in states],
            foreach=False,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _all_orthogonal(matrices: list[Tensor]) -> list[Tensor]:
    """Make matrices orthogonal, those of one shape in one go."""
    by_shape: dict[torch.Size, list[int]] = {}
    for number, matrix in enumerate(matrices):
        by_shape.setdefault(matrix.shape, []).append(number)
    found = list(matrices)
    for numbers in by_shape.values():
        made = orthogonal(torch.stack([matrices[number] for number in numbers]))
        for number, matrix in zip(numbers, made.unbind(0), strict=True):
            found[number] = matrix
    return found


def orthogonal(matrices: Tensor) -> Tensor:
    """Bring all singular values near 1 (0.7 to 1.2), and keep the singular vectors.

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
