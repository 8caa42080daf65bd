"""What a launcher is: it starts the ranks of one job on their slots, as ``srun`` does."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from hydragnn_hpo.config import SiteConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.process_control import AGENT, RUN
from hydragnn_hpo.launching.rank_environment import JOB, Rendezvous, make_rank_environments
from hydragnn_hpo.launching.staging.software import import_path
from hydragnn_hpo.resources import resource_path


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
    """Of the run, see ``process_control.run_tag``."""
    token: str
    """Of this life of the backend."""
    profile: SiteConfig
    """What the machine's profile says."""

    def environment(self, job: Job, launch: Launch) -> dict[str, str]:
        """Give the launcher's whole environment."""
        kept = {name: value for name, value in os.environ.items() if name not in launch.without}
        tags = {RUN: self.tag, AGENT: self.token, JOB: f"{self.tag}/{job.id}"}
        return kept | import_path(kept) | tags | launch.environment


def host_by_host(job: Job) -> Job:
    """Number the ranks of a job host by host, as launchers do."""
    hosts = list(dict.fromkeys(slot.host for slot in job.slots))
    slots = sorted(job.slots, key=lambda slot: hosts.index(slot.host))
    return replace(job, slots=tuple(slots))


def places(job: Job, tag: str, *, site: SiteConfig) -> list[dict[str, Any]]:
    """Give what every rank finds; the keepers add where they meet."""
    ranks: dict[str, list[int]] = {}
    for rank, slot in enumerate(job.slots):
        ranks.setdefault(slot.host, []).append(rank)
    known = "lo" if len(ranks) == 1 else (*site.interfaces, "")[0]
    meet = Rendezvous("", 0, known)
    found = [
        place
        for here in ranks.values()
        for place in make_rank_environments(job, here, site=site, meet=meet, tag=tag)
    ]
    return [place.as_json() for place in sorted(found, key=lambda place: place.rank)]


def wrapped(program: Sequence[str], site: SiteConfig) -> tuple[str, ...]:
    """Give a rank's program behind the wrapper of the machine's profile, if it has one.

    Raises:
        ConfigError: there is no such wrapper.
    """
    if not site.rank.wrapper:
        return tuple(program)
    path = Path(site.rank.wrapper)
    if path.parts[0] == "launch" and not path.exists():
        path = resource_path(site.rank.wrapper)
    if not path.is_file():
        raise ConfigError(f"rank.wrapper: {path} is no file: name a shell script.")
    return ("sh", str(path.absolute()), *program)
