"""What journals fold to, as plain data: ``python tests/golden_journal.py`` writes it again.

Keys of the golden files are words of their own: renaming an attribute changes a line here and no
golden. Read the difference before it is committed: run directories of users hold such journals.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.history import JournalHistory
from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.campaign.status import Status, rank_trials

FOLDER = Path(__file__).parent / "goldens" / "journal"
JOURNALS = ("events", "goals")
"""Every kind of event and every way to end; a campaign that is ranked by two goals."""

TRIAL: dict[str, Callable[[Trial], Any]] = {
    "name": lambda trial: trial.name,
    "values": lambda trial: trial.values,
    "until": lambda trial: trial.until,
    "parent": lambda trial: trial.parent,
    "status": lambda trial: trial.status,
    "reason": lambda trial: trial.reason,
    "message": lambda trial: trial.message,
    "attempt": lambda trial: trial.attempt,
    "width": lambda trial: trial.width,
    "slots": lambda trial: trial.slots,
    "placed": lambda trial: trial.placed,
    "first_step": lambda trial: trial.first_step,
    "last_progress": lambda trial: trial.last_progress,
    "epoch": lambda trial: trial.epoch,
    "objective": lambda trial: trial.objective,
    "score": lambda trial: trial.score,
    "val_mae": lambda trial: trial.val_mae,
    "score_by_rung": lambda trial: trial.rung_scores,
    "epoch_seconds_by_width": lambda trial: trial.seconds,
    "restarts": lambda trial: trial.restarts,
    "resizes": lambda trial: trial.resizes,
    "requested_width": lambda trial: trial.requested_width,
    "requested_end": lambda trial: trial.stop_reason,
    "minimum_width": lambda trial: trial.min_width,
    "whole_device": lambda trial: trial.whole_device,
    "slot_seconds": lambda trial: trial.slot_seconds,
    "epoch_joules": lambda trial: trial.joules,
    "counted_joules": lambda trial: trial.energy,
    "counted_seconds": lambda trial: trial.metered_seconds,
    "predicted_epoch_seconds": lambda trial: trial.predicted,
    "conv": lambda trial: trial.conv,
    "hosts": lambda trial: trial.hosts,
    "counted_share": lambda trial: trial.metered_share,
    "job": lambda trial: trial.job,
}
"""All that is known of a trial."""

STATUSES: tuple[Status, ...] = (
    "queued",
    "running",
    "stopped",
    "completed",
    "failed",
    "cancelled",
)

STATE: dict[str, Callable[[State], Any]] = {
    "trials": lambda state: [plain_trial(trial) for trial in state.trials.values()],
    "by_status": lambda state: {
        status: [trial.name for trial in state.with_status(status)] for status in STATUSES
    },
    "counts": lambda state: {status: state.count(status) for status in STATUSES},
    "ranked": lambda state: [trial.name for trial in state.ranked()],
    "equal_failures": lambda state: {
        name: state.count_equal_failures(t) for name, t in state.trials.items()
    },
    "searched": lambda state: state.searched,
    "reseed": lambda state: state.reseed,
    "reseeded": lambda state: state.reseeded,
    "hosts": lambda state: state.hosts.slots,
    "hosts_lost": lambda state: state.hosts.lost,
    "host_failures": lambda state: state.hosts.failures,
    "hosts_quarantined": lambda state: state.hosts.quarantined,
    "host_warnings": lambda state: state.hosts.warned,
    "joules": lambda state: state.energy.joules,
    "idle_joules": lambda state: state.energy.idle,
    "watts": lambda state: state.energy.watts,
    "counted_hosts": lambda state: state.energy.hosts,
    "counted_parts": lambda state: state.energy.parts,
    "uncounted": lambda state: state.energy.unread,
    "results_by_rung": lambda state: state.results,
    "promoted_by_rung": lambda state: state.promoted,
    "closed": lambda state: state.closed,
    "ending": lambda state: state.ending,
    "finished": lambda state: state.finished,
    "draining": lambda state: state.draining,
    "added": lambda state: state.added,
    "additions": lambda state: state.additions,
    "chosen": lambda state: list(state.chosen),
    "units": lambda state: state.units,
    "bugs": lambda state: state.bugs,
    "checkpoints": lambda state: state.checkpoints,
}
"""All that is known of a campaign."""


def plain_trial(trial: Trial) -> dict[str, Any]:
    """Return a trial's data under the golden's names."""
    return {key: value_of(trial) for key, value_of in TRIAL.items()}


def text_of(content: Any) -> str:
    """Write plain data as JSON, sets in order."""
    return json.dumps(content, indent=1, sort_keys=True, default=sorted) + "\n"


def digest(state: State) -> str:
    """Return a short checksum of all that is known."""
    content = {key: value_of(state) for key, value_of in STATE.items()}
    return hashlib.sha256(text_of(content).encode()).hexdigest()[:12]


def prefixes(path: Path) -> Iterator[str]:
    """Yield a line for each event: its number, its kind, the digest of the state behind it."""
    state = State()
    for number, event in enumerate(read_journal(path), start=1):
        state.apply(event)
        yield f"{number:03d} {event['event']} {digest(state)}"


def folded(path: Path) -> dict[str, Any]:
    """Return all that is computed from a journal alone."""
    events = list(read_journal(path))
    fold = JournalHistory(events)
    return {
        "state": {key: value_of(fold.state) for key, value_of in STATE.items()},
        "summary": fold.figures(),
        "slot_seconds": fold.ledger.utilization().by_cause,
        "slots": fold.ledger.slots,
        "hosts": fold.ledger.hosts,
        "bars": [[b.trial, b.slots, b.start, b.end, b.what] for b in fold.slots.bars],
        "leaderboard": rank_trials(fold.state).to_plain(),
    }


def main() -> None:
    """Write what all golden journals fold to."""
    for name in JOURNALS:
        path = FOLDER / f"{name}.jsonl"
        (FOLDER / f"{name}.state.json").write_text(text_of(folded(path)))
        (FOLDER / f"{name}.prefixes.txt").write_text("\n".join(prefixes(path)) + "\n")


if __name__ == "__main__":
    main()
