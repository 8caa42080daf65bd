"""How agents get onto hosts: what every transport of the fleet offers, and what agents are told."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.process_control import AGENT, HOST, RUN, ZYGOTE
from hydragnn_hpo.launching.staging.software import OWN, PATH, Software, import_path
from hydragnn_hpo.launching.wire.door import DoorPlate, door_file
from hydragnn_hpo.launching.wire.protocol import DOOR

_MODULE = "hydragnn_hpo.launching.agent"


def agent_argv(
    host: str | None = None,
    *,
    host_of: str = "",
    allocation: str = "",
    parent: int = 0,
    software: Software = OWN,
) -> list[str]:
    """Give the command that is an agent.

    Args:
        host: id of its host.
        host_of: environment variable on the host that holds the id, in place of ``host``.
        allocation: makes the id ``HOST@ALLOCATION``, where others may hold the host as well.
        parent: pid of a process with which it is to die, which starts it itself.
        software: which Python it is.
    """
    argv = [*software.python, "-P", "-m", _MODULE]
    argv += ["--host-of", host_of] if host is None else ["--host", host]
    argv += ["--allocation", allocation] if allocation else []
    tethered = parent and not software.starts_others
    return argv + (["--parent", str(parent)] if tethered else [])


@dataclass(frozen=True)
class Call:
    """What an agent must know to find its controller."""

    run_dir: Path
    plate: DoorPlate

    def environment(self, *, shared_files: bool = True) -> dict[str, str]:
        """Give what is to be found in an agent's environment, beside what is its host's own.

        Args:
            shared_files: whether the host sees the run directory; else the token goes along,
                and the way must be a private one.
        """
        path = door_file(self.run_dir).absolute()
        told = str(path) if shared_files else json.dumps(asdict(self.plate))
        return {RUN: self.plate.tag, DOOR: told} | import_path(os.environ)

    def whole_environment(
        self, *, shared_files: bool = True, software: Software = OWN
    ) -> dict[str, str]:
        """Give our own environment with that of an agent, for one that is started from here."""
        ours = {k: v for k, v in os.environ.items() if k not in (AGENT, HOST, ZYGOTE)}
        told = self.environment(shared_files=shared_files)
        return software.settle(ours) | {k: v for k, v in told.items() if k != PATH}


@dataclass(frozen=True)
class News:
    """What a transport knows about one host."""

    host: str
    kind: Literal["gone", "failed"]
    """``gone``: nothing that its agent started is alive any more, for sure. ``failed``: an agent
    could not be started; ``gone`` as well."""
    reason: str
    """Completes a sentence that begins with the name of the host."""


class Transport(Protocol):
    """Starts agents; the fleet does the rest. Nothing of it may block for long."""

    @property
    def hosts(self) -> Sequence[str]:
        """Ids of the hosts that should have an agent, neighbours in the network side by side."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots known before any agent tells: these hosts are there at once and for good."""

    @property
    def allocation(self) -> str:
        """Names what holds the hosts, where hosts of other allocations may come as guests."""

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
        """When the hosts are taken from us, in seconds since the epoch; infinity if never."""

    def start(self, hosts: Sequence[str], call: Call) -> None:
        """Have an agent started on each of these hosts, in place of any that was there."""

    def poll(self) -> list[News]:
        """Give what is known for sure since the last call."""

    def end(self, host: str) -> bool:
        """End what an agent on a host left, if that can be done at once; True when it is gone."""

    def close(self) -> None:
        """End all agents (they were told to go) and wait until they are gone."""
