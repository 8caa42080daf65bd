"""A run's own figures, computed from its journal."""

import statistics
from collections.abc import Sequence
from typing import Any

from hydragnn_hpo.campaign.journal import Event
from hydragnn_hpo.campaign.state import fold


def summarize(events: Sequence[Event]) -> dict[str, Any]:
    """Compute what a campaign did with its slots.

    Args:
        events: the whole journal.

    Returns:
        ``trials`` and counts by outcome; ``wide_attempts`` (two ranks or more);
        ``first_step_seconds``: median time from "trial placed" to its first optimizer step in a
        warm rank; ``cold_start_seconds``: the same in a rank that first imports what the zygote
        holds (measured import plus the warm median); ``host_seconds``: slots times the time from
        the first placement to the last end; ``utilization``: share of it in epochs.
    """
    state = fold(events)
    placed = [e for e in events if e["event"] == "placed"]
    first = [e["seconds"] for e in events if e["event"] == "first_step"]
    imports = [e["import_seconds"] for e in events if e["event"] == "zygote_ready"]
    warm = statistics.median(first) if first else None
    cold = statistics.median(imports) + warm if imports and warm is not None else None
    slots = max((len(e["slots"]) for e in events if e["event"] == "opened"), default=0)
    busy = sum(e["seconds"] * e["width"] for e in events if e["event"] == "epoch")
    span = _span(events)
    statuses = [trial.status for trial in state.trials.values()]
    return {
        "trials": len(statuses),
        **{status: statuses.count(status) for status in sorted(set(statuses))},
        "attempts": len(placed),
        "wide_attempts": sum(e["width"] > 1 for e in placed),
        "first_step_seconds": warm,
        "cold_start_seconds": cold,
        "host_seconds": slots * span,
        "utilization": busy / (slots * span) if span and slots else None,
    }


def _span(events: Sequence[Event]) -> float:
    """Sum the time between the first placement and the last end of each controller."""
    total = 0.0
    for epoch in {event["epoch"] for event in events}:
        ours = [event for event in events if event["epoch"] == epoch]
        starts = [event["time"] for event in ours if event["event"] == "placed"]
        ends = [event["time"] for event in ours if event["event"] in ("ended", "epoch")]
        if starts and ends:
            total += max(0.0, ends[-1] - starts[0])
    return total
