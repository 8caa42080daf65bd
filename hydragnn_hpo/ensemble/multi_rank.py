"""Many ranks share a prediction: claims on chunks, what each rank does, and how ranks are started.

Ranks do not speak to each other: they meet in the folder of parts. A rank claims the chunk it is at
with a file that one rank alone can create. Only time depends on claims: two ranks at the same chunk
write the same bytes. torch.distributed takes no part.
"""

import contextlib
import itertools
import logging
import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import torch

from hydragnn_hpo import log
from hydragnn_hpo.ensemble.engine import AUTO, device_of
from hydragnn_hpo.ensemble.predict_file import (
    POLL_SECONDS,
    PredictPipeline,
    PredictRequest,
    Report,
    predict_chunks,
)
from hydragnn_hpo.ensemble.predict_output import PartFolder, PredictOutcome
from hydragnn_hpo.ensemble.structure_batches import ChunkId
from hydragnn_hpo.errors import HydraError, JobError, StorageError
from hydragnn_hpo.files import passes, read_json, storage, write_json
from hydragnn_hpo.host_info import start_ticks
from hydragnn_hpo.launching import DEVICE, THREADS, Backend, Event, Job, Slot
from hydragnn_hpo.leases import FAILED, FINISHED, ControllerLease, StampWatch

if TYPE_CHECKING:
    from hydragnn_hpo.config import MachineConfig

logger = logging.getLogger(__name__)

CLAIM_SECONDS = 30.0
"""A claim whose stamp has not changed for so long is of a rank that is gone."""

MAX_ATTEMPTS = 3
"""Ranks that may be lost at a chunk; then it is given up until the next start."""

_BEATS = 6
"""Renewals per lease."""


class ChunkClaims:
    """One rank's view of a folder of claims; claims taken in a ``with`` are renewed."""

    def __init__(
        self,
        folder: Path,
        *,
        lease_seconds: float = CLAIM_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember the folder; it is made on entering, its parent is not.

        Args:
            folder: seen by all ranks.
            lease_seconds: how long a claim lasts that is not renewed.
            clock: any clock that never goes back, in seconds.
        """
        self._folder, self._lease, self._clock = folder, lease_seconds, clock
        self._held: set[Path] = set()
        self._watches: dict[Path, StampWatch] = {}
        self._left = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True, name="claims")

    def __enter__(self) -> Self:
        """Make the folder and begin to renew.

        Raises:
            StorageError: the folder cannot be written.
        """
        with storage(self._folder):
            self._folder.mkdir(exist_ok=True)
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Renew no more: what is still claimed is free after a lease."""
        self._left.set()
        self._heart.join()

    def take(self, name: str) -> bool:
        """Claim a chunk, unless a live rank has it or too many were lost at it.

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
        """Release a chunk that is done, or left undone in order; its lost ranks are forgotten."""
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

    def last_attempts(self) -> list[str]:
        """Return the names of all chunks at their last attempt, live or not, in any order."""
        return [path.stem for path in self._folder.glob(f"[0-9]*.{MAX_ATTEMPTS - 1}")]

    def clear(self) -> None:
        """Remove all claims: what ranks of an earlier start were lost at may be tried again.

        Raises:
            StorageError: one cannot be removed.
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
        except OSError:  # dropped this moment
            return True
        return now < watch.until

    def _beat(self) -> None:
        while not self._left.wait(self._lease / _BEATS):
            for path in tuple(self._held):
                with contextlib.suppress(OSError):  # the next beat may find the folder again
                    os.utime(path)

    def _path(self, name: str, attempt: int) -> Path:
        return self._folder / f"{name}.{attempt}"


# -- one rank --------------------------------------------------------------------------------

STORAGE_RETRY_SECONDS = 20.0
"""Before a rank whose file server is away ends: its slot is started a few times only."""

BEGIN_SECONDS = 300.0
"""How long ranks wait for the first of them, which makes the folder."""

_FAILED = "failed.json"
_JOIN = "join"


def claims_of(request: PredictRequest) -> ChunkClaims:
    """Return the claims of all ranks of a request."""
    return ChunkClaims(request.parts.folder / "claims")


def rank_main(spec: Mapping[str, Any]) -> int:
    """Predict as a rank of a backend; its entry point.

    Args:
        spec: a ``PredictRequest`` as JSON.

    Returns:
        0 once no chunk is left; 1 after an error, whose sentence is kept for ``read_failure``,
        except one of a file server that is away: that concerns this host and moment alone.
    """
    log.configure(rank=int(os.environ.get("RANK", "0")))
    request = PredictRequest.from_json(spec)
    _set_up_process()
    try:
        device = os.environ.get(DEVICE, "cpu")
        with request.open_output(device) as pipeline, claims_of(request) as claims:
            predict_chunks(pipeline, claims)
    except HydraError as error:
        if passes(error):
            logger.error("%s", error)
            time.sleep(STORAGE_RETRY_SECONDS)
            return 1
        with contextlib.suppress(HydraError):
            write_json(request.parts.folder / _FAILED, {"error": str(error)})
        return 1
    return 0


def read_failure(request: PredictRequest) -> JobError | None:
    """Return the error of a rank, if one has left any."""
    path = request.parts.folder / _FAILED
    return JobError(str(read_json(path)["error"])) if path.exists() else None


def predict_as_rank(
    request: PredictRequest, rank: int, local: int | None = None
) -> PredictOutcome | None:
    """Predict as a rank of a launcher; one of the ranks joins the parts.

    Rank 0 alone makes the folder, so that one that comes late does not predict all again.

    Args:
        request: the same on all ranks.
        rank: number of this one.
        local: its number on its host, where that is known.

    Returns:
        How it ended, on the rank that joined.

    Raises:
        HydraError: it cannot be done; on all ranks that see it.
    """
    _set_up_process()
    parts, started = request.parts, _process_start()
    device = device_of_rank(rank if local is None else local)

    def begin(parts: PartFolder, plan: dict[str, str]) -> None:
        if rank:
            _await_folder(parts, started)
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
        if parts.folder.exists() or not _is_younger(parts.out, started):
            raise
        return None  # other ranks have joined meanwhile, or before this one began


def device_of_rank(local: int) -> str:
    """Return the device of this rank's slot; its share of the host's where a launcher has no slots.

    Args:
        local: number of the rank on its host.
    """
    device = device_of(AUTO)
    if DEVICE in os.environ or device == "cpu":
        return device
    return f"{device.partition(':')[0]}:{local % torch.accelerator.device_count()}"


def _join_once(
    folder: Path, pipeline: PredictPipeline, claims: ChunkClaims
) -> PredictOutcome | None:
    """Join the parts, or wait until another rank has."""
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
    """Use the threads of this rank, and leave in order on SIGTERM."""
    torch.set_num_threads(int(os.environ.get(THREADS, "1")))
    signal.signal(signal.SIGTERM, _exit_on_signal)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _await_folder(parts: PartFolder, started: float) -> None:
    """Wait for the folder.

    Raises:
        JobError: rank 0 does not make it; or it is gone already: the output is younger than this
            process.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    while not parts.plan.exists():
        if _is_younger(parts.out, started):
            raise JobError(f"{parts.out}: was finished before this rank began.")
        if time.monotonic() > deadline:
            raise JobError(f"{parts.folder}: rank 0 has not begun within {BEGIN_SECONDS:.0f} s.")
        time.sleep(POLL_SECONDS)


def _is_younger(path: Path, started: float) -> bool:
    return path.exists() and path.stat().st_mtime > started


def _process_start() -> float:
    """Return when this process was started, in seconds since the epoch: imports may take long."""
    since_boot = (start_ticks(os.getpid()) or 0) / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)


# -- ranks of a backend ----------------------------------------------------------------------

RANKS_LOG = "ranks.log"
EVENT_SECONDS = 0.1
HOST_SECONDS = 600.0
"""How long to wait for the first host, and for one to come back once all were lost."""

MAX_STARTS = 3
"""A slot whose ranks have ended badly so often is left alone."""

PROGRESS_SECONDS = 1.0
"""Between two looks at what is done."""


def predict_on_ranks(
    request: PredictRequest, pipeline: PredictPipeline, machine: "MachineConfig", report: Report
) -> PredictOutcome:
    """Start ranks, replace those that are lost, wait until all is predicted, and join it.

    Args:
        request: what to predict.
        pipeline: of the request, opened in this process.
        machine: where ranks run.
        report: called with each chunk, and whether it was there before.

    Raises:
        HydraError: it cannot be done, or ranks ended before it was.
    """
    parts, folder = request.parts, request.parts.folder / "launch"
    with storage(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    lease, why = ControllerLease(folder), FAILED
    try:
        _run_ranks(request, pipeline.num_sources, machine, _Progress(request, report, lease))
        why = FINISHED
    finally:
        lease.release(why)
        if not (folder / RANKS_LOG).exists():  # no rank was started
            parts.leave()
    outcome = pipeline.join()
    if outcome is None:
        raise JobError(f"{request.out}: pieces are missing; repeat the command to go on.")
    return outcome


def _run_ranks(
    request: PredictRequest, num_sources: int, machine: "MachineConfig", progress: "_Progress"
) -> None:
    """Keep a rank on every slot until no chunk is left.

    Args:
        request: what to predict.
        num_sources: into which the input was divided.
        machine: where ranks run.
        progress: reports parts, and keeps the lease.

    Raises:
        JobError: ranks were lost at all attempts at a chunk.
    """
    from hydragnn_hpo.campaign import backend_on

    parts, claims, folder = request.parts, claims_of(request), request.parts.folder / "launch"
    (parts.folder / _FAILED).unlink(missing_ok=True)  # its cause may be mended
    claims.clear()
    progress.update(before=True)
    if parts.headers(num_sources) is not None:
        return
    with backend_on(machine, folder) as backend:
        RankPool(backend, folder, request.to_json()).run(progress)
    progress.update()
    if parts.headers(num_sources) is None:
        chunks = sorted(map(ChunkId.parse, claims.last_attempts()))
        if given_up := [chunk for chunk in chunks if parts.header(chunk) is None]:
            raise _given_up_error(request, given_up)


class RankPool:
    """One rank on every slot, each for itself: one that is lost takes no other along."""

    def __init__(self, backend: Backend, folder: Path, spec: dict[str, Any]) -> None:
        """Start nothing yet.

        Args:
            backend: runs the ranks.
            folder: for their logs and leases; all hosts see it.
            spec: handed to each of them.
        """
        self._backend, self._folder, self._spec = backend, folder, spec
        self._names = map(f"predict-{secrets.token_hex(3)}-{{}}".format, itertools.count(1))
        self._running: dict[str, Job] = {}
        self._starts = Counter[str]()
        self._finished = False
        self.log = folder / RANKS_LOG

    def run(self, tick: Callable[[], None]) -> None:
        """Keep a rank on every slot; return when no chunk and no rank is left.

        Args:
            tick: called often meanwhile; what it raises ends the ranks.

        Raises:
            JobError: there is no host, or every rank has ended badly.
        """
        last_busy = time.monotonic()
        while True:
            self._fill()
            slots = self._backend.slots
            if self._running:
                last_busy = time.monotonic()
            elif self._finished or (slots and not any(map(self._is_usable, slots))):
                break
            elif time.monotonic() > last_busy + HOST_SECONDS:
                raise JobError(f"no host joined within {HOST_SECONDS:.0f} s: see {self._folder}.")
            for event in self._backend.poll(EVENT_SECONDS):
                self._on_event(event)
            tick()
        if not self._finished:
            raise JobError(f"all ranks have ended before their work was done: see {self.log}.")

    def _is_usable(self, slot: Slot) -> bool:
        """Check whether ranks have not ended badly too often on a slot."""
        return self._starts[slot.name] < MAX_STARTS

    def _fill(self) -> None:
        """Start a rank on each slot that has none, while chunks are left."""
        if self._finished or not self._backend.settled:
            return
        taken = {slot.name for job in self._running.values() for slot in job.slots}
        for slot in self._backend.slots:
            if slot.name in taken or not self._is_usable(slot):
                continue
            name = next(self._names)
            job = Job(
                id=name,
                kind="predict",
                width=1,
                spec=self._spec,
                log=self.log,
                watch=None,
                slots=(slot,),
            )
            self._starts[slot.name] += 1
            self._running[name] = job
            self._backend.start(job)

    def _on_event(self, event: Event) -> None:
        """Record a job's end: a rank ends well only when no chunk is left."""
        if event.kind == "adopted" and event.job:  # of a command that was killed
            self._backend.stop(event.job, grace=0.0)
        if event.kind == "ended" and event.job in self._running:
            del self._running[event.job]
            if 0 in (event.data.get("codes") or ()) and not self._finished:
                self._finished = True
                for name in self._running:  # they only wait for chunks of others
                    self._backend.stop(name)


class _Progress:
    """Reports the parts that ranks have written, and keeps the lease."""

    def __init__(self, request: PredictRequest, report: Report, lease: ControllerLease) -> None:
        self._request, self._report, self._lease = request, report, lease
        self._known: set[ChunkId] = set()
        self._last_update = 0.0

    def __call__(self) -> None:
        """Update now and then; raise the error that a rank has left."""
        self._lease.renew()
        if time.monotonic() <= self._last_update + PROGRESS_SECONDS:
            return
        self._last_update = time.monotonic()
        try:
            failure = read_failure(self._request)
            self.update()
        except (HydraError, OSError) as error:  # files may be back at the next look
            if not passes(error):
                raise
        else:
            if failure:
                raise failure

    def update(self, before: bool = False) -> None:
        """Report what is new."""
        parts = self._request.parts
        for chunk in sorted(set(parts.done()) - self._known):
            if header := parts.header(chunk):
                self._known.add(chunk)
                self._report(header, before)
