"""What Slurm tells about the allocation that we are in."""

import datetime
import math
import re
import shutil
import subprocess
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching.doctor.exclusion import left_over
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
    def find(
        cls, environment: Mapping[str, str], most: int = 0, *, without: Container[str] = ()
    ) -> "Allocation":
        """Ask Slurm about the job that the environment names.

        Args:
            environment: holds SLURM_JOB_ID.
            most: how many hosts to use; 0: all.
            without: hosts to leave alone.

        Raises:
            ConfigError: we are in no allocation, or may use none of its hosts.
            JobError: Slurm does not answer.
        """
        job = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID")
        if not job or shutil.which("srun") is None:
            raise ConfigError(
                "machine.backend needs a Slurm allocation, and this is no Slurm allocation "
                "(SLURM_JOB_ID is unset, or there is no srun): run inside salloc or sbatch."
            )
        state, names, end = _standing(job)
        if state != "RUNNING":
            raise ConfigError(f"Slurm job {job} is {state.lower()}: run inside one that runs.")
        hosts = left_over(by_switch(expand(names), _topology()), without)
        hosts = hosts[: most or len(hosts)]
        return cls(job, hosts, _address(hosts[0]), _end(environment, end))


def _standing(job: str) -> list[str]:
    """Give state, hosts and end of a job.

    The last task of an array has the array's own number, and squeue then tells of every task.

    Raises:
        ConfigError: it has ended; shells keep the variables of an ``salloc`` that is over.
        JobError: Slurm says something else than it should.
    """
    answer = ask("squeue", "-h", "-j", job, "-o", "%T|%N|%e|%A").splitlines()
    lines = [line.strip().split("|") for line in answer]
    if not lines:
        raise ConfigError(f"Slurm job {job} has ended: run inside salloc or sbatch.")
    own = next((line for line in lines if line[3:] == [job]), lines[0])
    if len(own) < 3 or (own[0] == "RUNNING" and not own[1]):
        raise JobError(f"squeue tells no state and hosts of job {job}, but {'|'.join(own)!r}.")
    return own[:3]


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
