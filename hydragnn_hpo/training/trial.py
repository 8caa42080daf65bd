"""Run one rank of one attempt of a trial: load it, train, predict, write the result.

``rank_main`` is the entry point of agents, ``run_by_hand`` that of the command ``trial``. An
attempt ends early on a signal, near the end of the allocation, or when the agent requests it. Every
failure is written as a result with a reason (Law 9).
"""

import contextlib
import errno
import functools
import logging
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
import torch.distributed as dist
from safetensors.numpy import save as save_arrays

from hydragnn_hpo import log
from hydragnn_hpo.config import (
    DISK_FULL,
    FILES_AWAY,
    FILES_AWAY_SECONDS,
    HALVED,
    INTERRUPTED,
    PEER_LOST,
    PlacementConfig,
    TrialConfig,
    TrialHeads,
    TrunkSpec,
    dump_config,
    load_config,
    parse_config,
)
from hydragnn_hpo.config.convs.spec import is_user_conv, package_of, version_of
from hydragnn_hpo.data import GraphSet, close, open_store, unite
from hydragnn_hpo.data.folds import leave_fold_out
from hydragnn_hpo.errors import ConfigError, DataError, HydraError, StorageError
from hydragnn_hpo.file_records import FailedResult, FailureReason, FinishedResult, TrialResult
from hydragnn_hpo.files import (
    FOLDER_MODE,
    PRIVATE_FOLDER,
    is_transient,
    read_json,
    remove_partial_files,
    storage,
    write_bytes,
    write_json,
    write_text,
)
from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.metrics_log import RecordWriter
from hydragnn_hpo.model import choose_kernels
from hydragnn_hpo.optional_packages import require_package
from hydragnn_hpo.rank_requests import Request, RequestReader
from hydragnn_hpo.training.checkpoint_saver import prune_checkpoints
from hydragnn_hpo.training.ddp import Ranks, Signal, check_mpi_ranks, join_ranks
from hydragnn_hpo.training.divergence import Diverged
from hydragnn_hpo.training.evaluate import predict_split
from hydragnn_hpo.training.memory import is_out_of_memory, keep_freed_memory, peak_bytes
from hydragnn_hpo.training.micro_batches import TooManyGraphs
from hydragnn_hpo.training.precision import message_dtype
from hydragnn_hpo.training.profiler import EpochProfiler, ProfilePlan
from hydragnn_hpo.training.trainer import EpochContext, Trainer
from hydragnn_hpo.training.training_parts import TrainingParts, build_parts
from hydragnn_hpo.training.watchdog import start_watchdog
from hydragnn_hpo.units import shown_unit
from hydragnn_hpo.walltime import WallTime
from hydragnn_hpo.words import fixed

logger = logging.getLogger(__name__)

PREDICTED = ("val", "sel", "cal")
"""Splits that a trial predicts, or of them those that are not empty; only the final ensemble uses
the test split (Law 6)."""


class StopSignals:
    """Decides when an attempt ends: on signals, on rank 0 also on requests and near walltime."""

    def __init__(
        self, requests: RequestReader | None, environment: Mapping[str, str] = os.environ
    ) -> None:
        """Install handlers of SIGTERM and SIGUSR1, which interrupt the attempt.

        Args:
            requests: reads the agent's requests; None for a trial that is run by hand.
            environment: variables of this process, which give the end of the allocation.

        Raises:
            ConfigError: the end of the allocation is not a valid time.
        """
        self.requests = requests
        self.interrupted = False
        self.request: Request | None = None
        """The newest request that was read and acknowledged."""
        self.record: Callable[..., None] = lambda *_, **__: None
        """Writes a record on rank 0."""
        self.reason: str | None = None
        self.first = environment.get("RANK", "0") == "0"
        self.walltime = WallTime.of(environment)
        self.seconds_needed: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
        """Returns the seconds of the last checkpoint, and the longest between two sync points."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: object) -> None:
        self.interrupted = True
        self.reason = "walltime"

    def signal(self) -> Signal:
        """Return the current signal of this rank; with ``interrupt``, ``reason`` is set too."""
        if self.interrupted:
            return "interrupt"
        if self.first and self.walltime.near(*self.seconds_needed()):
            self.reason = "walltime"
            return "interrupt"
        if self.first and self.requests:
            return self._read_request(self.requests)
        return "go"

    def _read_request(self, requests: RequestReader) -> Signal:
        """Return the signal of the newest request; a new one is acknowledged by a record."""
        request = requests.read()
        if request != self.request:
            self.request = request
            self.record("request", request=request)
        if request == "yield":
            self.reason = "paused"
            return "interrupt"
        return "stop" if request == "stop" else "go"


def next_attempt(trial: TrialDir, config: TrialConfig) -> PlacementConfig:
    """Create folder and placement of a new attempt over all epochs, for a trial run by hand."""
    placement = PlacementConfig(
        attempt=max(trial.attempts(), default=0) + 1,
        epochs=config.training.epochs,
        width=int(os.environ.get("WORLD_SIZE", "1")),
        reason="started by hand",
    )
    folder = trial.attempt(placement.attempt)
    with storage(folder):
        folder.mkdir(parents=True, mode=FOLDER_MODE)
    write_text(folder / "placement.toml", dump_config(placement))
    return placement


def load_trial(trial: TrialDir) -> tuple[TrialConfig, GraphSet]:
    """Read ``trial.toml``, open its stores, and check that the configuration fits the data.

    Returns:
        The resolved configuration, and the graphs of all stores as one data set.

    Raises:
        ConfigError: a key is wrong, or the stores lack what the heads or the model need.
    """
    path = trial.config
    config = _resolve_start_from(load_config(path, TrialConfig), trial)
    if config.training.tensorboard:
        require_package("tensorboard", f"{path}: training.tensorboard", ", or drop it")
    graphs = open_graphs(trial, config)
    stats = graphs.stats
    fit = {"heads": config.heads, "targets": stats["targets"], "model": config.model}
    fit["training"] = config.training
    fit |= {key: stats[key] for key in ("attributes", "laplacian", "elements") if key in stats}
    parse_config(fit, TrialHeads, where=str(path))
    if config.model.cutoff > graphs.stats["cutoff"]:
        raise ConfigError(
            f"{path}: model.cutoff is {config.model.cutoff:g} angstrom, the store's edges end at "
            f"{graphs.stats['cutoff']:g}: lower it, or build the store with a larger cutoff."
        )
    return config, graphs


def _resolve_start_from(config: TrialConfig, trial: TrialDir) -> TrialConfig:
    """Resolve ``start_from`` relative to the trial's directory."""
    if config.training.start_from is None:
        return config
    path = str(trial.path / config.training.start_from)
    training = config.training.model_copy(update={"start_from": path})
    return config.model_copy(update={"training": training})


def open_graphs(
    trial: TrialDir, config: TrialConfig, trunks: Mapping[str, TrunkSpec] | None = None
) -> GraphSet:
    """Open the stores of a trial, as one data set, with the splits that it trains by.

    Args:
        trial: folder of the trial.
        config: its configuration.
        trunks: foundation models whose features come with the graphs, by name; the trial's own if
            None.

    Raises:
        ConfigError: the data sets cannot be combined, or a store cannot be distributed over ranks.
        DataError: a store is damaged or missing, or has fewer groups than folds.
    """
    if any(entry.access == "distributed" for entry in config.data):
        check_mpi_ranks(trial.config)
    shuffled = config.training.shuffle_buffer
    sets = [
        open_store(trial.path / entry.store, access=entry.access, shuffled=shuffled)
        for entry in config.data
    ]
    own = config.model.trunk_spec
    if trunks is None:
        trunks = {} if own is None else {config.model.embedding: own}
    for name, spec in sorted(trunks.items()):
        from hydragnn_hpo.model.trunks.embed import feature_cache

        places = (trial.path / entry.store for entry in config.data)
        sets = [
            feature_cache(store, name, spec).attach(graphs)
            for store, graphs in zip(places, sets, strict=True)
        ]
    try:
        graphs = unite(sets, config.data, config.shared)
    except ConfigError as error:
        raise ConfigError(f"{trial.config}: {error}") from error
    return leave_fold_out(graphs, config.training)


class TrainSpec(TypedDict):
    """The ``spec`` of a job of kind ``train``."""

    trial_dir: str
    """Path of the trial's directory."""
    attempt: int
    """Number of the attempt, whose folder and ``placement.toml`` exist."""
    one_host: NotRequired[bool]
    """Whether all ranks share a host."""


def rank_main(spec: TrainSpec) -> int:
    """Run one rank of one attempt; the entry point of agents.

    Returns:
        The rank's exit code: 0, 1 for a failure, ``INTERRUPTED``, ``PEER_LOST``, ``DISK_FULL``,
        ``HALVED`` or ``FILES_AWAY``.
    """
    trial = TrialDir(Path(spec["trial_dir"]))
    log.configure(rank=int(os.environ.get("RANK", "0")))
    attempt = int(spec["attempt"])
    meeting = trial.attempt(attempt) / "meeting" if spec.get("one_host") else None
    return _run_rank(trial, attempt, meeting)


def run_placed(trial: TrialDir, attempt: int) -> int:
    """Run one rank of an attempt that a campaign placed and srun or mpiexec started.

    Returns:
        The rank's exit code, as of ``rank_main``.
    """
    one_host = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    return rank_main({"trial_dir": str(trial.path), "attempt": attempt, "one_host": one_host})


def run_by_hand(trial: TrialDir, profile: ProfilePlan | None = None) -> tuple[int, str]:
    """Run one rank of a new attempt over all epochs, under torchrun or as a single process.

    Args:
        trial: directory of the trial.
        profile: ranks and epochs to profile; None for none.

    Returns:
        The exit code of the command, and a sentence for the user about the outcome, which is empty
        on all ranks except 0.
    """
    log.configure(rank=int(os.environ.get("RANK", "0")))
    code = _run_rank(trial, None, profile=profile)
    if os.environ.get("RANK", "0") != "0" or not trial.attempts():
        return code, ""
    path = trial.attempt(trial.attempts()[-1]) / "result.json"
    if code == DISK_FULL:
        return StorageError.exit_code, f"error: {trial.path}: make room, then run it again."
    if not path.exists():
        return code, f"{trial.path}: interrupted; run the same command again to go on."
    result: TrialResult = read_json(path)
    if result["status"] == "failed":
        code = 2 if result["reason"] == "bad_config" else 1
        return code, f"error: {result['reason']}: {result['message']}"
    errors = ", ".join(
        f"{name} {fixed(value)} {result['units'][name]}"
        for name, value in result["val_mae"].items()
    )
    return code, f"{path}: {result['status']} after epoch {result['epochs']}, val MAE {errors}"


def _run_rank(
    trial: TrialDir,
    attempt: int | None,
    meeting: Path | None = None,
    profile: ProfilePlan | None = None,
) -> int:
    """Run one rank and return its exit code; every failure is a result with a reason (Law 9).

    ``attempt`` is the number that a controller has placed; with None a new attempt is created.
    """
    placed = attempt is not None
    try:
        torch.set_num_threads(1)  # with more, sums differ from run to run (Law 5: reproducible)
        torch.set_flush_denormal(True)
        keep_freed_memory()
        signals = StopSignals(RequestReader() if placed else None)
        ranks = join_ranks(meeting)
        config, graphs = load_trial(trial)
        attempt = attempt or _agree_on_attempt(trial, config, ranks)
        folder = trial.attempt(attempt)
        with _open_records(folder, config, ranks) as record:
            parts = build_parts(config, graphs, ranks, record)
            return _run(folder, trial, parts, signals, profile)
    except Exception as error:
        if _is_lost_peer(error):
            logger.warning("another rank was lost: %s", error)
            return PEER_LOST
        if isinstance(error, TooManyGraphs):
            logger.warning("%s", error)
            return HALVED
        if _disk_is_full(error):
            logger.error("%s", error)
            return DISK_FULL
        if is_transient(error) or (placed and _files_are_away(error, trial)):
            logger.error("%s", error)
            time.sleep(FILES_AWAY_SECONDS)
            return FILES_AWAY
        reason, message = _reason(error)
        logger.error("failed: %s: %s", reason, message)
        _write_failure(trial, attempt, reason, message)
        return 1


def _agree_on_attempt(trial: TrialDir, config: TrialConfig, ranks: Ranks) -> int:
    """Create an attempt on rank 0 and broadcast its number."""
    number = next_attempt(trial, config).attempt if ranks.first else 0
    return int(ranks.sum(torch.tensor(number, device=ranks.device)))


@contextlib.contextmanager
def _open_records(folder: Path, config: TrialConfig, ranks: Ranks) -> Iterator[Callable[..., None]]:
    """Open the files of an attempt's records on rank 0, and yield a function that writes one."""
    writers: list[RecordWriter | TensorBoardWriter] = []
    if ranks.first:
        writers.append(RecordWriter(folder / "metrics.jsonl"))
    if ranks.first and config.training.tensorboard:
        writers.append(TensorBoardWriter(folder / "tensorboard"))
    yield functools.partial(_write_record, writers)
    for writer in writers:
        writer.close()


def _run(
    folder: Path,
    trial: TrialDir,
    parts: TrainingParts,
    signals: StopSignals,
    profile: ProfilePlan | None,
) -> int:
    """Train, predict and write the result of one attempt, and return the rank's exit code."""
    placement = load_config(folder / "placement.toml", PlacementConfig)
    ranks = parts.ranks
    record = parts.record
    trainer = Trainer(parts)
    record("start", attempt=placement.attempt, world=ranks.world, units=_units(parts))
    if ranks.first:
        trial.checkpoints.mkdir(exist_ok=True, mode=PRIVATE_FOLDER)
        remove_partial_files(trial.checkpoints)
        prune_checkpoints(trial.checkpoints)
    signals.seconds_needed = lambda: (parts.saver.seconds, trainer.sync_points.longest)
    signals.record = record
    resumed = trainer.resume(trial.checkpoints)
    progress = trainer.progress
    origin = {"origin": trainer.resumed_from or "start"}
    record("ready", resumed=resumed, reached=progress.epoch, step=progress.step, **origin)
    if parts.meter.counters:
        record("energy", counters=parts.meter.counters, unit="J")
    start_watchdog(ranks, parts.model, parts.meter, lambda: trainer.progress.step)
    context: EpochContext = contextlib.nullcontext
    if profile and ranks.rank in profile.ranks:
        profiled = profile.epochs_to_profile(progress.epoch, placement.epochs)
        context = EpochProfiler(profiled, ranks, folder / "profile", parts.state.optimizer).epoch
    ended = trainer.run(placement.epochs, signals.signal, trial.checkpoints, epoch_context=context)
    if ended != "go":
        record("obeyed", epoch=trainer.progress.epoch, wish=ended, reason=signals.reason)
    if ended != "interrupt":
        with parts.meter.region("predict"):
            _finish(trainer, folder, ended)
    with parts.meter.region("end"):
        ranks.barrier()
    close(parts.feed.graphs)
    return INTERRUPTED if ended == "interrupt" else 0


def _units(parts: TrainingParts) -> dict[str, str]:
    """Return the unit of each head's target, as users read it."""
    targets = parts.feed.graphs.stats["targets"]
    return {name: shown_unit(targets[name]) for name in parts.config.heads}


def _finish(trainer: Trainer, folder: Path, ended: Signal) -> None:
    """Predict with the weights of the best epoch, and write predictions, then the result."""
    trainer.load_best_weights()
    parts, config, progress = trainer.parts, trainer.parts.config, trainer.progress
    ranks = parts.ranks
    arrays = {}
    for split in PREDICTED:
        indices = parts.feed.graphs.indices_of(split)
        if not len(indices):  # where a fold is left out, it alone is predicted, as val
            continue
        arrays[f"{split}/index"] = indices
        for name, values in predict_split(parts.model, parts.feed, indices).items():
            arrays[f"{split}/{name}"] = values
    most = torch.tensor([parts.micro.pieces, peak_bytes(ranks.device)])
    micro_batches, peak = ranks.max(most.to(ranks.device)).tolist()
    # All ranks take part in the collectives above; rank 0 alone writes files.
    if not ranks.first:
        return
    dtype = message_dtype(config.training.precision)
    conv = config.model.conv
    done = progress.epoch >= config.training.epochs or trainer.out_of_patience
    write_bytes(folder / "predictions.safetensors", save_arrays(arrays))
    result: FinishedResult = {
        "trial": config.trial,
        "status": "cancelled" if ended == "stop" else "completed" if done else "stopped",
        "reason": "early_stopping" if trainer.out_of_patience else None,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch,
        "objective": progress.best_objective,
        "val_mae": progress.best_val,
        "units": _units(parts),
        "parameters": sum(p.numel() for p in parts.model.parameters()),
        "packages": {package_of(conv): version_of(conv)} if is_user_conv(conv) else {},
        "kernels": choose_kernels(config.model.kernels, ranks.device.type, dtype),
        "width": ranks.world,
        "micro_batches": micro_batches,
        "peak_bytes": peak,
        "train_seconds": progress.train_seconds,
        "time": time.time(),
    }
    write_json(folder / "result.json", result)


_LEFT_OUT = ("epoch", "slowest_rank")
"""Numbers of an epoch's record that are not drawn as curves."""


class TensorBoardWriter:
    """Writes the records of epochs in TensorBoard's format."""

    def __init__(self, folder: Path) -> None:
        """Create the folder and an event file in it."""
        from torch.utils.tensorboard import SummaryWriter

        make: Any = SummaryWriter
        self._writer = make(str(folder))

    def write(self, record: str, time: float, **values: Any) -> None:
        """Write the numbers of a record of kind ``epoch``; ignore other kinds.

        Args:
            record: kind of the record.
            time: seconds since 1970.
            values: keys and values of the record.
        """
        if record != "epoch":
            return
        for name, value in curves(values):
            self._writer.add_scalar(name, value, values["epoch"], walltime=time)
        self._writer.flush()

    def close(self) -> None:
        """Flush the buffer and close the file."""
        self._writer.close()


def curves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in a record with its path, such as ``val_mae/energy``."""
    for key, value in values.items():
        name = f"{path}/{key}" if path else key
        if isinstance(value, Mapping):
            yield from curves(value, name)
        elif isinstance(value, (int, float)) and name not in _LEFT_OUT:
            yield name, float(value)


def _write_record(
    writers: Sequence[RecordWriter | TensorBoardWriter], kind: str, **values: Any
) -> None:
    now = time.time()
    for writer in writers:
        writer.write(kind, now, **values)


def _is_lost_peer(error: Exception) -> bool:
    """Check whether an error means that another rank of this trial is gone."""
    if isinstance(error, (dist.DistError, ConnectionError)):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error).lower()


def _files_are_away(error: Exception, trial: TrialDir) -> bool:
    """Check whether an error means that the file server is unreachable.

    The files of a run existed when the controller placed the attempt. If they are now missing or
    inaccessible, the file system is unmounted or dead. In a trial that is run by hand the user has
    to correct such errors.
    """
    if isinstance(error, HydraError):
        return isinstance(error.__cause__, OSError)
    run = trial.path.resolve().parent.parent
    named = error.filename if isinstance(error, OSError) else None
    return isinstance(named, (str, Path)) and Path(named).absolute().is_relative_to(run)


def _disk_is_full(error: Exception) -> bool:
    """Check whether the disk is full, which does not count as a failure of the trial."""
    cause = error.__cause__ if isinstance(error, StorageError) else error
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


def _reason(error: Exception) -> tuple[FailureReason, str]:
    """Return the reason of a failure for ``result.json``, and a message for the user."""
    if isinstance(error, Diverged):
        return "diverged", str(error)
    if is_out_of_memory(error):
        return "out_of_memory", str(error) or "no memory left"
    if isinstance(error, (ConfigError, DataError)):
        return "bad_config", str(error)
    if isinstance(error, HydraError):
        return "bug", str(error)
    return "bug", "".join(traceback.format_exception(error))


def _write_failure(
    trial: TrialDir, attempt: int | None, reason: FailureReason, message: str
) -> None:
    """Write the result of a failure; in a new attempt if the trial failed before one began."""
    folder = trial.attempt(attempt or max(trial.attempts(), default=0) + 1)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
        result: FailedResult = {
            "status": "failed",
            "reason": reason,
            "message": message,
            "time": time.time(),
        }
        write_json(folder / "result.json", result)
    except (OSError, StorageError) as error:
        logger.error("%s", error)
