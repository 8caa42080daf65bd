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
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hydragnn_hpo import __version__
from hydragnn_hpo.config import ParallelConfig
from hydragnn_hpo.files import read_json, write_text
from hydragnn_hpo.training.checkpoint import (
    add_prefix,
    read_checkpoint,
    read_state,
    strip_prefix,
    write_checkpoint,
)
from hydragnn_hpo.training.ddp import Ranks, keep_until_exit
from hydragnn_hpo.training.train_state import TrainState

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

    def load(self, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Take the newest checkpoint over; every rank calls this.

        Returns:
            The state and the best weights, which rank 0 alone has where weights are sharded; None
            without a checkpoint.

        Raises:
            StorageError: it cannot be read.
        """
        newest = find_newest_checkpoint(folder)
        if newest is None:
            return None
        path, state = newest
        with_best = self.ranks.first or not self.in_parts
        if path.name == LAST:
            tensors, _ = read_checkpoint(path)
        else:
            from hydragnn_hpo.training import sharded

            weights = self.learned.weights()
            tensors = sharded.read_sharded(path, weights, best=with_best)
        self.learned.put(tensors)
        self._position = (folder, state["progress"]["epoch"], state["progress"]["step"])
        if not with_best:
            return state, {}
        best = strip_prefix("best", tensors)
        return state, {name: value.to(self.ranks.device) for name, value in best.items()}


def find_newest_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Find the newest checkpoint: a kill may leave one of each kind.

    Returns:
        ``last.safetensors`` or a folder of parts, and the state; None if there is neither.

    Raises:
        StorageError: one of them cannot be read.
    """
    found: list[tuple[Path, dict[str, Any]]] = []
    if (folder / LAST).exists():
        found.append((folder / LAST, read_state(folder / LAST)))
    if (folder / POINTER).exists():
        state = read_json(folder / POINTER)
        found.append((folder / state["folder"], state))
    return max(found, key=lambda each: each[1]["progress"]["step"], default=None)


def prune_checkpoints(folder: Path) -> None:
    """Remove parts that do not count: those before, and those that a kill left half written."""
    pointer = folder / POINTER
    counts = read_json(pointer)["folder"] if pointer.exists() else None
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
