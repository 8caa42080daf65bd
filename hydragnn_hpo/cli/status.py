"""``hydragnn-hpo status``: how a campaign stands."""

import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import JsonOption, RunArgument

if TYPE_CHECKING:
    from hydragnn_hpo.campaign.records.standing import Standing
    from hydragnn_hpo.cli.batch_view import JobStanding
    from hydragnn_hpo.layout import RunDir

WATCH_SECONDS = 2.0
"""Least time between two looks; reading a long journal takes no more than a fifth of the time."""

SCHEDULER_SECONDS = 30.0
"""Least time between two questions to the one scheduler of a machine."""

Watch = Annotated[bool, typer.Option("--watch", help="Look again and again until it has ended.")]


def status(run_dir: RunArgument, watch: Watch = False, as_json: JsonOption = False) -> None:
    """Show how a campaign stands: trials, rungs, hosts, use of the slots, the best so far."""
    from hydragnn_hpo.layout import RunDir

    run = RunDir(Path(run_dir))
    if as_json:
        typer.echo(json.dumps(_look(run).to_plain()))
    elif watch and sys.stdout.isatty():
        _watch(run)
    elif watch:
        _follow(run)
    else:
        _print(_look(run))


@dataclass(frozen=True)
class Look:
    """What a run directory says at one moment."""

    run: "RunDir"
    standing: "Standing"
    controller: str | None
    """Who works on it."""
    figures: dict[str, Any]
    finished: bool
    placed: dict[str, dict[str, Any]]
    """Epochs and slots of the running trials, by name."""
    jobs: "list[JobStanding]"
    """Its batch jobs."""
    asked: float
    """When the scheduler was asked, in monotonic time."""

    @property
    def course(self) -> str:
        """Say who works on it."""
        from hydragnn_hpo.cli.batch_view import course_of_jobs

        if self.finished:
            return "finished"
        if self.jobs and not self.controller:
            return course_of_jobs(self.jobs)
        return f"run by {self.controller}" if self.controller else "not running"

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON; figures and standing beside what is asked most."""
        best, ensemble = self.standing.best, self.run.ensemble
        return {
            **self.figures,
            "run": str(self.run.path),
            "controller": self.controller,
            "finished": self.finished,
            "ensemble": str(ensemble) if ensemble.exists() else None,
            "best": best and best.name,
            "objective": best and best.objective,
            "running": self.placed,
            "standing": self.standing.to_plain(),
            "jobs": [job.to_plain() for job in self.jobs],
        }


def _look(run: "RunDir", before: Look | None = None) -> Look:
    """Read a run directory once.

    Args:
        run: the directory.
        before: the last look, whose answer of the scheduler is used again for a while.

    Raises:
        RunError: there is no campaign, or its journal is damaged.
    """
    from hydragnn_hpo.campaign.lease import alive
    from hydragnn_hpo.campaign.records.journal import read
    from hydragnn_hpo.campaign.records.standing import standing_of
    from hydragnn_hpo.campaign.records.summary import Reckoning
    from hydragnn_hpo.config.campaign import CampaignConfig
    from hydragnn_hpo.config.loading import load
    from hydragnn_hpo.errors import RunError
    from hydragnn_hpo.launching.doctor.exclusion import hosts_excluded

    if not run.campaign.exists():
        raise RunError(f"{run.path}: holds no campaign; give the directory of a run.")
    search = load(run.campaign, CampaignConfig).search
    reckoning, holder = Reckoning(read(run.journal)), alive(run.path)
    state = reckoning.state
    standing = standing_of(
        state,
        reckoning.ledger,
        trials=search.trials,
        rungs=search.rungs,
        now=time.time() if holder and not state.finished else None,
    )
    standing = replace(standing, excluded=len(hosts_excluded(run.path)))
    running = {
        t.name: {"epoch": t.epoch, "until": t.until, "slots": list(t.slots)}
        for t in state.with_status("running")
    }
    jobs, asked = _jobs(run, before, draining=bool(holder) and state.draining)
    figures = reckoning.figures()
    return Look(run, standing, holder, figures, state.finished, running, jobs, asked)


def _jobs(
    run: "RunDir", before: Look | None, *, draining: bool
) -> "tuple[list[JobStanding], float]":
    """Give the batch jobs, and when the scheduler was asked for them."""
    from hydragnn_hpo.cli.batch_view import standing_of_jobs
    from hydragnn_hpo.launching.submit.records import JobRecords

    now = time.monotonic()
    if before is not None and now < before.asked + SCHEDULER_SECONDS:
        return before.jobs, before.asked
    return standing_of_jobs(JobRecords(run.path).jobs(), draining=draining), now


def _print(look: Look) -> None:
    from hydragnn_hpo.cli.batch_view import job_lines
    from hydragnn_hpo.cli.standing_view import laid_out, losses_line
    from hydragnn_hpo.cli.tables import console

    typer.echo(f"{look.run.path}: {look.course}")
    console().print(laid_out(look.standing), highlight=False)
    if said := losses_line(look.standing):
        typer.echo(f"losses  {said}")
    for line in job_lines(look.jobs):
        typer.echo(line)


def _watch(run: "RunDir") -> None:
    """Show a live table until the controller has ended."""
    from rich.live import Live

    from hydragnn_hpo.cli.standing_view import laid_out

    look = _look(run)
    with Live(laid_out(look.standing), auto_refresh=False) as live:
        while look.controller and not look.finished:
            look = _next(look)
            live.update(laid_out(look.standing), refresh=True)
    typer.echo(f"{run.path}: {look.course}")


def _follow(run: "RunDir") -> None:
    """Print a line whenever something has changed, until the controller has ended."""
    from hydragnn_hpo.cli.standing_view import headline, use_of_slots

    look, said = _look(run), None
    while True:
        line = headline(look.standing)
        if line != said:
            typer.echo(f"{line}; {use_of_slots(look.standing)}")
        if look.finished or not look.controller:
            break
        look, said = _next(look), line
    typer.echo(f"{run.path}: {look.course}")


def _next(look: Look) -> Look:
    """Wait a little, and look again; longer where looking takes long."""
    began = time.monotonic()
    found = _look(look.run, look)
    time.sleep(max(WATCH_SECONDS, 4.0 * (time.monotonic() - began)))
    return found
