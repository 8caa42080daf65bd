"""Batch jobs of a campaign: requests, scheduler commands, records, and how jobs form a chain.

A job queues its successor when it starts, so that the chain continues even if the job's host
fails. When the job ends, it cancels the successor if another job could make no progress.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydragnn_hpo.errors import ConfigError, JobError, StorageError
from hydragnn_hpo.files import read_json, storage, write_json, write_text
from hydragnn_hpo.launching.scheduler_commands import CommandFailed, run_scheduler
from hydragnn_hpo.launching.schedulers import (
    WAITING,
    OwnJob,
    QueueEntries,
    QueueEntry,
    Scheduler,
    check_job_id,
    parse_time,
)
from hydragnn_hpo.launching.transports import (
    find_backend,
    find_scheduler,
    list_schedulers,
    name_backends,
)
from hydragnn_hpo.walltime import END, MARGIN, REQUESTED_END

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

_NOT_INHERITED = (END, MARGIN, REQUESTED_END, "HYDRAGNN_HPO_HOSTS", BATCH_JOB)

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@+,=-]{0,127}")
"""Accounts, queues and job ids that are safe in directives and in command lines."""


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
        ConfigError: it has another form, is zero, or schedulers read it as minutes and seconds.
    """
    match = re.fullmatch(r"([0-9]{1,4}):([0-5][0-9])(?::([0-5][0-9]))?", text)
    seconds = 0
    if match:
        seconds = 3600 * int(match[1]) + 60 * int(match[2]) + int(match[3] or 0)
    if match and match[3] is None and len(match[1]) > 1:
        raise ConfigError(
            f"--time is {text!r}, which schedulers read as minutes and seconds: write {text}:00 "
            f"for hours, or 0:{text} for minutes."
        )
    if seconds == 0:
        raise ConfigError(f"--time is {text!r}: write hours and minutes, such as 2:00 or 0:30:00.")
    return seconds


def scheduler_of(profile: ProfileConfig) -> Scheduler:
    """Return the batch scheduler of a machine.

    Raises:
        ConfigError: the machine has none, or one that is not known here.
    """
    if not profile.batch.has_scheduler:
        raise ConfigError(
            f"machine '{profile.name}' takes no batch jobs: use 'hydragnn-hpo run', or set "
            "batch.scheduler in its profile."
        )
    return find_scheduler(profile.batch.scheduler)


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
    scheduler_of(profile)
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
    kind = find_backend(backend)
    if kind.tethered and request.hosts > 1:
        raise ConfigError(
            f"--hosts is {request.hosts}, but the backend '{backend}' uses one host: ask for one, "
            "or choose another machine.backend."
        )
    if not kind.joins and request.allocations > 1:
        joining = name_backends(lambda kind: kind.joins)
        raise ConfigError(
            f"--allocations is {request.allocations}, but the hosts of several allocations find "
            f"each other by the backend {joining} alone, this is '{backend}': ask for one."
        )
    longest = profile.longest_hours(request.hosts)
    if longest is not None and request.seconds > 3600 * longest:
        raise ConfigError(
            f"--time is {request.time}, machine '{profile.name}' gives {request.hosts} hosts at "
            f"most {longest:g} hours: ask for less, the jobs of a chain follow each other."
        )


def find_own_job(environment: Mapping[str, str]) -> OwnJob:
    """Return the batch job that this process runs in.

    Raises:
        ConfigError: it runs in no batch job.
    """
    for scheduler in list_schedulers():
        if job := scheduler.read_own_job(environment):
            return job
    raise ConfigError("this is no batch job: use 'submit', whose scripts call 'batch'.")


def in_batch_job(environment: Mapping[str, str]) -> bool:
    """Check whether this process runs in a batch job that ``submit`` queued."""
    if not (exported := environment.get(BATCH_JOB)):
        return False
    return any(exported == environment.get(each.job_variable) for each in list_schedulers())


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


def _submission(job: BatchJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _SUBMITTED}


_DIRECTIVE = re.compile(r"#[A-Z]+:? (--[a-z-]+|-l [a-z]+|-[A-Za-z])[= ](.*)")


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

    def reserve(self, jobs: Sequence[BatchJob]) -> bool:
        """Reserve jobs before they are submitted; return False if another process reserved one.

        Raises:
            StorageError: the disk is full, or the folder is not writable.
        """
        submitted = {(job.script, job.link, job.task) for job in self.jobs()}
        for number, job in enumerate(jobs):
            path = self._reservation(job)
            with storage(path):
                try:
                    with path.open("x") as file:
                        json.dump(_submission(job), file)
                except FileExistsError:
                    self.release(jobs[:number])
                    return False
            if (job.script, job.link, job.task) in submitted:
                self.release(jobs[: number + 1])
                return False
        return True

    def release(self, jobs: Sequence[BatchJob]) -> None:
        """Remove the record that jobs are about to be submitted."""
        for job in jobs:
            self._reservation(job).unlink(missing_ok=True)

    def reserved(self) -> list[BatchJob]:
        """Return the jobs that may have been submitted, but have no number yet."""
        jobs = []
        for file in sorted(self.folder.glob("*.reserved")):
            with contextlib.suppress(StorageError, TypeError):  # it is being written
                jobs.append(BatchJob(id="", **read_json(file)))
        return jobs

    def _reservation(self, job: BatchJob) -> Path:
        task = "" if job.task is None else f"_{job.task}"
        return self.folder / f"{Path(job.script).stem}-{job.link}{task}.reserved"

    def read_directives(self, script: str) -> dict[str, str]:
        """Return the options of a script's directives; empty if it cannot be read.

        Returns:
            Option, such as ``--time`` or ``-l walltime`` -> value.
        """
        try:
            lines = (self.folder / script).read_text(errors="replace").splitlines()
        except OSError:
            return {}
        matches = map(_DIRECTIVE.match, lines)
        return {match[1]: match[2].strip() for match in matches if match}

    def identify(self, job: BatchJob) -> tuple[str, tuple[str, ...]]:
        """Return the name of a job, and what the scheduler may know it by.

        Returns:
            The name; and the comment of its script, and the folder it was submitted from.
        """
        options = self.read_directives(job.script)
        name = options.get("--job-name") or options.get("-N") or ""
        folders = (str(self.folder), str(self.folder.resolve()))
        return name, (options.get("--comment", folders[0]), *folders)

    def add(self, job: BatchJob) -> None:
        """Record that a job was submitted."""
        self.record(job.id, "submitted", **_submission(job))
        self.release([job])

    def record(self, job: str, fact: Literal["submitted", "began", "ended"], **values: Any) -> None:
        """Record a fact of a job."""
        write_json(self._file(check_job_id(job), fact), values, private=True)

    def _file(self, job: str, fact: str) -> Path:
        return self.folder / f"{job}.{fact}.json"

    def find_log(self, job: BatchJob) -> str | None:
        """Return the name of a job's log in the run directory; None if it has not begun."""
        number = job.id.partition(".")[0]
        logs = [self.folder / f"{job.id}.out", *sorted(self.folder.glob(f"*.o{number}"))]
        existing = [log.name for log in logs if number and log.exists()]
        return f"{self.folder.name}/{existing[0]}" if existing else None

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
            if not isinstance(job.scheduler, str):
                raise TypeError("scheduler")
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
    ended = job.code is not None and job.began is not None
    return ended and (job.code in _FINAL_CODES or progress <= job.progress)


def decide_end(
    own: BatchJob,
    *,
    code: int,
    progress: int,
    finished: bool,
    followed: bool,
    cancelled: bool = False,
) -> ChainDecision:
    """Decide what a job does when its ``run`` has ended.

    Args:
        own: the job.
        code: exit code of ``run``; above 128 if a signal ended it.
        progress: current progress of the campaign.
        finished: whether the campaign is finished.
        followed: whether a successor was queued.
        cancelled: whether the successor was cancelled since.
    """
    if finished:
        return ChainDecision("the campaign is finished", cancels="all", code=code)
    if code in _FINAL_CODES:
        message = f"'run' ended with code {code}" if code else "its part is done"
        return ChainDecision(message, cancels="next", code=code)
    how = "drained" if code == DRAINED else f"'run' was lost (code {code})"
    if progress <= own.progress:
        message = (
            f"{how} without a finished epoch: the chain ends here, another job would do no better"
        )
        return ChainDecision(message, cancels="next", code=code)
    if cancelled:
        return ChainDecision(f"{how}; the next job was cancelled: submit again to go on", code=code)
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
    if shutil.which(program := find_scheduler(name).submit_program) is None:
        raise ConfigError(
            f"there is no '{program}' on PATH: submit from a login node of the machine, or look at "
            "the script with --dry-run."
        )


def submit_jobs(records: JobRecords, job: BatchJob, tasks: Sequence[int] = ()) -> list[str]:
    """Submit a job and record it; logs are written to the folder of its script.

    The submission is recorded before the job is queued, and its number afterwards: no job that was
    queued is forgotten, whatever the scheduler prints.

    Args:
        records: records of the run directory.
        job: the job to submit; its id and time of submission are filled in.
        tasks: numbers of the tasks of the script's array.

    Returns:
        The id of the job, or of each task.

    Raises:
        JobError: the scheduler refuses, or does not answer.
    """
    job = replace(job, submitted=time.time())
    parts = [replace(job, task=task) for task in tasks] or [job]
    ids = None
    if not records.reserve(parts):
        ids = _find_unrecorded(records, parts)
        if ids is None or job.link == 1:
            raise _uncertain(records, job, "another submission has begun")
    ids = ids or _queue(records, parts)
    for name, part in zip(ids, parts, strict=True):
        records.add(replace(part, id=name, submitted=time.time()))
    return ids


def _queue(records: JobRecords, parts: Sequence[BatchJob]) -> list[str]:
    """Queue a job, or the tasks of one, and return the ids; raise JobError if none is found."""
    job = parts[0]
    scheduler = find_scheduler(job.scheduler)
    only = job.task if len(parts) == 1 else None
    argv = scheduler.submit_argv(job.script, after=job.after, task=only)
    # Schedulers pass the environment to the job, which has other hosts and another end time.
    ours = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    try:
        output = run_scheduler(
            *argv, seconds=SUBMIT_SECONDS, environment=ours, folder=records.folder
        )
        ids = scheduler.parse_submitted(
            output, [part.task for part in parts if part.task is not None]
        )
    except JobError as error:
        candidates = _find_unrecorded(records, parts)
        if candidates:
            return candidates
        if isinstance(error, CommandFailed):
            if candidates is not None or not _CONNECTION.search(error.reason):
                records.release(parts)
                message = f"'{argv[0]}' refuses ({error.reason}): correct what it names."
                raise JobError(message) from error
        elif isinstance(error.__cause__, OSError):  # there is no such command
            records.release(parts)
            raise
        raise _uncertain(records, job, str(error).partition(":")[0]) from error
    # A number in a greeting is that of no job, or of another one.
    entries = query_jobs(job.scheduler, ids)
    marks = ("", *records.identify(job)[1])
    if entries and all(entry.mark in marks for entry in entries.values()):
        return ids
    return _find_unrecorded(records, parts) or ids


_CONNECTION = re.compile(r"timed? ?out|contact|connect|communicat", re.IGNORECASE)
"""Reasons of a failure after which a job may be queued all the same."""


def _uncertain(records: JobRecords, job: BatchJob, why: str) -> JobError:
    """Return the error about a job that may be queued."""
    return JobError(
        f"{why}: a job may be queued; look with '{look_command(records, job)}', and cancel it, or "
        "submit another one with --again."
    )


def look_command(records: JobRecords, job: BatchJob) -> str:
    """Return the command that lists the jobs with the name of a job's script."""
    return shlex.join(find_scheduler(job.scheduler).look_argv(records.identify(job)[0]))


def _find_unrecorded(records: JobRecords, parts: Sequence[BatchJob]) -> list[str] | None:
    """Return the ids of a submission whose number was not read, found by name and comment.

    None if the scheduler does not answer; nothing if there is no such job.
    """
    scheduler = find_scheduler(parts[0].scheduler)
    recorded = {job.id for job in records.jobs()}
    name, marks = records.identify(parts[0])
    try:
        listed = scheduler.find(name, marks, partial(run_scheduler, seconds=QUERY_SECONDS))
    except JobError:
        return None
    ids = []
    for part in parts:
        task = None if part.task is None else str(part.task)
        fitting = (job for job in listed if (job.split("_") + [None])[1] == task)
        ids += sorted(set(fitting) - recorded, key=lambda job: int(re.split(r"\D", job)[0]))[-1:]
    return ids if len(ids) == len(parts) else []


def settle_submissions(records: JobRecords, *, forget: bool = False) -> list[BatchJob]:
    """Record jobs whose number was not read; return submissions that may be queued.

    Args:
        records: records of the run directory.
        forget: whether to forget those of which the scheduler knows nothing.
    """
    uncertain = []
    for job in records.reserved():
        ids = _find_unrecorded(records, [job])
        if ids:
            records.add(replace(job, id=ids[0]))
        elif ids == [] and forget:
            records.release([job])
        else:
            uncertain.append(job)
    return uncertain


def compare_with_request(records: JobRecords, job: BatchJob, ids: Sequence[str]) -> list[str]:
    """Return a sentence for each option of a script that the scheduler has otherwise.

    Args:
        records: records of the run directory.
        job: the submitted job.
        ids: its id, or those of its tasks.
    """
    entry = next(iter((query_jobs(job.scheduler, ids) or {}).values()), None)
    requested = records.read_directives(job.script)
    cancel = find_scheduler(job.scheduler).cancel_running[0]
    return [
        f"batch job {ids[0]} has {option} {granted}, and {requested[option]} was requested: ask "
        f"your site why, or cancel it with '{cancel} {ids[0]}'."
        for option, granted in (entry.granted if entry else {}).items()
        if option in requested and not _agree(option, requested[option], granted)
    ]


def _agree(option: str, requested: str, granted: str) -> bool:
    """Check whether a scheduler has what was requested; it counts whole minutes and megabytes."""
    if not granted:
        return True
    if "time" in option:
        seconds = parse_time(requested)
        more = parse_time(granted)
        return seconds is None or (more is not None and 0 <= more - seconds < 60)
    if option == "--mem":
        return _parse_megabytes(requested) in (None, _parse_megabytes(granted))
    if option == "--partition":
        return set(granted.split(",")) <= set(requested.split(","))
    return requested.casefold() == granted.casefold()


def _parse_megabytes(text: str) -> float | None:
    match = re.fullmatch(r"([0-9.]+)([KMGT]?)[BN]?", text.upper())
    if match is None:
        return None
    return float(match[1]) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}[match[2]]


def cancel_queued_jobs(records: JobRecords, jobs: Sequence[BatchJob]) -> list[str]:
    """Cancel those of the given jobs that have not begun, and return their ids.

    Raises:
        JobError: a scheduler does not answer.
    """
    cancelled = []
    waiting = [job for job in jobs if job.began is None and job.ended is None]
    for name in sorted({job.scheduler for job in waiting}):
        scheduler = find_scheduler(name)
        ids = [job.id for job in waiting if job.scheduler == name]
        if (entries := query_jobs(name, ids)) is None:
            raise JobError(
                f"'{scheduler.query_program}' gives no answer, so {', '.join(ids)} stay queued: "
                "try again later."
            )
        queued = [job for job in ids if job in entries and entries[job].state in WAITING]
        if queued:
            run_scheduler(*scheduler.cancel_queued, *queued, seconds=SUBMIT_SECONDS)
        cancelled += queued
    for job in cancelled:
        records.record_end(job, code=None, message="taken back")
    return cancelled


def query_jobs(name: str, ids: Sequence[str]) -> QueueEntries | None:
    """Return the given jobs as the scheduler knows them; None if it is not here, or silent."""
    if not ids:
        return {}
    try:
        return find_scheduler(name).query(ids, partial(run_scheduler, seconds=QUERY_SECONDS))
    except (JobError, ConfigError):
        return None


def select_alive(jobs: Sequence[BatchJob]) -> list[BatchJob]:
    """Return the jobs that are queued or run, as far as scheduler and records tell."""
    alive = []
    for job in jobs:
        entries = query_jobs(job.scheduler, [job.id]) if job.ended is None else {}
        entry = entries.get(job.id) if entries is not None else QueueEntry("queued")
        if entry is not None and entry.state != "ended":
            alive.append(job)
    return alive


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
        command = (*find_scheduler(own.scheduler).cancel_running, check_job_id(own.id))
        run_scheduler(*command, seconds=CANCEL_SECONDS, environment=environment)
    except JobError:
        return None
    return own.id
