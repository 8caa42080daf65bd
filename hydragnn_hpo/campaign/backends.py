"""Start the backend that a campaign's ``[machine]`` names; only that one is imported."""

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from hydragnn_hpo.config import CampaignConfig, MachineConfig, ProfileConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching import JOBS, Backend, find_backend, site_of
from hydragnn_hpo.launching.job import PRELOAD
from hydragnn_hpo.launching.process_control import end_orphans, run_tag
from hydragnn_hpo.launching.rank_environment import overruled
from hydragnn_hpo.launching.scheduler_commands import find_mpiexec
from hydragnn_hpo.launching.transports import name_backends
from hydragnn_hpo.launching.transports.agent_software import check_software, software_here
from hydragnn_hpo.launching.transports.transport import Transport
from hydragnn_hpo.optional_packages import require_package

logger = logging.getLogger(__name__)


def make_backend(config: CampaignConfig, run: Path) -> Backend:
    """Start the backend of a campaign.

    Args:
        config: the campaign.
        run: its directory.

    Raises:
        ConfigError: the machine does not have what the campaign asks for.
        JobError: what should start it does not answer.
    """
    check_launcher(config)
    fewest = config.launch.min_hosts
    return backend_on(config.machine, run, preload_of(config), min_hosts=fewest)


def spreads_stores(config: CampaignConfig) -> bool:
    """Check whether the ranks of a training share the graphs of a data set by MPI."""
    return any(entry.access == "distributed" for entry in config.data)


def launcher_of(config: CampaignConfig) -> Literal["srun", "mpiexec"] | None:
    """Return what starts the ranks of a trial, so that they find MPI; None for the agents."""
    if config.command is not None:
        return config.command.launcher
    if not spreads_stores(config):
        return None
    return find_backend(config.machine.backend).launcher


def start_profile(profile: ProfileConfig, config: CampaignConfig) -> ProfileConfig:
    """Return the profile with the time that starts take in a campaign.

    A rank that a launcher starts imports everything itself, in about as long as a zygote.
    """
    if not spreads_stores(config):
        return profile
    names = ("start_seconds", "restart_seconds")
    cold = profile.cold_start_seconds
    return profile.model_copy(update={name: getattr(profile, name) + cold for name in names})


def check_launcher(config: CampaignConfig) -> None:
    """Check that the launcher of the trials' ranks works with the campaign's backend.

    Raises:
        ConfigError: it does not.
    """
    launcher = launcher_of(config)
    backend = config.machine.backend
    if spreads_stores(config) and config.command is None:
        _check_mpi(config.machine)
    if launcher is not None and launcher not in find_backend(backend).launchers:
        able = name_backends(lambda kind: launcher in kind.launchers)
        raise ConfigError(
            f"command.launcher is '{launcher}', but machine.backend is '{backend}', which starts "
            f"no ranks by it: set it to {able}, or leave the launcher out."
        )


def _check_mpi(machine: MachineConfig) -> None:
    """Check that ranks of trainings find each other by MPI; a container brings its own."""
    launcher = find_backend(machine.backend).launcher
    if launcher is None:
        raise ConfigError(
            f"data.access is 'distributed', but machine.backend is '{machine.backend}', which has "
            "no MPI: choose access 'stage' or 'windows', or another backend."
        )
    if machine.container is None:
        remedy = ", or choose access 'stage' or 'windows'"
        require_package("mpi4py", "data.access 'distributed'", remedy)
        if launcher == "mpiexec":
            find_mpiexec()


def check_host_count(fewest: int, hosts: int) -> None:
    """Check that an allocation has as many hosts as a campaign needs.

    Raises:
        ConfigError: it has fewer.
    """
    if hosts < fewest:
        raise ConfigError(
            f"launch.min_hosts is {fewest}, but the allocation has {hosts} hosts: lower it, or ask "
            "for more hosts."
        )


def backend_on(
    machine: MachineConfig, run: Path, preload: tuple[str, ...] = PRELOAD, *, min_hosts: int = 0
) -> Backend:
    """Start the backend of a machine.

    Args:
        machine: the machine.
        run: an existing folder on storage shared by all hosts; only this controller uses it.
        preload: names of modules that ranks import in advance.
        min_hosts: fewest hosts that an allocation must have.

    Raises:
        ConfigError: the machine does not have what is asked for.
        JobError: what should start it does not answer.
    """
    check_software(machine, site_of(machine), run)
    kind = find_backend(machine.backend)
    if not kind.outlives and (strays := end_orphans(run_tag(run))):
        logger.warning("ended %d processes that a lost controller had left", len(strays))
    tell_overruled(machine)
    if kind.open is None:
        return _local(machine, run, preload)
    transport = kind.open(machine, run)
    with contextlib.ExitStack() as failed:
        failed.callback(transport.close)
        check_host_count(min_hosts, len(transport.hosts))
        backend = fleet_on(transport, machine, run, preload)
        failed.pop_all()
    return backend


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
    """Return the modules that ranks of a campaign import in advance: none for a command.

    Returns:
        Names of modules for the zygote to import.
    """
    return PRELOAD if config.command is None else ()


def _local(machine: MachineConfig, run: Path, preload: tuple[str, ...]) -> Backend:
    from hydragnn_hpo.launching.transports.local import LocalBackend

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


def fleet_on(
    transport: Transport,
    machine: MachineConfig,
    run: Path,
    preload: tuple[str, ...] = PRELOAD,
    *,
    jobs: Mapping[str, str] = JOBS,
) -> Backend:
    """Return a backend of agents.

    Args:
        transport: starts the agents.
        machine: the machine; sets slots, lanes and leases.
        run: an existing folder that only this controller uses.
        preload: names of modules that ranks import in advance.
        jobs: kind of job -> ``module:function``.

    Raises:
        JobError: the controller cannot listen on the transport's address.
    """
    from hydragnn_hpo.launching.fleet import Fleet

    return Fleet(
        transport,
        run_dir=run,
        lease_seconds=machine.lease_seconds,
        slots=machine.slots,
        lanes=machine.lanes,
        site=site_of(machine),
        sample_seconds=machine.sample_seconds,
        jobs=jobs,
        preload=preload,
    )
