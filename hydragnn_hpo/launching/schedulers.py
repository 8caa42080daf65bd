"""Batch schedulers: what each of them offers, and what is common to their answers.

The members are ``transports/*_batch.py``; the table of backends in ``transports`` names them.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching.scheduler_commands import CommandFailed
from hydragnn_hpo.resources import resource_path

if TYPE_CHECKING:  # batch jobs call schedulers; profiles need pydantic, which agents do not load
    from hydragnn_hpo.config import ProfileConfig
    from hydragnn_hpo.launching.batch_jobs import BatchRequest

JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?(\[[0-9]*\])?(\.[A-Za-z0-9_.-]+)?")
"""Ids of batch jobs, with the number of an array task or the name of a server."""

_SUBMITTED = re.compile(rf"(?:Submitted batch job )?({JOB_ID.pattern})(?:;[\w.-]+| on cluster .*)?")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class QueueEntry:
    """A job as the scheduler reports it."""

    state: Literal["queued", "held", "running", "suspended", "ended"]
    reason: str = ""
    """Why it does not run, or how it ended: the scheduler's word, or a phrase about it."""
    mark: str = field(default="", compare=False)
    """What identifies its run: a comment, or the folder from which it was submitted."""
    granted: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Option of the batch script -> its value as the scheduler has it."""


WAITING = ("queued", "held")
"""States of a job that has not begun."""

QueueEntries = dict[str, QueueEntry]
"""Job id -> entry."""

Query = Callable[..., str]
"""Runs a command and returns its output, or raises ``JobError``."""


def check_job_id(text: str) -> str:
    """Return a job id unchanged if it is safe as an argument and as a file name.

    Raises:
        JobError: the text is no job id.
    """
    if not JOB_ID.fullmatch(text):
        raise JobError(f"{text[:80]!r} is no number of a batch job: see what the scheduler says.")
    return text


def parse_time(text: str) -> int | None:
    """Return the seconds of a time as schedulers write it: D-HH:MM:SS, HH:MM:SS or MM:SS."""
    match = re.fullmatch(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return 86_400 * days + 3600 * hours + 60 * minutes + seconds


def parse_submitted(output: str, tasks: Sequence[int]) -> list[str]:
    """Return the id of a job, or of each task, from the last line that is one.

    Sites print greetings before and behind ``123``, ``123;cluster`` or ``123.server``.

    Raises:
        JobError: no line is a job id.
    """
    lines = [line.strip() for line in _COLOUR.sub("", output).split("\n")]
    matches = [match for match in map(_SUBMITTED.fullmatch, lines) if match]
    job = matches[-1][1] if matches else check_job_id(output.strip())
    return [f"{job}_{task}" for task in tasks] or [job]


ENDED = {
    "COMPLETED": "its script ended",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "DEADLINE": "cancelled at its deadline",
    "PREEMPTED": "preempted",
    "TIMEOUT": "timed out",
    "NODE_FAIL": "lost with its hosts",
    "BOOT_FAIL": "lost, as its hosts did not boot",
    "OUT_OF_MEMORY": "killed, as its memory was full",
    "FAILED": "failed",
}
"""States of jobs that have ended, as phrases."""


def run_for(ids: Sequence[str], run: Query, *argv: str) -> str:
    """Run a command about some jobs, and return its output, without those that have ended."""
    try:
        output = run(*argv)
    except CommandFailed as error:
        if not error.output and not error.names_no_job:
            raise
        output = error.output
    if output.strip() and not any(job in output for job in ids):
        raise JobError(f"'{argv[0]}' speaks of other jobs: see what it says.")
    return output


# -- what a scheduler offers ---------------------------------------------------------------------


class OwnJob(NamedTuple):
    """The batch job that a process runs in."""

    scheduler: str
    id: str
    task: int | None = None
    """Number of an array task. ``id`` includes it: the plain number may name the whole array."""


class HeldHosts(NamedTuple):
    """Hosts of the job that a process runs in."""

    hosts: tuple[str, ...]
    job: str = ""
    """Id of the scheduler's job."""
    down: Mapping[str, str] = {}
    """Host -> state, of hosts on which nothing can start."""
    given: Mapping[str, int] = {}
    """Host -> number of devices that the scheduler allocated; empty if it does not report them."""


def read_number(names: str, environment: Mapping[str, str]) -> int | None:
    """Return the first variable of a text of names that is set; None if none is.

    Raises:
        ConfigError: it is no number.
    """
    for name in names.split():
        if (text := environment.get(name)) is not None:
            if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
                raise ConfigError(f"{name} is {text!r}, which is no number; unset it.")
            return int(text)
    return None


@dataclass(frozen=True)
class LauncherVariables:
    """Names of a launcher's variables; of several names in a text, the first that is set counts."""

    launcher: str
    rank: str
    world: str
    local: str
    local_world: str = ""
    only_with: str = ""
    """Variable that must be set too: a batch script has the others without being a job step."""
    sets_pmi: bool = False
    """Whether ranks find the variables of an ``mpiexec`` (``PMI_RANK``), too."""

    def find_hosts(self, environment: Mapping[str, str]) -> list[str]:
        """Return the hosts of the ranks; empty where no variable names them."""
        return []

    def count_local_ranks(self, environment: Mapping[str, str]) -> int | None:
        """Return the number of ranks on this host; None where no variable says it."""
        return read_number(self.local_world, environment)


class Scheduler(ABC):
    """A batch scheduler: its commands, the directives of its scripts, the hosts of a job."""

    name: str
    """``batch.scheduler`` of machine profiles."""
    title: str
    """Its name in sentences."""
    profile: str
    """Machine profile for hosts of which no other is known."""
    submit_program: str
    query_program: str
    job_variable: str
    """Environment variable that holds the id of the job of a process."""
    cancel_queued: tuple[str, ...]
    cancel_running: tuple[str, ...]
    interactive: str
    """Command, without its last options, that allocates hosts to a person."""
    prefix: str
    """Beginning of a directive in a script."""
    account_option: str
    queue_option: str
    """Option that selects a queue where the profile has no queue option of its own."""
    account_variable = ""
    """Environment variable that names a user's account; empty if there is none."""
    option_variables = ""
    """Prefix of environment variables that its submit command would read as options."""
    rank_variables: LauncherVariables | None = None
    """What ranks find that its own launcher starts; None if it has none."""
    step_flags = False
    """Whether ``step_argv`` takes ``step.agents`` of a profile."""
    job_lines: tuple[str, ...] = (
        "job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}",
        "job=${job:-${SLURM_JOB_ID:-$PBS_JOBID}}",
    )
    """Lines of a script that set ``job`` to the id of its job, as ``read_own_job`` returns it."""
    job_number = "${SLURM_JOB_ID:-$PBS_JOBID}"
    """Word of a script that is the value of ``job_variable``."""

    def read_head(self) -> str:
        """Return the template of the first part of a script: directives, and the job's end."""
        path = resource_path(f"launch/batch/{self.name}.sh")
        return path.read_text(encoding="utf-8")

    def own_options(self, request: "BatchRequest", profile: "ProfileConfig") -> list[str]:
        """Return further directives that depend on the request and the machine."""
        return []

    def mark_lines(self, tag: str, options: Sequence[str]) -> list[str]:
        """Return lines by which the run finds a job whose id was not read.

        Args:
            tag: tag of the run.
            options: the other directives.
        """
        return []

    def own_words(self, request: "BatchRequest") -> dict[str, str]:
        """Return words of its template that other schedulers do not have.

        Returns:
            Text for each variable of the template, by its name.
        """
        return {}

    def find_doubts(self, profile: "ProfileConfig") -> Iterator[str]:
        """Yield what is probably not meant in a profile's ``[batch]``, a sentence each."""
        yield from ()

    def read_own_job(self, environment: Mapping[str, str]) -> OwnJob | None:
        """Return the job of a process; None if it is in none of this scheduler."""
        job = environment.get(self.job_variable)
        return OwnJob(self.name, job) if job else None

    def parse_submitted(self, output: str, tasks: Sequence[int]) -> list[str]:
        """Return the id of a submitted job, or of each of its array tasks.

        Raises:
            JobError: the output holds no id.
        """
        return parse_submitted(output, tasks)

    @abstractmethod
    def submit_argv(self, script: str, *, after: str | None, task: int | None) -> list[str]:
        """Return the command that submits a script.

        Args:
            script: file name of the script.
            after: id of the job whose end it waits for, successful or not.
            task: number of the one array task to submit; None submits all tasks of the script.
        """

    @abstractmethod
    def look_argv(self, name: str) -> list[str]:
        """Return the command that lists the jobs of a name."""

    @abstractmethod
    def find(self, name: str, marks: Collection[str], run: Query) -> list[str]:
        """Return the ids of the queued and running jobs of a name that belong to a run.

        Args:
            name: name of the jobs.
            marks: what identifies the run: a comment, or the folder it was submitted from.
            run: runs a command.
        """

    @abstractmethod
    def query(self, ids: Sequence[str], run: Query) -> QueueEntries:
        """Return those jobs that the scheduler knows.

        Args:
            ids: of the jobs.
            run: runs a command.

        Raises:
            JobError: the scheduler does not answer.
        """

    @abstractmethod
    def find_hosts(self, environment: Mapping[str, str], most: int) -> HeldHosts | None:
        """Return the hosts of the job of this process; None if it is in none.

        Args:
            environment: environment of this process, which names the job.
            most: most hosts to return; 0: all.

        Raises:
            ConfigError: the job does not run, or its hosts cannot be read.
            JobError: the scheduler does not answer.
        """

    @abstractmethod
    def step_argv(
        self, job: str, hosts: Sequence[str], command: Sequence[str], flags: Sequence[str]
    ) -> list[str]:
        """Return the command that runs a command once on each of some hosts.

        Args:
            job: id of the job that holds the hosts.
            hosts: hosts of the job.
            command: program and arguments to run there.
            flags: ``step.agents`` of the profile; not used without ``step_flags``.
        """
