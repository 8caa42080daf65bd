"""Agents as tasks of ``flux run``: one job for all hosts, one more for each restart.

Flux fills in ``{{node.name}}``, from which an agent learns its host. Sources: manual of flux-core,
flux-run(1) ("Mustache templates"), flux-environment(7). Tested against a fake ``flux`` only.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydragnn_hpo.config import MachineConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.excluded_hosts import read_run_excluded
from hydragnn_hpo.launching.host_network import first_there, own_address
from hydragnn_hpo.launching.profile_adapter import site_of
from hydragnn_hpo.launching.slurm_allocation import step_environment, without_excluded
from hydragnn_hpo.launching.transports.flux_batch import Flux, find_own_instance
from hydragnn_hpo.launching.transports.launched_agents import LauncherTransport
from hydragnn_hpo.launching.transports.transport import AgentCall, agent_argv
from hydragnn_hpo.walltime import WallTime


def flux_transport(
    machine: MachineConfig, run_dir: Path, environment: Mapping[str, str] = os.environ
) -> "FluxTransport":
    """Return the transport to the hosts of the Flux job of this process.

    Args:
        machine: config of the machine: number of hosts, interface.
        run_dir: an existing folder that all hosts share.
        environment: names the Flux instance, and the end of the job if it is known.

    Raises:
        ConfigError: there is no job of Flux, no such interface, or all hosts are excluded.
        JobError: Flux does not answer.
    """
    site = site_of(machine)
    held = Flux().find_hosts(environment, 0)
    if held is None:
        raise ConfigError(
            "machine.backend needs a job of Flux, and this is none (FLUX_URI names no instance of "
            "a job, or there is no flux): run inside flux alloc or flux batch."
        )
    hosts = without_excluded(held.hosts, read_run_excluded(run_dir))[: machine.hosts or None]
    several = len(hosts) > 1
    address = "127.0.0.1"
    if several:
        address = own_address(machine.interface or first_there(site.interfaces), hosts[-1])
    transport = FluxTransport(
        hosts,
        run_dir=run_dir,
        address=address,
        ends_at=WallTime.of(environment).end,
        flags=site.step.agents,
        variables=find_own_instance(environment),
    )
    if several:
        transport.check_run_directory(os.environ)
    return transport


class FluxTransport(LauncherTransport):
    """Starts agents by ``flux run`` on the hosts of a Flux instance."""

    def start(self, hosts: Sequence[str], call: AgentCall) -> None:
        """Start a ``flux run`` with an agent on each of these hosts."""
        agent = agent_argv("{{node.name}}")
        environment = step_environment(call.whole_environment(), self.ends_at)
        self._launch(self._next_name(call), agent, hosts=hosts, environment=environment)

    def _launcher_argv(self, name: str, hosts: Sequence[str]) -> list[str]:
        return Flux().step_argv("", hosts, (), self._flags)
