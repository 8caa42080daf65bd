"""One epoch of a training: its steps, then its validation.

Shapes: H heads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.config import HeadConfig
from hydragnn_hpo.data import Batch, Columns, Prefetcher
from hydragnn_hpo.data.mixture import Mixture
from hydragnn_hpo.training.ddp import Signal, SyncPoints, allreduce_tensors
from hydragnn_hpo.training.evaluate import error_sums
from hydragnn_hpo.training.resume import save_training
from hydragnn_hpo.training.timers import EpochSummary, summarize_epoch
from hydragnn_hpo.training.train_state import Progress
from hydragnn_hpo.training.training_parts import TrainingParts


def train_epoch(
    parts: TrainingParts,
    steps: list[np.ndarray],
    progress: Progress,
    sync_points: SyncPoints,
    *,
    best: Mapping[str, Tensor],
    folder: Path | None,
) -> bool:
    """Take the remaining steps of an epoch, and return whether it was interrupted before the last.

    Args:
        parts: of the training.
        steps: graphs of each remaining step over all ranks, int64, [n] each.
        progress: its ``step`` counts the steps.
        sync_points: where the ranks agree on signals and checkpoints.
        best: weights of the best epoch, which a checkpoint holds too.
        folder: folder of the checkpoints; with None none are written.

    Raises:
        Diverged: a gradient is not finite.
        TooManyGraphs: a step ran out of memory and cannot be repeated.
        MemoryError: a single graph, or the update of the weights, does not fit into memory.
        StorageError: a checkpoint cannot be written.
    """
    end = progress.step + len(steps)
    parts.model.train()
    with Prefetcher(parts.micro.make_ahead, steps, prefetch_depth(parts)) as made:
        batches = iter(made)
        for indices in steps:
            with parts.meter.region("data"):
                pieces = next(batches)
            take_step(parts, progress, indices, pieces)
            if progress.step == sync_points.start + 1:
                parts.record("first_step", epoch=progress.epoch + 1)
            if progress.step < end and sync_points.due(progress.step):
                with parts.meter.region("look"):
                    received, save = sync_points.agree(progress.step, save=parts.saver.due)
                parts.meter.count_energy("train")
                if received == "interrupt":
                    return True
                if save:
                    save_training(parts, progress, best, folder)
    return False


def take_step(
    parts: TrainingParts, progress: Progress, indices: np.ndarray, pieces: list[Batch]
) -> None:
    """Take one optimizer step, add up its losses, and count it.

    Args:
        parts: of the training.
        progress: its ``step`` grows by one.
        indices: graphs of the step over all ranks, int64, [n].
        pieces: micro-batches of this rank's share, see ``MicroBatches.make_ahead``.
    """
    take = partial(
        parts.stepper.take_step,
        indices,
        rate=parts.schedule.rate(progress.step),
        epoch=progress.epoch + 1,
        step=progress.step,
    )
    parts.losses.add_(parts.micro.take_step(indices, pieces, parts.stepper, take))
    progress.step += 1


def prefetch_depth(parts: TrainingParts) -> int:
    """Return the number of batches to prefetch: 2 on a GPU, 1 if graphs are read from disk.

    It is 0 on a CPU with all graphs in memory, where a rank has a single thread.
    """
    if parts.ranks.device.type == "cuda":
        return 2
    graphs = parts.feed.graphs
    sets = graphs.sets if isinstance(graphs, Mixture) else (graphs,)
    return 0 if all(isinstance(each, Columns) for each in sets) else 1


@dataclass(frozen=True)
class EpochResult:
    """Errors, losses and measurements of an epoch over all ranks, and what they agree on."""

    mae: dict[str, float]
    """Validation MAE by head, in the target's unit."""
    objective: float
    """See ``compute_objective``."""
    losses: dict[str, float]
    """Mean loss of the epoch's steps by head."""
    summary: EpochSummary
    """Seconds, joules and memory."""
    signal: Signal
    """The signal that all ranks agree on."""
    save: bool
    """Whether a checkpoint is due."""


def validate_epoch(
    parts: TrainingParts, epoch: int, steps: list[np.ndarray], signal: Callable[[], Signal]
) -> EpochResult:
    """Validate, and sum over ranks what the epoch's steps added up; every rank calls this.

    Args:
        parts: of the training; sums of losses and measurements are reset.
        epoch: from 1.
        steps: graphs of each step of the epoch over all ranks, int64, [n] each.
        signal: returns what is requested of this rank.

    Raises:
        Diverged: a weight is not finite, or the trunk's gradient was 0 in every step.
    """
    with parts.meter.region("val"):
        sums = _sum_over_ranks(parts, signal)
        parts.guard.check_weights(sums["guard"], epoch=epoch)
        if parts.ranks.first:
            parts.stragglers.warn(sums["ranks"][:, 0])
    parts.losses.zero_()
    heads = parts.config.heads
    errors = sums["errors"]
    mae = {name: float(errors[row, 0] / errors[row, 1]) for row, name in enumerate(heads)}
    rows = np.concatenate(steps)
    known = [max(int(parts.stepper.counts[name][rows].sum()), 1) for name in heads]
    stop, interrupt, save = sums["flags"]
    return EpochResult(
        mae=mae,
        objective=compute_objective(mae, parts.stds, heads),
        losses=dict(zip(heads, (sums["losses"] / known).tolist(), strict=True)),
        summary=summarize_epoch(sums, parts.ranks.world),
        signal="interrupt" if interrupt else "stop" if stop else "go",
        save=bool(save),
    )


def _sum_over_ranks(parts: TrainingParts, signal: Callable[[], Signal]) -> dict[str, np.ndarray]:
    """Sum errors, losses, signals and measurements over ranks in one all-reduce; by name."""
    parts.meter.count_energy("train")
    parts.model.eval()
    with parts.state.averaged():
        errors = error_sums(parts.model, parts.feed, parts.val, parts.val_replays)
    parts.meter.count_energy("val")
    requested = signal()
    due = parts.ranks.first and parts.saver.due
    losses = parts.losses if parts.ranks.represents_share else torch.zeros_like(parts.losses)
    flags = torch.tensor([requested == "stop", requested == "interrupt", due])
    terms = {"errors": errors, "losses": losses, "flags": flags}
    terms |= parts.guard.local_sums(parts.ranks) | parts.meter.local_sums(parts.ranks)
    return allreduce_tensors(parts.ranks, terms)


def compute_objective(
    mae: dict[str, float], std: dict[str, float], heads: Mapping[str, HeadConfig]
) -> float:
    """Average the heads' MAEs by their weights, in units of each target's standard deviation.

    Args:
        mae: mean absolute error by head, in the target's unit.
        std: standard deviation of each head's target, in the target's unit.
        heads: settings of the heads; their weights are normalised to sum to 1.

    Returns:
        Dimensionless; lower is better.
    """
    total = sum(head.weight for head in heads.values())
    return sum(head.weight / total * mae[name] / std[name] for name, head in heads.items())
