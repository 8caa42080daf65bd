"""``hydragnn-hpo status``: how a campaign stands."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import JsonOption, RunArgument

if TYPE_CHECKING:
    from hydragnn_hpo.campaign.status import Status
    from hydragnn_hpo.cli.batch_view import JobStanding
    from hydragnn_hpo.layout import RunDir

WATCH_SECONDS = 2.0
"""Time between two looks, if nothing else is asked for."""

Watch = Annotated[bool, typer.Option("--watch", help="Look again and again until it has ended.")]
Interval = Annotated[
    float | None,
    typer.Option(
        min=0.1, max=86_400.0, help="Seconds between two looks of --watch; 2 if left out."
    ),
]


def status(
    run_dir: RunArgument,
    watch: Watch = False,
    interval: Interval = None,
    as_json: JsonOption = False,
) -> None:
    """Show how a campaign stands: trials, rungs, hosts, use of the slots, the best so far."""
    from hydragnn_hpo.layout import RunDir

    run = RunDir(Path(run_dir))
    if as_json:
        typer.echo(json.dumps(_look(run).to_plain()))
    elif watch:
        from hydragnn_hpo.cli.watch.watching import watch_run

        watch_run(run, WATCH_SECONDS if interval is None else interval)
    else:
        _print(_look(run))


@dataclass(frozen=True)
class Look:
    """What a run directory says at one moment."""

    run: "RunDir"
    standing: "Status"
    controller: str | None
    """Who works on it."""
    figures: dict[str, Any]
    finished: bool
    placed: dict[str, dict[str, Any]]
    """Epochs and slots of the running trials, by name."""
    jobs: "list[JobStanding]"
    """Its batch jobs."""

    @property
    def course(self) -> str:
        """Say who works on it."""
        from hydragnn_hpo.cli.batch_view import course_of

        return course_of(self.controller, self.jobs, finished=self.finished)

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


def _look(run: "RunDir") -> Look:
    """Read a run directory once.

    Raises:
        RunError: there is no campaign, or its journal is damaged.
    """
    from hydragnn_hpo.campaign.event_store import JournalFold
    from hydragnn_hpo.campaign.journal import read_journal
    from hydragnn_hpo.campaign.lease import alive
    from hydragnn_hpo.campaign.status import build_status
    from hydragnn_hpo.cli.batch_view import standing_of_jobs
    from hydragnn_hpo.config.campaign import CampaignConfig
    from hydragnn_hpo.config.loading import load
    from hydragnn_hpo.errors import RunError
    from hydragnn_hpo.launching.doctor.exclusion import hosts_excluded
    from hydragnn_hpo.launching.submit.records import JobRecords

    if not run.campaign.exists():
        raise RunError(f"{run.path}: holds no campaign; give the directory of a run.")
    search = load(run.campaign, CampaignConfig).search
    reckoning, holder = JournalFold(read_journal(run.journal)), alive(run.path)
    state = reckoning.state
    standing = build_status(
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
    jobs = standing_of_jobs(JobRecords(run.path).jobs(), draining=bool(holder) and state.draining)
    figures = reckoning.figures()
    return Look(run, standing, holder, figures, state.finished, running, jobs)


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
