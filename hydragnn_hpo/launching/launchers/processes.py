"""Run every job by a launcher of its own: ``srun`` or ``mpiexec``, for commands that need a PMI.

The launcher starts a keeper for every rank (``keeper.py``). All that matters goes through small
files beside the job's lease, so all hosts must see the run directory. What the launcher's exit
code says is not believed.
"""

import contextlib
import itertools
import secrets
import shutil
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from hydragnn_hpo.config import SiteConfig
from hydragnn_hpo.errors import JobError, unknown
from hydragnn_hpo.files import write_json
from hydragnn_hpo.launching.job import JOBS, Event, Job, Slot
from hydragnn_hpo.launching.launchers.launched import RANKS, Launched
from hydragnn_hpo.launching.launchers.launcher import Launcher, Site
from hydragnn_hpo.launching.process_control import AGENT, end_tagged, run_tag
from hydragnn_hpo.launching.profile_adapter import UNKNOWN

MOST_ALIVE = 64
"""Launchers at a time: each asks the one Slurm controller of the machine for something."""

_LOOK_SECONDS = 0.2
"""Between two looks at the files of running jobs."""

_RENEWALS = 5
"""Renewals of each lease per lease time."""


class ProcessBackend:
    """One launcher process per job, see ``Backend``.

    Create, poll and close it in one thread that lives as long as it: when that thread ends, the
    kernel kills the launchers, and what they started ends with its leases.
    """

    def __init__(
        self,
        launcher: Launcher,
        *,
        lease_seconds: float = 10.0,
        run_dir: Path,
        site: SiteConfig = UNKNOWN,
        jobs: Mapping[str, str] = JOBS,
        most_alive: int = MOST_ALIVE,
    ) -> None:
        """Start nothing yet.

        Args:
            launcher: renders and ends the launchers.
            lease_seconds: how long ranks outlive a controller that hangs.
            run_dir: an existing folder that all hosts see.
            site: what the machine's profile says of hosts and ranks.
            jobs: kind of job -> ``module:function``.
            most_alive: launchers at a time; further jobs wait in order.
        """
        self.slots: tuple[Slot, ...] = launcher.slots
        self.ends_at, self.guests = launcher.ends_at, frozenset[str]()
        self._launcher, self._jobs, self._most = launcher, jobs, most_alive
        self._token = secrets.token_hex(8)
        self._site = Site(launcher, lease_seconds, run_tag(run_dir), self._token, site)
        self._waiting: deque[Launched] = deque()
        self._alive: dict[str, Launched] = {}
        ready = {"import_seconds": 0.0, "threads": 1}
        self._news = [Event("ready", None, time.time(), ready)]
        self._begin_at = time.monotonic()
        if _take_leases(run_dir):  # ranks of a lost controller may live on for a lease time
            self._begin_at += lease_seconds
        self._closing = threading.Event()
        renewing = threading.Thread(target=self._renew, daemon=True, name="leases")
        renewing.start()

    @property
    def settled(self) -> bool:
        """Say whether all jobs of a lost controller are gone; until then none is started."""
        return time.monotonic() >= self._begin_at

    def _renew(self) -> None:
        """Renew all leases, also while the controller does not listen; runs in a thread."""
        while not self._closing.wait(self._site.lease_seconds / _RENEWALS):
            for launched in list(self._alive.values()):
                launched.renew()

    def start(self, job: Job) -> None:
        """Run a job as soon as its turn has come; returns at once.

        Raises:
            JobError: the kind is unknown.
        """
        if job.kind not in self._jobs:
            raise JobError(unknown("kind of job", job.kind, self._jobs))
        known = itertools.chain(self._alive, (launched.job.id for launched in self._waiting))
        assert job.id not in known, f"job {job.id} is running"
        self._waiting.append(Launched(job, self._jobs[job.kind], self._site))

    def stop(self, job_id: str, grace: float = 5.0) -> None:
        """Ask a job to end by SIGTERM, force it after ``grace`` seconds; ended ones are ignored."""
        if launched := self._alive.get(job_id):
            launched.stop(grace)
        for launched in [one for one in self._waiting if one.job.id == job_id]:
            self._waiting.remove(launched)
            self._news.append(launched.never_started())

    def ask(self, job_id: str, wish: str) -> None:
        """Ask rank 0 of a job to ``yield`` or to ``stop``; ended ones are ignored."""
        launched = self._alive.get(job_id)
        if launched and launched.job.control is not None:
            write_json(launched.job.control, {"wish": wish})

    def poll(self, timeout: float) -> list[Event]:
        """Give what happened, waiting at most ``timeout`` seconds for something to happen."""
        deadline = time.monotonic() + timeout
        while True:
            events = self._look()
            left = deadline - time.monotonic()
            if events or left <= 0 or self._closing.is_set():
                return events
            time.sleep(min(left, _LOOK_SECONDS))

    def _look(self) -> list[Event]:
        while self.settled and self._waiting and len(self._alive) < self._most:
            launched = self._waiting.popleft()
            self._alive[launched.job.id] = launched
            launched.begin()
        events, self._news = self._news, []
        for name, launched in list(self._alive.items()):
            events += launched.look()
            if launched.over:
                del self._alive[name]
        return events

    def close(self) -> None:
        """End everything; no process is left here, and elsewhere none outlives a lease."""
        if self._closing.is_set():
            return
        self._closing.set()
        for launched in self._alive.values():
            launched.force()
        for launched in self._alive.values():
            launched.end()
        with contextlib.suppress(JobError):
            end_tagged(AGENT, self._token)

    def __enter__(self) -> Self:
        """Use the backend in a ``with``."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()


def _take_leases(run_dir: Path) -> bool:
    """Take away the leases that a lost controller left; False if there were none."""
    left = list(run_dir.rglob(f"*{RANKS}"))
    for folder in left:
        with contextlib.suppress(OSError):
            folder.with_name(folder.name.removesuffix(RANKS)).unlink()
        shutil.rmtree(folder, ignore_errors=True)
    return bool(left)
