"""Where we are: on the hosts of a scheduler's job, or at one computer."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hydragnn_hpo.config.machine import ProfileConfig
from hydragnn_hpo.launching.doctor.finding import Finding
from hydragnn_hpo.launching.doctor.order import Order
from hydragnn_hpo.launching.doctor.probes.storage import host_id
from hydragnn_hpo.launching.launchers.mpiexec import find_mpiexec, pbs_hosts
from hydragnn_hpo.launching.slurm.allocation import Allocation, ask, unusable
from hydragnn_hpo.launching.slurm.hostlist import expand
from hydragnn_hpo.launching.slurm.transport import step_argv, step_environment

_ASK_SECONDS = 20.0
_TOOLS = {"Slurm": ("sinfo", "--version"), "PBS": ("qstat", "--version")}

Kind = Literal["here", "slurm", "pbs"]


@dataclass(frozen=True)
class Place:
    """Hosts to look at, and how a command gets onto each of them."""

    kind: Kind
    hosts: tuple[str, ...]
    job: str = ""
    """Of the scheduler."""
    down: Mapping[str, str] = field(default_factory=dict)
    """Hosts on which nothing can start, with their state."""
    given: Mapping[str, int] = field(default_factory=dict)
    """Devices that the scheduler gave us, by host; empty where it does not say."""

    @property
    def able(self) -> tuple[str, ...]:
        """Hosts on which something can start."""
        return tuple(host for host in self.hosts if host not in self.down)

    def argv(self, order: Order, flags: Sequence[str] = ()) -> list[str]:
        """Give the command that has every host look at itself.

        Args:
            order: what to look at.
            flags: of the profile, for a step of agents.
        """
        probe = [sys.executable, "-P", "-m", "hydragnn_hpo.launching.doctor.probe"]
        probe.append(order.to_text())
        able = self.able
        if self.kind == "slurm":
            return step_argv(self.job, able, probe, flags)
        if self.kind == "pbs":
            where = ("-ppn", "1", "-hosts", ",".join(able))
            return [find_mpiexec(), "-n", str(len(able)), *where, *probe]
        return probe

    def environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        """Give the environment for that command."""
        return step_environment(ours, float("inf")) if self.kind == "slurm" else dict(ours)


def find_place(environment: Mapping[str, str], most: int = 0) -> Place:
    """See whose hosts we hold.

    Args:
        environment: names the job that we are in, if any.
        most: how many hosts to look at; 0: all.

    Raises:
        ConfigError: the node file of a PBS job cannot be read, or a Slurm job does not run.
        JobError: Slurm does not answer.
    """
    if "SLURM_JOB_ID" in environment and shutil.which("srun"):
        held = Allocation.find(environment, most, asking=ask)
        given = devices_given(ask("scontrol", "show", "job", "-d", held.job))
        return Place("slurm", held.hosts, held.job, unusable(held.hosts), given)
    if hosts := pbs_hosts(environment):
        return Place("pbs", tuple(hosts[: most or None]), environment.get("PBS_JOBID", ""))
    return Place("here", (host_id(),))


def devices_given(job: str) -> dict[str, int]:
    """Give the GPUs of each host from what ``scontrol show job -d`` says."""
    found: dict[str, int] = {}
    for line in job.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "Nodes" not in words or "GRES" not in words:
            continue
        counts = re.findall(r"gpu(?::[A-Za-z][^:,()]*)?:(\d+)", words["GRES"])
        found |= dict.fromkeys(expand(words["Nodes"]), sum(map(int, counts)))
    return found if any(found.values()) else {}


def find_schedulers() -> dict[str, str]:
    """Give the schedulers whose commands are here, with their versions."""
    found = {}
    for name, argv in _TOOLS.items():
        if shutil.which(argv[0]):
            found[name] = _version(argv)
    return found


def _version(argv: Sequence[str]) -> str:
    try:
        said = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return "does not answer"
    lines = said.stdout.strip().splitlines()
    return lines[0] if lines and said.returncode == 0 else "does not answer"


def scheduler_finding(
    place: Place, schedulers: Mapping[str, str], profile: ProfileConfig
) -> Finding:
    """Say which scheduler is here, and what that means."""
    said = ", ".join(
        version if name.lower() in version.lower() else f"{name} {version}"
        for name, version in schedulers.items()
    )
    wanted = {"slurm": "Slurm", "pbs": "PBS"}.get(profile.batch.scheduler, "")
    if place.kind != "here":
        return Finding("scheduler", "ok", f"{said or place.kind}, job {place.job}")
    if wanted and wanted not in schedulers:
        cure = f"Log in to {profile.name}, or name another --machine."
        return Finding("scheduler", "wrong", said or "none", wanted, cure)
    if wanted:
        return Finding("scheduler", "ok", f"{said}, outside of any job", wanted)
    if schedulers:
        cure = "To use it, name a profile: --machine generic-slurm (see machine list)."
        return Finding("scheduler", "ok", f"{said}, not asked for", cure=cure)
    return Finding("scheduler", "ok", "none: trials run on this computer, nothing is lost")


def flags_finding(flags: Sequence[str], why: str) -> Finding:
    """Say that a step with the profile's options came to nothing."""
    return Finding(
        check="options of steps",
        state="wrong",
        found=f"{' '.join(flags)}: {why}",
        expected="a step on all hosts",
        cure="Some host has not what they ask for (see below), or the job was not given it: "
        "ask for it when you submit, or change step.agents of the profile.",
    )


def not_seen(profile: ProfileConfig) -> Finding:
    """Say that the hosts of a machine are not to be seen from its login host."""
    start = {"slurm": "salloc -N 2", "pbs": "qsub -I -l select=2"}.get(profile.batch.scheduler, "")
    return Finding(
        check=f"hosts of {profile.name}",
        state="unknown",
        found="not seen from here",
        cure=f"Run it inside a job: {start} ..., then hydragnn-hpo doctor --machine "
        f"{profile.name}.",
    )
