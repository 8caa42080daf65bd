"""Train one model; the mathematics is the same on any number of ranks (Law 1).

The trunk starts with random weights or those of another trial. The model is then replicated on the
ranks or sharded over them.

Shapes: G graphs, H heads.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.config import (
    HeadConfig,
    ParallelConfig,
    TrialConfig,
    count_components,
    parse_config,
)
from hydragnn_hpo.data import Batch, BatchSampler, Columns, GraphSet, Mixture, Prefetcher
from hydragnn_hpo.errors import ConfigError, DataError, HydraError, StorageError, answer_of
from hydragnn_hpo.files import read_json, write_json
from hydragnn_hpo.model import MultiHeadGNN, choose_kernels, rename_weights
from hydragnn_hpo.training import checkpoint
from hydragnn_hpo.training.checkpoint_saver import CheckpointSaver, Origin, checkpoint_origin
from hydragnn_hpo.training.cuda_graphs import Replays, can_replay
from hydragnn_hpo.training.ddp import Ranks, Signal, SyncPoints, allreduce_tensors
from hydragnn_hpo.training.divergence import DivergenceGuard
from hydragnn_hpo.training.evaluate import batch_error_sums, error_sums, make_feed
from hydragnn_hpo.training.micro_batches import MicroBatches, fit_to_memory
from hydragnn_hpo.training.optim import LearningRateSchedule, make_optimizer
from hydragnn_hpo.training.parallel import (
    AveragedModel,
    ModelParallelism,
    ReplicatedModel,
    recompute_rounds,
)
from hydragnn_hpo.training.precision import DTYPES, message_dtype, set_matmul_precision
from hydragnn_hpo.training.stepper import Stepper
from hydragnn_hpo.training.timers import Stragglers, make_timers, summarize_epoch
from hydragnn_hpo.training.train_state import AveragedWeights, Progress, TrainState

_TRUNK = "trunk."


def check_model(question: Path, answer: Path) -> None:
    """Build the model of a trial before there are data, and write what is wrong with it.

    The entry point of the process in which ``campaign.campaign_checks`` imports a user's conv.

    Args:
        question: JSON file with the trial's ``config`` and its ``targets``.
        answer: JSON file to write, see ``errors.answer_of``; empty if nothing is wrong.
    """
    stats = read_json(question)
    config = parse_config(stats["config"], TrialConfig, where="the trial")
    try:
        build_model(config, stats)
    except HydraError as error:
        write_json(answer, answer_of(error))
    else:
        write_json(answer, {})


def build_model(config: TrialConfig, stats: Mapping[str, Any]) -> MultiHeadGNN:
    """Build the model of a trial; random initial weights depend only on the trial's seed.

    With ``training.start_from`` the trunk's weights are those of another trial's best epoch; with
    ``training.freeze_trunk`` they are not trained.

    Args:
        config: of the trial.
        stats: ``StoreStats``, of which ``targets`` must be there.

    Raises:
        ConfigError: the checkpoint cannot be read, or the shape of its trunk differs.
    """
    training = config.training
    torch.manual_seed(config.seed)
    model = MultiHeadGNN(
        config.model,
        config.heads,
        stats["targets"],
        stats=stats,
        learn_weights=training.balance == "uncertainty",
    ).to(DTYPES[training.precision])
    if training.start_from is not None:
        _copy_trunk(model, Path(training.start_from), config.model.conv)
    model.trunk.requires_grad_(not training.freeze_trunk)
    return model


def _copy_trunk(model: MultiHeadGNN, path: Path, conv: str) -> None:
    """Copy a checkpoint's trunk into a model of this conv."""
    try:
        tensors, _ = checkpoint.read_checkpoint(path)
    except StorageError as error:
        raise ConfigError(f"training.start_from: {error}") from error
    tensors = rename_weights(tensors, conv)
    trunk = {k.removeprefix(_TRUNK): v for k, v in tensors.items() if k.startswith(_TRUNK)}
    own = model.trunk.state_dict()
    differing = {
        name
        for name in own.keys() | trunk.keys()
        if name not in own or name not in trunk or own[name].shape != trunk[name].shape
    }
    if differing:
        raise ConfigError(
            f"training.start_from: the trunk in {path} has another shape (at {min(differing)}): "
            "give this trial the same [model]."
        )
    model.trunk.load_state_dict(trunk)


def parallelize(
    model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks, *, replays: bool
) -> ModelParallelism:
    """Replicate or shard a model over the ranks; every rank calls this with the same weights.

    Args:
        model: the model, on this rank's device.
        config: how weights are sharded, and whether rounds are recomputed in the backward pass.
        ranks: this rank among the others.
        replays: whether passes are replayed as CUDA graphs.

    Raises:
        ConfigError: a user's conv has a parameter that cannot be sharded.
    """
    if config.recompute:
        recompute_rounds(model.trunk)
    if config.is_sharded(ranks.world):
        # Importing torch's sharding takes half a second, and most trials do not shard.
        from hydragnn_hpo.training.sharded import ShardedModel

        return ShardedModel(model, config, ranks)
    if ranks.world == 1:
        return ModelParallelism(model, config, ranks)
    return (AveragedModel if replays else ReplicatedModel)(model, config, ranks)


logger = logging.getLogger(__name__)


def compute_objective(
    mae: dict[str, float], std: dict[str, float], heads: dict[str, HeadConfig]
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


def make_sampler(config: TrialConfig, graphs: GraphSet) -> BatchSampler:
    """Build the sampler that assigns graphs to the steps of a trial."""
    ends = graphs.ends.tolist() if isinstance(graphs, Mixture) else ()
    ratios = [entry.ratio for entry in config.data]
    return BatchSampler.of(graphs, config.training, config.seed, ratios, ends)


class Trainer:
    """Trains one model; holds its optimizer, learning rate schedule and progress."""

    def __init__(
        self,
        config: TrialConfig,
        graphs: GraphSet,
        ranks: Ranks,
        record: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        """Build model, optimizer, schedule and sampler, at epoch 0.

        Args:
            config: the trial.
            graphs: the data set, or several united into one.
            ranks: this rank among the others.
            record: called with the kind and the values of each record, on every rank.

        Raises:
            DataError: no structure of the validation split has the target of a head.
        """
        self.config, self.graphs, self.record = config, graphs, record
        self.ranks = replace(ranks, tensor=config.parallel.tensor_ranks(ranks.world))
        self.heads = dict(config.heads)
        set_matmul_precision(config.training.precision)
        model = build_model(config, graphs.stats).to(ranks.device)
        replays = can_replay(config, self.ranks, fixed_shapes=model.fixed_shapes)
        self.net = parallelize(model, config.parallel, self.ranks, replays=replays)
        self.model = model
        collective = self.net.is_collective
        self.optimizer = make_optimizer(model, config.training)
        decay = config.training.ema
        self.average = AveragedWeights(model, decay) if decay else None
        self.feed = make_feed(config, graphs, self.ranks, is_collective=collective, pads=replays)
        self.micro = MicroBatches(self.feed, config.training.micro_batches)
        self.micro.on_change = lambda pieces: self.record("memory", pieces=pieces)
        self.counts = {name: _counts(graphs, name) for name in self.heads}
        self.val = graphs.indices_of("val")
        self.order = make_sampler(config, graphs)
        self._check_val()
        self.total_steps = self.order.steps_per_epoch * config.training.epochs
        self.schedule = LearningRateSchedule(
            config.training, self.total_steps, self.order.graphs_per_step
        )
        self._reset()

    def _reset(self) -> None:
        """Build the objects that hold state of a run: guard, timers, stepper, saver."""
        device = self.ranks.device
        dtype = message_dtype(self.config.training.precision)
        self.kernels = choose_kernels(self.config.model.kernels, device.type, dtype)
        self.guard = DivergenceGuard(self.model, device)
        self.meter = make_timers(device)
        self.stragglers = Stragglers()
        self.epoch_context: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext()
        self.stepper = Stepper(
            self.config,
            self.net,
            self.optimizer,
            average=self.average,
            counts=self.counts,
            guard=self.guard,
            meter=self.meter,
            replays=self.feed.pads,
        )
        validated = partial(batch_error_sums, self.model, self.feed)
        self.val_replays = Replays(validated, device) if self.feed.pads else None
        self.progress = Progress()
        self.best = dict[str, Tensor]()
        self._losses = torch.zeros(len(self.heads), dtype=torch.float64, device=device)
        self._started = False
        self.resumed_from: Origin | None = None
        """Kind of checkpoint that this training resumed from; None if it began at epoch 0."""
        self.saver = CheckpointSaver(
            TrainState(self.net, self.optimizer, self.average),
            self.ranks,
            lambda *kind, **values: self.record(*kind, **values),
            conv=self.config.model.conv,
            every=self.config.training.checkpoint_seconds,
        )
        self.sync_points = SyncPoints(self.ranks, lambda: "go")

    def _check_val(self) -> None:
        for name, counts in self.counts.items():
            if not counts[self.val].sum():
                raise DataError(
                    f"head '{name}': no structure of the validation split has this target; "
                    "drop the head, or add structures that have it."
                )

    def run(self, until: int, signal: Callable[[], Signal], folder: Path | None = None) -> Signal:
        """Train up to an epoch, write checkpoints, and act on signals.

        ``interrupt`` ends the training within seconds, between two steps; ``stop`` ends it after
        the validation of the current epoch.

        Args:
            until: last epoch to train, counted from the start of the trial.
            signal: returns what the user, the controller or the system requests of this rank.
            folder: folder of the checkpoints; with None none are written.

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
        self._choose_micro_batches(folder)
        self.sync_points = SyncPoints(self.ranks, signal, step=self.progress.step)
        received: Signal = "go"
        with self.saver:
            while self.progress.epoch < until and received == "go" and not self.out_of_patience:
                received, save = self._epoch(folder)
                ends = self.progress.epoch >= until or received != "go" or self.out_of_patience
                if ends or save:
                    self._save(folder)
        return received

    def _choose_micro_batches(self, folder: Path | None) -> None:
        """Choose the number of micro-batches of a step."""
        fit = fit_to_memory(self.config, self.order, self.micro, self.stepper, folder)
        self.record("memory", **vars(fit))

    @property
    def out_of_patience(self) -> bool:
        """Whether the objective has not improved for ``patience`` epochs."""
        training = self.config.training
        patience = None if training.fold is not None else training.patience
        return patience is not None and self.progress.epoch - self.progress.best_epoch >= patience

    def _epoch(self, folder: Path | None) -> tuple[Signal, bool]:
        """Train the rest of an epoch and validate, unless interrupted between two steps.

        Returns:
            The signal that all ranks agree on, and whether a checkpoint is due.
        """
        begin = time.perf_counter()
        progress = self.progress
        steps = self.order.steps(progress.epoch)
        left = steps[progress.step - progress.epoch * self.order.steps_per_epoch :]
        self.model.train()
        with self.epoch_context(progress.epoch + 1):
            received = self._train(left, folder)
        trained = time.perf_counter()
        if received != "go":
            progress.train_seconds += trained - begin
            return received, True
        progress.epoch += 1
        with self.meter.region("val"):
            sums, received, save = self._validate(self._losses)
        self._losses.zero_()
        errors = sums["errors"]
        mae = {name: float(errors[row, 0] / errors[row, 1]) for row, name in enumerate(self.heads)}
        objective = compute_objective(mae, self._stds(), self.heads)
        self._keep_best(objective, mae)
        ended = time.perf_counter()
        progress.train_seconds += ended - begin
        self.record(
            "epoch",
            epoch=progress.epoch,
            loss=self._mean_losses(sums["losses"], np.concatenate(steps)),
            val_mae=mae,
            objective=objective,
            best_objective=progress.best_objective,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            train_seconds=trained - begin,
            val_seconds=ended - trained,
            graphs_per_second=sum(map(len, left)) / (trained - begin),
            **summarize_epoch(sums, self.ranks.world),
        )
        return received, save

    def _train(self, left: list[np.ndarray], folder: Path | None) -> Signal:
        """Take the remaining steps of an epoch; return ``interrupt`` if it ends early, else ``go``.

        Args:
            left: graphs of each remaining step over all ranks, int64, [n] each.
            folder: folder of the checkpoints; with None none are written.
        """
        progress = self.progress
        ends = progress.step + len(left)
        with Prefetcher(self.micro.make_ahead, left, self.prefetch_depth()) as made:
            batches = iter(made)
            for indices in left:
                with self.meter.region("data"):
                    pieces = next(batches)
                self._losses += self._step(indices, pieces)
                if progress.step < ends and self.sync_points.due(progress.step):
                    with self.meter.region("look"):
                        received, save = self.sync_points.agree(progress.step, save=self.saver.due)
                    self.meter.count_energy("train")
                    if received == "interrupt":
                        return received
                    if save:
                        self._save(folder)
        return "go"

    def _mean_losses(self, sums: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """Divide loss sums, [H], by the number of known components in graphs ``rows``; by head."""
        known = {name: max(int(self.counts[name][rows].sum()), 1) for name in self.heads}
        return {name: float(sums[row] / known[name]) for row, name in enumerate(self.heads)}

    def prefetch_depth(self) -> int:
        """Return the number of batches to prefetch: 2 on a GPU, 1 if graphs are read from disk.

        It is 0 on a CPU with all graphs in memory, where a rank has a single thread.
        """
        if self.ranks.device.type == "cuda":
            return 2
        sets = self.graphs.sets if isinstance(self.graphs, Mixture) else (self.graphs,)
        return 0 if all(isinstance(graphs, Columns) for graphs in sets) else 1

    def _step(self, indices: np.ndarray, pieces: list[Batch]) -> Tensor:
        """Take one optimizer step; return this rank's loss sums by head, fp64, [H]."""
        progress = self.progress
        rate = self.schedule.rate(progress.step)
        epoch = progress.epoch + 1
        sums = self.micro.take_step(
            indices,
            pieces,
            self.stepper,
            lambda made: self.stepper.take_step(
                indices, made, rate=rate, epoch=epoch, step=progress.step
            ),
        )
        progress.step += 1
        if not self._started:
            self._started = True
            self.record("first_step", epoch=epoch)
        return sums

    def _validate(self, losses: Tensor) -> tuple[dict[str, np.ndarray], Signal, bool]:
        """Validate, and sum errors, losses, signals and measurements over ranks in one all-reduce.

        Returns:
            The sums by name; the signal that all ranks agree on; whether a checkpoint is due.
        """
        self.meter.count_energy("train")
        self.model.eval()
        # The averaged weights are validated; the second swap restores the live ones.
        if self.average:
            self.average.swap()
        errors = error_sums(self.model, self.feed, self.val, self.val_replays)
        if self.average:
            self.average.swap()
        self.meter.count_energy("val")
        requested = self.sync_points.signal()
        due = self.ranks.first and self.saver.due
        mine = losses if self.ranks.represents_share else torch.zeros_like(losses)
        flags = torch.tensor([requested == "stop", requested == "interrupt", due])
        parts = {"errors": errors, "losses": mine, "flags": flags}
        parts |= self.guard.local_sums(self.ranks) | self.meter.local_sums(self.ranks)
        sums = allreduce_tensors(self.ranks, parts)
        self.guard.check_weights(sums["guard"], epoch=self.progress.epoch)
        if self.ranks.first:
            self.stragglers.warn(sums["ranks"][:, 0])
        stop, interrupt, save = sums["flags"]
        return sums, "interrupt" if interrupt else "stop" if stop else "go", bool(save)

    def _stds(self) -> dict[str, float]:
        targets = self.graphs.stats["targets"]
        return {name: float(targets[name]["std"]) or 1.0 for name in self.heads}

    def _keep_best(self, objective: float, mae: dict[str, float]) -> None:
        self.schedule.after_epoch(objective)
        progress = self.progress
        std = self._stds()
        best = progress.best_val
        progress.lost = self.guard.check_objective(
            objective, mae, std=std, best=best, lost=progress.lost, epoch=progress.epoch
        )
        left_out = self.config.training.fold is not None  # what is left out may choose no epoch
        # The best is one of stage two: by the objective's weights, stage one may seem better.
        begins = progress.epoch == self.config.stage_one_epochs + 1
        if left_out or begins or objective < progress.best_objective:
            progress.best_objective = objective
            progress.best_epoch = progress.epoch
            progress.best_val = mae
            if self.average:
                self.average.swap()
            self.best = self.net.full_state()
            if self.average:
                self.average.swap()

    def _save(self, folder: Path | None) -> None:
        """Start a checkpoint unless ``folder`` is None; every rank calls this at the same step."""
        if folder is None:
            return
        with self.meter.region("checkpoint"):
            self.progress.losses = self._losses_by_rank()
            self.saver.save(folder, self._state(), self.best)
        self.meter.count_energy("checkpoint")

    def _losses_by_rank(self) -> list[list[float]]:
        """Gather the current epoch's loss sums, one row per rank, [world, H]; [] between epochs."""
        if self.progress.step % self.order.steps_per_epoch == 0:
            return []
        table = self._losses.new_zeros(self.ranks.world, len(self.heads))
        if self.ranks.represents_share:
            table[self.ranks.rank] = self._losses
        rows: list[list[float]] = self.ranks.sum(table).tolist()
        return rows

    def _state(self) -> checkpoint.CheckpointState:
        """Return the state that a checkpoint holds as JSON, beside its tensors."""
        return {
            "progress": vars(self.progress),
            "schedule": self.schedule.state(),
            "seed": self.config.seed,
            "made_by": checkpoint_origin(self.ranks, self.config.parallel),
        }

    def save(self, folder: Path) -> None:
        """Write a checkpoint and wait until it is on disk; every rank calls this."""
        with self.saver:
            self._save(folder)

    def resume(self, folder: Path) -> bool:
        """Load the newest checkpoint, and return whether there was one; every rank calls this."""
        loaded = self.saver.load(folder)
        if loaded is None:
            return False
        self.resumed_from, self.best = loaded.origin, loaded.best
        self.progress = progress = Progress(**loaded.state["progress"])
        if loaded.origin == "best":  # its progress may be of a later epoch than its weights
            progress.epoch = progress.best_epoch
            progress.losses = []
            progress.step = progress.epoch * self.order.steps_per_epoch
        self.schedule.load(loaded.state["schedule"])
        self._load_losses(progress.losses)
        return True

    @property
    def seconds_to_end(self) -> tuple[float, float]:
        """Time that an interruption takes, by which ``StopSignals`` interrupts before walltime.

        Returns:
            Seconds that the last checkpoint took, and the longest between two sync points.
        """
        return self.saver.seconds, self.sync_points.longest

    def _load_losses(self, rows: list[list[float]]) -> None:
        """Restore each rank's loss sums; if the number of ranks changed, all of them on rank 0."""
        self._losses.zero_()
        if len(rows) == self.ranks.world:
            self._losses += self._losses.new_tensor(rows[self.ranks.rank])
        elif rows and self.ranks.first:
            self._losses += self._losses.new_tensor(rows).sum(0)

    def load_best_weights(self) -> None:
        """Load the best epoch's weights into the model; predictions use these (Law 8)."""
        self.net.load_full_state(self.best)
        self.model.eval()


def _counts(graphs: GraphSet, name: str) -> np.ndarray:
    """Return the number of known components of a target in each graph, [G]; 1 for a class."""
    target = graphs.stats["targets"][name]
    width = 1 if target["shape"] == "class" else count_components(target)
    counted: np.ndarray = graphs.known(name) * width
    return counted
