"""Adam whose step at each matrix is as long as the matrix asks for: for very large batches."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hydragnn_hpo.training.parts import gradients, together


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
            for some in together(group["params"]):
                self._advance(some, group)

    def _advance(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Move some parameters at once."""
        (beta1, beta2), grads = group["betas"], gradients(parameters)
        states = [self._state(parameter) for parameter in parameters]
        counts = [int(state["step"].add_(1)) for state in states]
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        torch._foreach_lerp_(means, grads, 1.0 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1.0 - beta2)
        spreads = torch._foreach_div(squares, [1.0 - beta2**count for count in counts])
        torch._foreach_sqrt_(spreads)
        torch._foreach_add_(spreads, group["eps"])
        ways = torch._foreach_div(means, [1.0 - beta1**count for count in counts])
        torch._foreach_div_(ways, spreads)
        torch._foreach_add_(ways, parameters, alpha=group["weight_decay"])
        if group["adapt"]:
            sizes, lengths = torch._foreach_norm(parameters), torch._foreach_norm(ways)
            for way, size, length in zip(ways, sizes, lengths, strict=True):
                way.mul_(_trust(size, length))
        torch._foreach_add_(parameters, ways, alpha=-group["lr"])

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _trust(size: Tensor, length: Tensor) -> Tensor:
    """Give ``size / length``, or 1 where one of them is 0."""
    return torch.where((size > 0) & (length > 0), size / length, 1.0)
