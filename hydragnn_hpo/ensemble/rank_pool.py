"""Ranks that a backend runs until all pieces are done: started, replaced, and ended."""

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.backends import backend_on
from hydragnn_hpo.campaign.lease import FAILED, FINISHED, Lease
from hydragnn_hpo.config.campaign import MachineConfig
from hydragnn_hpo.ensemble.multi_rank import (
    ChunkClaims,
    claims_of,
    failure_of,
    forget_failure,
    lost_pieces,
    name_of,
)
from hydragnn_hpo.ensemble.output_parts import ChunkId, PartFolder, PartHeader
from hydragnn_hpo.ensemble.predict_file import PredictOutcome, PredictPipeline, PredictRequest
from hydragnn_hpo.errors import ConfigError, HydraError, JobError
from hydragnn_hpo.files import passes, storage
from hydragnn_hpo.launching.job import Backend, Event, Job, Slot

LOG = "ranks.log"
POLL_SECONDS = 0.1
HOST_SECONDS = 600.0
"""How long to wait for the first host, and for one to come back once all were lost."""

MOST_STARTS = 3
"""A slot whose ranks have ended badly so often is left alone."""


class RankPool:
    """One rank on every slot, each for itself: one that is lost takes no other along.

    Where a launcher is started for every job (``together``), one job holds all ranks.
    """

    def __init__(
        self,
        backend: Backend,
        folder: Path,
        spec: dict[str, Any],
        *,
        together: bool,
    ) -> None:
        """Start nothing yet.

        Args:
            backend: runs the ranks.
            folder: for their logs and leases; all hosts see it.
            spec: handed to each of them.
            together: start them as one job.
        """
        self._backend, self._folder, self._spec = backend, folder, spec
        self._together = together
        self._name = f"predict-{secrets.token_hex(3)}"
        self._numbers = itertools.count(1)
        self._alive: dict[str, Job] = {}
        self._starts = Counter[str]()
        self._done = False
        self.log = folder / LOG

    @property
    def ranks(self) -> int:
        """How many ranks are at work."""
        return sum(job.width for job in self._alive.values())

    def run(self, tell: Callable[[], None]) -> None:
        """Have ranks on all slots, and come back when none is left.

        Args:
            tell: called often meanwhile; what it raises ends the ranks.

        Raises:
            JobError: there is no host, or every rank has ended badly.
        """
        busy = time.monotonic()
        while True:
            self._fill()
            if self._alive:
                busy = time.monotonic()
            elif self._done or self._is_given_up():
                break
            elif time.monotonic() > busy + HOST_SECONDS:
                raise JobError(f"no host joined within {HOST_SECONDS:.0f} s: see {self._folder}.")
            for event in self._backend.poll(POLL_SECONDS):
                self._hear(event)
            tell()
        if not self._done:
            raise JobError(f"all ranks have ended before their work was done: see {self.log}.")

    def _fill(self) -> None:
        """Start a rank on each slot that has none, while there is something left to do."""
        if self._done or not self._backend.settled:
            return
        taken = {slot.name for job in self._alive.values() for slot in job.slots}
        free = [slot for slot in self._backend.slots if self._is_free(slot, taken)]
        for some in _groups(free, together=self._together):
            self._start(some)

    def _is_given_up(self) -> bool:
        """Say whether there are slots, and ranks have ended badly too often on each."""
        slots = self._backend.slots
        return bool(slots) and all(self._starts[slot.name] >= MOST_STARTS for slot in slots)

    def _is_free(self, slot: Slot, taken: set[str]) -> bool:
        return slot.name not in taken and self._starts[slot.name] < MOST_STARTS

    def _start(self, slots: tuple[Slot, ...]) -> None:
        name = f"{self._name}-{next(self._numbers)}"
        job = Job(
            id=name,
            kind="predict",
            width=len(slots),
            spec=self._spec,
            log=self.log,
            lease=self._folder / f"{name}.lease",
            watch=None,
            slots=slots,
        )
        self._starts.update(slot.name for slot in slots)
        self._alive[name] = job
        self._backend.start(job)

    def _hear(self, event: Event) -> None:
        """Take note of a job's end: a rank ends well only when nothing is left to do."""
        if event.kind == "adopted" and event.job:  # of a command that was killed
            self._backend.stop(event.job, grace=0.0)
        if event.kind == "ended" and event.job in self._alive:
            del self._alive[event.job]
            if 0 in (event.data.get("codes") or ()) and not self._done:
                self._done = True
                for name in self._alive:  # they only look whether others are done
                    self._backend.stop(name)


def _groups(slots: Sequence[Slot], *, together: bool) -> list[tuple[Slot, ...]]:
    if together:
        return [tuple(slots)] if slots else []
    return [(slot,) for slot in slots]


TOGETHER = ("steps", "mpiexec")
"""Backends that start a launcher for every job: one job holds all ranks."""

LOOK_SECONDS = 1.0
"""Between two looks at what is done."""

Tell = Callable[[PartHeader, bool], None]


def predict_on(
    order: PredictRequest, work: PredictPipeline, machine: MachineConfig, tell: Tell
) -> PredictOutcome:
    """Start ranks, wait until all is predicted, and join it.

    Args:
        order: what to predict.
        work: the same, opened here.
        machine: on what.
        tell: is called with each piece, and whether it was there before.

    Raises:
        HydraError: it cannot be done, or ranks ended before it was.
    """
    if not machine.shared_files:
        raise ConfigError("predicting on ranks needs files that all hosts see; see shared_files.")
    folder = order.parts.folder / "launch"
    with storage(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    lease = Lease(folder)
    watch = _Watch(order, tell, lease)
    forget_failure(order)
    why = FAILED
    try:
        with ChunkClaims(claims_of(order)) as claims:
            claims.forget_dead()
            watch.look(before=True)
            if order.parts.whole(work.lots) is None:
                _start(order, machine, folder, watch)
            watch.look()
            if lost := _lost(order.parts, work, claims):
                raise lost_pieces(order, lost)
        why = FINISHED
    finally:
        lease.release(why)
        if not (folder / LOG).exists():  # nobody was started
            order.parts.leave()
    outcome = work.join()
    if outcome is None:
        raise JobError(f"{order.out}: pieces are missing; repeat the command to go on.")
    return outcome


def _start(order: PredictRequest, machine: MachineConfig, folder: Path, watch: "_Watch") -> None:
    """Have a rank on every slot until nothing is left to do."""
    with backend_on(machine, folder) as backend:
        together = machine.backend in TOGETHER
        RankPool(backend, folder, order.as_json(), together=together).run(watch)


class _Watch:
    """Looks at what ranks have done."""

    def __init__(self, order: PredictRequest, tell: Tell, lease: Lease) -> None:
        self._order, self._tell, self._lease = order, tell, lease
        self._known: set[ChunkId] = set()
        self._looked = 0.0

    def __call__(self) -> None:
        """Look now and then; raise what a rank has failed with."""
        self._lease.renew()
        if time.monotonic() > self._looked + LOOK_SECONDS:
            self._looked = time.monotonic()
            try:
                failure = failure_of(self._order)
                self.look()
            except (HydraError, OSError) as error:  # files may be back at the next look
                if not passes(error):
                    raise
            else:
                if failure:
                    raise failure

    def look(self, before: bool = False) -> None:
        """Tell of what is new."""
        parts = self._order.parts
        for piece in sorted(set(parts.done()) - self._known):
            if header := parts.header(piece):
                self._known.add(piece)
                self._tell(header, before)


def _lost(parts: PartFolder, work: PredictPipeline, claims: ChunkClaims) -> list[ChunkId]:
    """Give the pieces at which too many ranks have ended."""
    if parts.whole(work.lots) is not None:
        return []
    known = parts.done()
    near = []
    for lot in range(work.lots):
        most = max((piece.number for piece in known if piece.lot == lot), default=0)
        near += [ChunkId(lot, number) for number in range(most + 2)]
    return [piece for piece in near if claims.is_lost(name_of(piece))]
