"""One optimizer step on a global batch, piece by piece."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.training.averaging import AveragedWeights
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.divergence import DivergenceGuard
from hydragnn_hpo.training.loss import combine_losses, head_sums
from hydragnn_hpo.training.parallel import ModelParallelism
from hydragnn_hpo.training.precision import compute_dtype
from hydragnn_hpo.training.timers import EpochTimers


def reseed(seed: int, step: int, ranks: Ranks) -> None:
    """Seed torch's generators for one step, so that a resumed training draws what it would have.

    Checkpoints hold no generator's state, of no rank. Costs 6 us; ``torch.manual_seed`` would
    cost 180 us and grow a list in each call where CUDA was never used.

    Args:
        seed: of the trial.
        step: steps taken so far.
        ranks: those that see the same graphs draw the same.
    """
    digest = hashlib.sha256(f"{seed}/{step}/{ranks.data_rank}".encode()).digest()
    number = int.from_bytes(digest[:8], "big") >> 1
    torch.default_generator.manual_seed(number)
    if ranks.device.type == "cuda":
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(number)


class Stepper:
    """Turns the batches of a step into new weights: forward, backward, clip, update."""

    def __init__(
        self,
        config: TrialConfig,
        net: ModelParallelism,
        optimizer: torch.optim.Optimizer,
        *,
        average: AveragedWeights | None,
        counts: Mapping[str, np.ndarray],
        guard: DivergenceGuard,
        meter: EpochTimers,
    ) -> None:
        """Hold what a step needs.

        Args:
            config: the trial.
            net: the model over all ranks.
            optimizer: of its parameters.
            average: averaged weights, if any.
            counts: components of each head's target that each graph has, [G].
            guard: looks at every gradient.
            meter: told how long each part takes.
        """
        self.heads, self.training, self.seed = dict(config.heads), config.training, config.seed
        self.net, self.optimizer, self.average = net, optimizer, average
        self.counts, self.guard, self.meter = counts, guard, meter
        self.piece = 0
        """The piece of the step that is being worked on."""
        self.bound: Literal["", "gradients", "weights"] = ""
        """What of the step cannot be taken back: others have gradients of it, or weights change."""

    def take(
        self, indices: np.ndarray, batches: Sequence[Batch], *, rate: float, epoch: int, step: int
    ) -> Tensor:
        """Take one step.

        Args:
            indices: the graphs of all ranks.
            batches: this rank's share of them, in pieces.
            rate: step size.
            epoch: from 1.
            step: steps taken so far, from 0.

        Returns:
            This rank's sum of each head's loss, fp64, [H].

        Raises:
            Diverged: the gradient is not finite.
        """
        reseed(self.seed, step, self.net.ranks)
        counts = {name: float(self.counts[name][indices].sum()) for name in self.heads}
        self.optimizer.zero_grad(set_to_none=True)
        self.bound = "gradients" if self.net.together else ""
        summed = []
        for self.piece, batch in enumerate(batches):
            last = self.piece + 1 == len(batches)
            summed.append(self._piece(batch, counts, last=last))
        self.bound = "weights"
        with self.meter.region("update"):
            norm = self.net.norm()
            self.guard.gradient(norm, epoch=epoch, step=step + 1)
            if self.training.clip_norm is not None:
                self.net.clip(norm, self.training.clip_norm)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            if self.average:
                self.average.update(step)
        return torch.stack(summed).sum(0)

    def _piece(self, batch: Batch, counts: dict[str, float], *, last: bool) -> Tensor:
        """Add the gradient of one piece; the last one sends the sum to the other ranks."""
        with self.net.sending(last):
            with self.meter.region("forward"):
                sums, loss = self.losses(batch, counts, last=last)
            with self.meter.region("backward"):
                torch.autograd.backward(loss)
        if last:
            self.net.sent(self.meter)
        return torch.stack([sums[name].detach().double() for name in self.heads])

    def losses(
        self, batch: Batch, counts: Mapping[str, float], *, last: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Give the sum of each head's loss over a piece, and what the whole of it counts.

        Args:
            batch: the piece.
            counts: components with a target in the whole step, by head.
            last: whether it is the last piece of the step.
        """
        model, ranks = self.net.model, self.net.ranks
        batch = batch.to(ranks.device, non_blocking=True)
        with compute_dtype(self.training.precision, ranks.device):
            predicted = self.net.wrapped(batch)
        if last and ranks.world > 1:
            self.bound = "gradients"
        sums = head_sums(model, predicted, batch, self.heads, self.training.balance)
        loss = combine_losses(
            sums, counts, self.heads, ranks.data_world, model.log_variances, priced=last
        )
        return sums, loss
