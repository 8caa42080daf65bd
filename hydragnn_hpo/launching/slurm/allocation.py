"""What Slurm tells about the allocation that we are in."""

import datetime
import math
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching.slurm.hostlist import compress, expand
from hydragnn_hpo.launching.slurm.topology import by_switch

_ASK_SECONDS = 60.0
_UNUSABLE = ("down", "fail", "power", "reboot")
"""States of hosts on which no step can start; one that drains still works for us."""


def ask(*argv: str) -> str:
    """Give what a command of Slurm says.

    Raises:
        JobError: it fails, or does not answer.
    """
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobError(f"'{argv[0]}' gives no answer ({error}): is Slurm there?") from error
    if answer.returncode != 0:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        raise JobError(f"'{' '.join(argv)}' fails: {said[-1] if said else answer.returncode}.")
    return answer.stdout


@dataclass(frozen=True)
class Allocation:
    """Hosts and time that we hold."""

    job: str
    """Number of the Slurm job."""

    hosts: tuple[str, ...]
    """Neighbours in the network side by side."""

    address: str
    """Of the first host, as others reach it."""

    ends_at: float
    """In seconds since the epoch; infinity without a limit."""

    @classmethod
    def find(cls, environment: Mapping[str, str], most: int = 0) -> "Allocation":
        """Ask Slurm about the job that the environment names.

        Args:
            environment: holds SLURM_JOB_ID.
            most: how many hosts to use; 0: all.

        Raises:
            ConfigError: we are in no allocation.
            JobError: Slurm does not answer.
        """
        job = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID")
        if not job or shutil.which("srun") is None:
            raise ConfigError(
                "machine.backend needs a Slurm allocation, and this is no Slurm allocation "
                "(SLURM_JOB_ID is unset, or there is no srun): run inside salloc or sbatch."
            )
        state, names, end = ask("squeue", "-h", "-j", job, "-o", "%T|%N|%e").strip().split("|")
        if state != "RUNNING":
            raise ConfigError(f"Slurm job {job} is {state.lower()}: run inside one that runs.")
        hosts = by_switch(expand(names), _topology())
        hosts = hosts[: most or len(hosts)]
        return cls(job, tuple(hosts), _address(hosts[0]), _end(environment, end))


def _topology() -> str:
    try:
        return ask("scontrol", "show", "topology")
    except JobError:  # none is configured
        return ""


def _address(host: str) -> str:
    found = re.search(r"NodeAddr=(\S+)", ask("scontrol", "show", "node", host))
    return found[1] if found else host


def _end(environment: Mapping[str, str], told: str) -> float:
    """Give the end of the job: from the environment, or as squeue writes it."""
    if (known := environment.get("SLURM_JOB_END_TIME", "")).isdigit():
        return float(known)
    try:
        return datetime.datetime.fromisoformat(told).timestamp()
    except ValueError:  # NONE, UNLIMITED, N/A
        return math.inf


def unusable(hosts: Sequence[str]) -> dict[str, str]:
    """Give those of some hosts on which no step can start, with their state.

    Raises:
        JobError: Slurm does not answer.
    """
    lines = ask("sinfo", "-h", "-N", "-n", compress(hosts), "-o", "%N|%T").splitlines()
    states = dict(line.split("|", 1) for line in lines if "|" in line)
    return {
        host: state
        for host, state in states.items()
        if state.endswith("*") or state.startswith(_UNUSABLE)
    }
