"""Batch jobs of a campaign: requests, scheduler commands, records, and how jobs form a chain.

A job queues its successor when it starts, so that the chain continues even if the job's host
fails. When the job ends, it cancels the successor if another job could make no progress.

Sources: slurm.schedmd.com (sbatch, squeue, scancel), tested with 22.05; man pages of OpenPBS and
PBS Professional 2022 (qsub, qstat, qdel), not tested on a real system.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hydragnn_hpo.errors import ConfigError, JobError, StorageError
from hydragnn_hpo.files import read_json, storage, write_json, write_text
from hydragnn_hpo.launching.slurm_allocation import shorten

if TYPE_CHECKING:  # the command line reads this module before it knows which command to run
    from hydragnn_hpo.config import ProfileConfig

MAX_JOBS = 16
"""Default limit of jobs in a chain. Only one is queued at a time, and a job that makes no progress
ends its chain, so this limit is for unforeseen cases."""

DRAINED = 75
"""Exit code of a ``run`` whose allocation ended before its campaign (``EX_TEMPFAIL``)."""

BATCH_JOB = "HYDRAGNN_HPO_BATCH_JOB"
"""Environment variable that batch scripts export: the id of the job that runs the script. If the
scheduler's own variable differs, another job has inherited the environment."""

SUBMIT_SECONDS = 120.0
QUERY_SECONDS = 15.0
"""Time limit of a query: ``status`` must answer, however busy the scheduler is."""
CANCEL_SECONDS = 30.0

_FINAL_CODES = (0, 1, 2)
"""Exit codes after which the chain ends: another job would only repeat the result of ``run``."""

_NOT_INHERITED = ("HYDRAGNN_HPO_END", "HYDRAGNN_HPO_END_MARGIN", "HYDRAGNN_HPO_HOSTS", BATCH_JOB)
_INHERITED = ("SLURM_CONF", "SLURM_CLUSTERS")

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@+,=-]{0,127}")
"""Accounts, queues and job ids that are safe in directives and in command lines."""

_ID = re.compile(r"[0-9]+(_[0-9]+)?(\[[0-9]*\])?(\.[A-Za-z0-9_.-]+)?")


@dataclass(frozen=True)
class BatchRequest:
    """Batch jobs that a user requests for one campaign."""

    name: str
    """Name of the campaign."""
    hosts: int
    """Hosts of each job."""
    seconds: int
    """Wall-time of each job."""
    account: str | None = None
    queue: str | None = None
    """Queue of the jobs; that of the machine profile if None."""
    allocations: int = 1
    """Jobs that may run at the same time, each with its own hosts."""
    jobs: int = MAX_JOBS
    """Most jobs of a chain."""
    after: str | None = None
    """Id of the job whose end the first job waits for."""

    @property
    def time(self) -> str:
        """The wall-time as schedulers write it, HH:MM:SS."""
        minutes, seconds = divmod(self.seconds, 60)
        return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"


def parse_walltime(text: str) -> int:
    """Return the seconds of a wall-time written as H:MM or H:MM:SS.

    Raises:
        ConfigError: it has another form, or is zero.
    """
    match = re.fullmatch(r"([0-9]{1,4}):([0-5][0-9])(?::([0-5][0-9]))?", text)
    seconds = 0
    if match:
        seconds = 3600 * int(match[1]) + 60 * int(match[2]) + int(match[3] or 0)
    if seconds == 0:
        raise ConfigError(f"--time is {text!r}: write hours and minutes, such as 2:00 or 0:30:00.")
    return seconds


def check_batch_request(request: BatchRequest, profile: ProfileConfig, backend: str) -> None:
    """Raise an error for a request that the machine cannot fulfil.

    Args:
        request: the jobs that the user requests.
        profile: profile of the machine.
        backend: name of the backend that runs the trials.

    Raises:
        ConfigError: one sentence about the first thing that is wrong.
    """
    batch, machine = profile.batch, profile.name
    if batch.scheduler == "none":
        raise ConfigError(
            f"machine '{machine}' takes no batch jobs: use 'hydragnn-hpo run', or set "
            "batch.scheduler in its profile."
        )
    for option in ("account", "queue", "after"):
        value = getattr(request, option)
        if value is not None and not _WORD.fullmatch(value):
            raise ConfigError(f"--{option} is {value!r}: use letters, digits and _ . : @ + , = -.")
    if batch.account_needed and request.account is None:
        raise ConfigError(f"machine '{machine}' charges an account: name yours with --account.")
    _check_size(request, profile, backend)
    if request.seconds < 2 * batch.drain_seconds:
        raise ConfigError(
            f"--time is {request.time}, and trials leave checkpoints {batch.drain_seconds} s before"
            f" the end: ask for at least {math.ceil(2 * batch.drain_seconds / 60)} minutes, or "
            "lower batch.drain_seconds in the profile."
        )


def _check_size(request: BatchRequest, profile: ProfileConfig, backend: str) -> None:
    hosts = request.hosts * request.allocations
    if profile.hosts and hosts > profile.hosts:
        raise ConfigError(
            f"--hosts asks for {hosts} hosts, machine '{profile.name}' has {profile.hosts}: ask "
            "for fewer."
        )
    if backend == "local" and request.hosts > 1:
        raise ConfigError(
            f"--hosts is {request.hosts}, but the backend 'local' uses one host: ask for one, or "
            "choose another machine.backend."
        )
    if backend != "slurm" and request.allocations > 1:
        raise ConfigError(
            f"--allocations is {request.allocations}, but the hosts of several allocations find "
            f"each other by the backend 'slurm' alone, this is '{backend}': ask for one."
        )
    longest = profile.longest_hours(request.hosts)
    if longest is not None and request.seconds > 3600 * longest:
        raise ConfigError(
            f"--time is {request.time}, machine '{profile.name}' gives {request.hosts} hosts at "
            f"most {longest:g} hours: ask for less, the jobs of a chain follow each other."
        )


@dataclass(frozen=True)
class QueueEntry:
    """A queued or running job, as the scheduler reports it."""

    state: Literal["queued", "running"]
    reason: str = ""
    """Why it is still queued, in the scheduler's words."""


QueueEntries = dict[str, QueueEntry]
"""Job id -> entry."""


class Slurm:
    """Commands of Slurm. Jobs that run at the same time are the tasks of one array."""

    submit_program = "sbatch"
    job_variable = "SLURM_JOB_ID"
    cancel_queued = ("scancel", "--state=PENDING")
    cancel_running = ("scancel",)

    def submit_argv(self, script: str, *, after: str | None, task: int | None) -> list[str]:
        """Return the command that submits a script.

        Args:
            script: file name of the script.
            after: id of the job whose end it waits for, successful or not.
            task: number of the one array task to submit; None submits all tasks of the script.
        """
        wait = [f"--dependency=afterany:{after}"] if after else []
        only = [f"--array={task}"] if task else []
        return [self.submit_program, "--parsable", *wait, *only, script]

    def query_argv(self, ids: Sequence[str]) -> list[str]:
        """Return the command that prints the states of jobs, one line for each task."""
        return ["squeue", "--noheader", "--array", f"--jobs={','.join(ids)}", "--format=%i|%T|%r"]

    def parse_states(self, output: str) -> QueueEntries:
        """Return the jobs that have not ended, from lines such as ``123_1|PENDING|Priority``."""
        entries = {}
        for line in output.splitlines():
            job, state, reason = (line.strip().split("|") + ["", ""])[:3]
            if state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"):
                entries[job] = QueueEntry("queued", reason)
            elif state:
                entries[job] = QueueEntry("running")
        return entries


class Pbs:
    """Commands of PBS Professional and OpenPBS; job arrays are not used."""

    submit_program = "qsub"
    job_variable = "PBS_JOBID"
    cancel_queued = ("qdel",)
    cancel_running = ("qdel", "-W", "force")
    """Deletes a job even if its first host is down; the server ignores ``force`` if it is up."""

    def submit_argv(self, script: str, *, after: str | None, task: int | None) -> list[str]:
        """Return the command that submits a script.

        Args:
            script: file name of the script.
            after: id of the job whose end it waits for, successful or not.
            task: not used.
        """
        return [self.submit_program, *(["-W", f"depend=afterany:{after}"] if after else []), script]

    def query_argv(self, ids: Sequence[str]) -> list[str]:
        """Return the command that prints the states of jobs; ``-x`` includes ended ones."""
        return ["qstat", "-x", "-f", *ids]

    def parse_states(self, output: str) -> QueueEntries:
        """Return the jobs that have not ended, from blocks such as ``Job Id: 123.server``."""
        entries = {}
        for block in re.split(r"^Job Id: *", output, flags=re.MULTILINE)[1:]:
            job, _, rest = block.partition("\n")
            values = dict(re.findall(r"^ {4}(job_state|comment) = (.*)$", rest, re.MULTILINE))
            letter = values.get("job_state", "F")
            if letter in "QHWT":
                entries[job.strip()] = QueueEntry("queued", values.get("comment", ""))
            elif letter in "REBSU":
                entries[job.strip()] = QueueEntry("running")
        return entries


Scheduler = Slurm | Pbs
SCHEDULERS: dict[str, Scheduler] = {"slurm": Slurm(), "pbs": Pbs()}


class OwnJob(NamedTuple):
    """The batch job that a process runs in."""

    scheduler: str
    id: str
    task: int | None = None
    """Number of an array task. ``id`` includes it: the plain number may name the whole array."""


def find_own_job(environment: Mapping[str, str]) -> OwnJob:
    """Return the batch job that this process runs in.

    Raises:
        ConfigError: it runs in no batch job.
    """
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return OwnJob("slurm", f"{array}_{task}", int(task))
    for name, scheduler in SCHEDULERS.items():
        if job := environment.get(scheduler.job_variable):
            return OwnJob(name, job)
    raise ConfigError("this is no batch job: use 'submit', whose scripts call 'batch'.")


def in_batch_job(environment: Mapping[str, str]) -> bool:
    """Check whether this process runs in a batch job that ``submit`` queued."""
    exported = environment.get(BATCH_JOB)
    current = [environment.get(scheduler.job_variable) for scheduler in SCHEDULERS.values()]
    return bool(exported) and exported in current


def parse_submitted(output: str, tasks: Sequence[int]) -> list[str]:
    """Return the id of a job, or of each task, from ``123``, ``123;cluster`` or ``123.server``.

    Raises:
        JobError: the output begins with no job id.
    """
    job = check_job_id(output.strip().partition(";")[0])
    return [f"{job}_{task}" for task in tasks] or [job]


def check_job_id(text: str) -> str:
    """Return a job id unchanged if it is safe as an argument and as a file name.

    Raises:
        JobError: the text is no job id.
    """
    if not _ID.fullmatch(text):
        raise JobError(f"{text[:80]!r} is no number of a batch job: see what the scheduler says.")
    return text


@dataclass(frozen=True)
class BatchJob:
    """One batch job, as recorded in the run directory."""

    id: str
    """Id that the scheduler assigned."""
    scheduler: str
    script: str
    """File name in ``RUN/jobs``."""
    hosts: int
    link: int
    """Position in its chain, from 1 on."""
    jobs: int
    """Most jobs of the chain."""
    submitted: float
    """Seconds since the epoch, as the other times."""
    after: str | None = None
    task: int | None = None
    """Number of its array task; each task has its own chain."""
    began: float | None = None
    progress: int = 0
    """Progress of the campaign when the job began, see ``campaign.status``."""
    ended: float | None = None
    code: int | None = None
    """Exit code of ``run``."""
    message: str = ""
    """How the job ended, or why the chain ends with it."""

    def in_chain_of(self, other: BatchJob) -> bool:
        """Check whether both jobs belong to the same chain."""
        return (self.script, self.task) == (other.script, other.task)


_SUBMITTED = ("scheduler", "script", "hosts", "link", "jobs", "submitted", "after", "task")


class JobRecords:
    """The batch jobs of a run: scripts, logs, and one small file for each fact in ``RUN/jobs``.

    Files are only added, each by an atomic rename: jobs on several hosts may write at the same
    time, and appending is not safe on every file system.
    """

    def __init__(self, run: Path) -> None:
        """Open the records of a run directory; nothing is created."""
        self.folder = run / "jobs"

    def next_script(self) -> str:
        """Return the name of the next submission's script."""
        scripts = (path for path in self.folder.glob("*.sh") if re.fullmatch("[0-9]+", path.stem))
        return f"{1 + max((int(path.stem) for path in scripts), default=0):03d}.sh"

    def campaign_path(self, script: str) -> Path:
        """Return the path of a script's campaign file, as it was submitted."""
        return (self.folder / script).with_suffix(".toml")

    def write_script(self, name: str, script: str, campaign: str) -> None:
        """Write a script and the campaign that it runs, in a folder that only its owner can read.

        Args:
            name: file name of the script.
            script: its text.
            campaign: text of the campaign.

        Raises:
            StorageError: the disk is full, or the folder is not writable.
        """
        path = self.folder / name
        with storage(path):
            self.folder.mkdir(mode=0o700, exist_ok=True)
            write_text(self.campaign_path(name), campaign, private=True)
            write_text(path, script, private=True)
            path.chmod(0o700)

    def add(self, job: BatchJob) -> None:
        """Record that a job was submitted."""
        self.record(job.id, "submitted", **{name: getattr(job, name) for name in _SUBMITTED})

    def record(self, job: str, fact: Literal["submitted", "began", "ended"], **values: Any) -> None:
        """Record a fact of a job."""
        write_json(self._file(check_job_id(job), fact), values, private=True)

    def _file(self, job: str, fact: str) -> Path:
        return self.folder / f"{job}.{fact}.json"

    def record_end(self, job: str, *, code: int | None, message: str) -> None:
        """Record how a job ended.

        Args:
            job: id of the job.
            code: exit code of ``run``; None if the job never began.
            message: a phrase that ``status`` shows.
        """
        self.record(job, "ended", time=time.time(), code=code, said=message)

    def jobs(self) -> list[BatchJob]:
        """Return all jobs in the order of their submission."""
        files = sorted(self.folder.glob("*.submitted.json"))
        jobs = [self._read(file.name.removesuffix(".submitted.json")) for file in files]
        return sorted(jobs, key=lambda job: (job.submitted, job.link, job.task or 0))

    def find(self, job: str) -> BatchJob | None:
        """Return the job with an id; None if there is none."""
        return next((known for known in self.jobs() if known.id == job), None)

    def _read(self, name: str) -> BatchJob:
        try:
            job = BatchJob(id=name, **read_json(self._file(name, "submitted")))
            if job.scheduler not in SCHEDULERS:
                raise KeyError("scheduler")
            if (file := self._file(name, "began")).exists():
                began = read_json(file)
                job = replace(job, began=began["time"], progress=began["progress"])
            if (file := self._file(name, "ended")).exists():
                ended = read_json(file)
                job = replace(job, ended=ended["time"], code=ended["code"], message=ended["said"])
            return job
        except (KeyError, TypeError) as error:
            raise StorageError(
                f"{self.folder}/{name}.*.json: do not say what records of a batch job say "
                f"({error}); remove them."
            ) from None


@dataclass(frozen=True)
class ChainDecision:
    """Actions of a job of a chain when it starts, or when its ``run`` has ended."""

    message: str
    runs: bool = True
    """Whether a job that starts runs the campaign."""
    queues_next: bool = False
    cancels: Literal["none", "next", "all"] = "none"
    """Queued jobs to cancel: none, the job's own successor, or all jobs of the run."""
    code: int = 0
    """Exit code of a job that ends."""


def decide_start(
    earlier: Sequence[BatchJob], own: BatchJob, *, progress: int, finished: bool
) -> ChainDecision:
    """Decide what a job does when it starts.

    Args:
        earlier: jobs before it in its chain, first to last.
        own: the job.
        progress: current progress of the campaign.
        finished: whether the campaign is finished.
    """
    if finished:
        return ChainDecision("the campaign is finished")
    before = next((job for job in earlier if job.id == own.after), None)
    if before is not None and _ended_chain(before, progress):
        message = f"job {before.id} has ended the chain: {before.message}"
        return ChainDecision(message, runs=False)
    last = [job for job in earlier if job.began is not None][-2:]
    if len(last) == 2 and all(job.progress == progress for job in last):
        message = f"jobs {last[0].id} and {last[1].id} got nowhere: the chain ends here"
        return ChainDecision(message, runs=False)
    if own.link >= own.jobs:
        rest = "the last one of its chain" if own.jobs > 1 else "no other follows"
        return ChainDecision(f"job {own.link} of {own.jobs}, {rest}")
    return ChainDecision(f"job {own.link} of at most {own.jobs}", queues_next=True)


def _ended_chain(job: BatchJob, progress: int) -> bool:
    """Check whether a job ended its chain: its successor starts only if a cancel failed."""
    return job.code is not None and (job.code in _FINAL_CODES or progress <= job.progress)


def decide_end(
    own: BatchJob, *, code: int, progress: int, finished: bool, followed: bool
) -> ChainDecision:
    """Decide what a job does when its ``run`` has ended.

    Args:
        own: the job.
        code: exit code of ``run``; above 128 if a signal ended it.
        progress: current progress of the campaign.
        finished: whether the campaign is finished.
        followed: whether a successor was queued.
    """
    if finished:
        return ChainDecision("the campaign is finished", cancels="all", code=code)
    if code in _FINAL_CODES:
        message = f"'run' ended with code {code}, see above" if code else "its part is done"
        return ChainDecision(message, cancels="next", code=code)
    how = "drained" if code == DRAINED else f"'run' was lost (code {code})"
    if progress <= own.progress:
        message = (
            f"{how} without a finished epoch: the chain ends here, another job would do no better"
        )
        return ChainDecision(message, cancels="next", code=code)
    if followed:
        return ChainDecision(f"{how}; the next job goes on")
    if own.link < own.jobs:  # the scheduler refused a successor when it began
        return ChainDecision(how, queues_next=True, code=code)
    return ChainDecision(f"{how}; no job follows: submit again to go on", code=code)


def check_scheduler_installed(name: str) -> None:
    """Check that a scheduler's submit command is installed.

    Raises:
        ConfigError: the scheduler's command is not on PATH.
    """
    if shutil.which(program := SCHEDULERS[name].submit_program) is None:
        raise ConfigError(
            f"there is no '{program}' on PATH: submit from a login node of the machine, or look at "
            "the script with --dry-run."
        )


def submit_jobs(records: JobRecords, job: BatchJob, tasks: Sequence[int] = ()) -> list[str]:
    """Submit a job and record it; logs are written to the folder of its script.

    Args:
        records: records of the run directory.
        job: the job to submit; its id and time of submission are filled in.
        tasks: numbers of the tasks of the script's array.

    Returns:
        The id of the job, or of each task.

    Raises:
        JobError: the scheduler refuses, or does not answer.
    """
    scheduler = SCHEDULERS[job.scheduler]
    argv = scheduler.submit_argv(job.script, after=job.after, task=job.task)
    # Schedulers pass the environment to the job, which has other hosts and another end time.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _INHERITED
        or not (name in _NOT_INHERITED or name.startswith(("SLURM_", "PBS_", "PMI_")))
    }
    output = _run(argv, SUBMIT_SECONDS, environment, records.folder)
    wanted = tasks or ([] if job.task is None else [job.task])
    ids = parse_submitted(output, wanted)
    for name, task in itertools.zip_longest(ids, wanted):
        records.add(replace(job, id=name, task=task, submitted=time.time()))
    return ids


def cancel_queued_jobs(records: JobRecords, jobs: Sequence[BatchJob]) -> list[str]:
    """Cancel those of the given jobs that have not begun, and return their ids.

    Raises:
        JobError: a scheduler does not answer.
    """
    cancelled = []
    waiting = [job for job in jobs if job.began is None and job.ended is None]
    for name in sorted({job.scheduler for job in waiting}):
        scheduler, ids = SCHEDULERS[name], [job.id for job in waiting if job.scheduler == name]
        if (entries := query_jobs(name, ids)) is None:
            program = scheduler.query_argv(ids)[0]
            raise JobError(
                f"'{program}' gives no answer, so {', '.join(ids)} stay queued: try again later."
            )
        queued = [job for job in ids if job in entries and entries[job].state == "queued"]
        if queued:
            _run([*scheduler.cancel_queued, *queued], SUBMIT_SECONDS, os.environ)
        cancelled += queued
    for job in cancelled:
        records.record_end(job, code=None, message="taken back")
    return cancelled


def query_jobs(name: str, ids: Sequence[str]) -> QueueEntries | None:
    """Return the given jobs that have not ended; None if the scheduler does not answer."""
    if not ids:
        return {}
    scheduler = SCHEDULERS[name]
    try:
        done = subprocess.run(
            scheduler.query_argv(ids),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=QUERY_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    forgotten = ("Invalid job id", "Unknown Job Id", "has finished")
    if done.returncode != 0 and not done.stdout and not any(w in done.stderr for w in forgotten):
        return None
    if done.stdout.strip() and not any(job in done.stdout for job in ids):
        return None  # it speaks of something else
    return scheduler.parse_states(done.stdout)


def cancel_own_batch_job(environment: Mapping[str, str]) -> str | None:
    """Cancel the batch job that this process runs in, so that the next one of its chain begins.

    Neither its successor nor other tasks of its array are cancelled. Takes at most
    ``CANCEL_SECONDS``.

    Returns:
        The id of the job; None if ``submit`` queued no such job, or the command fails.
    """
    if not in_batch_job(environment):
        return None
    try:
        own = find_own_job(environment)
        command = SCHEDULERS[own.scheduler].cancel_running
        _run([*command, check_job_id(own.id)], CANCEL_SECONDS, environment)
    except JobError:
        return None
    return own.id


def _run(
    argv: Sequence[str],
    seconds: float,
    environment: Mapping[str, str],
    folder: Path | None = None,
) -> str:
    """Run a scheduler's command and return its output.

    Raises:
        JobError: the command fails, or does not end within ``seconds``.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # a scheduler's banner may be in any coding
            timeout=seconds,
            env=dict(environment),
            cwd=folder,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or error
        raise JobError(f"'{argv[0]}' gives no answer ({reason}): try again later.") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        reason = shorten(lines, done.returncode)
        raise JobError(f"'{argv[0]}' refuses ({reason}): correct what it names.")
    return done.stdout
