"""Prediction with many ranks of a launcher: claims on chunks, and the work of one rank.

Ranks exchange no messages: they read each other's files in the folder of parts. A rank claims a
chunk by creating a file, in which only one rank can succeed. Claims only save time: two ranks that
predict the same chunk write the same bytes. torch.distributed is not used.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Self

import torch

from hydragnn_hpo.ensemble.engine import AUTO, device_of
from hydragnn_hpo.ensemble.predict_file import (
    POLL_SECONDS,
    PredictPipeline,
    PredictRequest,
    predict_chunks,
)
from hydragnn_hpo.ensemble.predict_output import PartFolder, PredictOutcome
from hydragnn_hpo.ensemble.structure_batches import ChunkId
from hydragnn_hpo.errors import HydraError, JobError, StorageError
from hydragnn_hpo.files import storage
from hydragnn_hpo.host_info import start_ticks
from hydragnn_hpo.launching.rank_environment import DEVICE, THREADS
from hydragnn_hpo.leases import StampWatch

CLAIM_SECONDS = 30.0
"""Time in seconds after which a claim that was not renewed belongs to a lost rank."""

MAX_ATTEMPTS = 3
"""Number of ranks lost at a chunk after which it is given up until the next start."""

_BEATS = 6
"""Number of renewals per lease."""


class ChunkClaims:
    """One rank's claims on chunks; inside a ``with`` statement they are renewed.

    A claim is a file ``CHUNK.ATTEMPT``, renewed by its modification time. The file of a lost
    rank stays, and the next rank creates the file of the next attempt.
    """

    def __init__(
        self,
        folder: Path,
        *,
        lease_seconds: float = CLAIM_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the folder; it is created on entering, but its parent is not.

        Args:
            folder: folder that all ranks share.
            lease_seconds: time until a claim that is not renewed expires.
            clock: monotonic clock, in seconds.
        """
        self._folder, self._lease, self._clock = folder, lease_seconds, clock
        self._held: set[Path] = set()
        self._watches: dict[Path, StampWatch] = {}
        self._exited = threading.Event()
        self._heartbeat = threading.Thread(target=self._renew, daemon=True, name="claims")

    def __enter__(self) -> Self:
        """Create the folder, and start to renew claims.

        Raises:
            StorageError: the folder cannot be written.
        """
        with storage(self._folder):
            self._folder.mkdir(exist_ok=True)
        self._heartbeat.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop renewing; chunks that are still claimed become free after a lease."""
        self._exited.set()
        self._heartbeat.join()

    def take(self, name: str) -> bool:
        """Claim a chunk; return False if a live rank has it or too many ranks were lost at it.

        Raises:
            StorageError: the folder cannot be written.
        """
        for attempt in range(MAX_ATTEMPTS):
            path = self._path(name, attempt)
            if self._create(path):
                self._held.add(path)
                return True
            if self._is_alive(path):
                return False
        return False

    def drop(self, name: str) -> None:
        """Release a chunk that is done or was interrupted; ranks lost at it no longer count."""
        for attempt in reversed(range(MAX_ATTEMPTS)):
            path = self._path(name, attempt)
            self._held.discard(path)
            self._watches.pop(path, None)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def is_given_up(self, name: str) -> bool:
        """Check whether ranks were lost at all attempts at a chunk."""
        last = self._path(name, MAX_ATTEMPTS - 1)
        return last.exists() and not self._is_alive(last)

    def clear(self) -> None:
        """Remove all claims, so that chunks at which ranks were lost are tried again.

        Raises:
            StorageError: a claim cannot be removed.
        """
        for path in list(self._folder.glob("*")):
            with storage(path):
                path.unlink(missing_ok=True)

    def _create(self, path: Path) -> bool:
        with storage(path):
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                return False
        return True

    def _is_alive(self, path: Path) -> bool:
        """Check whether a claim was renewed within a lease, as far as this process has watched."""
        now = self._clock()
        watch = self._watches.setdefault(path, StampWatch(path, self._lease, now))
        try:
            watch.update(now)
        except OSError:  # the claim was dropped just now
            return True
        return now < watch.until

    def _renew(self) -> None:
        while not self._exited.wait(self._lease / _BEATS):
            for path in tuple(self._held):
                with contextlib.suppress(OSError):  # the server may be back at the next renewal
                    os.utime(path)

    def _path(self, name: str, attempt: int) -> Path:
        return self._folder / f"{name}.{attempt}"


BEGIN_SECONDS = 300.0
"""Maximum time that ranks wait for rank 0 to create the folder."""

_JOIN = "join"
"""Name of the claim on joining the parts."""


def claims_of(request: PredictRequest) -> ChunkClaims:
    """Return the claims that all ranks of a request share."""
    return ChunkClaims(request.parts.folder / "claims")


def predict_as_rank(
    request: PredictRequest, rank: int, local: int | None = None
) -> PredictOutcome | None:
    """Predict as a rank of a launcher; one of the ranks joins the parts.

    Only rank 0 creates the folder. If any rank could, one that starts after the others have joined
    the parts would predict everything again.

    Args:
        request: request, the same on all ranks.
        rank: number of this rank.
        local: number of this rank on its host; None if unknown.

    Returns:
        The outcome on the rank that joined the parts, None on the others.

    Raises:
        HydraError: the prediction failed; raised on all ranks that notice it.
    """
    _set_up_process()
    parts = request.parts
    start_time = _process_start()
    device = device_of_rank(rank if local is None else local)

    def begin(parts: PartFolder, plan: dict[str, str]) -> None:
        if rank:
            _await_folder(parts, start_time)
            parts.check_plan(plan)
        else:
            parts.begin(plan)
            claims_of(request).clear()

    try:
        with request.open_output(device, begin=begin) as pipeline, claims_of(request) as claims:
            if given_up := predict_chunks(pipeline, claims):
                raise _given_up_error(request, given_up)
            return _join_once(parts.folder, pipeline, claims)
    except HydraError:
        if parts.folder.exists() or not _is_younger(parts.out, start_time):
            raise
        return None  # other ranks have joined the parts, perhaps before this one began


def device_of_rank(local: int) -> str:
    """Return the device of this rank's slot.

    Args:
        local: number of the rank on its host; it selects one of the host's devices if
            the launcher assigns no slots.
    """
    device = device_of(AUTO)
    if DEVICE in os.environ or device == "cpu":
        return device
    return f"{device.partition(':')[0]}:{local % torch.accelerator.device_count()}"


def _join_once(
    folder: Path, pipeline: PredictPipeline, claims: ChunkClaims
) -> PredictOutcome | None:
    """Join the parts, or return None once another rank has joined them.

    Raises:
        JobError: too many ranks were lost while joining the parts.
    """
    while True:
        try:
            if claims.take(_JOIN):
                return pipeline.join()
        except StorageError:
            if folder.exists():
                raise
        if not folder.exists():
            return None
        if claims.is_given_up(_JOIN):
            raise JobError(
                f"{folder}: several ranks ended while they joined it; repeat the command."
            )
        time.sleep(POLL_SECONDS)


def _given_up_error(request: PredictRequest, chunks: Sequence[ChunkId]) -> JobError:
    first = chunks[0]
    return JobError(
        f"{request.out}: {len(chunks)} pieces were not predicted, since several ranks ended while "
        f"they were at them, the first at piece {first.number + 1} of input {first.source + 1}: "
        "give ranks more memory or take these structures out, and repeat the command; what is done "
        "is kept."
    )


def _set_up_process() -> None:
    """Set the number of threads of this rank, and exit on SIGTERM so that claims are released."""
    torch.set_num_threads(int(os.environ.get(THREADS, "1")))
    signal.signal(signal.SIGTERM, _exit_on_signal)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _await_folder(parts: PartFolder, start_time: float) -> None:
    """Wait until rank 0 has made the folder.

    Args:
        parts: the folder.
        start_time: start of this process, in seconds since the epoch.

    Raises:
        JobError: rank 0 does not create the folder in time, or it was removed again, which an
            output younger than this process shows.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    while not parts.plan.exists():
        if _is_younger(parts.out, start_time):
            raise JobError(
                f"{parts.out}: was finished before this rank began; start all ranks at once."
            )
        if time.monotonic() > deadline:
            raise JobError(
                f"{parts.folder}: rank 0 has not begun within {BEGIN_SECONDS:.0f} s; start all "
                "ranks at once."
            )
        time.sleep(POLL_SECONDS)


def _is_younger(path: Path, moment: float) -> bool:
    """Check whether a file was written after a moment, in seconds since the epoch."""
    return path.exists() and path.stat().st_mtime > moment


def _process_start() -> float:
    """Return the start of this process, before its imports, in seconds since the epoch."""
    since_boot = (start_ticks(os.getpid()) or 0) / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
