"""Save a training at a step, and resume it from there on any number of ranks.

Shapes: H heads.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from hydragnn_hpo.training.checkpoint import CheckpointState
from hydragnn_hpo.training.checkpoint_saver import LoadedCheckpoint, checkpoint_origin
from hydragnn_hpo.training.train_state import Progress
from hydragnn_hpo.training.training_parts import TrainingParts


def save_training(
    parts: TrainingParts, progress: Progress, best: Mapping[str, Tensor], folder: Path | None
) -> None:
    """Start a checkpoint; every rank calls this at the same step.

    Args:
        parts: of the training.
        progress: its ``losses`` are set.
        best: weights of the best epoch by name, see ``CheckpointSaver.save``.
        folder: folder of the checkpoints; with None nothing is written.

    Raises:
        StorageError: the previous checkpoint could not be written.
    """
    if folder is None:
        return
    with parts.meter.region("checkpoint"):
        progress.losses = _gather_losses(parts, progress.step)
        state: CheckpointState = {
            "progress": vars(progress),
            "schedule": parts.schedule.state(),
            "seed": parts.config.seed,
            "made_by": checkpoint_origin(parts.ranks, parts.config.parallel),
        }
        parts.saver.save(folder, state, best)
    parts.meter.count_energy("checkpoint")


def _gather_losses(parts: TrainingParts, step: int) -> list[list[float]]:
    """Gather the current epoch's loss sums, one row per rank, [world, H]; [] between epochs."""
    if step % parts.order.steps_per_epoch == 0:
        return []
    table = parts.losses.new_zeros(parts.ranks.world, len(parts.losses))
    if parts.ranks.represents_share:
        table[parts.ranks.rank] = parts.losses
    return list(parts.ranks.sum(table).tolist())


def restore_progress(parts: TrainingParts, loaded: LoadedCheckpoint) -> Progress:
    """Return the progress of a checkpoint, and restore learning rates and loss sums."""
    progress = Progress(**loaded.state["progress"])
    if loaded.origin == "best":  # its progress may be of a later epoch than its weights
        progress.epoch = progress.best_epoch
        progress.losses = []
        progress.step = progress.epoch * parts.order.steps_per_epoch
    parts.schedule.load(loaded.state["schedule"])
    rows = progress.losses
    losses = parts.losses.zero_()
    if len(rows) == parts.ranks.world:
        losses += losses.new_tensor(rows[parts.ranks.rank])
    elif rows and parts.ranks.first:  # the number of ranks has changed: rank 0 holds all sums
        losses += losses.new_tensor(rows).sum(0)
    return progress
