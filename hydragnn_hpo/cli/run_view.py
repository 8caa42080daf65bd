"""Read how a run stands, once or as it goes on."""

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydragnn_hpo.campaign import JournalFold
    from hydragnn_hpo.cli.batch_view import JobStanding
    from hydragnn_hpo.cli.status_view import Snapshot
    from hydragnn_hpo.layout import RunDir


SCHEDULER_SECONDS = 30.0
"""Least time between two questions to the one scheduler of a machine."""


COMING = ("queued", "running", "draining")
"""States of a batch job that a watcher waits for."""


@dataclass(frozen=True)
class RunView:
    """What a run directory says at one moment."""

    run: "RunDir"
    snapshot: "Snapshot"
    fold: "JournalFold"
    """Goes on as the journal grows."""
    controller: str | None
    """Who works on it."""
    jobs: "list[JobStanding]"
    """Its batch jobs."""

    @property
    def goes_on(self) -> bool:
        """Whether there is something to wait for."""
        comes = any(job.state in COMING for job in self.jobs)
        return not self.fold.state.finished and (self.controller is not None or comes)

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON: figures and status beside what is asked most."""
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
            "jobs": [job.to_plain() for job in self.jobs],
        }


class RunReader:
    """Reads how a run stands, once or as it goes on; what was read once is not read again."""

    def __init__(self, run: "RunDir") -> None:
        """Take a run directory.

        Raises:
            RunError: it holds no campaign.
        """
        from hydragnn_hpo.campaign import require_campaign
        from hydragnn_hpo.config import CampaignConfig, load_config

        require_campaign(run)
        self.run = run
        self.search = load_config(run.campaign, CampaignConfig).search
        self.newest: RunView | None = None
        self._jobs: list[JobStanding] = []
        self._jobs_due = -math.inf
        self._start()

    def _start(self) -> None:
        from hydragnn_hpo.campaign import JournalFold, JournalFollower

        self._follower, self.fold = JournalFollower(self.run.journal), JournalFold()

    def _read_journal(self) -> None:
        """Fold what is new; start again where another journal stands in its place."""
        from hydragnn_hpo.campaign import JournalReplaced

        try:
            self._fold_new()
        except JournalReplaced:
            if not self.run.journal.exists():
                raise
            self._start()
            self._fold_new()

    def _fold_new(self) -> None:
        for event in self._follower.read_new():
            self.fold.apply(event)

    def read(self, rows: int | None = None) -> RunView:
        """Read what is new, and return how the campaign stands.

        Args:
            rows: most running trials to show one by one; the usual number if left out.

        Raises:
            RunError: the run directory is gone, or its journal is damaged.
        """
        from hydragnn_hpo.campaign import ROWS, build_status, predict_seconds_left
        from hydragnn_hpo.cli.batch_view import course_of
        from hydragnn_hpo.cli.status_view import Snapshot
        from hydragnn_hpo.launching import read_run_excluded
        from hydragnn_hpo.leases import find_controller

        self._read_journal()
        state, ledger, search = self.fold.state, self.fold.ledger, self.search
        holder = find_controller(self.run.path)
        now = time.time() if holder and not state.finished else None
        found = build_status(
            state,
            ledger,
            trials=search.trials,
            rungs=search.rungs,
            now=now,
            ends_in=predict_seconds_left(state, ledger, search, now) if now else None,
            rows=ROWS if rows is None else rows,
        )
        jobs = self._read_jobs(draining=bool(holder) and state.draining)
        snapshot = Snapshot(
            name=self.run.path.resolve().name,
            status=replace(found, excluded=len(read_run_excluded(self.run.path))),
            course=course_of(holder, jobs, finished=state.finished),
            best_so_far=tuple(self.fold.best_so_far),
            restarts=self.fold.restarts,
        )
        self.newest = RunView(self.run, snapshot, self.fold, holder, jobs)
        return self.newest

    def _read_jobs(self, *, draining: bool) -> "list[JobStanding]":
        """Return the batch jobs; the scheduler is asked now and then only."""
        from hydragnn_hpo.cli.batch_view import standing_of_jobs
        from hydragnn_hpo.launching import JobRecords

        if time.monotonic() >= self._jobs_due:
            self._jobs = standing_of_jobs(JobRecords(self.run.path).jobs(), draining=draining)
            self._jobs_due = time.monotonic() + SCHEDULER_SECONDS
        return self._jobs
