"""Which Ray cluster a campaign runs on: one that is there, or its own inside an allocation."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.config import MachineConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.excluded_hosts import read_run_excluded
from hydragnn_hpo.launching.host_network import first_there, own_address
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.launching.profile_adapter import site_of
from hydragnn_hpo.launching.ray.cluster import StartedCluster
from hydragnn_hpo.launching.ray.credentials import make_token, ray_environment
from hydragnn_hpo.launching.ray.member import member_argv
from hydragnn_hpo.launching.slurm.allocation import Allocation
from hydragnn_hpo.launching.slurm.slurm_transport import step_argv, step_environment
from hydragnn_hpo.launching.wire.protocol import FOLDER

logger = logging.getLogger(__name__)

LOGS = "agents"
"""Folder of a run directory for what agents and Ray have to say."""


@dataclass(frozen=True)
class Ground:
    """A Ray cluster to stand on."""

    address: str
    """``host:port`` of its head."""

    environment: Mapping[str, str]
    """For whatever speaks with it."""

    started: StartedCluster | None = None
    """It, if it is our own."""

    expected: tuple[str, ...] = ()
    """Names of the hosts that are on their way."""

    ends_at: float = math.inf
    """When its hosts are taken from us, in seconds since the epoch."""


def find_ground(
    machine: MachineConfig, *, run_dir: Path, environment: Mapping[str, str], token: Path | None
) -> Ground:
    """Take the cluster that ``machine.address`` names, or start one in the Slurm allocation.

    Args:
        machine: names the cluster, and the interface on which hosts meet.
        run_dir: of the run.
        environment: names the allocation, and perhaps the file of the token.
        token: file of the cluster's token; where Ray itself would look if None.

    Raises:
        ConfigError: there is no token, or neither address nor allocation, or no such profile.
        JobError: Slurm does not answer, or no head starts.
    """
    with storage(run_dir / LOGS):
        (run_dir / LOGS).mkdir(mode=0o700, exist_ok=True)
    if machine.address is not None:
        return Ground(machine.address, ray_environment(environment, token))
    if "SLURM_JOB_ID" not in environment:
        raise ConfigError(
            "machine.backend is 'ray', but machine.address names no cluster and this is no Slurm "
            "allocation: give the head's host:port, or run inside salloc or sbatch."
        )
    allocation = Allocation.find(environment, machine.hosts, without=read_run_excluded(run_dir))
    token = token or make_token(run_dir / FOLDER / "ray.token")
    return _start(allocation, machine, ray_environment(environment, token), run_dir)


def _start(
    allocation: Allocation, machine: MachineConfig, environment: dict[str, str], run_dir: Path
) -> Ground:
    """Start a head here, and by one job step a host of Ray on every host of the allocation."""
    site = site_of(machine)
    environment = step_environment(environment, allocation.ends_at)
    cluster = StartedCluster(
        own_address(machine.interface or first_there(site.interfaces), allocation.address),
        tag=run_tag(run_dir),
        environment=environment,
        logs=run_dir / LOGS,
    )
    member = member_argv(cluster.address, interface=machine.interface, name_of="SLURMD_NODENAME")
    argv = step_argv(allocation.job, allocation.hosts, member, site.step.agents)
    cluster.add(argv, "hosts")
    return Ground(
        cluster.address, environment, cluster, tuple(allocation.hosts), allocation.ends_at
    )
