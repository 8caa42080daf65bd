"""``hydragnn-hpo batch begin|end``: what a batch script says before and after ``run``.

Nobody types these; the scripts of ``submit`` do.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import RunArgument

if TYPE_CHECKING:
    from hydragnn_hpo.launching import BatchJob, Ending, JobRecords
    from hydragnn_hpo.layout import RunDir

app = typer.Typer(no_args_is_help=True)

RECORD_SECONDS = 60.0
"""How long a job waits for its record, which ``submit`` writes: it may begin at once."""

LEASE_SECONDS = 45.0
"""How long it waits for the lease of a controller that was lost with its host."""


PAUSES = (2.0, 10.0, 30.0, 60.0)
"""Before a step is tried again for which the file server was away: a chain is not to end for it."""


@app.command()
def begin(run_dir: RunArgument, script: Annotated[str, typer.Option("--script")]) -> None:
    """Note that this batch job runs, and queue the next one behind it."""
    _patiently(lambda: _begin(run_dir, script))


def _begin(run_dir: Path, script: str) -> None:
    from hydragnn_hpo.campaign import count_progress
    from hydragnn_hpo.errors import JobError
    from hydragnn_hpo.launching import JobRecords, begin_chain_job, same_chain
    from hydragnn_hpo.layout import RunDir

    run, records = RunDir(run_dir), JobRecords(run_dir)
    own, reached = _own(records, script), count_progress(run)
    jobs = [job for job in records.jobs() if same_chain(job, own)]
    earlier = [job for job in jobs if job.link < own.link]
    decided = begin_chain_job(earlier, own, progress=reached, finished=_finished(run))
    records.note(own.id, "began", time=time.time(), host=socket.gethostname(), progress=reached)
    said = decided.said
    if decided.followed and not any(job.after == own.id for job in jobs):
        try:
            said += f"; job {_follow(records, own)} waits behind it"
        except JobError as error:
            said += f"; none waits behind it yet: {error}"
    typer.echo(f"batch job {own.id}: {said}", err=True)
    if not decided.goes_on:
        records.note(own.id, "ended", time=time.time(), code=1, said=said)
        raise typer.Exit(1)
    if own.task is None:
        _wait_for_lease(run.path)


@app.command()
def end(run_dir: RunArgument, code: Annotated[int, typer.Option("--code")]) -> None:
    """Note how 'run' ended, and take back jobs that have nothing to do or to gain."""
    _patiently(lambda: _end(run_dir, code))


def _end(run_dir: Path, code: int) -> None:
    from hydragnn_hpo.campaign import count_progress
    from hydragnn_hpo.launching import JobRecords, end_chain_job
    from hydragnn_hpo.layout import RunDir

    run, records = RunDir(run_dir), JobRecords(run_dir)
    own = _own(records, "")
    followers = [job for job in records.jobs() if job.after == own.id]
    decided = end_chain_job(
        own,
        code=code,
        progress=count_progress(run),
        finished=_finished(run),
        followed=bool(followers),
    )
    said = decided.said + _settle(records, own, decided, followers)
    records.note(own.id, "ended", time=time.time(), code=code, said=said)
    typer.echo(f"batch job {own.id}: {said}", err=True)
    raise typer.Exit(decided.code)


def _patiently(step: Callable[[], None]) -> None:
    """Take a step, again where the file server is away for a moment; each may be taken twice."""
    from hydragnn_hpo.errors import HydraError
    from hydragnn_hpo.files import passes

    for pause in PAUSES:
        try:
            step()
            return
        except (HydraError, OSError) as error:
            if not passes(error):
                raise
            typer.echo(f"{error} It is tried again in {pause:.0f} s.", err=True)
        time.sleep(pause)
    step()


def _settle(
    records: "JobRecords", own: "BatchJob", decided: "Ending", followers: list["BatchJob"]
) -> str:
    """Take jobs back, or queue the one that could not be queued; return what to add."""
    from hydragnn_hpo.errors import JobError
    from hydragnn_hpo.launching import take_back

    try:
        if decided.take_back:
            every = records.jobs() if decided.take_back_all else followers
            taken = take_back(records, every)
            return f"; taken back: {', '.join(taken)}" if taken else ""
        if decided.follow:
            return f"; job {_follow(records, own)} goes on"
    except JobError as error:
        return f"; {error}"
    return ""


def _own(records: "JobRecords", script: str) -> "BatchJob":
    """Return the record of the job that we are in.

    It may begin before ``submit`` has written its record; if that never comes, it is
    the next one of its chain.
    """
    from hydragnn_hpo.launching import BatchJob, task_of, where_we_are

    scheduler, job = where_we_are(os.environ)
    deadline = time.monotonic() + RECORD_SECONDS
    while (found := records.find(job)) is None and time.monotonic() < deadline:
        time.sleep(0.5)
    if found is not None:
        return found
    task = task_of(job)
    siblings = [other for other in records.jobs() if other.script == script]
    chain = [other for other in siblings if other.task == task]
    unknown = BatchJob(job, scheduler, script, hosts=0, link=0, jobs=1, submitted=0.0)
    beside = replace(siblings[0], link=0) if siblings else unknown
    last = max(chain, key=lambda other: other.link, default=beside)
    own = replace(last, id=job, link=last.link + 1, submitted=time.time(), after=None, task=task)
    records.add(own)
    return own


def _follow(records: "JobRecords", own: "BatchJob") -> str:
    """Queue the next job of a chain behind this one.

    Raises:
        JobError: the scheduler refuses; some let no job submit another.
    """
    from hydragnn_hpo.launching import scheduler_of, submit_script

    scheduler = scheduler_of(own.scheduler)
    answer = submit_script(scheduler.submit(own.script, own.id, own.task), records.folder)
    (job,) = scheduler.submitted(answer, [own.task] if own.task is not None else [])
    records.add(replace(own, id=job, link=own.link + 1, submitted=time.time(), after=own.id))
    return job


def _finished(run: "RunDir") -> bool:
    from hydragnn_hpo.campaign import read_state

    return read_state(run).finished


def _wait_for_lease(run: Path) -> None:
    """Wait while a controller seems to be at work: it may have been lost a moment ago."""
    from hydragnn_hpo.leases import find_controller

    deadline = time.monotonic() + LEASE_SECONDS
    while find_controller(run) and time.monotonic() < deadline:
        time.sleep(1.0)
