"""One trial: its directory in, ``result.json`` and predictions out.

The directory: ``trial.toml`` - ``attempts/NNN/`` with ``placement.toml``, ``metrics.jsonl``,
``log``, ``result.json``, ``predictions.safetensors`` - ``checkpoints/`` - ``control``.
"""

import functools
import logging
import os
import signal
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.numpy import save as save_arrays

from hydragnn_hpo import log
from hydragnn_hpo.config.loading import dump, load, parse
from hydragnn_hpo.config.model import Heads
from hydragnn_hpo.config.trial import INTERRUPTED, PEER_LOST, PlacementConfig, TrialConfig
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.staging import open_store
from hydragnn_hpo.errors import ConfigError, DataError, HydraError
from hydragnn_hpo.files import read_json, write_bytes, write_json, write_text
from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.records import RecordWriter
from hydragnn_hpo.training.ddp import Ranks, join
from hydragnn_hpo.training.evaluate import predict_split
from hydragnn_hpo.training.trainer import Diverged, Signal, Trainer

logger = logging.getLogger(__name__)

PREDICTED = ("val", "sel", "cal")
"""Splits a trial predicts; the test split belongs to the ensemble (Law 6)."""


def next_attempt(trial: TrialDir, config: TrialConfig) -> PlacementConfig:
    """Make a new attempt at the full budget, for a trial started by hand."""
    placement = PlacementConfig(
        attempt=max(trial.attempts(), default=0) + 1,
        epochs=config.training.epochs,
        width=int(os.environ.get("WORLD_SIZE", "1")),
        reason="started by hand",
    )
    folder = trial.attempt(placement.attempt)
    folder.mkdir(parents=True, mode=0o700)
    write_text(folder / "placement.toml", dump(placement))
    return placement


def load_trial(trial: TrialDir) -> tuple[TrialConfig, Columns]:
    """Read ``trial.toml``, open its store, and check that they fit.

    Raises:
        ConfigError: a key is wrong, or the model cannot fit the data's heads.
    """
    path = trial.config
    config = load(path, TrialConfig)
    columns = open_store(trial.path / config.data.store)
    fit = {"heads": config.heads, "targets": columns.stats["targets"], "model": config.model}
    parse(fit, Heads, where=str(path))
    if config.model.cutoff > columns.stats["cutoff"]:
        raise ConfigError(
            f"{path}: model.cutoff is {config.model.cutoff:g} angstrom, the store's edges end at "
            f"{columns.stats['cutoff']:g}: lower it, or build the store with a larger cutoff."
        )
    return config, columns


def rank_main(spec: dict[str, Any]) -> int:
    """Run one rank of one attempt; the entry point of agents and of ``hydragnn-hpo trial``.

    Args:
        spec: ``trial_dir`` and ``attempt``.

    Returns:
        The rank's exit code.
    """
    trial = TrialDir(Path(spec["trial_dir"]))
    folder = trial.attempt(int(spec["attempt"]))
    rank = int(os.environ.get("RANK", "0"))
    log.configure(rank=rank)
    try:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        torch.set_flush_denormal(True)
        return _run(trial, folder)
    except Exception as error:  # every failure is a result with a reason (Law 9)
        if _lost_peer(error):
            logger.warning("another rank was lost: %s", error)
            return PEER_LOST
        reason, message = _reason(error)
        logger.exception("failed: %s", reason)
        _write_failure(folder, reason, message)
        return 1


def _run(trial: TrialDir, folder: Path) -> int:
    asked = _Asked(trial)
    ranks = join()
    config, columns = load_trial(trial)
    placement = load(folder / "placement.toml", PlacementConfig)
    writer = RecordWriter(folder / "metrics.jsonl") if ranks.first else None
    record = functools.partial(_record, writer)
    units = {name: columns.stats["targets"][name]["unit"] for name in config.heads}
    record("start", attempt=placement.attempt, world=ranks.world, units=units)
    trainer = Trainer(config, columns, ranks, record)
    trial.checkpoints.mkdir(exist_ok=True, mode=0o700)
    resumed = trainer.resume(trial.checkpoints)
    record("ready", resumed=resumed, epoch=trainer.progress.epoch)
    ended = trainer.run(placement.epochs, asked.signal, trial.checkpoints)
    if ended == "interrupt":
        record("interrupted", epoch=trainer.progress.epoch, reason="walltime")
    else:
        _finish(trainer, folder, ended)
    ranks.leave()
    if writer:
        writer.close()
    return INTERRUPTED if ended == "interrupt" else 0


def _finish(trainer: Trainer, folder: Path, ended: Signal) -> None:
    """Predict with the best epoch and write the result; the result comes last."""
    trainer.use_best()
    arrays = {}
    for split in PREDICTED:
        indices = trainer.columns.indices_of(split)
        arrays[f"{split}/index"] = indices
        for name, values in predict_split(trainer.model, trainer.feed, indices).items():
            arrays[f"{split}/{name}"] = values
    if not trainer.ranks.first:
        return
    progress, config = trainer.progress, trainer.config
    done = progress.epoch >= config.training.epochs or trainer.out_of_patience
    write_bytes(folder / "predictions.safetensors", save_arrays(arrays))
    result = {
        "trial": config.trial,
        "status": "cancelled" if ended == "stop" else "completed" if done else "stopped",
        "reason": "early_stopping" if trainer.out_of_patience else None,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch,
        "objective": progress.best_objective,
        "val_mae": progress.best_val,
        "units": {n: trainer.columns.stats["targets"][n]["unit"] for n in trainer.heads},
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "width": trainer.ranks.world,
        "train_seconds": progress.train_seconds,
        "time": time.time(),
    }
    write_json(folder / "result.json", result)


class _Asked:
    """What is asked of this rank: by signals, and for rank 0 by the ``control`` file."""

    def __init__(self, trial: TrialDir) -> None:
        self.control = trial.control
        self.interrupted = False
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: object) -> None:
        self.interrupted = True

    def signal(self) -> Signal:
        if self.interrupted:
            return "interrupt"
        if os.environ.get("RANK", "0") == "0" and self.control.exists():
            wish = read_json(self.control).get("wish")
            return "stop" if wish == "stop" else "interrupt" if wish == "yield" else "go"
        return "go"


def _record(writer: RecordWriter | None, kind: str, **values: Any) -> None:
    if writer:
        writer.write(kind, time.time(), **values)


def _lost_peer(error: Exception) -> bool:
    """Whether the error only says that another rank of this trial is gone."""
    if isinstance(error, (dist.DistError, ConnectionError)):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error).lower()


def _reason(error: Exception) -> tuple[str, str]:
    """Name the reason of a failure as Law 9 does."""
    if isinstance(error, Diverged):
        return "diverged", str(error)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return "out_of_memory", str(error) or "no memory left"
    if isinstance(error, (ConfigError, DataError)):
        return "bad_config", str(error)
    if isinstance(error, HydraError):
        return "bug", str(error)
    return "bug", "".join(traceback.format_exception(error))


def _write_failure(folder: Path, reason: str, message: str) -> None:
    write_json(
        folder / "result.json",
        {"status": "failed", "reason": reason, "message": message, "time": time.time()},
    )

