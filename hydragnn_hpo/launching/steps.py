"""A Slurm step for every job: for commands that need Slurm's PMI, inside an allocation.

Measured on Slurm 22.05: ``--nodelist`` does not order ranks, a host file with
``--distribution=arbitrary`` does; a step that inherits SLURM_GPUS_PER_NODE shows a lone rank all
devices of its host, even with ``--gpus-per-task=1``.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.launcher import Launch

NOT_INHERITED = (
    "SLURM_CPU_BIND",
    "SLURM_CPUS_PER_GPU",
    "SLURM_CPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_EXACT",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_OVERLAP",
    "SLURM_STEP_GRES",
    "SRUN_CPUS_PER_TASK",
)
"""What the allocation was asked for with, which a step of it would take for its own."""


@dataclass(frozen=True)
class Allocation:
    """The hosts we hold, all alike."""

    hosts: tuple[str, ...]
    cpus: int
    """Of the smallest host."""
    gpus: int
    """Of each host."""


def allocation_of(environment: Mapping[str, str]) -> Allocation:
    """Read what Slurm says about the allocation that we are in.

    Raises:
        ConfigError: we are in none.
    """
    listed = environment.get("SLURM_JOB_NODELIST")
    if listed is None:
        raise ConfigError(
            "machine.backend is 'steps', but SLURM_JOB_NODELIST is unset: run inside an "
            "allocation (salloc, or a batch job)."
        )
    found = re.findall(r"(\d+)(?:\(x\d+\))?", environment.get("SLURM_JOB_CPUS_PER_NODE", "1"))
    gpus = environment.get("SLURM_GPUS_PER_NODE") or environment.get("SLURM_GPUS_ON_NODE") or "0"
    count = re.search(r"(\d+)$", gpus)  # 8, or mi250x:8
    return Allocation(tuple(expand(listed)), min(map(int, found)), int(count[1]) if count else 0)


def expand(listed: str) -> list[str]:
    """Give the hosts of ``node[1-3]`` in Slurm's order."""
    asked = ["scontrol", "show", "hostnames", listed]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()


class Steps:
    """Runs the ranks of a job by ``srun``."""

    rank_variables = "SLURM_PROCID"
    here = False

    def __init__(self, allocation: Allocation, *, slots: int = 0, hosts: int = 0) -> None:
        """Divide the hosts into slots; Slurm itself chooses cores and devices.

        Args:
            allocation: the hosts we hold.
            slots: ranks at a time on each host; 0: one per GPU, or per core where there is none.
            hosts: how many to use; 0 for all.

        Raises:
            ConfigError: more slots are wanted than there are cores, or devices.
        """
        most = allocation.gpus or allocation.cpus
        each = slots or most
        if each > most:
            what = "GPUs" if allocation.gpus else "cores"
            raise ConfigError(
                f"machine.slots is {each}, but hosts have {most} {what}, and a step shares none: "
                "ask for fewer slots, or use the backend 'slurm'."
            )
        self._cores = max(1, allocation.cpus // each)
        device = "cuda:0" if allocation.gpus else "cpu"
        self.slots: tuple[Slot, ...] = tuple(
            Slot(host, index, (), device)
            for host in allocation.hosts[: hosts or None]
            for index in range(each)
        )

    def render(self, job: Job, program: Sequence[str], hostfile: Path) -> Launch:
        """Give the command of one step; its ranks are laid out as the host file says."""
        hosts = len({slot.host for slot in job.slots})
        argv: tuple[str, ...] = (
            *("srun", f"--nodes={hosts}", f"--ntasks={job.width}", "--distribution=arbitrary"),
            *("--exact", f"--cpus-per-task={self._cores}"),
            *("--kill-on-bad-exit=0", "--wait=0", "--no-kill", f"--job-name={job.id}"),
        )
        if job.slots[0].device != "cpu":
            argv += ("--gpus-per-task=1", "--gpu-bind=single:1")
        environment = {"SLURM_HOSTFILE": str(hostfile), "OMP_NUM_THREADS": str(self._cores)}
        return Launch((*argv, *program), environment, NOT_INHERITED)
