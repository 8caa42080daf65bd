"""The states of a run's batch jobs, for ``status``, ``submit``, ``stop`` and ``pause``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hydragnn_hpo.launching.batch_jobs import query_jobs
from hydragnn_hpo.launching.schedulers import QueueEntry
from hydragnn_hpo.words import count

if TYPE_CHECKING:
    from hydragnn_hpo.launching.batch_jobs import BatchJob, JobRecords

JobState = Literal["queued", "held", "running", "suspended", "draining", "ended", "unknown"]
SHOWN = 4
"""Ended jobs in a table; the newest."""


@dataclass(frozen=True)
class BatchJobStatus:
    """The state of one batch job."""

    id: str
    state: JobState
    link: int
    jobs: int
    hosts: int
    why: str = ""
    """Why it does not run, or how it ended."""
    code: int | None = None

    @property
    def words(self) -> str:
        """The state and its reason, as a phrase."""
        if self.state == "unknown" and self.id:
            return "in a state that the scheduler does not tell"
        return f"{self.state} ({self.why})" if self.why else self.state


def read_job_statuses(
    jobs: Sequence["BatchJob"], *, draining: bool = False, records: "JobRecords | None" = None
) -> list[BatchJobStatus]:
    """Return the states of jobs; the scheduler is asked for those without a recorded end.

    Args:
        jobs: of one run.
        draining: whether the controller says that trials are leaving checkpoints.
        records: of the run, to name logs, and jobs that may be queued.
    """
    from hydragnn_hpo.launching.batch_jobs import look_command

    entries: dict[str, dict[str, QueueEntry] | None] = {}
    for name in {job.scheduler for job in jobs}:
        ids = [job.id for job in jobs if job.scheduler == name and job.ended is None]
        entries[name] = query_jobs(name, ids)
    logs = {job.id: records.find_log(job) for job in jobs} if records else {}
    statuses = [_status(job, entries[job.scheduler], draining, logs.get(job.id)) for job in jobs]
    for job in records.reserved() if records else ():
        why = f"may be queued: look with '{look_command(records, job)}'" if records else ""
        statuses.append(BatchJobStatus("", "unknown", job.link, job.jobs, job.hosts, why))
    return statuses


def _status(
    job: "BatchJob", entries: dict[str, QueueEntry] | None, draining: bool, log: str | None
) -> BatchJobStatus:
    from hydragnn_hpo.launching.batch_jobs import DRAINED

    state: JobState
    if job.ended is not None:
        failed = log and job.code not in (None, 0, DRAINED)
        state = "ended"
        why = f"{job.message.rstrip('.')}: see {log}" if failed else job.message
    elif entries is None:
        state, why = "unknown", "the scheduler gives no answer here"
    elif (entry := entries.get(job.id)) is None or entry.state == "ended":
        state = "ended"
        why = _explain_end(job, entry.reason if entry else "", log)
    elif entry.state == "running" and draining:
        state, why = "draining", "trials leave checkpoints"
    else:
        state, why = entry.state, entry.reason
    return BatchJobStatus(job.id, state, job.link, job.jobs, job.hosts, why, job.code)


def _explain_end(job: "BatchJob", reason: str, log: str | None) -> str:
    """Return how a job ended that did not record it.

    Args:
        job: the job.
        reason: how it ended, as the scheduler says; may be empty.
        log: name of its log; None if it has written none.
    """
    if job.began:
        phrase = reason or "lost with its hosts, or cancelled"
    elif log:
        phrase = f"{reason or 'ended'} before 'run' began"
    else:
        phrase = f"{reason or 'cancelled'} before it began"
    return f"{phrase}: see {log}" if log and "cancelled" not in phrase else phrase


def cancel_rest_of_chain(
    records: "JobRecords", statuses: Sequence[BatchJobStatus], *, dry_run: bool
) -> str:
    """Cancel the queued jobs that a campaign does not need to stop, and return a sentence part.

    The job that runs, or else the first that will, finishes the campaign.

    Args:
        records: of the run.
        statuses: of its jobs.
        dry_run: whether nothing is cancelled.
    """
    from hydragnn_hpo.launching.batch_jobs import cancel_queued_jobs
    from hydragnn_hpo.launching.schedulers import WAITING

    queued = [job.id for job in statuses if job.state in WAITING]
    runs = any(job.state in ("running", "suspended", "draining") for job in statuses)
    kept, rest = ([], queued) if runs else (queued[:1], queued[1:])
    cancelled = rest
    if not dry_run:
        cancelled = cancel_queued_jobs(records, [job for job in records.jobs() if job.id in rest])
    parts = [f"batch job {kept[0]}, still queued, does it"] if kept else []
    parts += [f"taken back: batch job {', '.join(cancelled)}"] if cancelled else []
    return "; ".join(parts)


def course_of(holder: str | None, jobs: Sequence[BatchJobStatus], *, finished: bool) -> str:
    """Return who works on a campaign.

    Args:
        holder: the controller, if there is one.
        jobs: its batch jobs.
        finished: whether it has come to its end.
    """
    if finished:
        return "finished"
    if holder:
        return f"run by {holder}"
    return course_of_jobs(jobs) if jobs else "not running"


_COURSE = {
    "running": "begins",
    "draining": "ends",
    "suspended": "is suspended",
    "queued": "is queued",
    "held": "is held",
}


def course_of_jobs(jobs: Sequence[BatchJobStatus]) -> str:
    """Describe what goes on where no controller is at work."""
    for state, word in _COURSE.items():
        if ids := [job.id for job in jobs if job.state == state]:
            return f"not running, batch job {ids[0]} {word}"
    return "not running, no batch job is queued"


def job_lines(jobs: Sequence[BatchJobStatus]) -> list[str]:
    """Return a line for each job that has not ended, and for the newest that have."""
    ended = [job for job in jobs if job.state == "ended"]
    shown = [job for job in jobs if job.state != "ended" or job in ended[-SHOWN:]]
    lines = [
        f"job {job.id or 'without a number'}: {job.words}, {job.link} of at most {job.jobs}, "
        f"{count(job.hosts, 'host')}"
        for job in shown
    ]
    if len(jobs) > len(shown):
        lines.insert(0, f"{count(len(jobs) - len(shown), 'earlier job')} ended")
    return lines
