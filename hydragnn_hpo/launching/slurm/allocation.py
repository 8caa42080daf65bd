"""What Slurm tells about the allocation that we are in."""

import datetime
import logging
import math
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching.excluded_hosts import without_excluded
from hydragnn_hpo.launching.slurm.hostlist import compress, expand
from hydragnn_hpo.launching.slurm.topology import by_switch

logger = logging.getLogger(__name__)

_ASK_SECONDS = 60.0
_PAUSES = (2.0, 5.0, 10.0, 30.0, 60.0)
"""Before a question is asked again as a campaign begins: Slurm's controller may be away for
minutes, and a chain of jobs is not to end for that."""

_FINAL = "Invalid job id"
"""What no later answer changes."""

Ask = Callable[..., str]
"""Gives what a command of Slurm says, or raises ``JobError``."""

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


def ask_again(*argv: str) -> str:
    """Give what a command of Slurm says, as soon as it says anything.

    Raises:
        JobError: it has failed for minutes, or will fail for ever.
    """
    for pause in _PAUSES:
        try:
            return ask(*argv)
        except JobError as error:
            if _FINAL in str(error):
                raise
            logger.warning("%s It is asked again in %.0f s.", error, pause)
        time.sleep(pause)
    return ask(*argv)


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
        cls,
        environment: Mapping[str, str],
        most: int = 0,
        *,
        without: Container[str] = (),
        asking: Ask = ask_again,
    ) -> "Allocation":
        """Ask Slurm about the job that the environment names.

        Args:
            environment: holds SLURM_JOB_ID.
            most: how many hosts to use; 0: all.
            without: hosts to leave alone.
            asking: ``ask`` for a person who waits.

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
        state, names, end = _standing(job, asking)
        if state != "RUNNING":
            raise ConfigError(f"Slurm job {job} is {state.lower()}: run inside one that runs.")
        hosts = without_excluded(by_switch(expand(names), _topology()), without)
        hosts = hosts[: most or len(hosts)]
        return cls(job, hosts, _address(hosts[0], asking), _end(environment, end))


def _standing(job: str, asking: Ask) -> list[str]:
    """Give state, hosts and end of a job.

    The last task of an array has the array's own number, and squeue then tells of every task.

    Raises:
        ConfigError: it has ended; shells keep the variables of an ``salloc`` that is over.
        JobError: Slurm says something else than it should.
    """
    answer = asking("squeue", "-h", "-j", job, "-o", "%T|%N|%e|%A").splitlines()
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


def _address(host: str, asking: Ask) -> str:
    found = re.search(r"NodeAddr=(\S+)", asking("scontrol", "show", "node", host))
    return found[1] if found else host


def _end(environment: Mapping[str, str], told: str) -> float:
    """Give the end of the job: from the environment, or as squeue writes it."""
    if (known := environment.get("SLURM_JOB_END_TIME", "")).isdigit():
        return float(known)
    try:
        return datetime.datetime.fromisoformat(told).timestamp()
    except ValueError:  # NONE, UNLIMITED, N/A
        return math.inf


def unusable(hosts: Sequence[str], asking: Ask = ask) -> dict[str, str]:
    """Give those of some hosts on which no step can start, with their state.

    Args:
        hosts: by Slurm's names.
        asking: ``ask_again`` where the answer decides whether anything begins.

    Raises:
        JobError: Slurm does not answer.
    """
    return _unusable_of(asking(*_states(hosts)))


def _states(hosts: Sequence[str]) -> tuple[str, ...]:
    return ("sinfo", "-h", "-N", "-n", compress(hosts), "-o", "%N|%T")


def _unusable_of(answer: str) -> dict[str, str]:
    lines = answer.splitlines()
    states = dict(line.split("|", 1) for line in lines if "|" in line)
    return {
        host: state
        for host, state in states.items()
        if state.endswith("*") or state.startswith(_UNUSABLE)
    }


class Question:
    """``unusable``, asked beside other work: a scheduler may take a minute to say that it is away.

    Whoever waited for it would answer no agent meanwhile, and all ranks would end with their
    leases.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        """Ask, and return at once.

        Args:
            hosts: as ``unusable``.
        """
        self._argv = _states(hosts)
        self._until = time.monotonic() + _ASK_SECONDS
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
        self._failure: OSError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._failure = error

    def answer(self, seconds: float = 0.0) -> dict[str, str] | None:
        """Give the answer; None while there is none.

        Args:
            seconds: to wait for it.

        Raises:
            JobError: Slurm does not answer.
        """
        if self._process is None:
            raise JobError(f"'{self._argv[0]}' gives no answer ({self._failure}): is Slurm there?")
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            if time.monotonic() < self._until:
                return None
            self.close()
            raise JobError(f"'{self._argv[0]}' gives no answer: is Slurm there?") from None
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        if code != 0:
            last = (said.strip().splitlines() or [str(code)])[-1]
            raise JobError(f"'{' '.join(self._argv)}' fails: {last}.")
        return _unusable_of(said)

    def close(self) -> None:
        """Ask no more."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._said.close()
