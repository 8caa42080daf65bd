"""A Slurm step for every job: for commands that need Slurm's PMI, inside an allocation.

Measured on Slurm 22.05: ``--nodelist`` does not order ranks, a host file with
``--distribution=arbitrary`` does; a step that inherits SLURM_GPUS_PER_NODE shows a lone rank all
devices of its host, even with ``--gpus-per-task=1``.
"""

import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hydragnn_hpo.config import SiteConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.launchers.launcher import Launch
from hydragnn_hpo.launching.profile_adapter import NEAR, UNKNOWN, layout_of, near_devices
from hydragnn_hpo.launching.slurm.allocation import Allocation

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
class HostSize:
    """What every host of an allocation has at least."""

    cpus: int
    gpus: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Read what Slurm tells a job about its hosts."""
        cpus = re.findall(r"(\d+)(?:\(x\d+\))?", environment.get("SLURM_JOB_CPUS_PER_NODE", "1"))
        gpus = environment.get("SLURM_GPUS_PER_NODE") or environment.get("SLURM_GPUS_ON_NODE")
        count = re.search(r"(\d+)$", gpus or "0")  # 8, or mi250x:8
        return cls(min(map(int, cpus)), int(count[1]) if count else 0)


def without_repeats(ours: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    """Put a profile's options behind ours, and leave out those of ours that they replace."""
    said = {name_of(flag) for flag in flags}
    return (*(word for word in ours if name_of(word) not in said), *flags)


def name_of(option: str) -> str:
    """Give the name of an option: ``-c7`` is ``--cpus-per-task=7``."""
    return "--cpus-per-task" if re.match(r"-c\d", option) else option.partition("=")[0]


class Steps:
    """Runs the ranks of a job by ``srun``."""

    rank_variables = "SLURM_PROCID"
    here = False

    def __init__(
        self,
        hosts: Sequence[str],
        size: HostSize,
        *,
        slots: int = 0,
        ends_at: float = math.inf,
        site: SiteConfig = UNKNOWN,
    ) -> None:
        """Divide the hosts into slots; Slurm itself chooses cores and devices.

        Args:
            hosts: those we hold, neighbours side by side.
            size: of each.
            slots: ranks at a time on each host; 0: one per GPU, or per core where there is none.
            ends_at: when they are taken from us, in seconds since the epoch.
            site: what the machine's profile says of its hosts and of steps.

        Raises:
            ConfigError: more slots are wanted than there are devices, or cores.
        """
        layout = layout_of(site)
        gpus = 0 if layout.accelerator == "cpu" else size.gpus
        most = gpus or size.cpus
        each = slots or min(layout.slots or most, most)
        if each > most:
            what = "GPUs" if gpus else "cores"
            raise ConfigError(
                f"machine.slots is {each}, but hosts have {most} {what}, and a step shares none: "
                "ask for fewer slots, or use the backend 'slurm'."
            )
        self.ends_at = ends_at
        own = min(map(len, layout.cores), default=0)
        self._cores = own or max(1, size.cpus // each)
        self._flags, self._near = site.step.trials, near_devices(site.layout)
        device = f"{layout.accelerator or 'cuda'}:0" if gpus else "cpu"
        self.slots: tuple[Slot, ...] = tuple(
            Slot(host, index, (), device) for host in hosts for index in range(each)
        )

    @classmethod
    def find(
        cls,
        environment: Mapping[str, str],
        *,
        slots: int = 0,
        hosts: int = 0,
        without: Container[str] = (),
        site: SiteConfig = UNKNOWN,
    ) -> Self:
        """Divide the allocation that we are in, but for hosts to leave alone.

        Raises:
            ConfigError: we are in none, or it has not what is wanted.
            JobError: Slurm does not answer.
        """
        held = Allocation.find(environment, hosts, without=without)
        size = HostSize.of(environment)
        return cls(held.hosts, size, slots=slots, ends_at=held.ends_at, site=site)

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
        argv = without_repeats(argv, self._flags)
        environment = {"SLURM_HOSTFILE": str(hostfile), "OMP_NUM_THREADS": str(self._cores)}
        if self._near:
            environment[NEAR] = self._near
        return Launch((*argv, *program), environment, NOT_INHERITED)
