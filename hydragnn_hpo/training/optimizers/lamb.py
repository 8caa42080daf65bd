"""Adam whose step at each matrix is as long as the matrix asks for: for very large batches."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hydragnn_hpo.training.ranks.parts import as_part, gradients_here, here, whole


class Lamb(Optimizer):
    """Layer-wise adaptive moments.

    Groups with ``adapt`` scale Adam's step, decay included, to the length of the parameter itself;
    the others (norms, biases, embeddings) take Adam's step as it is, as in the authors' own code:
    what starts at 0 would hardly move.
    Source: You et al. (2020), arXiv:1904.00962, algorithm 2, with the identity for phi.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        """Hold the parameters; groups may name ``weight_decay`` and ``adapt``."""
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adapt": True}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step; parameters without a gradient stay."""
        assert closure is None
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._advance(parameters, group)

    def _advance(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Move some parameters at once: what this rank holds of them, by the lengths of all."""
        (beta1, beta2), grads = group["betas"], gradients_here(parameters)
        states = [self._state(parameter) for parameter in parameters]
        counts = [int(state["step"].add_(1)) for state in states]
        means = [here(state["exp_avg"]) for state in states]
        squares = [here(state["exp_avg_sq"]) for state in states]
        weights = [here(parameter) for parameter in parameters]
        torch._foreach_lerp_(means, grads, 1.0 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1.0 - beta2)
        spreads = torch._foreach_div(squares, [1.0 - beta2**count for count in counts])
        torch._foreach_sqrt_(spreads)
        torch._foreach_add_(spreads, group["eps"])
        ways = torch._foreach_div(means, [1.0 - beta1**count for count in counts])
        torch._foreach_div_(ways, spreads)
        torch._foreach_add_(ways, weights, alpha=group["weight_decay"])
        if group["adapt"]:
            for parameter, weight, way in zip(parameters, weights, ways, strict=True):
                way.mul_(_trust(_length(weight, parameter), _length(way, parameter)))
        torch._foreach_add_(weights, ways, alpha=-group["lr"])

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _length(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Give the length of a tensor that is spread over ranks as a parameter is."""
    return whole(torch.linalg.vector_norm(as_part(tensor, parameter)))


def _trust(size: Tensor, step: Tensor) -> Tensor:
    """Give by how much a step is scaled to the size of its weight; 1 where one of them is 0."""
    return torch.where((size > 0) & (step > 0), size / step, 1.0)
