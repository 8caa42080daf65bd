"""End a diverged training early, and name the epoch and the tensor.

All ranks decide alike: by the gradient of the whole step, or by what they sum at the end of an
epoch. On a GPU nothing here waits for the device but every 50th step and the end of an epoch.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.model import MultiHeadGNN
from hydragnn_hpo.training.ddp import Ranks, rank_row

HOPELESS = 100.0
"""Spreads of a target: an error so many times as large as that of guessing the mean is hopeless."""

LOST_EPOCHS = 3
"""Epochs running in which an error must be hopeless. One or two may be a spike: of 30 small
trainings with far too large steps, 4 came back after one of more than 1000 spreads."""

_GPU_STEPS = 50
"""How often the gradient on a GPU is looked at: each look waits for the device."""


class Diverged(Exception):
    """The training came to nothing; says in which epoch, and at which tensor."""


class DivergenceGuard:
    """Looks at gradients, weights and errors while a model trains."""

    def __init__(self, model: MultiHeadGNN, device: torch.device) -> None:
        """Watch over a model; what of its trunk is frozen now may stay without a gradient."""
        self.model, self.every = model, 1 if device.type == "cpu" else _GPU_STEPS
        self._trunk = [p for p in model.trunk.parameters() if p.requires_grad]
        self._alive = torch.zeros((), dtype=torch.float64, device=device)
        self._known, self._steps = not self._trunk, 0

    def check_gradient(self, norm: Tensor, *, epoch: int, step: int) -> None:
        """Look at the gradient of a step, on a GPU only at every 50th, where it has to wait.

        Args:
            norm: length of the whole gradient.
            epoch: from 1.
            step: from 1, since the training's beginning.

        Raises:
            Diverged: it is not finite.
        """
        self._steps += 1
        if not self._known:
            self._check_trunk(step)
        if step % self.every or math.isfinite(norm):
            return
        names = (name for name, p in self.model.named_parameters() if not _finite(p.grad))
        raise Diverged(
            f"epoch {epoch}, step {step}: the gradient of {next(names, 'the whole model')} is not "
            "finite"
        )

    def _check_trunk(self, step: int) -> None:
        """Note whether this rank's part of the trunk has any gradient, until it has."""
        gradients = [_local(p.grad) for p in self._trunk if p.grad is not None]
        if gradients:
            self._alive += torch.stack(torch._foreach_norm(gradients, 1)).sum()
        if step % self.every == 0:
            self._known = bool(self._alive != 0)  # not finite is alive too, and met elsewhere

    def local_sums(self, ranks: Ranks) -> dict[str, Tensor]:
        """Return what this rank adds to the epoch's sums: a living trunk, a weight that is none."""
        nonfinite = self._nonfinite_parameters()
        alive = float(self._known or not self._steps or bool(self._alive != 0))
        self._alive.zero_()
        self._known, self._steps = not self._trunk, 0
        mine = torch.tensor([alive, nonfinite[0] + 1.0 if nonfinite else 0.0], dtype=torch.float64)
        return {"guard": rank_row(ranks, mine)}

    def _nonfinite_parameters(self) -> list[int]:
        """Return the numbers of parameters of which this rank holds what is not finite."""
        parts = [_local(p.detach()) for p in self.model.parameters()]
        largest = torch._foreach_norm([part for part in parts if part.numel()], float("inf"))
        if bool(torch.isfinite(torch.stack(largest)).all()):
            return []
        return [number for number, part in enumerate(parts) if not _finite(part)]

    def check_weights(self, table: np.ndarray, *, epoch: int) -> None:
        """Look at what all ranks found in an epoch.

        Args:
            table: sum of ``local_sums``, [world, 2].
            epoch: from 1.

        Raises:
            Diverged: a weight is not finite, or no step gave the trunk a gradient.
        """
        nonfinite = table[:, 1][table[:, 1] > 0]
        if len(nonfinite):
            name = [name for name, _ in self.model.named_parameters()][int(nonfinite.min()) - 1]
            raise Diverged(f"epoch {epoch}: the weights of {name} are not finite")
        if not table[:, 0].any():
            name = next(n for n, p in self.model.named_parameters() if p is self._trunk[0])
            raise Diverged(
                f"epoch {epoch}: in every step the gradient of the whole trunk ({name} and all "
                "others) was exactly 0: it cannot learn"
            )

    def check_objective(
        self,
        objective: float,
        mae: Mapping[str, float],
        *,
        std: Mapping[str, float],
        best: Mapping[str, float],
        lost: int,
        epoch: int,
    ) -> int:
        """Look at the validation of an epoch.

        What was never sane may become so when steps get smaller; what was and is lost has exploded.

        Args:
            objective: what the search compares.
            mae: each head's error, in its unit.
            std: each target's spread, in its unit.
            best: errors of the best epoch so far; empty in the first.
            lost: what the last epoch's call gave.
            epoch: from 1.

        Returns:
            Epochs running in which an error was hopeless that had not been so.

        Raises:
            Diverged: it is not finite, or an error has exploded.
        """
        if not math.isfinite(objective):
            raise Diverged(f"epoch {epoch}: validation MAE {dict(mae)} is not finite")
        hopeless = {name for name in best if mae[name] > HOPELESS * std[name]}
        fallen = sorted(name for name in hopeless if best[name] < HOPELESS * std[name])
        if not fallen or lost + 1 < LOST_EPOCHS:
            return lost + 1 if fallen else 0
        name = fallen[0]
        raise Diverged(
            f"epoch {epoch}: the validation MAE of {name} exploded from {best[name]:.3g} to "
            f"{mae[name]:.3g}, {mae[name] / std[name]:.0f} spreads, for {lost + 1} epochs running"
        )


def _local(value: Tensor) -> Tensor:
    """Return this rank's part of a tensor that is spread over ranks."""
    part = getattr(value, "to_local", None)
    return value if part is None else part()


def _finite(value: Tensor | None) -> bool:
    return value is None or bool(torch.isfinite(_local(value)).all())
