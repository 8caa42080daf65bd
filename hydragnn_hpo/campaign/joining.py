"""Several allocations on one campaign: one of them holds the controller, the others its hosts.

All run the same command. The first that finds the lease free is the controller; the others bring
their hosts to it, and one of them takes over when it is gone.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Literal, Self

from hydragnn_hpo.campaign.backends import OUTLIVES, preload_of, tell_overruled
from hydragnn_hpo.campaign.event_store import read_state
from hydragnn_hpo.campaign.shutdown import ShutdownRequest
from hydragnn_hpo.config import CampaignConfig, MachineConfig
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.files import passes
from hydragnn_hpo.launching import Backend, SlurmBackend, Visit, hold
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.leases import (
    FAILED,
    PAUSED,
    STALE_SECONDS,
    AllocationLease,
    find_controller,
    read_release_reason,
)

TURN_SECONDS = 0.2
LOOK_SECONDS = 1.0
"""Time between two readings of the run directory while no controller answers."""

LEAVING_SECONDS = 20.0
"""Time that trials on these hosts get to write checkpoints when the allocation must leave."""

LAST_SECONDS = 5.0
"""Before the end of the allocation agents are told to go."""

LEASE_SECONDS = STALE_SECONDS + 30.0
"""Default lease of ranks. A controller that is lost with its host is missed after
``STALE_SECONDS``; the next one must listen before the ranks of all other allocations have ended
themselves."""

Course = Literal["free", "finished", "paused", "failed", "drained"]
"""Why ``serve`` ended; ``free``: there is no controller, and this process may be the next."""


def patient(machine: MachineConfig) -> MachineConfig:
    """Return a campaign's machine with leases that outlast a change of controllers."""
    if "lease_seconds" in machine.model_fields_set:
        return machine
    return machine.model_copy(update={"lease_seconds": LEASE_SECONDS})


class AllocationMember:
    """One allocation of several that serve a campaign."""

    def __init__(
        self, config: CampaignConfig, run: RunDir, environment: Mapping[str, str] = os.environ
    ) -> None:
        """Hold the allocation of this process.

        Raises:
            ConfigError: its backend cannot share a campaign, or there is no allocation.
            LeaseTaken: another process of this allocation works for the run already.
        """
        machine = patient(config.machine)
        if machine.backend != OUTLIVES or not machine.shared_files:
            raise ConfigError(
                f"--join needs machine.backend = '{OUTLIVES}' and shared files, this is "
                f"'{machine.backend}': leave it out, or choose another --machine."
            )
        self.config = config.model_copy(update={"machine": machine})
        self.run = run
        self.transport = hold(machine, run.path, environment, one_of_many=True)
        self._seat = AllocationLease(run.path, self.transport.allocation)
        self._visit = Visit(self.transport, run.path)
        self._served = False
        self._until = self.transport.ends_at - LAST_SECONDS
        self._next_look = 0.0

    def __enter__(self) -> Self:
        """Use it in a ``with``."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the agents, and leave."""
        self._visit.hang_up()
        self.transport.close()
        self._seat.release()

    @property
    def whereabouts(self) -> str:
        """Return a name of this allocation for messages."""
        return f"allocation {self.transport.allocation} ({len(self.transport.hosts)} hosts)"

    def backend(self) -> Backend:
        """Return the backend of a controller in this process, with the agents of its allocation."""
        self._visit.hang_up()
        tell_overruled(self.config.machine)
        return SlurmBackend(
            self.config.machine,
            run_dir=self.run.path,
            preload=preload_of(self.config),
            transport=self.transport,
        )

    def serve(self, pause: ShutdownRequest, tell: Callable[[str], None]) -> Course:
        """Bring these hosts to the controller; return why that came to an end.

        Args:
            pause: drains the hosts once it is wanted.
            tell: called with a sentence when something changes.

        Raises:
            RunError: the controller refuses these hosts.
        """
        served, leaving = False, False
        while time.time() < self._until:
            self._visit.turn(TURN_SECONDS)
            self._seat.renew()
            if self._visit.received != served:
                served = self._visit.received
                tell(f"{self.whereabouts} {'serves' if served else 'lost'} a controller")
                self._served |= served
            if (pause.wanted or pause.draining) and not leaving:
                leaving = True
                self._visit.leave(time.time())
                self._until = min(self._until, time.time() + LEAVING_SECONDS)
            course = None if served or leaving else self._look()
            if course is not None:
                return course
        return "drained"

    def _look(self) -> Course | None:
        """Check why there is no controller; None while there is one."""
        if time.monotonic() < self._next_look:
            return None
        self._next_look = time.monotonic() + LOOK_SECONDS
        if find_controller(self.run.path) is not None:
            return None
        try:
            if read_state(self.run).finished:
                return "finished"
        except RunError as error:
            if passes(error):
                return None
            raise
        word = read_release_reason(self.run.path)
        if self._served and word == PAUSED:
            return "paused"
        return "failed" if self._served and word == FAILED else "free"
