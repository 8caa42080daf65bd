"""A run's own figures, computed from its journal."""

import statistics
from collections.abc import Iterable
from typing import Any

from hydragnn_hpo.campaign.journal import Event
from hydragnn_hpo.campaign.losses import Ledger
from hydragnn_hpo.campaign.state import State


def summarize(events: Iterable[Event], *, more: bool = False) -> dict[str, Any]:
    """Compute what a campaign did with its slots.

    Args:
        events: the whole journal, read once.
        more: whether trials are still to be proposed: slots that idle now wait for the brain.

    Returns:
        ``trials`` and counts by outcome; ``attempts``, ``wide_attempts`` (two ranks or more),
        ``restarts`` (interrupted attempts, by reason);
        ``first_step_seconds``: median time from "trial placed" to its first optimizer step in a
        warm rank; ``cold_start_seconds``: the same in a rank that first imports what the zygote
        holds (measured import plus the warm median); ``slot_seconds``: of all slots, from the
        first placement to the last end of each controller; ``utilization``: share of them in
        training and validation; ``losses``: all shares by cause, see ``losses.CAUSES``.
    """
    state, ledger = State(), Ledger()
    kept: dict[str, list[Event]] = {"placed": [], "first_step": [], "zygote_ready": []}
    restarts: dict[str, int] = {}
    for event in events:
        state.apply(event)
        ledger.apply(event)
        if event["event"] in kept:
            kept[event["event"]].append(event)
        elif event["event"] == "ended" and event["outcome"] == "interrupted":
            reason = str(event.get("reason"))
            restarts[reason] = restarts.get(reason, 0) + 1
    losses = ledger.losses(more=more)
    statuses = [trial.status for trial in state.trials.values()]
    return {
        "trials": len(statuses),
        **{status: statuses.count(status) for status in sorted(set(statuses))},
        "attempts": len(kept["placed"]),
        "wide_attempts": sum(e["width"] > 1 for e in kept["placed"]),
        "restarts": restarts,
        **_starts(kept["first_step"], kept["zygote_ready"]),
        "slot_seconds": losses.slot_seconds,
        "utilization": losses.share("training") if losses.slot_seconds else None,
        "losses": losses.shares,
    }


def _starts(first_steps: list[Event], imports: list[Event]) -> dict[str, float | None]:
    warm = statistics.median(e["seconds"] for e in first_steps) if first_steps else None
    cold = None
    if imports and warm is not None:
        cold = statistics.median(e["import_seconds"] for e in imports) + warm
    return {"first_step_seconds": warm, "cold_start_seconds": cold}
