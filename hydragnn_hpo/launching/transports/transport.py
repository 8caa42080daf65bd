"""The interface of transports, which start agents on hosts, and the command line of agents."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.link import ADDRESS, address_file
from hydragnn_hpo.launching.process_control import AGENT, HOST, RUN, ZYGOTE
from hydragnn_hpo.launching.transports.agent_software import OWN, Software, import_path
from hydragnn_hpo.packed_environment import PATH

_MODULE = "hydragnn_hpo.launching.agent"


def agent_argv(
    host: str | None = None,
    *,
    host_of: str = "",
    host_file: Path | None = None,
    allocation: str = "",
    parent: int = 0,
    software: Software = OWN,
) -> list[str]:
    """Return the command that runs an agent.

    Args:
        host: id of its host.
        host_of: environment variable on the host that holds the id, instead of ``host``.
        host_file: file of the ids in the order of a launcher's ranks, instead of both.
        allocation: makes the id ``HOST@ALLOCATION``, where several allocations may share hosts.
        parent: pid of the process that starts the agent, and at whose end it is killed.
        software: the Python that runs it.
    """
    argv = [*software.python, "-P", "-m", _MODULE]
    if host_file is not None:
        argv += ["--host-file", str(host_file)]
    else:
        argv += ["--host-of", host_of] if host is None else ["--host", host]
    argv += ["--allocation", allocation] if allocation else []
    tethered = parent and not software.starts_child
    return argv + (["--parent", str(parent)] if tethered else [])


@dataclass(frozen=True)
class AgentCall:
    """The data by which an agent finds its controller."""

    run_dir: Path
    """Folder of the run, which all hosts share; the controller's address is a file in it."""

    tag: str
    """Tag of the run, see ``process_control.run_tag``."""

    epoch: int
    """Number of the controller, higher for each successor."""

    def environment(self) -> dict[str, str]:
        """Return the variables that are added to the environment of an agent's host.

        Returns:
            Values by the names of variables.
        """
        path = str(address_file(self.run_dir).absolute())
        return {RUN: self.tag, ADDRESS: path} | import_path(os.environ)

    def whole_environment(self, software: Software = OWN) -> dict[str, str]:
        """Return this process's environment with an agent's variables, to start an agent from it.

        Returns:
            Values by the names of variables.
        """
        ours = {k: v for k, v in os.environ.items() if k not in (AGENT, HOST, ZYGOTE)}
        own = {k: v for k, v in self.environment().items() if k != PATH}
        return software.agent_environment(ours) | own


@dataclass(frozen=True)
class HostNews:
    """A transport's report about one host."""

    host: str
    kind: Literal["gone", "failed"]
    """``gone``: its agent, if it started at all, and all that it started have certainly ended.
    ``failed``: an agent could not be started."""
    reason: str
    """End of a sentence that begins with the name of the host."""


class Transport(Protocol):
    """Starts agents for a fleet. No method may block for long."""

    @property
    def hosts(self) -> Sequence[str]:
        """Ids of the hosts that should have an agent, in network order."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots that are known before any agent reports; their hosts never change.

        Returns:
            Slots in the order of ``hosts``; empty where agents detect their slots.
        """

    @property
    def allocation(self) -> str:
        """Id of the allocation, if hosts of other allocations may join; else empty."""

    @property
    def outlives(self) -> bool:
        """Whether agents may outlive their controller and connect to the next one.

        Ranks then end unless a controller renews their leases.
        """

    @property
    def address(self) -> str:
        """Address at which all agents reach the controller."""

    @property
    def ends_at(self) -> float:
        """When the allocation of the hosts ends, in seconds since the epoch; infinity if never."""

    def start(self, hosts: Sequence[str], call: AgentCall) -> None:
        """Start an agent on each of these hosts, replacing any that is there."""

    def poll(self) -> list[HostNews]:
        """Return reports about hosts since the last call."""

    def find_last_words(self, host: str) -> str:
        """Return the last line of output from starting an agent, and where to see more of it."""

    def end(self, host: str) -> bool:
        """Kill an agent and all that it started, if possible at once; return whether it is gone."""

    def close(self) -> None:
        """Wait until all agents, which were dismissed before, are gone; end those that stay."""
