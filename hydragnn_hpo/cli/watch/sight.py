"""What a watcher knows: a campaign's journal so far, and how it stands at a moment."""

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hydragnn_hpo.campaign.event_store import JournalFold
from hydragnn_hpo.campaign.journal import Event, JournalFollower, JournalReplaced
from hydragnn_hpo.campaign.lease import alive
from hydragnn_hpo.campaign.status import Status, build_status, predict_seconds_left, running_trials
from hydragnn_hpo.cli.batch_view import course_of, standing_of_jobs
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.loading import load
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.launching.doctor.exclusion import hosts_excluded
from hydragnn_hpo.launching.submit.records import JobRecords
from hydragnn_hpo.layout import RunDir

if TYPE_CHECKING:
    from hydragnn_hpo.cli.batch_view import JobStanding

SCHEDULER_SECONDS = 30.0
"""Least time between two questions to the one scheduler of a machine."""

COMING = ("queued", "running", "draining")
"""States of a batch job that a watcher waits for."""

MOST_ROWS = 100
"""Running trials that a tall terminal may show."""


@dataclass(frozen=True)
class Sight:
    """A campaign at one moment, for a terminal."""

    standing: Status
    course: str
    """Who works on it."""
    best: tuple[float, ...]
    """The best score so far, after each result."""
    restarts: dict[str, int]
    """Interrupted attempts by reason."""
    goes_on: bool
    """Whether there is something to wait for."""


class Watcher:
    """Follows a run directory; what was read once is not read again."""

    def __init__(self, run: RunDir) -> None:
        """Take a run directory.

        Raises:
            RunError: it holds no campaign.
        """
        if not run.campaign.exists():
            raise RunError(f"{run.path}: holds no campaign; give the directory of a run.")
        self.run = run
        self.search = load(run.campaign, CampaignConfig).search
        self.seen: Sight | None = None
        """The newest sight."""
        self._jobs: list[JobStanding] = []
        self._asked = -math.inf
        self._begin()

    def _begin(self) -> None:
        self.following, self.reckoning = JournalFollower(self.run.journal), JournalFold()
        self.best: list[float] = []

    def look(self) -> Sight:
        """Read what is new, and say how the campaign stands.

        Raises:
            RunError: the run directory is gone, or its journal is damaged.
        """
        try:
            self._take(self.following.read_new())
        except JournalReplaced:
            if not self.run.journal.exists():
                raise
            self._begin()
            self._take(self.following.read_new())
        holder, state = alive(self.run.path), self.reckoning.state
        now = time.time() if holder and not state.finished else None
        ledger, search = self.reckoning.ledger, self.search
        standing = build_status(state, ledger, trials=search.trials, rungs=search.rungs, now=now)
        standing = replace(
            standing,
            excluded=len(hosts_excluded(self.run.path)),
            running=running_trials(state, MOST_ROWS, now),
            ends_in=predict_seconds_left(state, ledger, search, now) if now else None,
        )
        jobs = self._jobs_now(draining=bool(holder) and state.draining)
        self.seen = Sight(
            standing=standing,
            course=course_of(holder, jobs, finished=state.finished),
            best=tuple(self.best),
            restarts=self.reckoning.restarts,
            goes_on=not state.finished
            and (holder is not None or any(job.state in COMING for job in jobs)),
        )
        return self.seen

    def _take(self, events: list[Event]) -> None:
        for event in events:
            self.reckoning.apply(event)
            score = first_goal(event) if event["event"] == "ended" else None
            if score is not None:
                self.best.append(min(score, self.best[-1]) if self.best else score)

    def _jobs_now(self, *, draining: bool) -> "list[JobStanding]":
        """Give the batch jobs; the scheduler is asked now and then only."""
        if time.monotonic() >= self._asked + SCHEDULER_SECONDS:
            records = JobRecords(self.run.path)
            self._jobs = standing_of_jobs(records.jobs(), draining=draining)
            self._asked = time.monotonic()
        return self._jobs


def first_goal(event: Event) -> float | None:
    """Give the first goal of a result, by which the best is chosen; None without one."""
    if event["outcome"] not in ("completed", "stopped"):
        return None
    score = event.get("score", event.get("objective"))
    first = score[0] if isinstance(score, list) else score
    return float(first) if first is not None and math.isfinite(first) else None
