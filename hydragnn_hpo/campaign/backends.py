"""What runs the trials of a campaign: chosen by its ``[machine]``, imported only then."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from hydragnn_hpo.config import CampaignConfig, MachineConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching import (
    PRELOAD,
    Backend,
    check_software,
    end_orphans,
    overruled,
    read_run_excluded,
    run_tag,
    site_of,
    software_here,
)

logger = logging.getLogger(__name__)

OUTLIVES = "slurm"
"""The backend whose agents may be alive and well when their controller is not, see ``Fleet``."""

TETHERED = "local"
"""The backend whose ranks end with their controller, at once; all others' go on for a lease."""

Make = Callable[[MachineConfig, Path, tuple[str, ...]], Backend]


def make_backend(config: CampaignConfig, run: Path) -> Backend:
    """Start the backend of a campaign.

    Args:
        config: the campaign.
        run: its directory.

    Raises:
        ConfigError: the machine does not have what the campaign asks for.
        JobError: what should start it does not answer.
    """
    return backend_on(config.machine, run, preload_of(config))


def backend_on(machine: MachineConfig, run: Path, preload: tuple[str, ...] = PRELOAD) -> Backend:
    """Start the backend of a machine, for whatever jobs.

    Args:
        machine: what there is to run on.
        run: an existing folder that this controller alone uses.
        preload: modules that ranks need.

    Raises:
        ConfigError: the machine does not have what is asked for.
        JobError: what should start it does not answer.
    """
    if not machine.shared_files and machine.backend not in ("ray", "slurm"):
        raise ConfigError(
            f"machine.shared_files is false, but the backend '{machine.backend}' cannot carry "
            "files: use ray or slurm, or a folder that all hosts see."
        )
    check_software(machine, site_of(machine), run)
    if machine.backend != OUTLIVES and (strays := end_orphans(run_tag(run))):
        logger.warning("ended %d processes that a lost controller had left", len(strays))
    tell_overruled(machine)
    return _BACKENDS[machine.backend](machine, run, preload)


def tell_overruled(machine: MachineConfig) -> None:
    """Warn about environment settings that the machine's profile overrules."""
    if ignored := overruled(site_of(machine), os.environ):
        logger.warning(
            "the profile '%s' decides what ranks find; ignored: %s. To change it, write a profile "
            "of your own with extends = '%s'.",
            machine.profile,
            ", ".join(f"{name}={value}" for name, value in sorted(ignored.items())),
            machine.profile,
        )


def preload_of(config: CampaignConfig) -> tuple[str, ...]:
    """Return the modules that ranks of a campaign need: none for a command of a user."""
    return PRELOAD if config.command is None else ()


def _local(machine: MachineConfig, run: Path, preload: tuple[str, ...]) -> Backend:
    from hydragnn_hpo.launching import LocalBackend

    return LocalBackend(
        slots=machine.slots,
        lanes=machine.lanes,
        lease_seconds=machine.lease_seconds,
        sample_seconds=machine.sample_seconds,
        run_dir=run,
        preload=preload,
        site=site_of(machine),
        software=software_here(machine, site_of(machine), run),
    )


def _slurm(machine: MachineConfig, run: Path, preload: tuple[str, ...]) -> Backend:
    from hydragnn_hpo.launching import SlurmBackend

    return SlurmBackend(machine, run_dir=run, preload=preload)


def _ray(machine: MachineConfig, run: Path, preload: tuple[str, ...]) -> Backend:
    from hydragnn_hpo.launching import RayBackend

    return RayBackend(machine, run_dir=run, preload=preload)


def _steps(machine: MachineConfig, run: Path, preload: tuple[str, ...]) -> Backend:
    from hydragnn_hpo.launching import ProcessBackend, Steps

    site = site_of(machine)
    without = read_run_excluded(run)
    launcher = Steps.find(
        os.environ, slots=machine.slots, hosts=machine.hosts, without=without, site=site
    )
    return ProcessBackend(
        launcher,
        lease_seconds=machine.lease_seconds,
        run_dir=run,
        site=site,
    )


def _mpiexec(machine: MachineConfig, run: Path, preload: tuple[str, ...]) -> Backend:
    from hydragnn_hpo.launching import Mpiexec, ProcessBackend

    site = site_of(machine)
    without = read_run_excluded(run)
    return ProcessBackend(
        Mpiexec(slots=machine.slots, hosts=machine.hosts, without=without, site=site),
        lease_seconds=machine.lease_seconds,
        run_dir=run,
        site=site,
    )


_BACKENDS: dict[str, Make] = {
    "local": _local,
    "slurm": _slurm,
    "ray": _ray,
    "steps": _steps,
    "mpiexec": _mpiexec,
}
