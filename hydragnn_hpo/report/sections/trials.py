"""Each trial by itself: configuration, curve, attempts and log, opened by a click on its name."""

from collections.abc import Mapping, Sequence

from hydragnn_hpo.campaign.history import TrialHistory
from hydragnn_hpo.campaign.status import find_conv
from hydragnn_hpo.report.charts import PlotlyValue, readable_name, time_unit
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Cell, Data, searched_cell
from hydragnn_hpo.report.sections.failures import read_last_lines

MOST_TRIALS = 400
"""Maximum number of trials with details in the page: the best, then those that failed or run."""

MOST_POINTS = 100
"""Maximum number of points of a curve; of more, every n-th is kept, and the last."""


def make_details(facts: Facts) -> Data:
    """Return the details of the trials for ``details.js``."""
    ranked = [trial.name for trial in facts.state.ranked() if trial.name in facts.trials]
    by_state = [
        name
        for status in ("running", "failed")
        for name, trial in facts.trials.items()
        if trial.trial.status == status
    ]
    names = list(dict.fromkeys([*ranked[: MOST_TRIALS // 2], *by_state, *ranked, *facts.trials]))
    places = {name: place for place, name in enumerate(ranked, start=1)}
    return Data(
        "trials",
        {n: _details(facts, facts.trials[n], places.get(n)) for n in names[:MOST_TRIALS]},
    )


def _details(facts: Facts, trial: TrialHistory, rank: int | None) -> Mapping[str, PlotlyValue]:
    """Return everything about one trial.

    Args:
        facts: content of the run directory.
        trial: the trial.
        rank: its place in the leaderboard, from 1; None if it has no score.
    """
    curve = trial.objectives
    epochs = list(curve)
    kept = epochs[:: max(1, -(-len(epochs) // MOST_POINTS))]
    kept = [*kept, *(epochs[-1:] if kept[-1:] != epochs[-1:] else [])]
    state = trial.trial
    reason = f" ({state.reason})" if state.reason and state.status == "failed" else ""
    facts_of_trial: dict[str, Cell] = {
        "status": f"{state.status}{reason}",
        "rank": rank,
        "epochs": f"{state.epoch} of {state.until}",
        "objective": state.objective,
        "conv": find_conv(state, facts.config) or None,
        "parameters": trial.parameters,
        "slot time": _seconds(state.slot_seconds),
    }
    for head, mae in state.val_mae.items():
        unit = facts.units.get(head, "")
        label = f"{readable_name(head)}, validation MAE"
        facts_of_trial[label] = None if mae is None else f"{mae:.4g} {unit}".strip()
    if trial.name in facts.members:
        facts_of_trial["weight in the ensemble"] = f"{100 * facts.members[trial.name]:.0f} %"
    return {
        "facts": [[k, v] for k, v in facts_of_trial.items() if v is not None],
        "values": [[key, str(searched_cell(value))] for key, value in state.values.items()],
        "epochs": kept,
        "curve": [float(f"{curve[epoch]:.5g}") for epoch in kept],
        "attempts": _attempts(facts, trial),
        "log": read_last_lines(facts.run, trial),
    }


def _attempts(facts: Facts, trial: TrialHistory) -> Sequence[Sequence[str]]:
    """Return number, goal, ranks, start, duration and outcome of each attempt."""
    begin = facts.begin or 0.0
    rows = []
    for attempt in trial.attempts:
        lasted = "" if attempt.ended is None else _seconds(attempt.ended - attempt.placed)
        outcome = attempt.outcome or "running"
        why = f"{outcome} ({attempt.reason})" if attempt.reason else outcome
        start = f"after {_seconds(attempt.placed - begin)}"
        ranks = str(attempt.width)
        rows.append((str(attempt.number), f"epoch {attempt.until}", ranks, start, lasted, why))
    return rows


def _seconds(seconds: float) -> str:
    unit, size = time_unit(seconds)
    return f"{seconds / size:.3g} {unit}"
