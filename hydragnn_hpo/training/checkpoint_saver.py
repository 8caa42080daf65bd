"""Save checkpoints while a training continues: copy the tensors, then write them in a thread."""

import copy
import functools
import json
import logging
import platform
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from hydragnn_hpo import __version__
from hydragnn_hpo.config import ParallelConfig
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import is_transient, read_json, write_text
from hydragnn_hpo.model import rename_weights
from hydragnn_hpo.training.checkpoint import (
    CheckpointState,
    add_prefix,
    read_checkpoint,
    read_state,
    strip_prefix,
    write_checkpoint,
)
from hydragnn_hpo.training.ddp import Ranks, keep_until_exit
from hydragnn_hpo.training.train_state import Progress, TrainState

logger = logging.getLogger(__name__)


class BackgroundJob:
    """Runs one job at a time in a thread; ``start`` and ``wait`` raise the last job's error."""

    def __init__(self) -> None:
        """Start without a job."""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Wait for the last job, raise its error if it failed, and start another job.

        Where memory or a limit leaves no thread, the job runs before this returns.
        """
        self.wait()
        thread = threading.Thread(target=self._run, args=(job,), name="checkpoint", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._thread = None
            self._run(job)
        else:
            self._thread = thread

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the job ends, or for ``seconds``, and raise its error if it failed."""
        if self._thread is not None:
            self._thread.join(seconds)
        error, self._error = self._error, None
        if error is not None:
            raise error


BEST, LAST, POINTER, FOLDER = "best.safetensors", "last.safetensors", "last.json", "sharded-"
"""Files of the best epoch and of the last checkpoint; for a sharded checkpoint, the file with the
name of its folder, and the prefix of that name."""

_PAUSE_SHARE = 0.05
"""Largest share of its time that a training pauses for checkpoints; ignored if ``every`` is 0."""


_GRACE_SECONDS = 5.0
"""How long a failing training waits for a checkpoint that is being written."""


Origin = Literal["last", "sharded", "best"]
"""Kinds of checkpoints that a training resumes from."""

_FILES: dict[Origin, str] = {"last": LAST, "sharded": POINTER, "best": BEST}


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint whose tensors were loaded into the training."""

    origin: Origin
    """Kind of the checkpoint."""
    state: CheckpointState
    """Everything that is not a tensor."""
    best: dict[str, Tensor]
    """Weights of the best epoch by name; if weights are sharded, empty on all ranks except 0."""


class CheckpointSaver:
    """Writes and reads the checkpoints of one training; every rank has one."""

    def __init__(
        self,
        train_state: TrainState,
        ranks: Ranks,
        record: Callable[..., None],
        *,
        every: float,
        conv: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the period until the first checkpoint.

        Args:
            train_state: tensors to save.
            ranks: this rank among the others.
            record: writes a record; called by the thread when a checkpoint is on disk.
            every: seconds between checkpoints; 0 for as many as possible.
            conv: name of the net's conv.
            clock: returns a time in seconds.
        """
        self.train_state, self.ranks, self.record = train_state, ranks, record
        self.every = every
        self.conv = conv
        self.clock = clock
        self.is_sharded = train_state.is_sharded
        self.seconds = 0.0
        """Time from the start of the last checkpoint until it was on disk."""
        self.pause_seconds = 0.0
        """Time for which the training paused for the last checkpoint."""
        self._group: Any = None
        if self.is_sharded:  # the thread needs its own group: the default one sends gradients
            self._group = dist.new_group(backend="gloo")
            keep_until_exit(self._group)
        self._background = BackgroundJob()
        self._began = clock()
        self._position = (Path(), -1, -1)
        self._best: Mapping[str, Tensor] = {}
        self._best_on_host: dict[str, Tensor] = {}

    def __enter__(self) -> None:
        """Start the period until the next checkpoint."""
        self._began = self.clock()

    def __exit__(self, kind: type[BaseException] | None, *_: TracebackType | object) -> None:
        """Wait for the last checkpoint; if the training failed, only briefly, and log its error."""
        if kind is None:
            self._background.wait()
            return
        try:
            self._background.wait(_GRACE_SECONDS)
        except Exception as error:
            logger.warning("the last checkpoint failed too: %s", error)

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint; never while another is being written.

        Large models, which take long to copy, are saved less often than every ``every`` seconds.
        """
        apart = max(self.every, self.pause_seconds / _PAUSE_SHARE) if self.every else 0.0
        return self.clock() - self._began >= apart and not self._background.busy

    def save(self, folder: Path, state: CheckpointState, best: Mapping[str, Tensor]) -> None:
        """Copy all tensors and start writing them; every rank calls this at the same step.

        Args:
            folder: folder of the checkpoints.
            state: everything that is not a tensor.
            best: unsharded weights of the best epoch by name, on rank 0. Each best epoch needs a
                new mapping object, as ``best`` is written only if the object has changed.

        Raises:
            StorageError: the previous checkpoint could not be written.
        """
        self._background.wait()
        position = (folder, state["progress"]["epoch"], state["progress"]["step"])
        if position == self._position:
            return
        self._position = position
        self._began = self.clock()
        if not (self.ranks.first or self.is_sharded):
            return
        new = best is not self._best
        if new:
            self._best = best
            self._best_on_host = {n: v.cpu() for n, v in best.items()}
        tensors = self._copy_tensors(self.train_state.tensors())
        tensors |= add_prefix("best", self._best_on_host)
        job = self._write_parts if self.is_sharded else self._write_whole
        self._background.start(
            functools.partial(
                job, folder, tensors, copy.deepcopy(state), new_best=new and bool(best)
            )
        )
        self.pause_seconds = self.clock() - self._began

    def _copy_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy tensors to host memory, from which the thread writes while training continues."""
        if self.is_sharded:
            from hydragnn_hpo.training import sharded

            return sharded.copy_to_host(tensors)
        return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}

    def _write_whole(
        self, folder: Path, tensors: Mapping[str, Tensor], state: CheckpointState, *, new_best: bool
    ) -> None:
        if new_best:
            write_checkpoint(folder / BEST, self._best_on_host, state)
        write_checkpoint(folder / LAST, tensors, state)
        # An older attempt may have left a sharded checkpoint: remove it after this one is on disk.
        (folder / POINTER).unlink(missing_ok=True)
        prune_checkpoints(folder)
        self._record_checkpoint(state, (folder / LAST).stat().st_size)

    def _write_parts(
        self, folder: Path, tensors: Mapping[str, Tensor], state: CheckpointState, *, new_best: bool
    ) -> None:
        from hydragnn_hpo.training import sharded

        if new_best and self.ranks.first:
            write_checkpoint(folder / BEST, self._best_on_host, state)
        name = f"{FOLDER}{state['progress']['step']:09d}"
        size = sharded.write_sharded(folder / name, tensors, self._group)
        # The pointer is written after all parts: a kill before that keeps the previous checkpoint.
        if self.ranks.first:
            write_text(folder / POINTER, json.dumps({"folder": name, **state}), private=True)
            (folder / LAST).unlink(missing_ok=True)
            prune_checkpoints(folder)
            self._record_checkpoint(state, size)

    def _record_checkpoint(self, state: CheckpointState, size: int) -> None:
        self.seconds = self.clock() - self._began
        progress = state["progress"]
        self.record(
            "checkpoint",
            epoch=progress["epoch"],
            step=progress["step"],
            seconds=self.seconds,
            bytes=size,
        )

    def load(self, folder: Path) -> LoadedCheckpoint | None:
        """Load the newest checkpoint that every rank can read; every rank calls this.

        A checkpoint that is truncated, damaged or of another version is skipped: the next older
        one is tried, then the weights of the best epoch alone.

        Returns:
            The checkpoint that was loaded; None if there is none.

        Raises:
            StorageError: the file server is unreachable.
        """
        left = self._list_origins(folder) if self.ranks.first else []
        while (origin := self._agree_on_origin(left)) is not None:
            read, error = None, "another rank cannot read it, or finds another one there."
            step = -1
            try:
                read = self._read(folder, origin)
                step = read[1]["progress"]["step"]
            except StorageError as unreadable:
                if _is_unreachable(unreadable):
                    raise
                error = str(unreadable)
            if self._is_agreed(step):
                assert read is not None
                return self._load_into_training(folder, origin, *read)
            if self.ranks.first:
                self._record_unreadable(origin, error)
        return None

    def _list_origins(self, folder: Path) -> list[Origin]:
        """List the kinds of readable checkpoints, newest first, ``best`` last."""
        steps: dict[Origin, int] = {}
        present = [origin for origin, name in _FILES.items() if (folder / name).exists()]
        for origin in present:
            try:
                steps[origin] = _read_state(folder, origin)["progress"]["step"]
            except StorageError as error:
                if _is_unreachable(error):
                    raise
                self._record_unreadable(origin, str(error))
        newest = sorted(set(steps) - {"best"}, key=lambda origin: -steps[origin])
        # If only ``best`` exists, the first checkpoint was never completed: start over.
        return newest + (["best"] if "best" in steps and set(present) != {"best"} else [])

    def _agree_on_origin(self, left: list[Origin]) -> Origin | None:
        """Remove the next kind from rank 0's list and broadcast it; None if the list is empty."""
        mine = list(_FILES).index(left.pop(0)) + 1 if left else 0
        number = int(self.ranks.sum(torch.tensor(mine, device=self.ranks.device)).item())
        return list(_FILES)[number - 1] if number else None

    def _is_agreed(self, step: int) -> bool:
        """Check whether all ranks read a checkpoint of the same step; -1 if this rank read none.

        A network file system may show an older file to some hosts for a while.
        """
        steps = torch.tensor([step, -step], device=self.ranks.device)
        highest, lowest_negated = self.ranks.max(steps).tolist()
        return bool(highest == -lowest_negated >= 0)

    def _read(self, folder: Path, origin: Origin) -> tuple[dict[str, Tensor], CheckpointState]:
        """Read tensors and state, and check that they fit this training.

        Returns:
            Tensors by name, and the JSON state.

        Raises:
            StorageError: the checkpoint does not fit this training, or cannot be read.
        """
        if origin == "sharded":
            from hydragnn_hpo.training import sharded

            state = _read_state(folder, origin)
            with_best = self.ranks.first or not self.is_sharded
            weights = self.train_state.weights()
            tensors = sharded.read_sharded(folder / state["folder"], weights, best=with_best)
        else:
            tensors, state = read_checkpoint(folder / _FILES[origin])
            tensors = rename_weights(tensors, self.conv)
        try:
            Progress(**state["progress"])
            state["schedule"]
        except (KeyError, TypeError) as error:
            raise _other_version(folder / _FILES[origin], error) from None
        try:
            if origin == "best":
                self.train_state.check_tensors(add_prefix("model", tensors), ("model/",))
            else:
                self.train_state.check_tensors(tensors, ("model/", "average/"))
        except StorageError as error:
            raise _other_version(folder / _FILES[origin], error) from None
        return tensors, state

    def _load_into_training(
        self, folder: Path, origin: Origin, tensors: dict[str, Tensor], state: CheckpointState
    ) -> LoadedCheckpoint:
        if origin == "best":
            self.train_state.load_best(tensors)
            best = tensors
        else:
            self.train_state.load(tensors)
            self._position = (folder, state["progress"]["epoch"], state["progress"]["step"])
            best = strip_prefix("best", tensors)
        if self.is_sharded and not self.ranks.first:
            best = {}
        best = {name: value.to(self.ranks.device) for name, value in best.items()}
        return LoadedCheckpoint(origin, state, best)

    def _record_unreadable(self, origin: Origin, error: str) -> None:
        logger.warning("%s The trial goes on from an older state.", error)
        self.record("unreadable", checkpoint=_FILES[origin], error=error)


def _other_version(path: Path, why: Exception) -> StorageError:
    return StorageError(
        f"{path}: is a checkpoint of another version ({why}); remove it to start over."
    )


def _read_state(folder: Path, origin: Origin) -> CheckpointState:
    """Read the JSON state of a checkpoint.

    Raises:
        StorageError: the state cannot be read, or holds no progress.
    """
    path = folder / _FILES[origin]
    state = read_json(path) if origin == "sharded" else read_state(path)
    try:
        int(state["progress"]["step"])
        if origin == "sharded":
            folder.joinpath(state["folder"])
    except (KeyError, TypeError, ValueError):
        raise StorageError(
            f"{path}: does not say how far it is; remove it to start over."
        ) from None
    return state


def _is_unreachable(error: StorageError) -> bool:
    """Check whether an error is due to the file server, which may recover, not to the file."""
    return is_transient(error) or isinstance(error.__cause__, PermissionError)


def prune_checkpoints(folder: Path) -> None:
    """Remove older and incomplete sharded checkpoints; keep the one that the pointer names."""
    current = None
    if (folder / POINTER).exists():
        try:
            current = _read_state(folder, "sharded").get("folder")
        except StorageError as error:
            if isinstance(error.__cause__, OSError):  # the file may be whole: remove nothing
                return
    for path in folder.glob(f"{FOLDER}*"):
        if path.name != current:
            shutil.rmtree(path, ignore_errors=True)


def checkpoint_origin(ranks: Ranks, parallel: ParallelConfig) -> dict[str, str | int]:
    """Describe this process in a checkpoint.

    Returns:
        Versions, device and ranks, by name.
    """
    return {
        "hydragnn_hpo": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": ranks.device.type,
        "world": ranks.world,
        "shard": parallel.shard,
        "tensor": ranks.tensor,
    }
