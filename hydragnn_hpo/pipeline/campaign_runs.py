"""Run a campaign in this process: its controller, then the ensemble, the summary and the report."""

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hydragnn_hpo.campaign import (
    Controller,
    JournalFold,
    ShutdownRequest,
    State,
    rank_trials,
    read_journal,
    read_state,
)
from hydragnn_hpo.config import CampaignConfig
from hydragnn_hpo.file_records import EnsembleTable, RunSummary
from hydragnn_hpo.files import read_json, write_json
from hydragnn_hpo.launching import Backend, in_batch_job
from hydragnn_hpo.layout import RunDir

logger = logging.getLogger(__name__)


class RunDisplay(contextlib.AbstractContextManager["RunDisplay", None], Protocol):
    """Shows how a campaign goes on; a context manager around its run."""

    def begin(self, state: State) -> None:
        """Take the state in which the campaign begins, or goes on."""

    def __call__(self, state: State, controller: Controller) -> None:
        """Take the state after a turn of the controller."""


@dataclass(frozen=True)
class RunSettings:
    """How a campaign is run, beside what it is."""

    make_backend: Callable[[], Backend]
    """Makes the backend that runs the trials."""
    pause: ShutdownRequest
    """Whether to stop."""
    display: RunDisplay
    """Shows the progress."""
    warn: Callable[[Path, Exception], None]
    """Called with the run directory if its report cannot be written, and why."""
    reseed: int = 0
    """How many of the best trials to train again with new seeds."""


def make_shutdown_request() -> ShutdownRequest:
    """Return a shutdown request; SIGTERM drains the trials in a batch job, and pauses elsewhere."""
    return ShutdownRequest(sigterm_drains=in_batch_job(os.environ))


def run_campaign(
    config: CampaignConfig, opened: RunDir, cards: Mapping[Path, str], settings: RunSettings
) -> RunSummary:
    """Run a campaign to its end, as its controller, and leave ensemble, summary and report.

    Signals pause it; in a thread other than the main one, which gets none, it runs on.

    Args:
        config: the campaign.
        opened: its run directory.
        cards: name of each card, by the card's path.
        settings: backend, display, what stops it.

    Returns:
        The content of ``summary.json``.

    Raises:
        KeyboardInterrupt: it was paused.
        Drained: the allocation ends before the campaign does.
    """
    main = threading.current_thread() is threading.main_thread()
    signals = settings.pause.handle_signals() if main else contextlib.nullcontext()
    with signals, settings.display as display:
        controller = Controller(
            config,
            opened,
            cards=dict(cards),
            make_backend=settings.make_backend,
            watch=display,
            pause=settings.pause,
        )
        display.begin(controller.state)
        try:
            if settings.reseed:
                controller.replicates.request(settings.reseed)
            controller.run()
            return finish_run(controller, opened, settings.warn)
        finally:
            controller.close()


def finish_run(
    controller: Controller, opened: RunDir, warn: Callable[[Path, Exception], None]
) -> RunSummary:
    """Build the ensemble as a job, and write the summary and the report of the run.

    Args:
        controller: of the campaign, whose trials have ended.
        opened: the run directory.
        warn: see ``RunSettings``.

    Returns:
        The content of ``summary.json``.
    """
    trains = controller.config.command is None
    whole = opened.summary.exists() and (opened.ensemble.exists() or not trains)
    if controller.state.finished and whole:
        controller.finish()
        if not (opened.report / "report.html").exists():  # killed before it was written
            write_run_report(opened, warn, drawn=trains)
        done: RunSummary = read_json(opened.summary)
        return done
    spec = {"run": str(opened.path.resolve())}
    ensemble: EnsembleTable | None = controller.job("ensemble", spec) if trains else None
    result: RunSummary = {
        "verdict": ensemble.get("verdict", []) if ensemble else [],
        "ensemble": ensemble,
        "leaderboard": rank_trials(controller.state, controller.config).to_plain(),
        "figures": JournalFold(read_journal(opened.journal)).figures(),
    }
    write_json(opened.summary, result)
    controller.finish()
    write_run_report(opened, warn, drawn=trains)
    return result


def write_run_report(
    opened: RunDir, warn: Callable[[Path, Exception], None], *, drawn: bool
) -> None:
    """Write the report; an error is only a warning, because the campaign has its result.

    Args:
        opened: the run directory.
        warn: see ``RunSettings``.
        drawn: whether the run has an ensemble, whose parity figure is drawn.
    """
    from hydragnn_hpo.report import draw_parity, write_report

    try:
        if drawn:
            draw_parity(opened.path, opened.report / "parity.png")
        write_report(opened)
    except Exception as error:
        logger.debug("no report", exc_info=True)
        warn(opened.path, error)


def forget_run(opened: RunDir) -> None:
    """Remove a run directory without a store, batch job or trial, so that it can be used again.

    The list of excluded hosts that ``doctor`` wrote is kept.
    """
    built = any(opened.data.glob("*/index.json"))
    if built or opened.jobs.exists() or read_state(opened).trials:
        return
    if not opened.excluded.exists():
        shutil.rmtree(opened.path, ignore_errors=True)
        return
    for path in opened.path.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path != opened.excluded:
            path.unlink()
