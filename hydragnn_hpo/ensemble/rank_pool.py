"""Predict on ranks of a backend: start them, replace those that are lost, and join their parts."""

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign import backend_on
from hydragnn_hpo.config import MachineConfig
from hydragnn_hpo.ensemble.input_chunks import ChunkId
from hydragnn_hpo.ensemble.multi_rank import (
    claims_of,
    clear_failure,
    given_up_error,
    read_failure,
)
from hydragnn_hpo.ensemble.predict_file import (
    PredictOutcome,
    PredictPipeline,
    PredictRequest,
    Report,
)
from hydragnn_hpo.errors import ConfigError, HydraError, JobError
from hydragnn_hpo.files import passes, storage
from hydragnn_hpo.launching import Backend, Event, Job, Slot
from hydragnn_hpo.leases import FAILED, FINISHED, ControllerLease

LOG = "ranks.log"
POLL_SECONDS = 0.1
HOST_SECONDS = 600.0
"""How long to wait for the first host, and for one to come back once all were lost."""

MAX_STARTS = 3
"""A slot whose ranks have ended badly so often is left alone."""

PROGRESS_SECONDS = 1.0
"""Between two looks at what is done."""

ONE_JOB_BACKENDS = ("steps", "mpiexec")
"""Backends that start a launcher for every job: one job holds all ranks."""


def predict_on_ranks(
    request: PredictRequest, pipeline: PredictPipeline, machine: MachineConfig, report: Report
) -> PredictOutcome:
    """Start ranks, wait until all is predicted, and join it.

    Args:
        request: what to predict.
        pipeline: of the request, opened in this process.
        machine: where ranks run.
        report: called with each chunk, and whether it was there before.

    Raises:
        HydraError: it cannot be done, or ranks ended before it was.
    """
    if not machine.shared_files:
        raise ConfigError("predicting on ranks needs files that all hosts see; see shared_files.")
    folder, parts = request.parts.folder / "launch", request.parts
    with storage(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    lease = ControllerLease(folder)
    progress = _Progress(request, report, lease)
    why = FAILED
    try:
        clear_failure(request)
        claims_of(request).clear()
        progress.update(before=True)
        if parts.whole(pipeline.num_sources) is None:
            _run_ranks(request, machine, folder, progress)
        progress.update()
        if parts.whole(pipeline.num_sources) is None:
            _check_given_up(request)
        why = FINISHED
    finally:
        lease.release(why)
        if not (folder / LOG).exists():  # no rank was started
            parts.leave()
    outcome = pipeline.join()
    if outcome is None:
        raise JobError(f"{request.out}: pieces are missing; repeat the command to go on.")
    return outcome


def _run_ranks(
    request: PredictRequest, machine: MachineConfig, folder: Path, progress: "_Progress"
) -> None:
    """Keep a rank on every slot until no chunk is left."""
    one_job = machine.backend in ONE_JOB_BACKENDS
    with backend_on(machine, folder) as backend:
        RankPool(backend, folder, request.to_json(), one_job=one_job).run(progress)


def _check_given_up(request: PredictRequest) -> None:
    """Refuse to go on where chunks were given up; no rank is at work any more.

    Raises:
        JobError: ranks were lost at all attempts at a chunk.
    """
    chunks = map(ChunkId.parse, claims_of(request).last_attempts())
    if given_up := [chunk for chunk in chunks if request.parts.header(chunk) is None]:
        raise given_up_error(request, given_up)


class RankPool:
    """One rank on every slot, each for itself: one that is lost takes no other along.

    Where a launcher is started for every job (``one_job``), one job holds all ranks.
    """

    def __init__(
        self, backend: Backend, folder: Path, spec: dict[str, Any], *, one_job: bool
    ) -> None:
        """Start nothing yet.

        Args:
            backend: runs the ranks.
            folder: for their logs and leases; all hosts see it.
            spec: handed to each of them.
            one_job: start them as one job.
        """
        self._backend, self._folder, self._spec = backend, folder, spec
        self._one_job = one_job
        self._name = f"predict-{secrets.token_hex(3)}"
        self._numbers = itertools.count(1)
        self._running: dict[str, Job] = {}
        self._starts = Counter[str]()
        self._finished = False
        self.log = folder / LOG

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
            if self._running:
                last_busy = time.monotonic()
            elif self._finished or self._is_given_up():
                break
            elif time.monotonic() > last_busy + HOST_SECONDS:
                raise JobError(f"no host joined within {HOST_SECONDS:.0f} s: see {self._folder}.")
            for event in self._backend.poll(POLL_SECONDS):
                self._on_event(event)
            tick()
        if not self._finished:
            raise JobError(f"all ranks have ended before their work was done: see {self.log}.")

    def _fill(self) -> None:
        """Start a rank on each slot that has none, while chunks are left."""
        if self._finished or not self._backend.settled:
            return
        taken = {slot.name for job in self._running.values() for slot in job.slots}
        slots = [slot for slot in self._backend.slots if self._is_free(slot, taken)]
        if self._one_job and slots:
            self._start(slots)
        elif not self._one_job:
            for slot in slots:
                self._start([slot])

    def _is_given_up(self) -> bool:
        """Check whether there are slots, and ranks have ended badly too often on each."""
        slots = self._backend.slots
        return bool(slots) and all(self._starts[slot.name] >= MAX_STARTS for slot in slots)

    def _is_free(self, slot: Slot, taken: set[str]) -> bool:
        return slot.name not in taken and self._starts[slot.name] < MAX_STARTS

    def _start(self, slots: Sequence[Slot]) -> None:
        name = f"{self._name}-{next(self._numbers)}"
        job = Job(
            id=name,
            kind="predict",
            width=len(slots),
            spec=self._spec,
            log=self.log,
            lease=self._folder / f"{name}.lease",
            watch=None,
            slots=tuple(slots),
        )
        self._starts.update(slot.name for slot in slots)
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
    """Reports the parts that ranks have written."""

    def __init__(self, request: PredictRequest, report: Report, lease: ControllerLease) -> None:
        self._request, self._report, self._lease = request, report, lease
        self._known: set[ChunkId] = set()
        self._last_update = 0.0

    def __call__(self) -> None:
        """Update now and then; raise the error that a rank has left."""
        self._lease.renew()
        if time.monotonic() > self._last_update + PROGRESS_SECONDS:
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
