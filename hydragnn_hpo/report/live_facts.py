"""The facts of a run directory that grows; each line of its journal is read once."""

from pathlib import Path

from hydragnn_hpo.campaign.event_store import JournalFold, require_campaign
from hydragnn_hpo.campaign.journal import Event, JournalFollower
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import Facts, TrialFacts, facts_of, update_trials


class LiveFacts:
    """Follows a run directory; opens nothing for writing."""

    def __init__(self, run: RunDir) -> None:
        """Start before the first line of the journal."""
        self.run = run
        self._following, self._reckoning = JournalFollower(run.journal), JournalFold()
        self._events: list[Event] = []
        self._trials: dict[str, TrialFacts] = {}

    def mark(self) -> tuple[object, ...]:
        """Return a value that changes when there is something new to read."""
        return tuple(map(_stamp, (self.run.campaign, self.run.journal, self._ensemble)))

    @property
    def _ensemble(self) -> Path:
        return self.run.report / "ensemble.json"

    def read(self) -> Facts:
        """Read what is new; facts that were returned before change, too.

        Raises:
            JournalReplaced: another journal stands in its place: start with a new object.
            RunError: there is no campaign, or its journal is damaged.
        """
        require_campaign(self.run)
        new = list(self._following.read_new())
        for event in new:
            self._reckoning.apply(event)
        self._events += new
        update_trials(self._trials, self._reckoning.state, new)
        return facts_of(self.run, tuple(self._events), self._reckoning, self._trials)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
