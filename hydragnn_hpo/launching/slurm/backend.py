"""A fleet on the hosts of a Slurm allocation."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydragnn_hpo.config.campaign import MachineConfig
from hydragnn_hpo.launching.fleet import Fleet
from hydragnn_hpo.launching.job import JOBS, PRELOAD
from hydragnn_hpo.launching.slurm.allocation import Allocation
from hydragnn_hpo.launching.slurm.transport import SlurmTransport


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
    ) -> None:
        """Start an agent on every host by one job step; returns at once.

        Args:
            machine: how many hosts and slots, over which interface, with what lease.
            run_dir: an existing folder, which all hosts see if files are shared.
            environment: names the allocation, see ``Allocation.find``.
            jobs: kind of job -> ``module:function``.
            preload: the modules that a zygote imports.

        Raises:
            ConfigError: we are in no allocation, or have no such interface.
            JobError: Slurm does not answer.
        """
        allocation = Allocation.find(environment, machine.hosts)
        transport = SlurmTransport(
            allocation,
            run_dir=run_dir,
            interface=machine.interface,
            shared_files=machine.shared_files,
        )
        super().__init__(
            transport,
            run_dir=run_dir,
            lease_seconds=machine.lease_seconds,
            slots=machine.slots,
            lanes=machine.lanes,
            interface=machine.interface,
            shared_files=machine.shared_files,
            jobs=jobs,
            preload=preload,
        )
