"""``hydragnn-hpo status``: the status of a campaign, once or until it has ended."""

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import JsonOption, RunArgument
from hydragnn_hpo.cli.tables import console
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.leases import find_controller
from hydragnn_hpo.sanitize import escape_controls
from hydragnn_hpo.words import duration

if TYPE_CHECKING:
    from rich.console import Console

    from hydragnn_hpo.campaign import JournalFold
    from hydragnn_hpo.cli.batch_view import BatchJobStatus
    from hydragnn_hpo.report.status_view import Snapshot, StatusPage

WATCH_SECONDS = 2.0
"""Default time between two refreshes of ``--watch``."""

READING_SHARE = 0.2
"""Largest share of the time spent reading; a long journal lengthens the interval."""

SCHEDULER_SECONDS = 30.0
"""Shortest time between two queries of the batch scheduler, which all users share."""

RESIZE_SECONDS = 0.05
"""Time between two checks of the size of the terminal."""

MOST_LINES = 1000
"""Largest height of a page that is not shown on a terminal, in lines."""

LAST_LINES = 60
"""Largest height of the last page of ``--watch``, which stays on the terminal, in lines."""

MOST_ROWS = 100
"""Largest number of running trials on a tall terminal."""

COMING = ("queued", "held", "running", "suspended", "draining")
"""States of batch jobs that can still change the run, so that ``--watch`` goes on."""

Watch = Annotated[bool, typer.Option("--watch", help="Refresh until the campaign has ended.")]
Interval = Annotated[
    float | None,
    typer.Option(
        min=0.1, max=86_400.0, help="Seconds between two refreshes of --watch; 2 if left out."
    ),
]


def status(
    run_dir: RunArgument,
    watch: Watch = False,
    interval: Interval = None,
    as_json: JsonOption = False,
) -> None:
    """Show the status of a campaign: trials, rungs, hosts, slot utilization, best result so far."""
    if interval is not None and not watch:
        raise ConfigError("--interval is for --watch: add --watch, or leave --interval out.")
    reader = RunReader(RunDir(Path(run_dir)))
    if as_json:
        typer.echo(json.dumps(reader.read().to_plain()))
    elif watch:
        watch_run(reader, WATCH_SECONDS if interval is None else interval)
    else:
        _print(reader.read())


def _print(view: "RunView") -> None:
    from hydragnn_hpo.cli.batch_view import job_lines
    from hydragnn_hpo.report.status_view import StatusPage

    ends_in = view.snapshot.status.ends_in
    left = f", about {duration(ends_in)} left" if ends_in is not None else ""
    typer.echo(escape_controls(f"{view.run.path}: {view.snapshot.course}{left}"))
    console().print(StatusPage(view.snapshot, titled=False), height=MOST_LINES)
    for job_line in job_lines(view.jobs):
        typer.echo(job_line)


# -- reading a run -------------------------------------------------------------------------


@dataclass(frozen=True)
class RunView:
    """The content of a run directory at one moment."""

    run: RunDir
    snapshot: "Snapshot"
    fold: "JournalFold"
    """The folded journal; shared with ``RunReader``, which updates it in place."""
    controller: str | None
    """The process that runs the campaign, as ``process PID on HOST``; None if none runs it."""
    jobs: "list[BatchJobStatus]"
    """Batch jobs of the run."""

    @property
    def goes_on(self) -> bool:
        """Whether a controller or a batch job may still change the run."""
        comes = any(job.state in COMING for job in self.jobs)
        return not self.fold.state.finished and (self.controller is not None or comes)

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON: the figures, the status, and its main values at the top.

        Returns:
            The keys of ``JournalFold.figures``; ``run``, ``controller``, ``finished``, ``ensemble``
            (path or None), ``best`` (trial or None) with its ``objective``; ``running``: by trial
            ``epoch``, ``until`` (in epochs) and ``slots``; ``standing``: the whole status;
            ``jobs``: the batch jobs.
        """
        best, ensemble, state = self.snapshot.status.best, self.run.ensemble, self.fold.state
        return {
            **self.fold.figures(),
            "run": str(self.run.path),
            "controller": self.controller,
            "finished": state.finished,
            "ensemble": str(ensemble) if ensemble.exists() else None,
            "best": best and best.name,
            "objective": best and best.objective,
            "running": {
                t.name: {"epoch": t.epoch, "until": t.until, "slots": list(t.slots)}
                for t in state.with_status("running")
            },
            "standing": self.snapshot.status.to_plain(),
            "jobs": [asdict(job) for job in self.jobs],
        }


class RunReader:
    """Reads the status of a run repeatedly; each time, only the new lines of the journal."""

    def __init__(self, run: RunDir) -> None:
        """Start before the first line of the journal.

        Raises:
            RunError: the run directory holds no campaign.
        """
        from hydragnn_hpo.campaign import JournalFold, JournalFollower, require_campaign
        from hydragnn_hpo.config import CampaignConfig, load_config

        require_campaign(run)
        self.run = run
        self.config = load_config(run.campaign, CampaignConfig)
        self.newest: RunView | None = None
        self._jobs: list[BatchJobStatus] = []
        self._jobs_due = -math.inf
        self._follower = JournalFollower(run.journal)
        self.fold = JournalFold()

    def _read_journal(self) -> None:
        """Fold the new events; start over if another journal has replaced this one."""
        from hydragnn_hpo.campaign import JournalFold, JournalFollower, JournalReplaced

        try:
            events = list(self._follower.read_new())
        except JournalReplaced:
            if not self.run.journal.exists():
                raise
            self._follower = JournalFollower(self.run.journal)
            self.fold = JournalFold()
            events = list(self._follower.read_new())
        for event in events:
            self.fold.apply(event)

    def read(self, rows: int | None = None) -> RunView:
        """Read the new events, and return the status of the campaign.

        Args:
            rows: largest number of running trials to list; ``campaign.ROWS`` if None.

        Raises:
            RunError: the run directory is gone, or its journal is damaged.
        """
        from hydragnn_hpo.campaign import build_status, predict_seconds_left
        from hydragnn_hpo.campaign.status import ROWS
        from hydragnn_hpo.cli.batch_view import course_of
        from hydragnn_hpo.launching.excluded_hosts import read_run_excluded
        from hydragnn_hpo.report.status_view import Snapshot

        self._read_journal()
        state, ledger, search = self.fold.state, self.fold.ledger, self.config.search
        holder = find_controller(self.run.path)
        now = time.time() if holder and not state.finished else None
        ends_in = now and predict_seconds_left(
            state,
            ledger,
            search,
            now,
            ensemble=self.config.ensemble,
            finishing=self.fold.finish_seconds,
        )
        status = build_status(
            state,
            ledger,
            trials=search.trials,
            rungs=search.rungs,
            now=now,
            ends_in=ends_in,
            rows=ROWS if rows is None else rows,
        )
        jobs = self._read_jobs(draining=bool(holder) and state.draining)
        snapshot = Snapshot(
            name=self.run.path.resolve().name,
            status=replace(status, excluded=len(read_run_excluded(self.run.path))),
            course=course_of(holder, jobs, finished=state.finished),
            best_so_far=tuple(self.fold.best_so_far),
            restarts=self.fold.restarts,
        )
        self.newest = RunView(self.run, snapshot, self.fold, holder, jobs)
        return self.newest

    def _read_jobs(self, *, draining: bool) -> "list[BatchJobStatus]":
        """Return the batch jobs; query the scheduler at most once per ``SCHEDULER_SECONDS``."""
        from hydragnn_hpo.cli.batch_view import read_job_statuses
        from hydragnn_hpo.launching.batch_jobs import JobRecords

        if time.monotonic() >= self._jobs_due:
            records = JobRecords(self.run.path)
            self._jobs = read_job_statuses(records.jobs(), draining=draining, records=records)
            self._jobs_due = time.monotonic() + SCHEDULER_SECONDS
        return self._jobs


# -- watching ------------------------------------------------------------------------------


def watch_run(reader: RunReader, interval: float) -> None:
    """Show a campaign until it has ended; Ctrl-C stops the display, not the campaign.

    Args:
        reader: reader of the run directory.
        interval: seconds between two refreshes.

    Raises:
        RunError: the journal is damaged or was removed.
    """
    from rich.console import Console

    from hydragnn_hpo.report.status_view import StatusPage

    console = Console()
    full = sys.stdout.isatty() and not console.is_dumb_terminal
    with suppress(KeyboardInterrupt):
        if full:
            _fill_terminal(reader, interval, console)
        else:
            _print_changes(reader, interval)
    if (newest := reader.newest) is not None:
        if full:
            console.print(StatusPage(newest.snapshot), height=LAST_LINES)
        typer.echo(escape_controls(f"{newest.run.path}: {newest.snapshot.course}"))


def _print_changes(reader: RunReader, interval: float) -> None:
    """Print a line whenever something has changed."""
    from hydragnn_hpo.report import headline
    from hydragnn_hpo.report.status_view import summary_line

    printed = None
    while True:
        began = time.monotonic()
        view = reader.read()
        status = replace(view.snapshot.status, ends_in=None)
        line = headline(status)
        if line != printed:
            typer.echo(escape_controls(summary_line(status)))
            sys.stdout.flush()
        if not view.goes_on:
            return
        printed = line
        time.sleep(_pause(interval, time.monotonic() - began))


def _fill_terminal(reader: RunReader, interval: float, console: "Console") -> None:
    """Show the campaign on the whole terminal, and restore the terminal at the end."""
    from rich.live import Live

    from hydragnn_hpo.report.status_view import StatusPage

    view = reader.read(rows=MOST_ROWS)
    if not view.goes_on:
        return
    page = StatusPage(view.snapshot, interval)
    spent = 0.0
    with (
        _exit_on_signals(),
        Live(page, console=console, screen=True, auto_refresh=False) as live,
    ):
        live.refresh()
        while view.goes_on:
            wait(live.refresh, page, console, _pause(interval, spent))
            began = time.monotonic()
            view = reader.read(rows=MOST_ROWS)
            page.snapshot = view.snapshot
            live.refresh()
            spent = time.monotonic() - began


def wait(
    redraw: Callable[[], None], page: "StatusPage", console: "Console", seconds: float
) -> None:
    """Wait, and redraw the page whenever the terminal is resized.

    Args:
        redraw: function that draws the page.
        page: the page; its ``drawn_for`` is the terminal size at the last drawing.
        console: the terminal.
        seconds: total time to wait.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if console.size != page.drawn_for:
            redraw()
        time.sleep(min(RESIZE_SECONDS, left))


def _pause(interval: float, spent: float) -> float:
    """Return the seconds until the next refresh, given the seconds spent reading."""
    return max(interval - spent, spent * (1 / READING_SHARE - 1), 0.0)


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that the terminal is restored."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    kinds = (signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, leave) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
