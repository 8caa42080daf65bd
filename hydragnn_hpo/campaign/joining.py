"""Several allocations on one campaign: one of them holds the controller, the others its hosts.

All run the same command. The first that finds the lease free is the controller; the others start
agents on their hosts, which connect to it like its own, and one of them takes over when it is gone.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Literal, Self

import hydragnn_hpo
from hydragnn_hpo.campaign.backends import check_host_count, fleet_on, preload_of, tell_overruled
from hydragnn_hpo.campaign.event_store import read_state
from hydragnn_hpo.campaign.journal import JournalFollower, JournalReplaced
from hydragnn_hpo.campaign.shutdown import ShutdownRequest
from hydragnn_hpo.config import CampaignConfig, MachineConfig
from hydragnn_hpo.errors import ConfigError, JobError, RunError, StorageError
from hydragnn_hpo.files import is_transient
from hydragnn_hpo.launching import Backend, find_backend
from hydragnn_hpo.launching.link import ControllerAddress, announce_leaving, read_address
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.launching.transports import name_backends
from hydragnn_hpo.launching.transports.transport import AgentCall
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.leases import (
    FAILED,
    PAUSED,
    STALE_SECONDS,
    AllocationLease,
    find_controller,
    read_release_reason,
)

logger = logging.getLogger(__name__)

TURN_SECONDS = 0.2
LOOK_SECONDS = 1.0
"""Time between two readings of the run directory."""

RESTART_SECONDS = 10.0
"""Between two starts of an agent on one host; six times as long where the first was in vain."""

LEAVING_SECONDS = 20.0
"""Time that trials on these hosts get to write checkpoints when the allocation must leave."""

LAST_SECONDS = 5.0
"""Time before the end of the allocation at which agents are stopped."""

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

    def __init__(self, config: CampaignConfig, run: RunDir) -> None:
        """Hold the allocation of this process.

        Raises:
            ConfigError: its backend cannot share a campaign, or there is no allocation.
            LeaseTaken: another process of this allocation works for the run already.
        """
        machine = patient(config.machine)
        join = find_backend(machine.backend).join
        if join is None:
            able = name_backends(lambda kind: kind.joins)
            raise ConfigError(
                f"--join needs machine.backend = {able}, this is '{machine.backend}': leave it "
                "out, or choose another --machine."
            )
        self.config = config.model_copy(update={"machine": machine})
        self.run = run
        self.transport = join(machine, run.path)
        check_host_count(config.launch.min_hosts, len(self.transport.hosts))
        self._seat = AllocationLease(run.path, self.transport.allocation)
        self._journal = JournalFollower(run.journal)
        self._due = dict.fromkeys(self.transport.hosts, 0.0)
        """When to start an agent on each host that has none, in monotonic time."""
        self._joined: set[str] = set()
        """Hosts with an agent."""
        self._lease_seconds = machine.lease_seconds
        self._reasons: dict[str, str] = {}
        """Why the last agent of a host could not be started."""
        self._served = False
        self._until = self.transport.ends_at - LAST_SECONDS
        self._next_look = 0.0

    def __enter__(self) -> Self:
        """Use it in a ``with``."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the agents, and leave."""
        self.transport.close()
        self._seat.release()

    def backend(self) -> Backend:
        """Return the backend of a controller in this process, with the agents of its allocation."""
        tell_overruled(self.config.machine)
        machine = self.config.machine
        preload = preload_of(self.config)
        return fleet_on(self.transport, machine, self.run.path, preload)

    def serve(self, pause: ShutdownRequest, tell: Callable[[str], None]) -> Course:
        """Bring these hosts to the controller; return why that came to an end.

        Args:
            pause: drains the hosts once it is wanted.
            tell: called with a sentence when something changes.

        Raises:
            RunError: the controller refuses these hosts.
        """
        served, leaving, course = False, False, None
        while time.time() < self._until and course is None:
            time.sleep(TURN_SECONDS)
            self._seat.renew()
            if (pause.wanted or pause.draining) and not leaving:
                leaving = True
                self._until = min(self._until, time.time() + LEAVING_SECONDS)
                with contextlib.suppress(StorageError):  # else agents say it as Slurm ends them
                    announce_leaving(self.run.path, self.transport.hosts, time.time())
            if leaving or time.monotonic() < self._next_look:
                continue
            self._next_look = time.monotonic() + LOOK_SECONDS
            address = self._find_controller()
            if (address is not None) != served:
                served = address is not None
                name = f"allocation {self.transport.allocation} ({len(self.transport.hosts)} hosts)"
                tell(f"{name} {'serves' if served else 'lost'} a controller")
                self._served |= served
            if address is None:
                course = self._find_course()
            elif ending := self._keep_agents(address):
                tell(ending)
                course = "drained"
        return course or "drained"

    def _find_controller(self) -> ControllerAddress | None:
        """Return where the controller listens that these hosts serve; None if there is none.

        Raises:
            RunError: it cannot use these hosts.
        """
        if find_controller(self.run.path) is None:
            return None
        try:
            address = read_address(self.run.path)
        except RunError as error:
            if is_transient(error):
                return None
            raise
        if address is None or not address.port:
            return None
        if address.allocation == self.transport.allocation:
            raise RunError(
                f"{self.run.path}: allocation {address.allocation} runs it already, its "
                "controller is here: leave --join out."
            )
        if refusal := self._find_refusal(address):
            raise RunError(
                f"{self.run.path}: this allocation cannot join: {refusal}; give all of them "
                "the same backend, package and path."
            )
        return address

    def _find_refusal(self, address: ControllerAddress) -> str | None:
        """Return why a controller cannot use these hosts."""
        if not address.allocation:
            return "hosts cannot join this backend"
        if address.version != hydragnn_hpo.__version__:
            return (
                f"the controller has version {address.version} of hydragnn-hpo, this is "
                f"{hydragnn_hpo.__version__}"
            )
        if address.run != run_tag(self.run.path):
            return "the controller sees the run directory under another path"
        return None

    def _keep_agents(self, address: ControllerAddress) -> str | None:
        """Start agents on the hosts that have none: yet, or any more as the journal says.

        Returns:
            A sentence if this allocation has ended.
        """
        now = time.monotonic()
        try:
            for event in self._journal.read_new():
                if event["event"] == "host_joined":
                    self._joined.add(event["host"])
                elif event["event"] == "host_lost" and event["host"] in self.transport.hosts:
                    self._joined.discard(event["host"])
                    self._due[event["host"]] = now
        except (RunError, JournalReplaced):  # its file server is away
            return None
        try:
            reports = self.transport.poll()
        except JobError as error:
            return str(error)
        for news in reports:
            if news.host in self._joined:  # the controller reports its loss, once its lease is over
                self._due[news.host] = now + RESTART_SECONDS + 2 * self._lease_seconds
                continue
            known = self._reasons.get(news.host) == news.reason
            if not known:
                logger.warning("host %s %s", news.host, news.reason)
            self._reasons[news.host] = news.reason
            self._due[news.host] = now + RESTART_SECONDS * (6 if known else 1)
        if due := [host for host, when in self._due.items() if when <= now]:
            for host in due:
                del self._due[host]
            self._joined.difference_update(due)
            self.transport.start(due, AgentCall(self.run.path, address.run, address.epoch))
        return None

    def _find_course(self) -> Course | None:
        """Return why there is no controller; None while there is one."""
        if find_controller(self.run.path) is not None:
            return None
        try:
            if read_state(self.run).finished:
                return "finished"
        except RunError as error:
            if is_transient(error):
                return None
            raise
        word = read_release_reason(self.run.path)
        if self._served and word == PAUSED:
            return "paused"
        return "failed" if self._served and word == FAILED else "free"
