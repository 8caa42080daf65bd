"""How agents get onto hosts: what every transport of the fleet offers, and what agents are told."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from hydragnn_hpo.launching.environment import OWN, PATH, Software, import_path
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.link import ADDRESS, address_file
from hydragnn_hpo.launching.process_control import AGENT, HOST, RUN, ZYGOTE

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
        host_of: environment variable on the host that holds the id, in place of ``host``.
        host_file: holds the ids in the order of a launcher's ranks, in place of both.
        allocation: makes the id ``HOST@ALLOCATION``, where others may hold the host as well.
        parent: pid of a process with which it is to die, which starts it itself.
        software: which Python it is.
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
    """What an agent must know to find its controller."""

    run_dir: Path
    """Folder of the run, which all hosts see; the controller's address is a file in it."""

    tag: str
    """Of the run, see ``process_control.run_tag``."""

    epoch: int
    """Number of the controller."""

    def environment(self) -> dict[str, str]:
        """Return what an agent finds in its environment, beside what is its host's own.

        Returns:
            Values by the names of variables.
        """
        path = str(address_file(self.run_dir).absolute())
        return {RUN: self.tag, ADDRESS: path} | import_path(os.environ)

    def whole_environment(self, software: Software = OWN) -> dict[str, str]:
        """Return our own environment with an agent's, for one that is started from here.

        Returns:
            Values by the names of variables.
        """
        ours = {k: v for k, v in os.environ.items() if k not in (AGENT, HOST, ZYGOTE)}
        own = {k: v for k, v in self.environment().items() if k != PATH}
        return software.agent_environment(ours) | own


@dataclass(frozen=True)
class HostNews:
    """What a transport knows about one host."""

    host: str
    kind: Literal["gone", "failed"]
    """``gone``: its agent and all that it started have certainly ended. ``failed``: an agent could
    not be started; ``gone`` as well."""
    reason: str
    """Completes a sentence that begins with the name of the host."""


class Transport(Protocol):
    """Starts agents; the fleet does the rest. Nothing of it may block for long."""

    @property
    def hosts(self) -> Sequence[str]:
        """Ids of the hosts that should have an agent, neighbours in the network side by side."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots known before any agent reports: their hosts are there at once and for good.

        Returns:
            In the order of ``hosts``; empty where agents find their slots.
        """

    @property
    def allocation(self) -> str:
        """Names what holds the hosts, where hosts of other allocations may join."""

    @property
    def outlives(self) -> bool:
        """Whether an agent may live on without its controller, and be adopted by the next.

        Then its ranks hang on the controller's beats.
        """

    @property
    def address(self) -> str:
        """Own address at which all agents reach us."""

    @property
    def ends_at(self) -> float:
        """When the allocation of the hosts ends, in seconds since the epoch; infinity if never."""

    def start(self, hosts: Sequence[str], call: AgentCall) -> None:
        """Have an agent started on each of these hosts, in place of any that was there."""

    def poll(self) -> list[HostNews]:
        """Return what has become certain since the last call."""

    def end(self, host: str) -> bool:
        """End what an agent on a host left, if that can be done at once; True when it is gone."""

    def close(self) -> None:
        """End all agents (they were told to go) and wait until they are gone."""
