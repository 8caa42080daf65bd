"""Train one model epoch by epoch; the mathematics is the same on any number of ranks (Law 1)."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch import Tensor

from hydragnn_hpo.training.checkpoint_saver import Origin
from hydragnn_hpo.training.ddp import Signal, SyncPoints
from hydragnn_hpo.training.epoch import EpochResult, train_epoch, validate_epoch
from hydragnn_hpo.training.micro_batches import fit_to_memory
from hydragnn_hpo.training.resume import restore_progress, save_training
from hydragnn_hpo.training.train_state import Progress
from hydragnn_hpo.training.training_parts import TrainingParts

EpochContext = Callable[[int], AbstractContextManager[object]]
"""Makes the context in which the steps of an epoch, numbered from 1, are taken."""


class Trainer:
    """Trains one model: holds its progress, and decides when the training ends."""

    def __init__(self, parts: TrainingParts) -> None:
        """Begin at epoch 0.

        Args:
            parts: of this training alone, see ``build_parts``.
        """
        self.parts = parts
        self.progress = Progress()
        self.best = dict[str, Tensor]()
        """Unsharded weights of the best epoch by name, see ``ModelParallelism.full_state``."""
        self.resumed_from: Origin | None = None
        """Kind of checkpoint that this training resumed from; None if it began at epoch 0."""
        self.sync_points = SyncPoints(parts.ranks, lambda: "go")

    def run(
        self,
        until: int,
        signal: Callable[[], Signal],
        folder: Path | None = None,
        *,
        epoch_context: EpochContext = nullcontext,
    ) -> Signal:
        """Train up to an epoch, write checkpoints, and act on signals.

        ``interrupt`` ends the training within seconds, between two steps; ``stop`` ends it after
        the validation of the current epoch.

        Args:
            until: last epoch to train, counted from the start of the trial.
            signal: returns what the user, the controller or the system requests of this rank.
            folder: folder of the checkpoints; with None none are written.
            epoch_context: such as ``EpochProfiler.epoch``.

        Returns:
            ``go`` if the epoch was reached or patience ran out, else the signal that ended the
            training.

        Raises:
            Diverged: a gradient, weight or error is not finite, or an error has exploded.
            TooManyGraphs: a step ran out of memory and cannot be repeated; the training has to
                resume from the last checkpoint, in more micro-batches.
            MemoryError: a single graph, or the update of the weights, does not fit into memory.
            StorageError: a checkpoint cannot be written.
        """
        parts = self.parts
        fit = fit_to_memory(parts.config, parts.order, parts.micro, parts.stepper, folder)
        parts.record("memory", **vars(fit))
        self.sync_points = SyncPoints(parts.ranks, signal, step=self.progress.step)
        received: Signal = "go"
        with parts.saver:
            while self.progress.epoch < until and received == "go" and not self.out_of_patience:
                received, save = self._run_epoch(folder, epoch_context)
                ends = self.progress.epoch >= until or received != "go" or self.out_of_patience
                if ends or save:
                    save_training(parts, self.progress, self.best, folder)
        return received

    @property
    def out_of_patience(self) -> bool:
        """Whether the objective has not improved for ``patience`` epochs."""
        training = self.parts.config.training
        patience = None if training.fold is not None else training.patience
        return patience is not None and self.progress.epoch - self.progress.best_epoch >= patience

    def _run_epoch(self, folder: Path | None, epoch_context: EpochContext) -> tuple[Signal, bool]:
        """Train the rest of an epoch and validate, unless interrupted between two steps.

        Returns:
            The signal that all ranks agree on, and whether a checkpoint is due.
        """
        begin = time.perf_counter()
        parts = self.parts
        progress = self.progress
        steps = parts.order.steps(progress.epoch)
        remaining = steps[progress.step - progress.epoch * parts.order.steps_per_epoch :]
        with epoch_context(progress.epoch + 1):
            interrupted = train_epoch(
                parts, remaining, progress, self.sync_points, best=self.best, folder=folder
            )
        trained = time.perf_counter()
        if interrupted:
            progress.train_seconds += trained - begin
            return "interrupt", True
        progress.epoch += 1
        result = validate_epoch(parts, progress.epoch, steps, self.sync_points.signal)
        self._keep_best(result)
        ended = time.perf_counter()
        progress.train_seconds += ended - begin
        parts.record(
            "epoch",
            epoch=progress.epoch,
            loss=result.losses,
            val_mae=result.mae,
            objective=result.objective,
            best_objective=progress.best_objective,
            learning_rate=parts.state.optimizer.param_groups[0]["lr"],
            train_seconds=trained - begin,
            val_seconds=ended - trained,
            graphs_per_second=sum(map(len, remaining)) / (trained - begin),
            **result.summary,
        )
        return result.signal, result.save

    def _keep_best(self, result: EpochResult) -> None:
        """Check the objective of an epoch, and keep its weights if it is the best so far."""
        parts = self.parts
        progress = self.progress
        parts.schedule.after_epoch(result.objective)
        progress.lost = parts.guard.check_objective(
            result.objective, result.mae, std=parts.stds, progress=progress
        )
        left_out = parts.config.training.fold is not None  # what is left out may choose no epoch
        # The best is one of stage two: by the objective's weights, stage one may seem better.
        begins = progress.epoch == parts.config.stage_one_epochs + 1
        if left_out or begins or result.objective < progress.best_objective:
            progress.best_objective = result.objective
            progress.best_epoch = progress.epoch
            progress.best_val = result.mae
            self.best = parts.state.averaged_state()

    def resume(self, folder: Path) -> bool:
        """Load the newest checkpoint, and return whether there was one; every rank calls this."""
        loaded = self.parts.saver.load(folder)
        if loaded is None:
            return False
        self.resumed_from, self.best = loaded.origin, loaded.best
        self.progress = restore_progress(self.parts, loaded)
        return True

    def load_best_weights(self) -> None:
        """Load the best epoch's weights into the model; predictions use these (Law 8)."""
        self.parts.state.net.load_full_state(self.best)
        self.parts.model.eval()
