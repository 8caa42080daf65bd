"""What a launcher is: it starts the ranks of one job on their slots, as ``srun`` does."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import hydragnn_hpo
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.link import JOB, Rendezvous, rank_environment
from hydragnn_hpo.launching.strays import AGENT, RUN


@dataclass(frozen=True)
class Launch:
    """A command, and what changes in its environment."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    without: tuple[str, ...] = ()
    """Names that the launcher must not inherit."""


class Launcher(Protocol):
    """What starts the ranks of a job on their slots."""

    rank_variables: str
    """Names in the environment that hold a rank's number, the first that is set counts."""

    ends_at: float
    """When the hosts are taken from us, in seconds since the epoch; infinity if never."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots of all hosts, neighbours in the network side by side."""

    @property
    def here(self) -> bool:
        """Whether all ranks run on this host, as this host's processes."""

    def render(self, job: Job, program: Sequence[str], hostfile: Path) -> Launch:
        """Give the launcher's command for a job; starts nothing and reads nothing.

        Args:
            job: says which slots.
            program: what to run in every rank.
            hostfile: will hold the host of each rank, one per line.
        """


@dataclass(frozen=True)
class Site:
    """What all jobs of one backend have in common."""

    launcher: Launcher
    lease_seconds: float
    tag: str
    """Of the run, see ``strays.run_tag``."""
    token: str
    """Of this life of the backend."""
    interface: str | None

    def environment(self, job: Job, launch: Launch) -> dict[str, str]:
        """Give the launcher's whole environment."""
        kept = {name: value for name, value in os.environ.items() if name not in launch.without}
        root = str(Path(hydragnn_hpo.__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        tags = {RUN: self.tag, AGENT: self.token, JOB: f"{self.tag}/{job.id}"}
        return kept | {"PYTHONPATH": path} | tags | launch.environment


def host_by_host(job: Job) -> Job:
    """Number the ranks of a job host by host, as launchers do."""
    hosts = list(dict.fromkeys(slot.host for slot in job.slots))
    slots = sorted(job.slots, key=lambda slot: hosts.index(slot.host))
    return replace(job, slots=tuple(slots))


def places(job: Job, tag: str, *, interface: str | None) -> list[dict[str, Any]]:
    """Give cores and environment of every rank; the keepers find out where they meet."""
    world, seen = Counter(slot.host for slot in job.slots), Counter[str]()
    found = []
    for rank, slot in enumerate(job.slots):
        known = interface or ("lo" if len(world) == 1 else "")
        environment = rank_environment(
            job,
            rank,
            local_rank=seen[slot.host],
            local_world=world[slot.host],
            meet=Rendezvous("", 0, known),
            tag=tag,
        )
        seen[slot.host] += 1
        if not slot.cores:  # the launcher chooses them, and says how many
            del environment["OMP_NUM_THREADS"]
        if not known:
            del environment["GLOO_SOCKET_IFNAME"]
        if slot.device != "cpu" and not slot.visible:  # the launcher binds it to a device
            for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
                del environment[name]
        found.append({"rank": rank, "cores": list(slot.cores), "environment": environment})
    return found
