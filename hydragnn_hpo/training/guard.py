"""Self-defence: a training that cannot come to anything ends early, and says where."""

import math

import torch
from torch import Tensor, nn


class Diverged(Exception):
    """The training came to nothing; says in which epoch, and at which tensor."""


class Guard:
    """Looks at gradients and errors while a model trains."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        """Watch over a model."""
        self.model, self.every = model, 1 if device.type == "cpu" else 50

    def gradient(self, norm: Tensor, *, epoch: int, step: int) -> None:
        """Look at the gradient of a step, on a GPU only at every 50th, where it has to wait.

        Args:
            norm: length of the whole gradient.
            epoch: from 1.
            step: from 1, since the training's beginning.

        Raises:
            Diverged: it is not finite.
        """
        if step % self.every or math.isfinite(norm):
            return
        found = (name for name, p in self.model.named_parameters() if _bad(p.grad))
        raise Diverged(
            f"epoch {epoch}, step {step}: the gradient of {next(found, 'the whole model')} is not "
            "finite"
        )

    def objective(self, objective: float, mae: dict[str, float], *, epoch: int) -> None:
        """Look at the validation of an epoch.

        Raises:
            Diverged: it is not finite.
        """
        if not math.isfinite(objective):
            raise Diverged(f"epoch {epoch}: validation MAE {mae} is not finite")


def _bad(gradient: Tensor | None) -> bool:
    return gradient is not None and not bool(torch.isfinite(gradient).all())
