"""Prediction with many ranks: claims on chunks, the work of one rank, and the start of ranks.

Ranks exchange no messages: they read each other's files in the folder of parts. A rank claims a
chunk by creating a file, in which only one rank can succeed. Claims only save time: two ranks that
predict the same chunk write the same bytes. torch.distributed is not used.
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
from typing import TYPE_CHECKING, Self

import torch
from pydantic import JsonValue

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
from hydragnn_hpo.files import is_transient, read_json, storage, write_json
from hydragnn_hpo.host_info import start_ticks
from hydragnn_hpo.launching import DEVICE, THREADS, Backend, Event, Job, Slot
from hydragnn_hpo.leases import ControllerLease, StampWatch

if TYPE_CHECKING:
    from hydragnn_hpo.config import MachineConfig

logger = logging.getLogger(__name__)

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

    def last_attempts(self) -> list[str]:
        """Return the names of all chunks at their last attempt, live or not, in any order."""
        return [path.stem for path in self._folder.glob(f"[0-9]*.{MAX_ATTEMPTS - 1}")]

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


# -- one rank --------------------------------------------------------------------------------

STORAGE_RETRY_SECONDS = 20.0
"""Pause before a rank ends because its file server is unreachable: a slot allows few starts."""

BEGIN_SECONDS = 300.0
"""Maximum time that ranks wait for rank 0 to create the folder."""

_FAILED = "failed.json"
"""File with the error of a rank."""
_JOIN = "join"
"""Name of the claim on joining the parts."""


def claims_of(request: PredictRequest) -> ChunkClaims:
    """Return the claims that all ranks of a request share."""
    return ChunkClaims(request.parts.folder / "claims")


def rank_main(spec: Mapping[str, JsonValue]) -> int:
    """Predict as a rank of a backend; entry point of the rank's process.

    Args:
        spec: a ``PredictRequest``, see ``PredictRequest.to_spec``.

    Returns:
        0 once no chunk is left; 1 after an error, which is stored for ``read_failure`` unless
        the file server is temporarily unreachable from this host.
    """
    log.configure(rank=int(os.environ.get("RANK", "0")))
    request = PredictRequest.from_spec(spec)
    _set_up_process()
    try:
        device = os.environ.get(DEVICE, "cpu")
        with request.open_output(device) as pipeline, claims_of(request) as claims:
            predict_chunks(pipeline, claims)
    except HydraError as error:
        if is_transient(error):
            logger.error("%s", error)
            time.sleep(STORAGE_RETRY_SECONDS)
            return 1
        with contextlib.suppress(HydraError):
            write_json(request.parts.folder / _FAILED, {"error": str(error)})
        return 1
    return 0


def read_failure(request: PredictRequest) -> JobError | None:
    """Return the error with which a rank ended; None if there is none."""
    path = request.parts.folder / _FAILED
    return JobError(str(read_json(path)["error"])) if path.exists() else None


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


# -- ranks of a backend ----------------------------------------------------------------------

RANKS_LOG = "ranks.log"
"""File with the output of all ranks."""
EVENT_SECONDS = 0.1
"""Maximum seconds to wait for an event of the backend."""
HOST_SECONDS = 600.0
"""Maximum seconds to wait for the first host, or for a new one once all were lost."""

MAX_STARTS = 3
"""Maximum number of ranks started on one slot; if all fail, the slot is no longer used."""

PROGRESS_SECONDS = 1.0
"""Seconds between two checks of finished parts."""


def predict_on_ranks(
    request: PredictRequest, pipeline: PredictPipeline, machine: "MachineConfig", report: Report
) -> PredictOutcome:
    """Start ranks, replace those that are lost, wait until all chunks are predicted, and join them.

    Args:
        request: the prediction to run.
        pipeline: pipeline of the request, opened in this process.
        machine: machine on which ranks run.
        report: called with the header of each part, and whether it existed before.

    Raises:
        HydraError: the prediction failed, or ranks ended before all chunks were predicted.
    """
    parts = request.parts
    with parts.hold() as lease:
        try:
            _run_ranks(request, pipeline.num_sources, machine, _Progress(request, report, lease))
        except BaseException:
            if not (parts.launch / RANKS_LOG).exists():  # no rank was started
                parts.leave()
            raise
        outcome = pipeline.join()
    if outcome is None:
        raise JobError(f"{request.out}: pieces are missing; repeat the command to go on.")
    return outcome


def _run_ranks(
    request: PredictRequest, num_sources: int, machine: "MachineConfig", progress: "_Progress"
) -> None:
    """Keep a rank on every slot until no chunk is left.

    Args:
        request: the prediction to run.
        num_sources: number of sources of the input.
        machine: machine on which ranks run.
        progress: reports parts, and renews the lease.

    Raises:
        JobError: ranks were lost at all attempts at a chunk.
    """
    from hydragnn_hpo.campaign import backend_on

    parts = request.parts
    claims = claims_of(request)
    folder = request.parts.launch
    (parts.folder / _FAILED).unlink(missing_ok=True)  # left by an earlier start
    claims.clear()
    progress.update(before=True)
    if parts.headers(num_sources) is not None:
        return
    with backend_on(machine, folder) as backend:
        RankPool(backend, folder, request.to_spec()).run(progress)
    progress.update()
    if parts.headers(num_sources) is None:
        chunks = sorted(map(ChunkId.parse, claims.last_attempts()))
        if given_up := [chunk for chunk in chunks if parts.header(chunk) is None]:
            raise _given_up_error(request, given_up)


class RankPool:
    """One rank on every slot; each is a separate job, so that losing one does not end others."""

    def __init__(self, backend: Backend, folder: Path, spec: dict[str, JsonValue]) -> None:
        """Store how to start ranks; none is started yet.

        Args:
            backend: backend that runs the ranks.
            folder: folder of their logs and leases, visible to all hosts.
            spec: specification of each rank's job.
        """
        self._backend, self._folder, self._spec = backend, folder, spec
        self._names = map(f"predict-{secrets.token_hex(3)}-{{}}".format, itertools.count(1))
        self._running: dict[str, Job] = {}
        self._starts = Counter[str]()
        self._finished = False
        self.log = folder / RANKS_LOG

    def run(self, tick: Callable[[], None]) -> None:
        """Keep a rank on every slot until no chunk and no rank is left.

        Args:
            tick: called after every poll; an error that it raises ends the ranks.

        Raises:
            JobError: there is no host, or ranks failed too often on every slot.
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
        """Check whether another rank may be started on a slot."""
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
        """Record the end of a job: a rank returns 0 only when no chunk is left."""
        if event.kind == "adopted" and event.job:  # a rank left by a killed command
            self._backend.stop(event.job, grace=0.0)
        if event.kind == "ended" and event.job in self._running:
            del self._running[event.job]
            if 0 in (event.data.get("codes") or ()) and not self._finished:
                self._finished = True
                for name in self._running:  # the others only wait for each other
                    self._backend.stop(name)


class _Progress:
    """Reports the parts that ranks have written, and renews the lease."""

    def __init__(self, request: PredictRequest, report: Report, lease: ControllerLease) -> None:
        self._request, self._report, self._lease = request, report, lease
        self._known: set[ChunkId] = set()
        self._last_update = 0.0

    def __call__(self) -> None:
        """Renew the lease, and report new parts every ``PROGRESS_SECONDS``.

        Raises:
            JobError: a rank has ended with an error.
        """
        self._lease.renew()
        if time.monotonic() <= self._last_update + PROGRESS_SECONDS:
            return
        self._last_update = time.monotonic()
        try:
            failure = read_failure(self._request)
            self.update()
        except (HydraError, OSError) as error:  # the file server may be back next time
            if not is_transient(error):
                raise
        else:
            if failure:
                raise failure

    def update(self, before: bool = False) -> None:
        """Report new parts; ``before`` marks those of an earlier start."""
        parts = self._request.parts
        for chunk in sorted(set(parts.done()) - self._known):
            if header := parts.header(chunk):
                self._known.add(chunk)
                self._report(header, before)
