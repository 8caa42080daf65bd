"""What runs the trials of a campaign: chosen by its ``[machine]``, imported only then."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from hydragnn_hpo.config.campaign import CampaignConfig, MachineConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.job import PRELOAD, Backend
from hydragnn_hpo.launching.strays import end_strays, run_tag

logger = logging.getLogger(__name__)

OUTLIVES = "slurm"
"""The backend whose agents may be alive and well when their controller is not, see ``Fleet``."""

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
    machine = config.machine
    if not machine.shared_files and machine.backend not in ("ray", "slurm"):
        raise ConfigError(
            f"machine.shared_files is false, but the backend '{machine.backend}' cannot carry "
            "files: use ray or slurm, or a folder that all hosts see."
        )
    if machine.backend != OUTLIVES and (strays := end_strays(run_tag(run))):
        logger.warning("ended %d processes that a lost controller had left", len(strays))
    preload = PRELOAD if config.command is None else ()
    return _BACKENDS[machine.backend](machine, run, preload)


def _local(machine: MachineConfig, run: Path, preload: tuple[str, ...]) -> Backend:
    from hydragnn_hpo.launching.local import LocalBackend

    return LocalBackend(
        slots=machine.slots,
        lanes=machine.lanes,
        lease_seconds=machine.lease_seconds,
        run_dir=run,
        preload=preload,
    )


def _slurm(machine: MachineConfig, run: Path, preload: tuple[str, ...]) -> Backend:
    from hydragnn_hpo.launching.slurm.backend import SlurmBackend

    return SlurmBackend(machine, run_dir=run, preload=preload)


def _ray(machine: MachineConfig, run: Path, preload: tuple[str, ...]) -> Backend:
    from hydragnn_hpo.launching.ray.backend import RayBackend

    return RayBackend(machine, run_dir=run, preload=preload)


def _steps(machine: MachineConfig, run: Path, preload: tuple[str, ...]) -> Backend:
    from hydragnn_hpo.launching.processes import ProcessBackend
    from hydragnn_hpo.launching.steps import Steps

    launcher = Steps.find(os.environ, slots=machine.slots, hosts=machine.hosts)
    return ProcessBackend(
        launcher,
        lease_seconds=machine.lease_seconds,
        run_dir=run,
        interface=machine.interface,
    )


def _mpiexec(machine: MachineConfig, run: Path, preload: tuple[str, ...]) -> Backend:
    from hydragnn_hpo.launching.mpiexec import Mpiexec
    from hydragnn_hpo.launching.processes import ProcessBackend

    return ProcessBackend(
        Mpiexec(slots=machine.slots, hosts=machine.hosts),
        lease_seconds=machine.lease_seconds,
        run_dir=run,
        interface=machine.interface,
    )


_BACKENDS: dict[str, Make] = {
    "local": _local,
    "slurm": _slurm,
    "ray": _ray,
    "steps": _steps,
    "mpiexec": _mpiexec,
}
