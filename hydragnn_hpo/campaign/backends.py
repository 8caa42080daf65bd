"""What runs the trials of a campaign: chosen by its ``[machine]``, built only then."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.launching.job import PRELOAD, Backend
from hydragnn_hpo.launching.strays import end_strays, run_tag

if TYPE_CHECKING:
    from hydragnn_hpo.launching.launcher import Launcher

logger = logging.getLogger(__name__)


def make_backend(config: CampaignConfig, run: Path, slots: int | None = None) -> Backend:
    """Start the backend of a campaign.

    Args:
        config: the campaign.
        run: its directory.
        slots: ranks at a time on each host, if not the campaign's own.

    Raises:
        ConfigError: the machine does not have what the campaign asks for.
    """
    return _BACKENDS[config.machine.backend](config, run, slots or config.machine.slots)


def _preload(config: CampaignConfig) -> tuple[str, ...]:
    """Give what zygotes import: a command brings its own."""
    return PRELOAD if config.command is None else ()


def _local(config: CampaignConfig, run: Path, slots: int) -> Backend:
    from hydragnn_hpo.launching.local import LocalBackend

    if strays := end_strays(run_tag(run)):
        logger.warning("ended %d processes that a lost controller had left", len(strays))
    return LocalBackend(
        slots=slots,
        lease_seconds=config.machine.lease_seconds,
        run_dir=run,
        preload=_preload(config),
    )


def _steps(config: CampaignConfig, run: Path, slots: int) -> Backend:
    from hydragnn_hpo.launching.steps import Steps

    return _launched(config, run, Steps.find(os.environ, slots=slots, hosts=config.machine.hosts))


def _mpiexec(config: CampaignConfig, run: Path, slots: int) -> Backend:
    from hydragnn_hpo.launching.mpiexec import Mpiexec

    return _launched(config, run, Mpiexec(slots=slots, hosts=config.machine.hosts))


def _launched(config: CampaignConfig, run: Path, launcher: "Launcher") -> Backend:
    from hydragnn_hpo.launching.processes import ProcessBackend

    end_strays(run_tag(run))
    machine = config.machine
    return ProcessBackend(
        launcher,
        lease_seconds=machine.lease_seconds,
        run_dir=run,
        interface=machine.interface,
    )


_BACKENDS: dict[str, Callable[[CampaignConfig, Path, int], Backend]] = {
    "local": _local,
    "steps": _steps,
    "mpiexec": _mpiexec,
}
