"""Run jobs on a Ray cluster: a fleet of agents, and a placement group for every job."""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from hydragnn_hpo.config import MachineConfig
from hydragnn_hpo.errors import JobError, unknown
from hydragnn_hpo.launching.fleet.fleet import Fleet
from hydragnn_hpo.launching.job import JOBS, PRELOAD, Event, Job, Slot
from hydragnn_hpo.launching.profile_adapter import site_of
from hydragnn_hpo.launching.ray.inside import find_ground
from hydragnn_hpo.launching.ray.ray_transport import RayTransport
from hydragnn_hpo.launching.ray.reservations import Reservations
from hydragnn_hpo.launching.ray.shares import shares

_SLICE = 0.02
"""Seconds between two looks for the cluster's answer, while a job waits for it."""

PATIENCE = 30.0
"""Seconds that a job waits for slots which other users of the cluster hold."""


def fleet_on(
    transport: RayTransport,
    machine: MachineConfig,
    run_dir: Path,
    jobs: Mapping[str, str],
    preload: Sequence[str],
) -> Fleet:
    """Have agents started by a transport; see ``RayBackend`` for the rest."""
    return Fleet(
        transport,
        run_dir=run_dir,
        lease_seconds=machine.lease_seconds,
        slots=machine.slots,
        lanes=machine.lanes,
        site=site_of(machine),
        shared_files=machine.shared_files,
        sample_seconds=machine.sample_seconds,
        jobs=jobs,
        preload=preload,
    )


class RayBackend:
    """Forked ranks on the hosts of a Ray cluster, see ``Backend``.

    A job first occupies its slots, so that nobody else on the cluster gets them; one that does
    not get them in time ends with a sentence, as if its host had been lost.
    """

    def __init__(
        self,
        machine: MachineConfig,
        *,
        run_dir: Path,
        environment: Mapping[str, str] = os.environ,
        token: Path | None = None,
        patience: float = PATIENCE,
        jobs: Mapping[str, str] = JOBS,
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        """Join or start a cluster, some seconds, and have an agent started on each of its hosts.

        Args:
            machine: says which cluster, and how much of it.
            run_dir: an existing folder that this controller alone uses.
            environment: names the allocation, and the file of the token.
            token: file of the cluster's token; where Ray itself would look if None.
            patience: seconds that a job waits for slots which others hold.
            jobs: kind of job -> ``module:function``.
            preload: the modules that a zygote imports.

        Raises:
            ConfigError: the cluster cannot be joined.
            JobError: none can be started.
        """
        self._kinds = jobs
        self._closed = self._tidied = False
        self._ended: list[Event] = []
        ground = find_ground(machine, run_dir=run_dir, environment=environment, token=token)
        with contextlib.ExitStack() as opened:
            if ground.started:
                opened.callback(ground.started.close)
            self._transport = RayTransport(machine, ground, run_dir=run_dir)
            opened.callback(self._transport.close)
            self._fleet = fleet_on(self._transport, machine, run_dir, jobs, preload)
            self._ground = opened.pop_all()
        self._asked = self._transport.membership
        self._reservations = Reservations(self._asked, patience)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots of all hosts that are there now, neighbours in the network side by side."""
        return self._fleet.slots

    @property
    def settled(self) -> bool:
        """Say whether all jobs of a lost controller were told as ``adopted`` or are gone."""
        return self._fleet.settled

    @property
    def guests(self) -> frozenset[str]:
        """Hosts of other allocations: none can come."""
        return self._fleet.guests

    @property
    def ends_at(self) -> float:
        """When the hosts are taken from us, in seconds since the epoch; infinity if never."""
        return self._fleet.ends_at

    def start(self, job: Job) -> None:
        """Run a job as soon as its slots are its own; returns at once.

        Raises:
            JobError: the kind is unknown.
        """
        if job.kind not in self._kinds:
            raise JobError(unknown("kind of job", job.kind, self._kinds))
        worth = shares(self._fleet.slots, self._transport.membership.hosts)
        least = {"CPU": 1.0}  # of a host that has left: the cluster will say so
        self._reservations.ask(job, [worth.get(slot.name, least) for slot in job.slots])

    def stop(self, job_id: str, grace: float = 5.0) -> None:
        """Ask a job to end by SIGTERM, force it after ``grace`` seconds; ended ones are ignored."""
        if (ended := self._reservations.give_up(job_id)) is not None:
            self._ended.append(ended)
        self._fleet.stop(job_id, grace)

    def ask(self, job_id: str, wish: str) -> None:
        """Ask rank 0 of a job to ``yield`` at a checkpoint, or to ``stop`` with what it has."""
        self._fleet.ask(job_id, wish)

    def poll(self, timeout: float) -> list[Event]:
        """Give what happened, waiting at most ``timeout`` seconds for something to happen.

        Raises:
            JobError: the cluster is gone, or no agent can start on any host.
        """
        deadline = time.monotonic() + timeout
        while not self._closed:
            events = self._hear_cluster()
            left = max(0.0, deadline - time.monotonic())
            wait = 0.0 if events else _SLICE if self._reservations.waiting else left
            events += self._note(self._fleet.poll(min(wait, left)))
            if events or left == 0.0:
                return events
        return []

    def _hear_cluster(self) -> list[Event]:
        """Start the jobs that have their slots; give the ends of those that do not get them."""
        if self._transport.membership is not self._asked:
            self._asked = self._transport.membership
            self._reservations.repeat(self._asked)
        ready, ended = self._reservations.hear(self._transport.answers())
        for job in ready:
            self._fleet.start(job)
        ended += self._ended
        self._ended = []
        return ended

    def _note(self, events: list[Event]) -> list[Event]:
        """Give back what ended jobs held."""
        for event in events:
            if event.job is not None and event.kind == "ended":
                self._reservations.release(event.job)
            elif event.job is not None and event.kind == "adopted":
                self._reservations.adopt(event.job)
        if self._fleet.settled and not self._tidied:
            self._tidied = True
            self._reservations.tidy()
        return events

    def close(self) -> None:
        """End everything; no process is left. What was not polled yet is lost."""
        if not self._closed:
            self._closed = True
            self._fleet.close()
            self._ground.close()

    def __enter__(self) -> Self:
        """Use the backend in a ``with``."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()
