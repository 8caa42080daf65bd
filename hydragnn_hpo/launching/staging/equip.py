"""What a campaign's machine says of software, done: the Python for agents on its hosts."""

import os
from collections.abc import Mapping
from pathlib import Path

from hydragnn_hpo.config import MachineConfig, SiteConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.slurm.allocation import Allocation
from hydragnn_hpo.launching.staging.broadcast import PLACE, Delivery, deliver
from hydragnn_hpo.launching.staging.container import binds_of, contained
from hydragnn_hpo.launching.staging.pack import Pack
from hydragnn_hpo.launching.staging.software import OWN, Software, packed

_BRINGS = {"pack": ("slurm",), "container": ("slurm", "local")}
"""Backends that can bring software along."""


def software_here(machine: MachineConfig, site: SiteConfig, run_dir: Path) -> Software:
    """Give the Python for an agent where nothing has to be sent: our own, or a container's.

    Raises:
        ConfigError: there is no such image, or no program for it.
    """
    if machine.container is None:
        return OWN
    binds = binds_of(run_dir, site.scratch)
    return contained(site.container, Path(machine.container), binds=binds)


def equip(
    machine: MachineConfig,
    site: SiteConfig,
    allocation: Allocation,
    *,
    run_dir: Path,
    environment: Mapping[str, str] = os.environ,
) -> tuple[Software, Allocation]:
    """Bring a campaign's software to the hosts of an allocation; blocks until it is there.

    Returns:
        The Python for agents, and the allocation without hosts that could not get it.

    Raises:
        ConfigError: there is no such archive, image or profile.
        JobError: no host could get it.
    """
    if machine.pack is None:
        return software_here(machine, site, run_dir), allocation
    archive = Pack.read(Path(machine.pack))
    place = site.scratch or PLACE
    logs = run_dir / "agents"
    with storage(logs):
        logs.mkdir(mode=0o700, exist_ok=True)
    delivery = Delivery(archive, place, logs, environment, site.step.agents)
    return packed(archive, place), deliver(delivery, allocation)


def check_software(
    machine: MachineConfig, site: SiteConfig, run_dir: Path, *, packed_later: bool = False
) -> None:
    """See that what a campaign's machine says of software is there, before anything is started.

    Raises:
        ConfigError: it is not.
    """
    for key, backends in _BRINGS.items():
        if getattr(machine, key) is not None and machine.backend not in backends:
            raise ConfigError(
                f"machine.{key} does not work with the backend '{machine.backend}': use "
                f"{' or '.join(backends)}."
            )
    if machine.pack is not None and not packed_later:
        Pack.read(Path(machine.pack))
    software_here(machine, site, run_dir)
