"""Save checkpoints while a training continues: copy them at once, write them in a thread."""

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
from hydragnn_hpo.files import passes, read_json, write_text
from hydragnn_hpo.training.checkpoint import (
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
    """Runs a job in a thread; what the job raised, the next one to come meets."""

    def __init__(self) -> None:
        """Start without a job."""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether the job still runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Begin a job after the one before; raises what that raised."""
        self.wait()
        self._thread = threading.Thread(
            target=self._run, args=(job,), name="checkpoint", daemon=True
        )
        self._thread.start()

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the end of the job, or some seconds; raises what it raised."""
        if self._thread is not None:
            self._thread.join(seconds)
        error, self._error = self._error, None
        if error is not None:
            raise error


BEST, LAST, POINTER, FOLDER = "best.safetensors", "last.safetensors", "last.json", "sharded-"


_HELD_SHARE = 0.05
"""Most of the time that a training stands still for its checkpoints, unless it asks for all."""


_GRACE_SECONDS = 5.0
"""How long a training that fails waits for a checkpoint that is being written."""


State = Mapping[str, Any]
"""What of a training is no tensor, as JSON can hold it; has ``progress``."""

Origin = Literal["last", "sharded", "best"]
"""What a training goes on from."""

_FILES: dict[Origin, str] = {"last": LAST, "sharded": POINTER, "best": BEST}


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint whose tensors were taken over."""

    origin: Origin
    state: dict[str, Any]
    best: dict[str, Tensor]
    """Weights of the best epoch, which rank 0 alone has where weights are sharded."""


class CheckpointSaver:
    """Takes and reads the checkpoints of one training; every rank has one."""

    def __init__(
        self,
        learned: TrainState,
        ranks: Ranks,
        record: Callable[..., None],
        *,
        every: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count from now.

        Args:
            learned: tensors to save.
            ranks: this rank among the others.
            record: told about every checkpoint that is on disk, by the thread.
            every: seconds between checkpoints.
            clock: in seconds.
        """
        self.learned, self.ranks, self.record = learned, ranks, record
        self.every, self.clock, self.in_parts = every, clock, learned.in_parts
        self.seconds = 0.0
        """How long the last checkpoint took until it was on disk."""
        self.held = 0.0
        """How long the training stood still for the last one."""
        self._group: Any = None
        if self.in_parts:  # the training's own group is busy with gradients meanwhile
            self._group = dist.new_group(backend="gloo")
            keep_until_exit(self._group)
        self._background = BackgroundJob()
        self._began, self._position = clock(), (Path(), -1, -1)
        self._best: Mapping[str, Tensor] = {}
        self._best_on_host: dict[str, Tensor] = {}

    def __enter__(self) -> None:
        """Count the time to the next checkpoint from now."""
        self._began = self.clock()

    def __exit__(self, kind: type[BaseException] | None, *_: TracebackType | object) -> None:
        """Wait until the last checkpoint is on disk; one error is told, the first."""
        if kind is None:
            self._background.wait()
            return
        try:
            self._background.wait(_GRACE_SECONDS)
        except Exception as error:
            logger.warning("the last checkpoint failed too: %s", error)

    @property
    def due(self) -> bool:
        """Whether it is time for one; while another is being written it never is.

        Copying everything takes time too: large models are saved more rarely than asked for.
        """
        apart = max(self.every, self.held / _HELD_SHARE) if self.every else 0.0
        return self.clock() - self._began >= apart and not self._background.busy

    def save(self, folder: Path, state: State, best: Mapping[str, Tensor]) -> None:
        """Copy everything and begin to write it; every rank calls this at the same step.

        Args:
            folder: of the checkpoints.
            state: what is no tensor.
            best: whole weights of the best epoch, on rank 0; never changed in place.

        Raises:
            StorageError: the checkpoint before could not be written.
        """
        self._background.wait()
        position = (folder, state["progress"]["epoch"], state["progress"]["step"])
        if position == self._position:
            return
        self._position, self._began = position, self.clock()
        if not (self.ranks.first or self.in_parts):
            return
        new = best is not self._best
        if new:
            self._best, self._best_on_host = best, {n: v.cpu() for n, v in best.items()}
        tensors = self._copied(self.learned.tensors())
        tensors |= add_prefix("best", self._best_on_host)
        job = self._write_parts if self.in_parts else self._write_whole
        self._background.start(
            functools.partial(
                job, folder, tensors, copy.deepcopy(dict(state)), new_best=new and bool(best)
            )
        )
        self.held = self.clock() - self._began

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy tensors into this host's memory, where the thread can take its time."""
        if self.in_parts:
            from hydragnn_hpo.training import sharded

            return sharded.copy_to_host(tensors)
        return {name: _copy_to_host(value) for name, value in tensors.items()}

    def _write_whole(
        self, folder: Path, tensors: Mapping[str, Tensor], state: State, *, new_best: bool
    ) -> None:
        if new_best:
            write_checkpoint(folder / BEST, self._best_on_host, state)
        write_checkpoint(folder / LAST, tensors, state)
        (folder / POINTER).unlink(missing_ok=True)
        prune_checkpoints(folder)
        self._tell(state, (folder / LAST).stat().st_size)

    def _write_parts(
        self, folder: Path, tensors: Mapping[str, Tensor], state: State, *, new_best: bool
    ) -> None:
        from hydragnn_hpo.training import sharded

        if new_best and self.ranks.first:
            write_checkpoint(folder / BEST, self._best_on_host, state)
        name = f"{FOLDER}{state['progress']['step']:09d}"
        size = sharded.write_sharded(folder / name, tensors, self._group)
        if self.ranks.first:
            write_text(folder / POINTER, json.dumps({"folder": name, **state}))
            (folder / LAST).unlink(missing_ok=True)
            prune_checkpoints(folder)
            self._tell(state, size)

    def _tell(self, state: State, size: int) -> None:
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
        """Take the newest checkpoint over that every rank can read alike; every rank calls this.

        One that cannot be read, cut off, damaged or of another version, costs work and no trial:
        the next older one counts, then the weights of the best epoch alone.

        Returns:
            What was loaded; None without a checkpoint.

        Raises:
            StorageError: the file server is away.
        """
        left = self._list_origins(folder) if self.ranks.first else []
        while (origin := self._agree_on_origin(left)) is not None:
            read, error = None, "another rank cannot read it, or finds another one there."
            try:
                read = self._read(folder, origin)
            except StorageError as unreadable:
                if _is_away(unreadable):
                    raise
                error = str(unreadable)
            step = -1 if read is None else int(read[1]["progress"]["step"])
            if self._is_agreed(step):
                assert read is not None
                return self._take_over(folder, origin, *read)
            if self.ranks.first:
                self._tell_unreadable(origin, error)
        return None

    def _list_origins(self, folder: Path) -> list[Origin]:
        """List what can be loaded, best first; a kill may leave one checkpoint of each kind."""
        steps: dict[Origin, int] = {}
        there = [origin for origin, name in _FILES.items() if (folder / name).exists()]
        for origin in there:
            try:
                steps[origin] = _read_state(folder, origin)["progress"]["step"]
            except StorageError as error:
                if _is_away(error):
                    raise
                self._tell_unreadable(origin, str(error))
        newest = sorted(set(steps) - {"best"}, key=lambda origin: -steps[origin])
        # Before the first checkpoint is whole, ``best`` alone is no place to go on from.
        return newest + (["best"] if "best" in steps and set(there) != {"best"} else [])

    def _agree_on_origin(self, left: list[Origin]) -> Origin | None:
        """Take the next of rank 0's list on all ranks; None when there is none left."""
        mine = list(_FILES).index(left.pop(0)) + 1 if left else 0
        number = int(self.ranks.sum(torch.tensor(mine, device=self.ranks.device)).item())
        return list(_FILES)[number - 1] if number else None

    def _is_agreed(self, step: int) -> bool:
        """Check whether all ranks have read a checkpoint of the same step; -1: this one has not.

        A file system may show a host an older file for a while.
        """
        steps = torch.tensor([step, -step], device=self.ranks.device)
        highest, lowest_negated = self.ranks.most(steps).tolist()
        return bool(highest == -lowest_negated >= 0)

    def _read(self, folder: Path, origin: Origin) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Read tensors and state, and check that they are of this training.

        Raises:
            StorageError: they are not, or cannot be read.
        """
        if origin == "sharded":
            from hydragnn_hpo.training import sharded

            state, with_best = _read_state(folder, origin), self.ranks.first or not self.in_parts
            weights = self.learned.weights()
            tensors = sharded.read_sharded(folder / state["folder"], weights, best=with_best)
        else:
            tensors, state = read_checkpoint(folder / _FILES[origin])
        try:
            Progress(**state["progress"])
            state["schedule"]
        except (KeyError, TypeError) as error:
            raise _other_version(folder / _FILES[origin], error) from None
        try:
            if origin == "best":
                self.learned.check(add_prefix("model", tensors), ("model/",))
            else:
                self.learned.check(tensors, ("model/", "average/"))
        except StorageError as error:
            raise _other_version(folder / _FILES[origin], error) from None
        return tensors, state

    def _take_over(
        self, folder: Path, origin: Origin, tensors: dict[str, Tensor], state: dict[str, Any]
    ) -> LoadedCheckpoint:
        if origin == "best":
            self.learned.put_best(tensors)
            best = tensors
        else:
            self.learned.put(tensors)
            self._position = (folder, state["progress"]["epoch"], state["progress"]["step"])
            best = strip_prefix("best", tensors)
        if self.in_parts and not self.ranks.first:
            best = {}
        best = {name: value.to(self.ranks.device) for name, value in best.items()}
        return LoadedCheckpoint(origin, state, best)

    def _tell_unreadable(self, origin: Origin, error: str) -> None:
        logger.warning("%s The trial goes on from an older state.", error)
        self.record("unreadable", checkpoint=_FILES[origin], error=error)


def _other_version(path: Path, why: Exception) -> StorageError:
    return StorageError(f"{path}: is a checkpoint of another version ({why}).")


def _read_state(folder: Path, origin: Origin) -> dict[str, Any]:
    """Read the plain state of a checkpoint.

    Raises:
        StorageError: it cannot be read, or says nothing of its progress.
    """
    path = folder / _FILES[origin]
    state = read_json(path) if origin == "sharded" else read_state(path)
    try:
        int(state["progress"]["step"])
        if origin == "sharded":
            folder.joinpath(state["folder"])
    except (KeyError, TypeError, ValueError):
        raise StorageError(f"{path}: does not say how far it is.") from None
    return dict(state)


def _is_away(error: StorageError) -> bool:
    """Check whether an error speaks of the file server, which may be back, not of the file."""
    return passes(error) or isinstance(error.__cause__, PermissionError)


def prune_checkpoints(folder: Path) -> None:
    """Remove parts that do not count: those before, and those that a kill left half written."""
    counts = None
    if (folder / POINTER).exists():
        try:
            counts = _read_state(folder, "sharded").get("folder")
        except StorageError as error:
            if isinstance(error.__cause__, OSError):  # the file may be whole: remove nothing
                return
    for path in folder.glob(f"{FOLDER}*"):
        if path.name != counts:
            shutil.rmtree(path, ignore_errors=True)


def _copy_to_host(value: Tensor) -> Tensor:
    """Copy a tensor into this host's memory."""
    return value.detach().to("cpu", copy=True)


def checkpoint_origin(ranks: Ranks, parallel: ParallelConfig) -> dict[str, Any]:
    """Return what writes a checkpoint; for people, nothing depends on it."""
    return {
        "hydragnn_hpo": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": ranks.device.type,
        "world": ranks.world,
        "shard": parallel.shard,
        "tensor": ranks.tensor,
    }
