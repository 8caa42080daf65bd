"""Auxiliary jobs (no trials): each runs in one warm rank and writes its answer to a file."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from hydragnn_hpo.campaign.shutdown import Drained
from hydragnn_hpo.config import DISK_FULL, INTERRUPTED, OUT_OF_MEMORY, STALE
from hydragnn_hpo.errors import ConfigError, JobError, StorageError
from hydragnn_hpo.files import read_json, remove
from hydragnn_hpo.launching import Backend, Event, Job, Slot
from hydragnn_hpo.leases import RANK_LEASE_LAPSED

logger = logging.getLogger(__name__)

TRIES = 3
"""How often a job is started before its campaign gives up: hosts may be lost."""

LATE_SECONDS = 60.0
"""How long the answer of a successful rank may stay invisible: network file systems cache that a
file does not exist."""

NOT_ITS_OWN = (
    *(INTERRUPTED, STALE, OUT_OF_MEMORY, os.EX_OSERR, os.EX_CANTCREAT, RANK_LEASE_LAPSED),
)
"""Exit codes caused by the host: asked to end, stale, no memory, no fork, no lease file, lease
lapsed."""

Wait = Callable[[], None]


class JobEnd(TypedDict):
    """How a job ended: data of the backend's event ``ended``."""

    codes: Sequence[int]
    """Exit codes by rank; negative ones are signals."""
    away: NotRequired[Sequence[str]]
    """Hosts of the job that were lost, including those without ranks; may be absent if none was."""


class AuxiliaryJob:
    """One start of an auxiliary job, and its answer."""

    def __init__(self, run: Path, kind: str, name: str) -> None:
        """Name the answer file; each try has its own, as a frozen earlier try may still resume."""
        self.kind, self.name = kind, name
        self.log = run / f"{kind}.log"
        self.file = run / f".{name}.json"  # not opened before the job ended, see LATE_SECONDS
        for old in run.glob(f".{kind}.*.*"):
            remove(old)

    def job(self, spec: Mapping[str, str], slot: Slot) -> Job:
        """Return the job for the backend."""
        return Job(
            id=self.name,
            kind=self.kind,
            width=1,
            spec={**spec, "answer": str(self.file.resolve())},
            log=self.log,
            watch=None,
            slots=(slot,),
        )

    def was_lost(self, ended: JobEnd) -> bool:
        """Check whether the job was lost with its host or agent instead of ending by itself.

        Args:
            ended: the data of its ``ended`` event.
        """
        codes: Sequence[int] = ended["codes"]
        own = any(code > 0 and code not in NOT_ITS_OWN for code in codes)
        return not own and not self.file.exists()

    def failed(self) -> bool:
        """Check whether it failed in a way that may be specific to its host: a disk, a device."""
        return not self.file.exists() or bool(read_json(self.file).get("storage"))

    def answer(self, codes: Sequence[int]) -> Any:
        """Read the answer once the job has ended with these exit codes.

        Raises:
            JobError: there is no answer.
            ConfigError: the answer is an error for the user.
            StorageError: the answer is an error of a disk.
        """
        if not self.file.exists() and DISK_FULL in codes:
            raise StorageError(
                f"{self.file.parent}: the {self.kind} job could not write its answer, most likely "
                "because the disk is full; make room, then run the same command again to go on."
            )
        if not self.file.exists() and OUT_OF_MEMORY in codes:
            raise JobError(
                f"the {self.kind} job was killed by the kernel, as the memory of its host, or of "
                "its control group, had run out: lower machine.slots or ask for more memory, then "
                "run the same command again to go on."
            )
        if not self.file.exists():
            raise JobError(f"the {self.kind} job ended without an answer; see {self.log}.")
        values = read_json(self.file)
        self.file.unlink()
        if "error" in values:
            raise (StorageError if values.get("storage") else ConfigError)(values["error"])
        return values


class AuxiliaryJobs:
    """Runs auxiliary jobs; starts a job again if its host is lost."""

    def __init__(
        self,
        run: Path,
        backend: Backend,
        *,
        epoch: int,
        choose: Callable[[Sequence[str]], Slot],
        wait: Wait,
    ) -> None:
        """Start without a job.

        Args:
            run: the run directory.
            backend: runs them.
            epoch: of the controller, part of the jobs' names.
            choose: returns a slot, given the hosts of earlier tries; prefers an untried host.
            wait: processes events while a job runs and passes them to ``on_event``; its errors
                end the waiting.
        """
        self._run, self._backend, self._epoch = run, backend, epoch
        self._choose, self._wait = choose, wait
        self._count = 0
        self._name = ""
        self._ended: JobEnd | None = None

    def on_event(self, event: Event) -> None:
        """Record the end of the present job."""
        if event.kind == "ended" and event.job == self._name:
            self._ended = cast("JobEnd", event.data)

    def run(self, kind: str, spec: Mapping[str, str]) -> Any:
        """Run one job, and return its answer.

        A lost job is started again. A job that fails because of a disk or device is tried on one
        other host, if there is any: this may be the last step of a campaign.

        Raises:
            JobError: it ended without an answer.
            ConfigError: its answer is an error for the user.
            StorageError: its answer is an error of a disk.
            Drained: it was lost with its host ``TRIES`` times.
        """
        tried: list[str] = []
        while True:
            self._count += 1
            job = AuxiliaryJob(self._run, kind, f"{kind}.{self._epoch}.{self._count}")
            ended = self._end_of(job, spec, tried)
            last = len(tried) >= TRIES
            lost = job.was_lost(ended)
            if last and lost and ended.get("away"):
                raise Drained(f"the {kind} job was lost with its host {TRIES} times")
            if last or not self._goes_again(job, ended, tried):
                return job.answer(ended["codes"])

    def _goes_again(self, job: AuxiliaryJob, ended: JobEnd, tried: Sequence[str]) -> bool:
        if job.was_lost(ended):
            memory = OUT_OF_MEMORY in ended["codes"]
            how = "killed, as memory had run out" if memory else "lost"
            logger.warning("the %s job was %s; it is sent again.", job.kind, how)
            return True
        if len(tried) > 1 or not job.failed() or self._choose(tried).host in tried:
            return False
        logger.warning("the %s job failed on host %s; it is sent elsewhere.", job.kind, tried[0])
        return True

    def _end_of(self, job: AuxiliaryJob, spec: Mapping[str, str], tried: list[str]) -> JobEnd:
        """Run a job, and return how it ended once its answer is visible.

        Args:
            job: the job.
            spec: its specification.
            tried: hosts of earlier tries; the host of this one is appended.
        """
        self._name = job.name
        self._ended = None
        slot = self._choose(tried)
        tried.append(slot.host)
        self._backend.start(job.job(spec, slot))
        while self._ended is None:
            self._wait()
        deadline = time.monotonic() + LATE_SECONDS
        while 0 in self._ended["codes"] and not job.file.exists():
            if time.monotonic() > deadline:
                break
            self._wait()
        return self._ended
