"""Training steps: seeds, the weighted multi-task loss, gradients, and updates of the weights.

Losses are divided by counts over all ranks and micro-batches of a step, so that the gradient does
not depend on how its graphs are distributed (Law 1).

Shapes: G graphs, R rows of a target (graphs or nodes), w components of a target, H heads.
"""

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.config import HeadConfig, TrialConfig
from hydragnn_hpo.data import Batch
from hydragnn_hpo.model import MultiHeadGNN, variance_key
from hydragnn_hpo.training.cuda_graphs import Replays
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.divergence import DivergenceGuard
from hydragnn_hpo.training.precision import DTYPES, compute_dtype
from hydragnn_hpo.training.timers import EpochTimers
from hydragnn_hpo.training.train_state import TrainState

LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "mae": lambda error: error.abs(),
    "mse": lambda error: error.square(),
    "huber": lambda error: F.huber_loss(error, error.new_zeros(()).expand_as(error), "none"),
}
"""Elementwise losses, by the setting ``loss`` of a head; each keeps the shape of the errors."""


def gaussian_nll(error: Tensor, variance: Tensor, beta: float) -> Tensor:
    """Return the Gaussian negative log-likelihood of errors, without its constant term.

    Args:
        error: prediction minus target, [R, w].
        variance: predicted variance, in the unit of ``error`` squared, > 0, [R, 1].
        beta: exponent of the weight ``variance ** beta`` of each row, which has no gradient; above
            0 it keeps rows with a large variance in the training.

    Returns:
        Loss of each component, [R, w].

    Source: Nix and Weigend (1994); Seitzer et al. (2022), arXiv:2203.09168, eq. 5.
    """
    likelihood = 0.5 * (variance.log() + error.square() / variance)
    return likelihood * variance.detach() ** beta if beta else likelihood


def cross_entropy(probability: Tensor, truth: Tensor) -> Tensor:
    """Return minus the logarithm of the probability of the true class, in nats, [R, 1].

    Args:
        probability: of each class, fp64, [R, w].
        truth: 1 for the true class, 0 for others; a row of zeros has no label, [R, w].
    """
    chosen = (probability * truth).sum(dim=-1, keepdim=True)
    return -chosen.clamp(min=1e-300).log()


def running_sums(error: Tensor) -> Tensor:
    """Return the sums of a spectrum's errors up to each value, over the number of values, [R, w].

    Their mean absolute value is the area between the cumulated curves on an axis of length 1.
    """
    return error.cumsum(dim=-1) / error.shape[-1]


def _combine_components(error: Tensor, head: HeadConfig, is_directed: bool) -> Tensor:
    """Return errors whose elementwise loss is that of a head, [R, w].

    Args:
        error: prediction minus target, [R, w].
        head: whether the loss is of running sums.
        is_directed: whether components are replaced by their root mean square.
    """
    if is_directed:
        norm: Tensor = torch.linalg.vector_norm(error, dim=-1, keepdim=True)
        return (norm / math.sqrt(error.shape[-1])).expand_as(error)
    return running_sums(error) if head.cumulative else error


def head_sums(
    model: MultiHeadGNN,
    predictions: Mapping[str, Tensor],
    batch: Batch,
    heads: Mapping[str, HeadConfig],
    balance: str = "scale",
    *,
    weights: Tensor | None = None,
) -> dict[str, Tensor]:
    """Sum each head's loss over the rows of a batch that have its target.

    Predictions (fp64) and targets are subtracted before the small difference is rounded to the
    dtype of the model. Vectors and tensors that are no derivatives have the loss of the root mean
    square over their components, which does not depend on the axes.

    Args:
        model: provides the standard deviation of each target, and which ones are no derivatives.
        predictions: predictions by target, [R, w], and variances by ``variance_key``, [R, 1].
        batch: holds targets, [R, w], and masks of the rows that have them, [R].
        heads: settings by target, which name its loss.
        balance: ``unit`` for errors in the target's own unit, else in standard deviations.
        weights: factor of each structure's loss, [G]; None for 1.

    Returns:
        Sum of the loss by target, scalars.
    """
    sums = {}
    for name, head in heads.items():
        std = model.std(name)
        mask = batch.masks[name].unsqueeze(-1)
        if weights is not None:
            rows = weights[batch.graph_of_node] if name in model.of_nodes else weights
            mask = mask * rows.unsqueeze(-1)
        if name in model.classes:
            losses = cross_entropy(predictions[name], batch.targets[name]).to(std.dtype)
            sums[name] = (losses * mask).sum()
            continue
        unit = torch.ones_like(std) if balance == "unit" else std
        error = (predictions[name] - batch.targets[name]).to(std.dtype) / unit
        if head.has_variance:
            variance = (predictions[variance_key(name)] / unit.double() ** 2).to(std.dtype)
            loss = gaussian_nll(error, variance, head.beta if head.loss == "beta_nll" else 0.0)
        else:
            loss = LOSSES[head.loss](_combine_components(error, head, name in model.directed))
        sums[name] = (loss * mask).sum()
    return sums


def combine_losses(
    sums: Mapping[str, Tensor],
    counts: Mapping[str, float],
    heads: Mapping[str, HeadConfig],
    world: int,
    log_variances: Tensor | None = None,
    priced: bool = True,
) -> Tensor:
    """Combine this rank's loss sums into the loss that it differentiates.

    Each head's sum is divided by its *global* count in the step. DDP averages gradients over ranks,
    hence the factor ``world``: ranks with unequal shares, even empty ones, then add up to the mean
    over the global batch.

    Args:
        sums: this rank's sum of the loss by head, scalars.
        counts: components with a target in the whole step, over all ranks, by head.
        heads: settings by head; their weights are normalised to sum to 1.
        world: number of shares into which the graphs of a step are divided.
        log_variances: learned logarithm s of each head's variance, [H]; None for fixed weights. The
            loss of a head is multiplied by ``exp(-s)``, and ``s / 2`` is added; that term is the
            same on all ranks, so it has no factor ``world``.
        priced: whether to add ``s / 2``, which is done in one micro-batch of each step.

    Returns:
        The loss, a scalar.
    """
    return weigh_losses(sums, loss_factors(counts, heads, world, priced), log_variances)


def loss_factors(
    counts: Mapping[str, float], heads: Mapping[str, HeadConfig], world: int, priced: bool
) -> list[list[float]]:
    """Return what ``combine_losses`` multiplies by.

    Args:
        counts: components with a target in the whole step, over all ranks, by head.
        heads: settings by head.
        world: number of shares into which the graphs of a step are divided.
        priced: whether log variances are added.

    Returns:
        Factors of the heads' sums, and of the heads' log variances, [2][H].
    """
    total = sum(head.weight for head in heads.values())
    shares = {name: head.weight / total for name, head in heads.items()}
    return [
        [world * share / max(counts[name], 1.0) for name, share in shares.items()],
        [0.5 * share * float(priced and counts[name] > 0) for name, share in shares.items()],
    ]


def weigh_losses(
    sums: Mapping[str, Tensor],
    factors: Sequence[Sequence[float]] | Tensor,
    log_variances: Tensor | None,
) -> Tensor:
    """Add the heads' losses, see ``combine_losses``.

    Args:
        sums: sum of the loss by head, scalars.
        factors: of the sums and the log variances, [2][H], see ``loss_factors``.
        log_variances: of the heads, [H], or None.
    """
    terms: list[Tensor] = []
    for row, (part, factor, price) in enumerate(zip(sums.values(), *factors, strict=True)):
        terms.append(part * factor)
        if log_variances is not None:
            terms[-1] = terms[-1] * torch.exp(-log_variances[row]) + price * log_variances[row]
    total: Tensor = sum(terms[1:], terms[0])
    return total


def reseed(seed: int, step: int, ranks: Ranks) -> None:
    """Seed torch's generators for one step, so that a resumed training draws the same numbers.

    Checkpoints do not store generator states. This takes 6 us; ``torch.manual_seed`` takes 180 us
    and, where CUDA was never used, appends to a list in each call.

    Args:
        seed: seed of the trial.
        step: steps taken so far.
        ranks: this rank among the others; ranks with the same graphs draw the same numbers.
    """
    digest = hashlib.sha256(f"{seed}/{step}/{ranks.data_rank}".encode()).digest()
    number = int.from_bytes(digest[:8], "big") >> 1
    torch.default_generator.manual_seed(number)
    if ranks.device.type == "cuda":
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(number)


class Stepper:
    """Takes optimizer steps: forward, backward, clip, update."""

    def __init__(
        self,
        config: TrialConfig,
        state: TrainState,
        *,
        counts: Mapping[str, np.ndarray],
        guard: DivergenceGuard,
        meter: EpochTimers,
        mean_weight: float = 1.0,
        replays: bool = False,
    ) -> None:
        """Store what every step needs.

        Args:
            config: the trial.
            state: the model over all ranks, its optimizer, and averaged weights.
            counts: number of known target components of each graph, [G], by head.
            guard: checks the gradients.
            meter: times each region of a step.
            mean_weight: mean of the attribute ``training.weight_by`` over the training split.
            replays: whether micro-batches that are padded are replayed as CUDA graphs.
        """
        self.config = config
        self.heads = dict(config.heads)
        """Heads with their weights in the current epoch."""
        self.training = config.training
        self.seed = config.seed
        self.net, self.optimizer, self.average = state.net, state.optimizer, state.average
        self.counts, self.guard, self.meter = counts, guard, meter
        self.mean_weight = mean_weight
        self.replays = (
            Replays(self._add_gradient, self.net.ranks.device, unchanged=self._same_gradients)
            if replays
            else None
        )
        self._gradients: dict[nn.Parameter, Tensor] = {}
        """Tensors to which recorded kernels add the gradients."""
        self.piece = 0
        """Index of the current micro-batch, from 0."""
        self.bound: Literal["", "gradients", "weights"] = ""
        """Why the current step cannot be repeated after an error: its gradients are being sent to
        other ranks, or its weights are being updated; empty while it can be repeated."""

    def take_step(
        self, indices: np.ndarray, batches: Sequence[Batch], *, rate: float, epoch: int, step: int
    ) -> Tensor:
        """Take one step.

        Args:
            indices: graphs of the step over all ranks, int64, [n].
            batches: micro-batches of this rank's share.
            rate: learning rate.
            epoch: number of the epoch, from 1.
            step: steps taken so far, from 0.

        Returns:
            This rank's sum of each head's loss, fp64, [H].

        Raises:
            Diverged: the gradient is not finite.
        """
        reseed(self.seed, step, self.net.ranks)
        self.heads = self.config.heads_in(epoch)
        counts = {name: float(self.counts[name][indices].sum()) for name in self.heads}
        self._zero_gradients()
        self.bound = "gradients" if self.net.is_collective else ""
        summed = []
        for self.piece, batch in enumerate(batches):
            last = self.piece + 1 == len(batches)
            summed.append(self._piece(batch, counts, last=last))
        self._send_gradients()
        # Set before the update: a step that runs out of memory inside it must not be repeated.
        self.bound = "weights"
        with self.meter.region("update"):
            norm = self.net.gradient_norm()
            self.guard.check_gradient(norm, epoch=epoch, step=step + 1)
            if self.training.clip_norm is not None:
                self.net.clip_gradients(norm, self.training.clip_norm)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            if self.average:
                self.average.update(step)
        return torch.stack(summed).sum(0)

    def _piece(self, batch: Batch, counts: dict[str, float], *, last: bool) -> Tensor:
        """Accumulate the gradient of one micro-batch; return its loss sums by head, fp64, [H].

        Gradients are sent to the other ranks in the last micro-batch of a step.
        """
        if self.replays is not None:
            with self.meter.region("backward"):
                world = self.net.ranks.data_world
                factors = loss_factors(counts, self.heads, world, last)
                numbers = torch.tensor(factors, dtype=DTYPES[self.training.precision])
                return self.replays.run(batch, numbers)["sums"]
        with self.net.gradient_sync(last):
            with self.meter.region("forward"):
                sums, loss = self.losses(batch, counts, last=last)
            with self.meter.region("backward"):
                torch.autograd.backward(loss)
        if last:
            self.net.add_communication_seconds(self.meter)
        return torch.stack([sums[name].detach().double() for name in self.heads])

    def _add_gradient(self, batch: Batch, factors: Tensor) -> dict[str, Tensor]:
        """Add the gradient of a micro-batch to that of the weights.

        Args:
            batch: on the device.
            factors: see ``loss_factors``, on the device, [2, H].

        Returns:
            ``sums``, of each head's loss, fp64, [H].
        """
        model = self.net.model
        with compute_dtype(self.training.precision, self.net.ranks.device):
            predicted = model(batch)
        sums = self._head_sums(predicted, batch)
        torch.autograd.backward(weigh_losses(sums, factors, model.log_variances))
        return {"sums": torch.stack([sums[name].detach().double() for name in self.heads])}

    def _head_sums(self, predicted: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Sum each head's loss over a batch, weighted by ``training.weight_by``; scalars."""
        training = self.training
        weights = None
        if training.weight_by is not None:
            weights = batch.attributes[training.weight_by] / self.mean_weight
        return head_sums(
            self.net.model, predicted, batch, self.heads, training.balance, weights=weights
        )

    @contextlib.contextmanager
    def _same_gradients(self) -> Iterator[Callable[[], list[Tensor]]]:
        """Restore the gradients that were there; those that are new become 0.

        Yields:
            A function that lists the gradients.
        """
        parameters = self.net.parameters
        before = [None if p.grad is None else p.grad.clone() for p in parameters]
        try:
            yield self.net.gradients
        finally:
            for parameter, kept in zip(parameters, before, strict=True):
                if parameter.grad is not None:
                    parameter.grad.zero_() if kept is None else parameter.grad.copy_(kept)
                    self._gradients[parameter] = parameter.grad

    def _send_gradients(self) -> None:
        """Average the gradients of replayed passes over the ranks; others are sent by hooks."""
        if self.replays is None:
            return
        self.bound = "gradients" if self.net.ranks.world > 1 else ""
        self.net.average_gradients()
        self.net.add_communication_seconds(self.meter)

    def _zero_gradients(self) -> None:
        """Set gradients to 0: in place, where recorded kernels add to them."""
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient
        self.optimizer.zero_grad(set_to_none=not self._gradients)

    def losses(
        self, batch: Batch, counts: Mapping[str, float], *, last: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Run the model on a micro-batch and compute its losses.

        Args:
            batch: the micro-batch, in host memory or on the device.
            counts: components with a target in the whole step, over all ranks, by head.
            last: whether it is the last micro-batch of the step.

        Returns:
            Sum of each head's loss, scalars, and the loss to differentiate, a scalar.
        """
        model, ranks = self.net.model, self.net.ranks
        batch = batch.to(ranks.device, non_blocking=True)
        with compute_dtype(self.training.precision, ranks.device):
            predicted = self.net.wrapped(batch)
        # From the first gradient of the last micro-batch on, DDP sends gradients to other ranks.
        if last and ranks.world > 1:
            self.bound = "gradients"
        sums = self._head_sums(predicted, batch)
        loss = combine_losses(
            sums, counts, self.heads, ranks.data_world, model.log_variances, priced=last
        )
        return sums, loss
