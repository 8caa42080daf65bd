"""How the batch jobs of a run stand, for ``status``, ``submit``, ``stop`` and ``pause``."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from hydragnn_hpo.cli.words import count
from hydragnn_hpo.launching import Queued, scheduler_of, standing

if TYPE_CHECKING:
    from hydragnn_hpo.launching import BatchJob
    from hydragnn_hpo.layout import RunDir

JobState = Literal["queued", "running", "draining", "ended", "unknown"]
SHOWN = 4
"""Ended jobs in a table; the newest."""


@dataclass(frozen=True)
class JobStanding:
    """How one batch job stands."""

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
        """Describe how it stands."""
        if self.state == "unknown":
            return "in a state that the scheduler does not tell"
        return f"{self.state} ({self.why})" if self.why else self.state

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def standing_of_jobs(jobs: Sequence["BatchJob"], *, draining: bool = False) -> list[JobStanding]:
    """Ask the scheduler for those whose end is not on record.

    Args:
        jobs: of one run.
        draining: whether the controller says that trials are leaving checkpoints.
    """
    answers: dict[str, dict[str, Queued] | None] = {}
    for name in {job.scheduler for job in jobs}:
        ids = [job.id for job in jobs if job.scheduler == name and job.ended is None]
        answers[name] = standing(scheduler_of(name), ids)
    return [_stands(job, answers[job.scheduler], draining) for job in jobs]


def _stands(job: "BatchJob", known: dict[str, Queued] | None, draining: bool) -> JobStanding:
    state: JobState
    if job.ended is not None:
        state, why = "ended", job.said
    elif known is None:
        state, why = "unknown", "the scheduler gives no answer here"
    elif (found := known.get(job.id)) is None:
        state, why = "ended", "lost with its hosts, or cancelled" if job.began else "cancelled"
    elif found.state == "running" and draining:
        state, why = "draining", "trials leave checkpoints"
    else:
        state, why = found.state, found.why
    return JobStanding(job.id, state, job.link, job.jobs, job.hosts, why, job.code)


def queued_jobs(run: "RunDir") -> list[JobStanding]:
    """Return the batch jobs of a run that wait, first to last, behind the one that runs."""
    from hydragnn_hpo.launching import JobRecords

    jobs = standing_of_jobs(JobRecords(run.path).jobs())
    return [job for job in jobs if job.state == "queued"]


def without_chain(
    run: "RunDir", kind: str, waiting: Sequence[JobStanding], *, dry_run: bool
) -> str:
    """Take the chain of a campaign that stops back, and return what becomes of it.

    What runs, or else the first job that will, finishes the campaign. A pause needs nothing: the
    job that ends by it takes its successor back.
    """
    from hydragnn_hpo.launching import JobRecords, take_back

    names = ", ".join(job.id for job in waiting)
    if kind == "pause":
        return f"queued behind it is batch job {names}, which is taken back: submit again to go on"
    records = JobRecords(run.path)
    jobs = standing_of_jobs(records.jobs())
    runs = any(job.state in ("running", "draining") for job in jobs)
    kept = [] if runs else [waiting[0].id]
    drop = [job for job in records.jobs() if job.id in {w.id for w in waiting} - set(kept)]
    said = [f"batch job {kept[0]}, still queued, does it"] if kept else []
    taken = [job.id for job in drop] if dry_run else take_back(records, drop)
    said += [f"taken back: batch job {', '.join(taken)}"] if taken else []
    return "; ".join(said)


def course_of(holder: str | None, jobs: Sequence[JobStanding], *, finished: bool) -> str:
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


def course_of_jobs(jobs: Sequence[JobStanding]) -> str:
    """Describe what goes on where no controller is at work."""
    for state, word in (("running", "begins"), ("draining", "ends"), ("queued", "is queued")):
        if found := [job.id for job in jobs if job.state == state]:
            return f"not running, batch job {found[0]} {word}"
    return "not running, no batch job is queued"


def job_lines(jobs: Sequence[JobStanding]) -> list[str]:
    """Return a line for each job that has not ended, and for the newest that have."""
    ended = [job for job in jobs if job.state == "ended"]
    shown = [job for job in jobs if job.state != "ended" or job in ended[-SHOWN:]]
    lines = [
        f"job {job.id}: {job.words}, {job.link} of at most {job.jobs}, {count(job.hosts, 'host')}"
        for job in shown
    ]
    if len(jobs) > len(shown):
        lines.insert(0, f"{count(len(jobs) - len(shown), 'earlier job')} ended")
    return lines
