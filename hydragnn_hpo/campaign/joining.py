"""Several allocations on one campaign: one of them holds the controller, the others its hosts.

All run the same command. Whoever finds the lease free is the controller; who does not brings his
hosts to the one that is, and takes over when that one is gone.
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
"""How often the run directory is looked at while no controller hears us."""

LEAVING_SECONDS = 20.0
"""What the trials on our hosts get to leave checkpoints when we are told to go."""

LAST_SECONDS = 5.0
"""Before the end of the allocation agents are told to go."""

LEASE_SECONDS = STALE_SECONDS + 30.0
"""Lease of ranks, if nobody says another one. A controller that is lost with its host is missed
after ``STALE_SECONDS``; who takes over then must have opened its door before the ranks of all
other allocations have ended themselves."""

Course = Literal["free", "finished", "paused", "failed", "drained"]
"""Why we do not serve any more; ``free``: there is no controller, and it could be us."""


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
        """Hold the allocation that we are in.

        Raises:
            ConfigError: its backend cannot share a campaign, or we are in no allocation.
            LeaseTaken: somebody in this allocation works for the run already.
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
        """End our agents, and leave."""
        self._visit.hang_up()
        self.transport.close()
        self._seat.release()

    @property
    def whereabouts(self) -> str:
        """Return a name of this allocation for messages."""
        return f"allocation {self.transport.allocation} ({len(self.transport.hosts)} hosts)"

    def backend(self) -> Backend:
        """Be the controller's backend, with the agents that we have."""
        self._visit.hang_up()
        tell_overruled(self.config.machine)
        return SlurmBackend(
            self.config.machine,
            run_dir=self.run.path,
            preload=preload_of(self.config),
            transport=self.transport,
        )

    def serve(self, pause: ShutdownRequest, tell: Callable[[str], None]) -> Course:
        """Bring our hosts to whoever is the controller; gives why that came to an end.

        Args:
            pause: heard, it has our hosts drained.
            tell: hears a sentence when something changes.

        Raises:
            RunError: the controller will not have us.
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
        """See whether there is a controller; None while there is."""
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
