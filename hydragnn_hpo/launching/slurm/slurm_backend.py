"""A fleet on the hosts of a Slurm allocation."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydragnn_hpo.config import MachineConfig
from hydragnn_hpo.launching.excluded_hosts import read_run_excluded
from hydragnn_hpo.launching.fleet.fleet import Fleet
from hydragnn_hpo.launching.job import JOBS, PRELOAD
from hydragnn_hpo.launching.profile_adapter import site_of
from hydragnn_hpo.launching.slurm.allocation import Allocation
from hydragnn_hpo.launching.slurm.slurm_transport import SlurmTransport
from hydragnn_hpo.launching.staging.equip import equip


def hold(
    machine: MachineConfig,
    run_dir: Path,
    environment: Mapping[str, str] = os.environ,
    *,
    one_of_many: bool = False,
) -> SlurmTransport:
    """Give what starts agents on the hosts of the allocation that we are in.

    Args:
        machine: how many hosts, over which interface.
        run_dir: an existing folder.
        environment: names the allocation, see ``Allocation.find``.
        one_of_many: whether other allocations may serve the same campaign.

    Raises:
        ConfigError: we are in no allocation, or have no such interface or profile.
        JobError: Slurm does not answer.
    """
    site = site_of(machine)
    allocation = Allocation.find(environment, machine.hosts, without=read_run_excluded(run_dir))
    software, usable = equip(machine, site, allocation, run_dir=run_dir, environment=environment)
    return SlurmTransport(
        usable,
        run_dir=run_dir,
        interface=machine.interface,
        shared_files=machine.shared_files,
        site=site,
        software=software,
        one_of_many=one_of_many,
    )


class SlurmBackend(Fleet):
    """Forked ranks on all hosts of the allocation that we are in, see ``Backend``."""

    def __init__(
        self,
        machine: MachineConfig,
        *,
        run_dir: Path,
        environment: Mapping[str, str] = os.environ,
        jobs: Mapping[str, str] = JOBS,
        preload: Sequence[str] = PRELOAD,
        transport: SlurmTransport | None = None,
    ) -> None:
        """Start an agent on every host by one job step; returns at once if it brings no software.

        Args:
            machine: how many hosts and slots, over which interface, with what lease.
            run_dir: an existing folder, which all hosts see if files are shared.
            environment: names the allocation, see ``Allocation.find``.
            jobs: kind of job -> ``module:function``.
            preload: the modules that a zygote imports.
            transport: starts agents, and may have started some; made by ``hold`` if None.

        Raises:
            ConfigError: we are in no allocation, or have no such interface or profile.
            JobError: Slurm does not answer.
        """
        site = site_of(machine)
        super().__init__(
            transport or hold(machine, run_dir, environment),
            run_dir=run_dir,
            lease_seconds=machine.lease_seconds,
            slots=machine.slots,
            lanes=machine.lanes,
            site=site,
            shared_files=machine.shared_files,
            sample_seconds=machine.sample_seconds,
            jobs=jobs,
            preload=preload,
        )
