"""How Slurm and PBS are asked: arguments of their commands, and what their answers mean; purely.

Sources: slurm.schedmd.com (sbatch, squeue, scancel), measured on 22.05; the manuals of PBS
Professional 2022 (qsub, qstat, qdel), on which nothing could be measured.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from hydragnn_hpo.errors import ConfigError, JobError

_ID = re.compile(r"[0-9]+(_[0-9]+)?(\[[0-9]*\])?(\.[A-Za-z0-9_.-]+)?")

State = Literal["queued", "running"]


@dataclass(frozen=True)
class Queued:
    """A job that the scheduler knows and that has not ended."""

    state: State
    why: str = ""
    """Why it does not run, in the scheduler's words."""


class Scheduler(Protocol):
    """What takes batch jobs."""

    program: str
    """Its command to submit."""

    def submit(self, script: str, after: str | None, task: int | None) -> list[str]:
        """Give the command that submits a script.

        Args:
            script: file name of the script.
            after: job whose end it waits for, however that ends.
            task: the one task of an array that is wanted, None for all that the script asks for.
        """
        ...

    def submitted(self, answer: str, tasks: Sequence[int]) -> list[str]:
        """Read the numbers of submitted jobs: of one, or of each task that was asked for."""
        ...

    def cancel(self, ids: Sequence[str]) -> list[str]:
        """Give the command that takes jobs back."""
        ...

    def ask(self, ids: Sequence[str]) -> list[str]:
        """Give the command that asks how jobs stand."""
        ...

    def states(self, answer: str) -> dict[str, Queued]:
        """Read how jobs stand; those that have ended are left out."""
        ...

    def own(self, environment: Mapping[str, str]) -> str | None:
        """Give the number of the job in which we run."""
        ...


class Slurm:
    """Slurm; several allocations are one job array."""

    program = "sbatch"

    def submit(self, script: str, after: str | None, task: int | None) -> list[str]:
        """Give the command that submits a script."""
        wait = [f"--dependency=afterany:{after}"] if after else []
        only = [f"--array={task}"] if task else []
        return [self.program, "--parsable", *wait, *only, script]

    def submitted(self, answer: str, tasks: Sequence[int]) -> list[str]:
        """Read ``123`` or ``123;cluster``.

        Raises:
            JobError: there is no number.
        """
        job = checked_id(answer.strip().partition(";")[0])
        return [f"{job}_{task}" for task in tasks] or [job]

    def cancel(self, ids: Sequence[str]) -> list[str]:
        """Give the command that takes jobs back, if they have not begun."""
        return ["scancel", "--state=PENDING", *ids]

    def ask(self, ids: Sequence[str]) -> list[str]:
        """Give the command that asks how jobs stand, every task of an array on its own line."""
        return ["squeue", "--noheader", "--array", f"--jobs={','.join(ids)}", "--format=%i|%T|%r"]

    def states(self, answer: str) -> dict[str, Queued]:
        """Read lines such as ``123_1|PENDING|Priority``."""
        found = {}
        for line in answer.splitlines():
            job, state, why = (line.strip().split("|") + ["", ""])[:3]
            if state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"):
                found[job] = Queued("queued", why)
            elif state:
                found[job] = Queued("running")
        return found

    def own(self, environment: Mapping[str, str]) -> str | None:
        """Give the number of the job in which we run, with that of its task."""
        array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
        return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID")


class Pbs:
    """PBS Professional or OpenPBS; there are no tasks."""

    program = "qsub"

    def submit(self, script: str, after: str | None, task: int | None) -> list[str]:
        """Give the command that submits a script."""
        return [self.program, *(["-W", f"depend=afterany:{after}"] if after else []), script]

    def submitted(self, answer: str, tasks: Sequence[int]) -> list[str]:
        """Read ``123.server``.

        Raises:
            JobError: there is no number.
        """
        return [checked_id(answer.strip())]

    def cancel(self, ids: Sequence[str]) -> list[str]:
        """Give the command that takes jobs back."""
        return ["qdel", *ids]

    def ask(self, ids: Sequence[str]) -> list[str]:
        """Give the command that asks how jobs stand, ended ones too: else they are an error."""
        return ["qstat", "-x", "-f", *ids]

    def states(self, answer: str) -> dict[str, Queued]:
        """Read ``Job Id: 123.server`` and the lines ``job_state = Q``, ``comment = ...`` below."""
        found: dict[str, Queued] = {}
        for part in re.split(r"^Job Id: *", answer, flags=re.MULTILINE)[1:]:
            job, _, rest = part.partition("\n")
            said = dict(re.findall(r"^ {4}(job_state|comment) = (.*)$", rest, re.MULTILINE))
            letter = said.get("job_state", "F")
            if letter in "QHWT":
                found[job.strip()] = Queued("queued", said.get("comment", ""))
            elif letter in "REBSU":
                found[job.strip()] = Queued("running")
        return found

    def own(self, environment: Mapping[str, str]) -> str | None:
        """Give the number of the job in which we run."""
        return environment.get("PBS_JOBID")


SCHEDULERS: dict[str, Scheduler] = {"slurm": Slurm(), "pbs": Pbs()}


def where_we_are(environment: Mapping[str, str]) -> tuple[str, str]:
    """Name the scheduler whose job we are in, and the job.

    Raises:
        ConfigError: we are in none.
    """
    for name, scheduler in SCHEDULERS.items():
        if job := scheduler.own(environment):
            return name, job
    raise ConfigError("this is no batch job: only the scripts of 'submit' call 'batch'.")


def scheduler_of(name: str) -> Scheduler:
    """Give a scheduler by its name in a profile.

    Raises:
        ConfigError: there is none.
    """
    if name not in SCHEDULERS:
        raise ConfigError(f"scheduler '{name}' is none of {', '.join(SCHEDULERS)}.")
    return SCHEDULERS[name]


def task_of(job: str) -> int | None:
    """Give the number of a task from that of its job; None if it is no task of an array."""
    found = re.fullmatch(r"[0-9]+_([0-9]+)", job)
    return int(found[1]) if found else None


def checked_id(text: str) -> str:
    """Give back the number of a job; it becomes an argument and a file name.

    Raises:
        JobError: it is none.
    """
    if not _ID.fullmatch(text):
        raise JobError(f"{text[:80]!r} is no number of a batch job: see what the scheduler says.")
    return text
