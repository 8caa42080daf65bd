"""Jobs that wait for their slots to be theirs alone, and those whose slots are."""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from hydragnn_hpo.launching.job import Event, Job
from hydragnn_hpo.launching.ray.membership import Membership

_NEVER_STARTED = -15
"""Exit code told for ranks that were not started (SIGTERM)."""


class Reservations:
    """Asks the driver for placement groups; knows which job has one."""

    def __init__(self, membership: Membership, patience: float) -> None:
        """Begin without any.

        Args:
            membership: of the cluster.
            patience: seconds that a job waits for slots which others hold.
        """
        self._membership = membership
        self._patience = patience
        self._waiting: dict[str, tuple[Job, list[list[Any]]]] = {}
        self._held: set[str] = set()

    @property
    def waiting(self) -> bool:
        """Say whether a job waits for an answer."""
        return bool(self._waiting)

    def ask(self, job: Job, wanted: Iterable[dict[str, float]]) -> None:
        """Ask for the slots of a job, each of which is ``wanted`` so much."""
        slots = [[slot.host, worth] for slot, worth in zip(job.slots, wanted, strict=True)]
        self._waiting[job.id] = (job, slots)
        self._say(job, slots)

    def _say(self, job: Job, slots: list[list[Any]]) -> None:
        self._membership.say("reserve", job=job.id, slots=slots, patience=self._patience)

    def adopt(self, job_id: str) -> None:
        """Note that an earlier driver holds the slots of a job that runs on."""
        self._held.add(job_id)

    def give_up(self, job_id: str) -> Event | None:
        """Stop waiting; gives the end of the job if it waited."""
        if job_id not in self._waiting:
            return None
        job, _ = self._waiting.pop(job_id)
        self._membership.say("release", job=job_id)
        return _ended(job, None)

    def release(self, job_id: str) -> None:
        """Give back what a job held that has ended."""
        if job_id in self._held:
            self._held.remove(job_id)
            self._membership.say("release", job=job_id)

    def tidy(self) -> None:
        """Give back what is held for jobs that an earlier controller ran and nobody runs now."""
        self._membership.say("tidy", jobs=sorted(self._held | self._waiting.keys()))

    def hear(self, messages: Iterable[dict[str, Any]]) -> tuple[list[Job], list[Event]]:
        """Give the jobs that can start, on the devices that Ray chose, and the ends of others."""
        ready, ended = [], []
        for message in messages:
            if message["job"] not in self._waiting:  # it was given up
                continue
            job, _ = self._waiting.pop(message["job"])
            if message["event"] == "refused":
                ended.append(_ended(job, message["reason"]))
            else:
                self._held.add(job.id)
                ready.append(_on_devices(job, message["devices"]))
        return ready, ended

    def repeat(self, membership: Membership) -> None:
        """Ask again, through a new driver: what the lost one held is free."""
        self._membership = membership
        self._held.clear()
        for job, slots in self._waiting.values():
            self._say(job, slots)


def _on_devices(job: Job, devices: list[str]) -> Job:
    """Let each rank see the GPU that Ray has set aside for it."""
    slots = [
        dataclasses.replace(slot, visible=device) if device else slot
        for slot, device in zip(job.slots, devices, strict=True)
    ]
    return dataclasses.replace(job, slots=tuple(slots))


def _ended(job: Job, error: str | None) -> Event:
    """Tell that a job ended before any of its ranks was started."""
    codes = [_NEVER_STARTED] * job.width
    data = {"codes": codes, "signal_sent": False, "first": None, "error": error}
    return Event("ended", job.id, time.time(), data)
