"""What journals fold to, as plain data: ``python tests/golden_journal.py`` writes it again.

Keys of the golden files are words of their own: renaming an attribute changes a line here and no
golden. Read the difference before it is committed: run directories of users hold such journals.
"""

import ast
import hashlib
import inspect
import json
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from hydragnn_hpo.campaign.history import JournalHistory
from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.state import State, Trial, TrialStatus
from hydragnn_hpo.campaign.status import find_conv, rank_trials
from hydragnn_hpo.config.campaign_config import CampaignConfig

FOLDER = Path(__file__).parent / "goldens" / "journal"
JOURNALS = ("events", "goals")
"""Every kind of event and every way to end; a campaign that is ranked by two goals."""

TRIAL_NAMES = (
    *("name", "values", "until", "parent", "status", "reason", "message", "attempt", "width"),
    *("slots", "placed", "first_step", "last_progress", "epoch", "objective", "score", "val_mae"),
    *("restarts", "resizes", "requested_width", "slot_seconds", "hosts", "job"),
    "whole_device",
)
TRIAL: dict[str, str] = dict(zip(TRIAL_NAMES, TRIAL_NAMES, strict=True)) | {
    "score_by_rung": "rung_scores",
    "epoch_seconds_by_width": "seconds",
    "requested_end": "stop_reason",
    "minimum_width": "min_width",
    "epoch_joules": "joules",
    "counted_joules": "energy",
    "counted_seconds": "metered_seconds",
    "counted_share": "metered_share",
    "predicted_epoch_seconds": "predicted",
}
"""All that is known of a trial: the golden's key, and the attribute."""

FIXES_NOTHING = CampaignConfig.model_construct()
"""A campaign that fixes nothing."""

STATUSES: tuple[TrialStatus, ...] = get_args(TrialStatus)
STATE_NAMES = (
    *("searched", "reseed", "reseeded", "closed", "ending", "finished", "draining", "added"),
    *("additions", "units", "bugs", "checkpoints"),
)
STATE: dict[str, str] = dict(zip(STATE_NAMES, STATE_NAMES, strict=True)) | {
    "hosts": "hosts.slots",
    "hosts_lost": "hosts.lost",
    "hosts_absent": "hosts.absent",
    "host_failures": "hosts.failures",
    "hosts_quarantined": "hosts.quarantined",
    "host_warnings": "hosts.warned",
    "joules": "energy.joules",
    "idle_joules": "energy.idle",
    "watts": "energy.watts",
    "counted_hosts": "energy.hosts",
    "counted_parts": "energy.parts",
    "uncounted": "energy.unread",
    "results_by_rung": "results",
    "promoted_by_rung": "promoted",
}
"""All that is known of a campaign as it stands in an attribute."""


def matched_kinds(module: ModuleType) -> set[str]:
    """Return the kinds of events that the ``match`` statements of a module name."""
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    values = [node.value for node in nodes if isinstance(node, ast.MatchValue)]
    return {str(ast.literal_eval(value)) for value in values}


def plain(known: object, attributes: dict[str, str]) -> dict[str, Any]:
    """Return data under the golden's names."""
    return {key: attrgetter(attribute)(known) for key, attribute in attributes.items()}


def _plain_trial(trial: Trial) -> dict[str, Any]:
    return plain(trial, TRIAL) | {"conv": find_conv(trial, FIXES_NOTHING)}


def plain_state(state: State) -> dict[str, Any]:
    """Return all that is known of a campaign."""
    trials = state.trials
    return plain(state, STATE) | {
        "trials": [_plain_trial(trial) for trial in trials.values()],
        "by_status": {status: [t.name for t in state.with_status(status)] for status in STATUSES},
        "counts": {status: state.count(status) for status in STATUSES},
        "ranked": [trial.name for trial in state.ranked()],
        "equal_failures": {name: state.count_equal_failures(t) for name, t in trials.items()},
        "chosen": list(state.chosen),
    }


def text_of(content: Any) -> str:
    """Write plain data as JSON, sets in order."""
    return json.dumps(content, indent=1, sort_keys=True, default=sorted) + "\n"


def digest(state: State) -> str:
    """Return a short checksum of all that is known."""
    return hashlib.sha256(text_of(plain_state(state)).encode()).hexdigest()[:12]


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
        "state": plain_state(fold.state),
        "summary": fold.figures(),
        "slot_seconds": fold.ledger.utilization().by_cause,
        "slots": fold.ledger.slots,
        "hosts": fold.ledger.hosts,
        "bars": [[b.trial, b.slots, b.start, b.end, b.what] for b in fold.slots.bars],
        "leaderboard": rank_trials(fold.state, FIXES_NOTHING).to_plain(),
    }


def main() -> None:
    """Write what all golden journals fold to."""
    for name in JOURNALS:
        path = FOLDER / f"{name}.jsonl"
        (FOLDER / f"{name}.state.json").write_text(text_of(folded(path)))
        (FOLDER / f"{name}.prefixes.txt").write_text("\n".join(prefixes(path)) + "\n")


if __name__ == "__main__":
    main()
