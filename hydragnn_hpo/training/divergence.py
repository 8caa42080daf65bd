"""End a diverged training early, and name the epoch and the tensor.

All ranks decide the same: from the gradient of the whole step, or from sums over ranks at the end
of an epoch. On a GPU only the checks of every 50th step and of each epoch wait for the device.
"""

import math

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.model import MultiHeadGNN
from hydragnn_hpo.training.ddp import Ranks, make_rank_table
from hydragnn_hpo.training.parallel import local_part
from hydragnn_hpo.training.train_state import Progress

HOPELESS = 100.0
"""MAE in standard deviations of the target above which an error is hopeless; predicting the mean
has an error of about 1."""

LOST_EPOCHS = 3
"""Consecutive epochs with a hopeless error that end a training. One or two may be a spike: of 30
small trainings with far too large steps, 4 recovered from more than 1000 standard deviations."""

_GPU_STEPS = 50
"""Steps between two checks of the gradient on a GPU, where each check waits for the device."""


class Diverged(Exception):
    """The training diverged; the message names the epoch and the tensor."""


class DivergenceGuard:
    """Checks gradients, weights and errors while a model trains."""

    def __init__(self, model: MultiHeadGNN, device: torch.device) -> None:
        """Store the model; only frozen parameters of its trunk may have no gradient."""
        self.model = model
        self.every = 1 if device.type == "cpu" else _GPU_STEPS
        self._trunk = [p for p in model.trunk.parameters() if p.requires_grad]
        self._alive = torch.zeros((), dtype=torch.float64, device=device)
        self._known = not self._trunk
        self._steps = 0

    def check_gradient(self, norm: Tensor, *, epoch: int, step: int) -> None:
        """Check the gradient of a step; on a GPU only that of every 50th step.

        Args:
            norm: 2-norm of the whole gradient, a scalar.
            epoch: from 1.
            step: from 1, since the beginning of the training.

        Raises:
            Diverged: the norm is not finite.
        """
        self._steps += 1
        if not self._known:
            self._check_trunk(step)
        if step % self.every or math.isfinite(norm):
            return
        names = (name for name, p in self.model.named_parameters() if not _is_finite(p.grad))
        raise Diverged(
            f"epoch {epoch}, step {step}: the gradient of {next(names, 'the whole model')} is not "
            "finite"
        )

    def _check_trunk(self, step: int) -> None:
        """Record whether this rank's part of the trunk had a nonzero gradient in this epoch."""
        gradients = [local_part(p.grad) for p in self._trunk if p.grad is not None]
        if gradients:
            self._alive += torch.stack(torch._foreach_norm(gradients, 1)).sum()
        if step % self.every == 0:
            self._known = bool(
                self._alive != 0
            )  # NaN counts too: the norm of the whole gradient is checked for it

    def local_sums(self, ranks: Ranks) -> dict[str, Tensor]:
        """Return this rank's term of the epoch's sums over ranks, and start the next epoch.

        Returns:
            ``guard``, fp64, [world, 2], zero except in this rank's row: whether the trunk had a
            gradient, and the number of the first parameter that is not finite, from 1, or 0.
        """
        nonfinite = self._nonfinite_parameters()
        alive = float(self._known or not self._steps or bool(self._alive != 0))
        self._alive.zero_()
        self._known = not self._trunk
        self._steps = 0
        mine = torch.tensor([alive, nonfinite[0] + 1.0 if nonfinite else 0.0], dtype=torch.float64)
        return {"guard": make_rank_table(ranks, mine)}

    def _nonfinite_parameters(self) -> list[int]:
        """Return the indices, from 0, of the parameters whose local part is not finite."""
        parts = [local_part(p.detach()) for p in self.model.parameters()]
        largest = torch._foreach_norm([part for part in parts if part.numel()], float("inf"))
        if bool(torch.isfinite(torch.stack(largest)).all()):
            return []
        return [number for number, part in enumerate(parts) if not _is_finite(part)]

    def check_weights(self, table: np.ndarray, *, epoch: int) -> None:
        """Check the weights, and the trunk's gradients, of all ranks after an epoch.

        Args:
            table: ``guard`` of ``local_sums``, summed over ranks, [world, 2].
            epoch: from 1.

        Raises:
            Diverged: a weight is not finite, or the trunk's gradient was 0 in every step.
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
        self, objective: float, mae: dict[str, float], *, std: dict[str, float], progress: Progress
    ) -> int:
        """Check the validation of an epoch.

        An error that was always hopeless may still fall as steps get smaller. An error counts as
        exploded only if it was below the limit in the best epoch.

        Args:
            objective: objective of the epoch, see ``epoch.compute_objective``.
            mae: validation MAE by head, in the target's unit.
            std: standard deviation of each target, in its unit.
            progress: gives the epoch, the best one before, and ``lost``, the result of this method
                after the previous epoch.

        Returns:
            Consecutive epochs, up to this one, with an error that is hopeless but once was not.

        Raises:
            Diverged: the objective is not finite, or an error has exploded.
        """
        if not math.isfinite(objective):
            raise Diverged(f"epoch {progress.epoch}: validation MAE {mae} is not finite")
        best = progress.best_val
        lost = progress.lost + 1
        hopeless = {name for name in best if mae[name] > HOPELESS * std[name]}
        fallen = sorted(name for name in hopeless if best[name] < HOPELESS * std[name])
        if not fallen or lost < LOST_EPOCHS:
            return lost if fallen else 0
        name = fallen[0]
        raise Diverged(
            f"epoch {progress.epoch}: the validation MAE of {name} exploded from {best[name]:.3g} "
            f"to {mae[name]:.3g}, {mae[name] / std[name]:.0f} spreads, for {lost} epochs running"
        )


def _is_finite(value: Tensor | None) -> bool:
    return value is None or bool(torch.isfinite(local_part(value)).all())
