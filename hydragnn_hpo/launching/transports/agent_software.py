"""The Python that agents run: the controller's, a packed copy on local disks, or a container's.

Slurm's ``sbcast`` sends an archive of ``packed_environment`` to all hosts; hosts that it does not
reach read it from the shared file system.
"""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydragnn_hpo.config import MachineConfig
from hydragnn_hpo.config.machine import SiteConfig
from hydragnn_hpo.config.path_templates import fill_path
from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.scheduler_commands import run_scheduler, run_with_retries
from hydragnn_hpo.launching.slurm_allocation import (
    Allocation,
    find_unusable_hosts,
    parse_ended_tasks,
    step_argv,
    step_environment,
)
from hydragnn_hpo.launching.transports import find_backend, name_backends
from hydragnn_hpo.packed_environment import PATH, ROOT, Pack

logger = logging.getLogger(__name__)

PLACE = "/tmp"
"""Where archives are unpacked on machines whose profile names no ``scratch``."""


def import_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which another process finds this package.

    Returns:
        ``PYTHONPATH`` with this checkout in front of its value in ``environment``; empty if this
        package is installed.
    """
    if ROOT.name in ("site-packages", "dist-packages"):
        return {}
    return {PATH: os.pathsep.join(filter(None, (str(ROOT), environment.get(PATH))))}


@dataclass(frozen=True)
class Software:
    """The command that runs Python with this package on a host."""

    python: tuple[str, ...] = (sys.executable,)
    """The command, to which Python's arguments are appended."""

    path: str | None = None
    """Value of PYTHONPATH; None uses ``import_path``, an empty string unsets it."""

    starts_child: bool = False
    """Whether the command may start Python as a child instead of becoming it."""

    def agent_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment in which the command finds this package.

        Returns:
            ``environment`` with another ``PYTHONPATH``, or none.
        """
        if self.path is None:
            return {**environment, **import_path(environment)}
        kept = {name: value for name, value in environment.items() if name != PATH}
        return kept | ({PATH: self.path} if self.path else {})


OWN = Software()
"""The Python of this process, which all hosts see under the same path."""


def software_here(
    machine: MachineConfig,
    site: SiteConfig,
    run_dir: Path,
    environment: Mapping[str, str] = os.environ,
) -> Software:
    """Return the Python for an agent that needs no archive: this process's, or a container's.

    Args:
        machine: names the image, a ``.sif`` file or a sandbox folder, whose ``python3`` has this
            package.
        site: names the container program, its flags, and scratch.
        run_dir: run directory; bound into the container like scratch, raw data, and ``/sys`` for
            counters.
        environment: environment of this process.

    Raises:
        ConfigError: the image or program does not exist, or a folder cannot be bound.
    """
    if machine.container is None:
        return OWN
    image = Path(machine.container)
    container = site.container
    if not image.exists():
        raise ConfigError(f"{image}: no such container image; see launch/container for one.")
    if shutil.which(container.command[0]) is None:
        raise ConfigError(
            f"machine.container needs the program '{container.command[0]}', which is not on PATH: "
            "load its module, or name another one in the profile's container.command."
        )
    folders = [str(run_dir.absolute()), "/sys"]
    folders += [fill_path(site.scratch, environment)] if site.scratch is not None else []
    folders += filter(None, [environment.get("HYDRAGNN_HPO_DATA")])
    argv = [*container.command, *container.flags]
    for folder in dict.fromkeys(os.path.abspath(folder) for folder in folders):
        if ":" in folder or "," in folder:
            raise ConfigError(f"{folder}: no container can bind a ':' or ',' in it: rename it.")
        argv += ["--bind", folder]
    return Software((*argv, str(image.absolute()), "python3"), path="", starts_child=True)


def check_software(
    machine: MachineConfig, site: SiteConfig, run_dir: Path, *, packed_later: bool = False
) -> None:
    """Check that the software for a campaign's machine exists, before anything is started.

    Args:
        machine: machine of the campaign.
        site: settings from the machine's profile.
        run_dir: run directory of the campaign.
        packed_later: whether the archive is written after this check.

    Raises:
        ConfigError: the backend is not known or cannot use the software, or that is missing.
    """
    kind = find_backend(machine.backend)
    for key, able, can in (
        ("pack", kind.can_pack, name_backends(lambda kind: kind.can_pack)),
        ("container", kind.can_contain, name_backends(lambda kind: kind.can_contain)),
    ):
        if getattr(machine, key) is not None and not able:
            raise ConfigError(
                f"machine.{key} does not work with the backend '{machine.backend}': use {can}."
            )
    if machine.pack is not None and not packed_later:
        Pack.read(Path(machine.pack))
    software_here(machine, site, run_dir)


# -- bringing an archive to the hosts of an allocation -----------------------------------

_HOST_VARIABLE = "SLURMD_NODENAME"

_AT_ONCE = 256
"""Hosts that read one archive from a shared file system at a time."""

_SECONDS = 1800.0
"""Time limit of ``sbcast`` and of a step that unpacks: a busy host takes a minute."""


def packed_software(pack: Pack, place: str) -> Software:
    """Return the Python of an archive; a host that lost the unpacked files unpacks it again."""
    argv = _host_argv("start", pack, place, "--source", str(pack.path), "--")
    return Software(argv, path=str(ROOT))


def _host_argv(what: str, pack: Pack, place: str, *more: str) -> tuple[str, ...]:
    """Return the command for a host; with ``-S -P`` Python reads few files of shared storage."""
    python = (sys.executable, "-S", "-P", "-m", "hydragnn_hpo.packed_environment")
    return (*python, what, "--checksum", pack.checksum, "--place", place, *more)


@dataclass(frozen=True)
class _Delivery:
    """The delivery of an archive to the hosts of an allocation."""

    pack: Pack
    place: str
    """A folder on each host, see ``software_folder``."""
    allocation: Allocation
    log: Path
    environment: Mapping[str, str]
    flags: tuple[str, ...]
    """``srun`` flags of the machine's steps that start agents."""

    def run(self) -> Allocation:
        """Deliver the archive; return the allocation without the hosts where that failed.

        Raises:
            ConfigError: the place names a variable that is not set.
            JobError: the archive is on no host, or Slurm does not answer.
        """
        down = find_unusable_hosts(self.allocation.hosts, run_with_retries)
        failed = {host: f"is {state}" for host, state in down.items()}
        waiting = [host for host in self.allocation.hosts if host not in failed]
        sent = self._broadcast()
        at_once = max(1, len(waiting)) if sent else _AT_ONCE
        for first in range(0, len(waiting), at_once):
            problems = self._install(waiting[first : first + at_once], sent)
            failed |= {host: f"has no software, {why}" for host, why in problems.items()}
        for host, why in failed.items():
            logger.warning("host %s is left out: it %s", host, why)
        hosts = tuple(host for host in self.allocation.hosts if host not in failed)
        if not hosts:
            host, why = next(iter(failed.items()))
            raise JobError(f"no host can be used: host {host} {why.rstrip('.')}; see {self.log}.")
        return replace(self.allocation, hosts=hosts)

    def _broadcast(self) -> str:
        """Send the archive to all hosts; return its path there, empty if it was not sent."""
        if _HOST_VARIABLE in self.place or shutil.which("sbcast") is None:
            return ""  # sbcast writes to the same path on all hosts
        name = f".hydragnn-hpo-{self.pack.checksum[:16]}-{self.pack.path.name}"
        sent = f"{fill_path(self.place, self.environment)}/{name}"
        job = f"--jobid={self.allocation.job}"
        argv = ["sbcast", "--force", job, str(self.pack.path), sent]
        try:
            run_scheduler(*argv, seconds=_SECONDS, environment=self.environment)
        except JobError as error:  # some hosts may have received it
            logger.warning("%s Hosts read the archive themselves.", error)
        return sent

    def _install(self, hosts: Sequence[str], sent: str) -> dict[str, str]:
        """Unpack on some hosts in one step, what was sent or else the shared archive.

        Returns:
            Host -> how its task failed. One that does not end in time may still be unpacking: it
            goes on when its agent starts.
        """
        environment = step_environment(self.environment, self.allocation.ends_at)
        where = ("--source", str(self.pack.path), *(("--sent", sent) if sent else ()))
        command = _host_argv("install", self.pack, self.place, *where)
        with storage(self.log), self.log.open("ab") as log:
            before = log.tell()
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    step_argv(self.allocation.job, hosts, command, self.flags),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment | {PATH: str(ROOT)},
                    start_new_session=True,
                    timeout=_SECONDS,
                )
        output = self.log.read_bytes()[before:].decode(errors="replace")
        return parse_ended_tasks(output.splitlines())


def equip(
    machine: MachineConfig,
    site: SiteConfig,
    allocation: Allocation,
    *,
    run_dir: Path,
    environment: Mapping[str, str] = os.environ,
) -> tuple[Software, Allocation]:
    """Deliver a campaign's software to the hosts of an allocation; return when that is done.

    Args:
        machine: machine of the campaign.
        site: settings from the machine's profile.
        allocation: the hosts.
        run_dir: run directory, which must exist.
        environment: environment of this process.

    Returns:
        The Python for agents, and the allocation without hosts where the delivery failed.

    Raises:
        ConfigError: there is no such archive, image or place.
        JobError: the delivery failed on all hosts, or Slurm does not answer.
    """
    if machine.pack is None:
        return software_here(machine, site, run_dir), allocation
    pack = Pack.read(Path(machine.pack))
    place = site.scratch or PLACE
    log = run_dir / "agents" / "software.log"
    with storage(log):
        log.parent.mkdir(mode=0o700, exist_ok=True)
    delivery = _Delivery(pack, place, allocation, log, environment, site.step.agents)
    return packed_software(pack, place), delivery.run()
