"""Agents as tasks of Slurm job steps: one ``srun`` for all hosts, one more for those lost."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydragnn_hpo.config import MachineConfig
from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.launching.environment import OWN, Software, equip
from hydragnn_hpo.launching.excluded_hosts import read_run_excluded
from hydragnn_hpo.launching.host_network import first_there, own_address
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.profile_adapter import site_of
from hydragnn_hpo.launching.slurm_allocation import (
    Allocation,
    HostStateQuery,
    step_argv,
    step_environment,
)
from hydragnn_hpo.launching.transports.launched_agents import LaunchedAgents, check_shared_folder
from hydragnn_hpo.launching.transports.transport import AgentCall, HostNews, agent_argv

_MOMENT_SECONDS = 0.2
"""Slurm mostly knows the states of hosts within it; then steps start at once."""


def slurm_transport(
    machine: MachineConfig,
    run_dir: Path,
    environment: Mapping[str, str] = os.environ,
    *,
    one_of_many: bool = False,
) -> "SlurmTransport":
    """Return what starts agents in the allocation of this process; blocks to deliver software.

    Args:
        machine: how many hosts, over which interface.
        run_dir: an existing folder.
        environment: names the allocation, see ``Allocation.find``.
        one_of_many: whether other allocations may serve the same campaign.

    Raises:
        ConfigError: there is no allocation, or no such interface or profile.
        JobError: Slurm does not answer.
    """
    site = site_of(machine)
    allocation = Allocation.find(environment, machine.hosts, without=read_run_excluded(run_dir))
    software, usable = equip(machine, site, allocation, run_dir=run_dir, environment=environment)
    interface = machine.interface or first_there(site.interfaces)
    transport = SlurmTransport(
        replace(usable, address=own_address(interface, usable.address)),
        run_dir=run_dir,
        flags=site.step.agents,
        software=software,
        one_of_many=one_of_many,
    )
    transport.check_run_directory()
    return transport


@dataclass
class _Request:
    """Agents that start as soon as Slurm has said which hosts can run them."""

    hosts: dict[str, str]
    """Ids by Slurm's names."""
    call: AgentCall
    states: HostStateQuery


class SlurmTransport:
    """Starts agents on the hosts of an allocation; Slurm tracks them and ends them with it.

    Nothing that Slurm reports proves that processes are gone: leases do, and new agents, which
    end what is left of earlier ones on their host.
    """

    slots: tuple[Slot, ...] = ()
    outlives = True

    def __init__(
        self,
        allocation: Allocation,
        *,
        run_dir: Path,
        flags: Sequence[str] = (),
        software: Software = OWN,
        one_of_many: bool = False,
    ) -> None:
        """Use an allocation; nothing is started yet.

        Args:
            allocation: its ``address`` is that on which the controller listens.
            run_dir: logs of steps go below it.
            flags: of the machine's profile, for steps of agents.
            software: which Python agents are.
            one_of_many: whether ids of hosts name the allocation, too.
        """
        self.allocation, self.ends_at = allocation.job, allocation.ends_at
        self.address = allocation.address
        self._suffix = f"@{allocation.job}" if one_of_many else ""
        self.hosts: Sequence[str] = tuple(host + self._suffix for host in allocation.hosts)
        self._flags, self._software = tuple(flags), software
        self._steps = LaunchedAgents(run_dir / "agents")
        self._requests: list[_Request] = []
        self._news: list[HostNews] = []
        self._count = 0

    def check_run_directory(self) -> None:
        """Check whether all hosts see the run directory.

        Raises:
            JobError: one does not.
        """
        self._steps.prepare()
        names = [host.removesuffix(self._suffix) for host in self.hosts]
        step = step_argv(self.allocation, names, (), self._flags)
        environment = step_environment(os.environ, self.ends_at)
        check_shared_folder(step, self._steps.folder, environment)

    def start(self, hosts: Sequence[str], call: AgentCall) -> None:
        """Start a step with an agent on each of these hosts, except those that are down.

        It starts here, or in ``poll`` where Slurm takes its time to say which these are.
        """
        names = {host.removesuffix(self._suffix): host for host in hosts}
        self._requests.append(_Request(names, call, HostStateQuery(tuple(names))))
        self._start_answered(_MOMENT_SECONDS)

    def _start_answered(self, seconds: float = 0.0) -> None:
        """Start the steps whose queries are answered; wait so long for the newest of them."""
        for request in list(self._requests):
            try:
                down = request.states.answer(seconds if request is self._requests[-1] else 0.0)
            except JobError as error:
                self._fail(request.hosts.values(), str(error))
                down = dict.fromkeys(request.hosts, "")
            else:
                if down is None:
                    continue
                self._news += [
                    HostNews(request.hosts[h], "failed", f"is {s}") for h, s in down.items()
                ]
            self._requests.remove(request)
            request.states.close()
            if able := [host for name, host in request.hosts.items() if name not in down]:
                self._start_step(able, request.call)

    def _start_step(self, hosts: Sequence[str], call: AgentCall) -> None:
        self._count += 1
        names = [host.removesuffix(self._suffix) for host in hosts]
        agent = agent_argv(
            host_of="SLURMD_NODENAME",
            allocation=self._suffix.removeprefix("@"),
            software=self._software,
        )
        try:
            self._steps.start(
                f"{call.epoch:03d}-{self._count:04d}{self._suffix}",
                step_argv(self.allocation, names, agent, self._flags),
                hosts=hosts,
                environment=step_environment(
                    call.whole_environment(software=self._software), self.ends_at
                ),
            )
        except (OSError, StorageError) as error:  # the hosts are tried again later
            self._fail(hosts, str(error))

    def _fail(self, hosts: Iterable[str], why: str) -> None:
        self._news += [HostNews(host, "failed", f"has no agent: {why}") for host in hosts]

    def poll(self) -> list[HostNews]:
        """Return hosts that are down, and those whose step ended and with it their agent."""
        self._start_answered()
        starting = {host for request in self._requests for host in request.hosts.values()}
        news = self._news + self._steps.poll(starting)
        self._news = []
        return news

    def end(self, host: str) -> bool:
        """Return False: what happens on a host that does not answer is not known."""
        return False

    def close(self) -> None:
        """Wait for the steps, whose agents were told to go, and have Slurm end the others."""
        for request in self._requests:
            request.states.close()
        self._requests.clear()
        self._steps.close()
