"""Agents as tasks of Slurm job steps: one ``srun`` for all hosts, one more for each restart."""

import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydragnn_hpo.config import MachineConfig, ProfileConfig
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.excluded_hosts import read_run_excluded
from hydragnn_hpo.launching.host_network import first_there, own_address
from hydragnn_hpo.launching.profile_adapter import site_of
from hydragnn_hpo.launching.scheduler_commands import SchedulerCommand
from hydragnn_hpo.launching.slurm_allocation import (
    Allocation,
    find_job_end,
    host_states_argv,
    job_state_argv,
    parse_ended_tasks,
    parse_unusable_hosts,
    step_argv,
    step_environment,
)
from hydragnn_hpo.launching.transports.agent_software import OWN, Software, equip
from hydragnn_hpo.launching.transports.launched_agents import LauncherTransport
from hydragnn_hpo.launching.transports.transport import AgentCall, HostNews, agent_argv

_MOMENT_SECONDS = 0.2
"""Seconds within which Slurm usually reports the states of hosts; steps then start at once."""

_STATE_SECONDS = 10.0
"""Shortest time between two queries whether the allocation is still there."""


def slurm_transport(
    machine: MachineConfig,
    run_dir: Path,
    environment: Mapping[str, str] = os.environ,
    *,
    one_of_many: bool = False,
) -> "SlurmTransport":
    """Return the transport to the allocation of this process; blocks to deliver software.

    Args:
        machine: config of the machine: number of hosts, interface.
        run_dir: an existing folder.
        environment: names the allocation, see ``Allocation.find``.
        one_of_many: whether other allocations may serve the same campaign.

    Raises:
        ConfigError: there is no allocation, or no such interface or profile.
        JobError: Slurm does not answer.
    """
    site = site_of(machine)
    hours = site.longest_hours(machine.hosts or 1) if isinstance(site, ProfileConfig) else None
    allocation = Allocation.find(
        environment,
        machine.hosts,
        without=read_run_excluded(run_dir),
        longest=math.inf if hours is None else 3600.0 * hours,
    )
    software, usable = equip(machine, site, allocation, run_dir=run_dir, environment=environment)
    interface = machine.interface or first_there(site.interfaces)
    transport = SlurmTransport(
        replace(usable, address=own_address(interface, usable.address)),
        run_dir=run_dir,
        flags=site.step.agents,
        software=software,
        one_of_many=one_of_many,
    )
    transport.check_run_directory(step_environment(os.environ, transport.ends_at))
    return transport


@dataclass
class _Request:
    """Agents to start once Slurm has reported which hosts are usable."""

    hosts: dict[str, str]
    """Slurm's name of a host -> its id."""
    call: AgentCall
    states: SchedulerCommand


class SlurmTransport(LauncherTransport):
    """Starts agents on the hosts of an allocation; Slurm tracks them and ends them with it."""

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
            allocation: the allocation; the controller listens on its ``address``.
            run_dir: folder of the run, for logs of steps.
            flags: flags of the machine's profile for steps of agents.
            software: the Python that runs agents.
            one_of_many: whether ids of hosts include the allocation.
        """
        self._suffix = f"@{allocation.job}" if one_of_many else ""
        super().__init__(
            [host + self._suffix for host in allocation.hosts],
            run_dir=run_dir,
            address=allocation.address,
            ends_at=allocation.ends_at,
            flags=flags,
        )
        self.allocation = allocation.job
        self._software = software
        self._requests: list[_Request] = []
        self._state: SchedulerCommand | None = None
        self._in_doubt, self._state_due = False, 0.0

    def _launcher_argv(self, name: str, hosts: Sequence[str]) -> list[str]:
        names = [host.removesuffix(self._suffix) for host in hosts]
        return step_argv(self.allocation, names, (), self._flags)

    def _find_ended(self, lines: Sequence[str]) -> dict[str, str]:
        """Return the hosts whose agent has ended, from the output of ``srun``."""
        return {
            f"{host}{self._suffix}": f"has no agent, {how}"
            for host, how in parse_ended_tasks(lines).items()
        }

    def start(self, hosts: Sequence[str], call: AgentCall) -> None:
        """Start a step with an agent on each of these hosts, except those that are down.

        The step starts in a later ``poll`` if Slurm is slow to report which hosts are down.
        """
        names = {host.removesuffix(self._suffix): host for host in hosts}
        try:
            states = SchedulerCommand(*host_states_argv(tuple(names)))
        except JobError as error:
            self._report_failed(hosts, f"has no agent: {error}")
            return
        self._requests.append(_Request(names, call, states))
        self._start_answered(_MOMENT_SECONDS)

    def _start_answered(self, seconds: float = 0.0) -> None:
        """Start the steps whose queries are answered; wait ``seconds`` for the newest query."""
        for request in list(self._requests):
            try:
                answer = request.states.output(seconds if request is self._requests[-1] else 0.0)
            except JobError as error:
                self._report_failed(request.hosts.values(), f"has no agent: {error}")
                able = []
            else:
                if answer is None:
                    continue
                down = parse_unusable_hosts(answer)
                for name in request.hosts.keys() & down.keys():
                    self._report_failed([request.hosts[name]], f"is {down[name]}")
                able = [host for name, host in request.hosts.items() if name not in down]
            self._requests.remove(request)
            request.states.close()
            if able:
                self._start_step(able, request.call)

    def _start_step(self, hosts: Sequence[str], call: AgentCall) -> None:
        agent = agent_argv(
            host_of="SLURMD_NODENAME",
            allocation=self._suffix.removeprefix("@"),
            software=self._software,
        )
        ours = call.whole_environment(software=self._software)
        environment = step_environment(ours, self.ends_at)
        name = f"{self._next_name(call)}{self._suffix}"
        self._launch(name, agent, hosts=hosts, environment=environment)

    def _starting_hosts(self) -> set[str]:
        return {host for request in self._requests for host in request.hosts.values()}

    def poll(self) -> list[HostNews]:
        """Return reports about hosts that are down or whose step has ended with their agent.

        Raises:
            JobError: the allocation has ended.
        """
        self._start_answered()
        news = super().poll()
        self._in_doubt |= bool(news)
        if self._in_doubt and self._state is None and time.monotonic() >= self._state_due:
            self._in_doubt = False
            self._state_due = time.monotonic() + _STATE_SECONDS
            with contextlib.suppress(JobError):
                self._state = SchedulerCommand(*job_state_argv(self.allocation))
        self._check_allocation()
        return news

    def _check_allocation(self) -> None:
        """Raise JobError if the allocation has ended; asked when a step ended or cannot start."""
        if self._state is None:
            return
        answer: str | JobError | None
        try:
            answer = self._state.output()
        except JobError as error:
            answer = error
        if answer is None:
            return
        if how := find_job_end(answer):
            raise JobError(
                f"Slurm job {self.allocation} {how} and its hosts are gone: use another one."
            )
        self._state.close()
        self._state = None

    def close(self) -> None:
        """Wait for the steps, whose agents were dismissed, and end those that stay."""
        for command in (*(request.states for request in self._requests), self._state):
            if command is not None:
                command.close()
        self._requests.clear()
        super().close()
