"""``hydragnn-hpo batch begin|end``: what scripts of ``submit`` call before and after ``run``."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import RunArgument
from hydragnn_hpo.errors import HydraError, JobError
from hydragnn_hpo.files import is_transient
from hydragnn_hpo.launching.batch_jobs import (
    BatchJob,
    JobRecords,
    cancel_queued_jobs,
    decide_end,
    decide_start,
    find_own_job,
    select_alive,
    submit_jobs,
)
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.leases import PAUSED, find_controller, read_release_reason

app = typer.Typer(no_args_is_help=True)

RECORD_SECONDS = 60.0
"""How long a job waits for the record that ``submit`` writes: it may begin before that."""

LEASE_SECONDS = 45.0
"""How long a job waits for the lease of a controller that was lost with its host."""

PAUSES = (2.0, 10.0, 30.0, 60.0)
"""Seconds before each retry of a step that failed because the file server was away."""


@app.command()
def begin(
    run_dir: RunArgument,
    script: Annotated[str, typer.Option("--script")],
    jobs: Annotated[int, typer.Option("--jobs")] = 1,
) -> None:
    """Record that this batch job runs, and queue the next one behind it."""
    _retry(lambda: _begin(run_dir, script, jobs))


@app.command()
def end(run_dir: RunArgument, code: Annotated[int, typer.Option("--code")]) -> None:
    """Record how 'run' ended, and cancel jobs that have nothing to do or to gain."""
    _retry(lambda: _end(run_dir, code))


def _retry(step: Callable[[], None]) -> None:
    """Run a step, again while the file server is away; each step may run twice."""
    for pause in PAUSES:
        try:
            step()
            return
        except (HydraError, OSError) as error:
            if not is_transient(error):
                raise
            typer.echo(f"{error} It is tried again in {pause:.0f} s.", err=True)
        time.sleep(pause)
    step()


def _begin(run_dir: Path, script: str, most: int) -> None:
    from hydragnn_hpo.campaign.status import count_progress

    run = RunDir(run_dir)
    records = JobRecords(run_dir)
    own = _find_or_add_own(records, script, most)
    progress = count_progress(run)
    chain = [job for job in records.jobs() if job.in_chain_of(own)]
    earlier = [job for job in chain if job.link < own.link]
    decision = decide_start(earlier, own, progress=progress, finished=_finished(run))
    records.record(own.id, "began", time=time.time(), host=socket.gethostname(), progress=progress)
    message = decision.message
    if decision.queues_next and not any(job.after == own.id for job in chain):
        try:
            message += f"; job {_submit_next(records, own)} waits behind it"
        except JobError as error:
            message += f"; none waits behind it yet: {error}"
    typer.echo(f"batch job {own.id}: {message}", err=True)
    if not decision.runs:
        records.record_end(own.id, code=1, message=message)
        raise typer.Exit(1)
    if own.task is None:
        _wait_for_lease(run.path)


def _end(run_dir: Path, code: int) -> None:
    from hydragnn_hpo.campaign.status import count_progress

    run = RunDir(run_dir)
    records = JobRecords(run_dir)
    own = _find_or_add_own(records, "", 1)
    jobs = records.jobs()
    followers = [job for job in jobs if job.after == own.id]
    decision = decide_end(
        own,
        code=code,
        progress=count_progress(run),
        finished=_finished(run),
        followed=bool(followers),
        cancelled=code > 2 and bool(followers) and not select_alive(followers),
    )
    paused = code == 1 and read_release_reason(run.path) == PAUSED
    message = "paused: submit again to go on" if paused else decision.message
    useless = {"none": [], "next": followers, "all": jobs}[decision.cancels]
    try:
        if cancelled := cancel_queued_jobs(records, useless):
            message += f"; taken back: {', '.join(cancelled)}"
        if decision.queues_next:
            message += f"; job {_submit_next(records, own)} goes on"
    except JobError as error:
        message += f"; {error}"
    records.record_end(own.id, code=code, message=message)
    typer.echo(f"batch job {own.id}: {message}", err=True)
    raise typer.Exit(decision.code)


def _find_or_add_own(records: JobRecords, script: str, most: int) -> BatchJob:
    """Return the record of the job that this process runs in.

    The job may begin before ``submit`` has read its number: then it completes the record itself. If
    there is none, it is recorded as the next one of its chain.

    Args:
        records: records of the run directory.
        script: file name of its script.
        most: most jobs of its chain, as its script says.
    """
    own = find_own_job(os.environ)
    deadline = time.monotonic() + RECORD_SECONDS
    while (known := records.find(own.id)) is None and time.monotonic() < deadline:
        for job in records.reserved():
            if (job.script, job.task) == (script, own.task):
                records.add(replace(job, id=own.id))
                break
        else:
            time.sleep(0.5)
    if known is not None:
        return known
    unknown = BatchJob(own.id, own.scheduler, script, hosts=0, link=0, jobs=most, submitted=0.0)
    siblings = [job for job in records.jobs() if job.script == script] or [unknown]
    chain = [job for job in siblings if job.task == own.task]
    last = max(chain, key=lambda job: job.link, default=replace(siblings[0], link=0))
    added = replace(
        last, id=own.id, link=last.link + 1, submitted=time.time(), after=None, task=own.task
    )
    records.add(added)
    return added


def _submit_next(records: JobRecords, own: BatchJob) -> str:
    """Queue the next job of a chain behind this one, and return its number.

    Raises:
        JobError: the scheduler refuses; at some sites no job may submit another.
    """
    (job,) = submit_jobs(records, replace(own, link=own.link + 1, after=own.id))
    return job


def _finished(run: RunDir) -> bool:
    from hydragnn_hpo.campaign import read_state

    return read_state(run).finished


def _wait_for_lease(run: Path) -> None:
    """Wait while a controller seems to be at work: it may have been lost a moment ago."""
    deadline = time.monotonic() + LEASE_SECONDS
    while find_controller(run) and time.monotonic() < deadline:
        time.sleep(1.0)
