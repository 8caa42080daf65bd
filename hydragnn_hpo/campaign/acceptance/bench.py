"""Jobs of an acceptance: run to their end, or ended when their time is up."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_hpo.config.campaign import MachineConfig
from hydragnn_hpo.config.machine import ProfileConfig
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.job import Backend, Event, Job, Slot

POLL_SECONDS = 0.05
HOST_SECONDS = 600.0
"""How long to wait for the first host."""

GATHERING_SECONDS = 20.0
"""Once nobody has joined for so long those who are there begin; or once all are there."""

END_SECONDS = 20.0
"""How long a job that was ended by force may take to be gone."""


@dataclass(frozen=True)
class Site:
    """What is accepted: a machine, through a folder, within a time."""

    profile: ProfileConfig
    machine: MachineConfig
    folder: Path
    minutes: float
    """Length of the campaign."""


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    codes: tuple[int, ...]
    """Of its ranks; none where nobody heard of its end."""
    error: str | None = None
    """A sentence where it could not run, or not in its time."""

    @property
    def well(self) -> bool:
        """Whether all ranks ended with 0."""
        return self.error is None and bool(self.codes) and not any(self.codes)


Hear = Callable[[Event], None]


class Bench:
    """Runs jobs on all hosts there are; one stage after the other uses it."""

    def __init__(self, site: Site, backend: Backend, beat: Callable[[], None]) -> None:
        """Begin; hosts may still be on their way.

        Args:
            site: what is accepted.
            backend: runs the jobs.
            beat: called often while jobs run.
        """
        self.site, self.backend, self._beat = site, backend, beat
        self._folders = 0
        self._late: set[str] = set()

    @property
    def hosts(self) -> dict[str, tuple[Slot, ...]]:
        """Give the slots of each host, neighbours side by side."""
        found: dict[str, list[Slot]] = {}
        for slot in self.backend.slots:
            found.setdefault(slot.host, []).append(slot)
        return {host: tuple(slots) for host, slots in found.items()}

    def gather(self, expected: int = 0) -> None:
        """Wait for the hosts that come.

        Args:
            expected: no more are waited for; 0: nobody knows.

        Raises:
            JobError: none comes.
        """
        began = changed = time.monotonic()
        seen = 0
        while not (expected and seen >= expected):
            self._poll({}, {}, lambda _: None)
            now = time.monotonic()
            if (count := len(self.hosts)) != seen:
                seen, changed = count, now
            elif seen and now > changed + GATHERING_SECONDS:
                return
            elif not seen and now > began + HOST_SECONDS:
                raise JobError(f"no host joined within {HOST_SECONDS:.0f} s: see the agents' logs.")

    def new_folder(self, name: str) -> Path:
        """Make a folder that no earlier start has used."""
        number = 1 + len(list(self.site.folder.glob(f"{name}.[0-9]*")))
        path = self.site.folder / f"{name}.{number:03d}"
        with storage(path):
            path.mkdir(mode=0o700, parents=True)
        return path

    def run(
        self, jobs: Sequence[Job], seconds: float, hear: Hear = lambda _: None
    ) -> dict[str, Ended]:
        """Run jobs side by side to their end.

        Args:
            jobs: each on slots of its own, with ids that were never used.
            seconds: after which those that still run are ended.
            hear: told what happens to them, as it happens.
        """
        waits, ended = {job.id: job for job in jobs}, dict[str, Ended]()
        for job in jobs:
            self.backend.start(job)
        deadline, over = time.monotonic() + seconds, math.inf
        while waits and (now := time.monotonic()) < over:
            if now >= deadline and over == math.inf:
                over = now + END_SECONDS  # from now: we may have been stopped meanwhile
                self._late |= waits.keys()
                for name in waits:
                    self.backend.stop(name, grace=2.0)
            self._poll(waits, ended, hear)
        for name in waits:
            ended[name] = Ended((), f"did not end within {seconds + END_SECONDS:.0f} s")
        return ended

    def _poll(self, waits: dict[str, Job], ended: dict[str, Ended], hear: Hear) -> None:
        self._beat()
        for event in self.backend.poll(POLL_SECONDS):
            if event.kind == "adopted" and event.job:  # of an acceptance that was killed
                self.backend.stop(event.job, grace=0.0)
            if event.job not in waits:
                continue
            if event.kind == "ended":
                del waits[event.job]
                ended[event.job] = self._ended(event.job, event.data)
            hear(event)

    def _ended(self, name: str, told: Mapping[str, Any]) -> Ended:
        error = told.get("error")
        if name in self._late:
            error = "was ended: its time was up"
        return Ended(tuple(told.get("codes") or ()), error)
