"""Agents as the ranks of an ``mpiexec``: PALS on PBS machines, MPICH's hydra elsewhere.

An agent learns its host from its rank, which is the number of a line in a host file: hydra
(PMI_RANK) and PALS (PALS_RANKID) provide nothing else in common, and the names of 10,000 hosts do
not fit into one argument.

Measured with hydra 5.0.2: a killed rank ends all others, unless ``-disable-auto-cleanup`` is set;
with it they live on, even if ``mpiexec`` or a proxy is killed. PALS has ``--no-abort-on-failure``
and ``--cpu-bind none``, here as environment variables (``cray mpiexec --help``; not tested).
Intel's and Open MPI's ``mpiexec`` end all agents if one is lost; all are then started again.
"""

import functools
import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydragnn_hpo.config import MachineConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import write_text
from hydragnn_hpo.launching.excluded_hosts import read_run_excluded
from hydragnn_hpo.launching.host_network import first_there, own_address
from hydragnn_hpo.launching.profile_adapter import site_of
from hydragnn_hpo.launching.scheduler_commands import find_mpiexec
from hydragnn_hpo.launching.slurm_allocation import step_environment, without_excluded
from hydragnn_hpo.launching.transports.launched_agents import LauncherTransport
from hydragnn_hpo.launching.transports.pbs_batch import pbs_hosts
from hydragnn_hpo.launching.transports.transport import AgentCall, agent_argv
from hydragnn_hpo.walltime import WallTime

HERE = "local"
"""Host id of this computer, used without a node file."""

_PALS = {"PALS_ABORT_ON_FAILURE": "0", "PALS_CPU_BIND": "none"}

_VERSION_SECONDS = 30.0


def mpiexec_argv(
    program: str, hosts: Sequence[str], host_file: Path, *, flags: Sequence[str] = ()
) -> list[str]:
    """Return an ``mpiexec`` command line without the command of its ranks.

    Args:
        program: path of the ``mpiexec``.
        hosts: host of each rank, in rank order; ranks of one host are consecutive.
        host_file: file that ``write_host_file`` writes for these hosts.
        flags: flags of a machine's profile.

    Raises:
        ConfigError: hosts have different numbers of ranks, for which there is no common option.
    """
    counts = Counter(hosts)
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"mpiexec wants equally many ranks on each host, found {dict(counts)}: set "
            "machine.slots so that trials take whole hosts."
        )
    each = counts[hosts[0]]
    where = () if HERE in counts else ("-ppn", str(each), "-f", str(host_file))
    return [program, "-n", str(len(hosts)), *where, *flags]


def write_host_file(path: Path, hosts: Sequence[str]) -> None:
    """Write the host file of an ``mpiexec``, each host once.

    Raises:
        StorageError: the file cannot be written.
    """
    write_text(path, "".join(f"{host}\n" for host in dict.fromkeys(hosts)))


@functools.cache
def agent_flags(program: str) -> tuple[str, ...]:
    """Return the options by which an ``mpiexec`` keeps other ranks alive when one ends.

    Returns:
        Options of hydra; empty for any other or unknown ``mpiexec``.
    """
    try:
        version = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return ("-disable-auto-cleanup",) if version.startswith("HYDRA") else ()


def mpiexec_transport(
    machine: MachineConfig, run_dir: Path, environment: Mapping[str, str] = os.environ
) -> "MpiexecTransport":
    """Return the transport to the hosts of a PBS job, or to this computer.

    Args:
        machine: config of the machine: number of hosts, interface.
        run_dir: an existing folder that all hosts share.
        environment: names the node file and the end of a PBS job, if any.

    Raises:
        ConfigError: there is no ``mpiexec``, node file or interface.
    """
    site = site_of(machine)
    usable = without_excluded(pbs_hosts(environment), read_run_excluded(run_dir))
    hosts = usable[: machine.hosts or None] or (HERE,)
    several = len(hosts) > 1
    address = "127.0.0.1"
    if several:
        address = own_address(machine.interface or first_there(site.interfaces), hosts[-1])
    ends_at = WallTime.of(environment).end
    transport = MpiexecTransport(
        hosts, run_dir=run_dir, address=address, ends_at=ends_at, flags=site.step.agents
    )
    if several:
        transport.check_run_directory(step_environment(os.environ, ends_at))
    return transport


class MpiexecTransport(LauncherTransport):
    """Starts agents by ``mpiexec``, on the hosts of a node file."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        run_dir: Path,
        address: str,
        ends_at: float,
        flags: Sequence[str],
    ) -> None:
        """Use some hosts; nothing is started yet.

        Args:
            hosts: names of the hosts in the node file.
            run_dir: folder of the run, for logs and host files.
            address: address on which the controller listens.
            ends_at: when the job ends, in seconds since the epoch.
            flags: flags of the machine's profile for agents.

        Raises:
            ConfigError: there is no ``mpiexec``.
        """
        self._program = find_mpiexec()
        super().__init__(
            hosts,
            run_dir=run_dir,
            address=address,
            ends_at=ends_at,
            flags=(*agent_flags(self._program), *flags),
            variables=_PALS,
        )

    def start(self, hosts: Sequence[str], call: AgentCall) -> None:
        """Start an ``mpiexec`` with an agent on each of these hosts."""
        name = self._next_name(call)
        agent = agent_argv(host_file=self._host_file(name).absolute())
        environment = step_environment(call.whole_environment(), self.ends_at)
        self._launch(name, agent, hosts=hosts, environment=environment)

    def _host_file(self, name: str) -> Path:
        return self._folder / f"{name}.hosts"

    def _launcher_argv(self, name: str, hosts: Sequence[str]) -> list[str]:
        write_host_file(self._host_file(name), hosts)
        return mpiexec_argv(self._program, hosts, self._host_file(name), flags=self._flags)
