"""Scores, their names, units and axes, as several sections show them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hydragnn_hpo.campaign import TrialHistory, first_goal
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.search import goal_label, goals

LEGEND: dict[str, Any] = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
"""Above a chart; where it is narrow, the legend grows upwards."""

_SPAN = 5.0
"""Largest over smallest value from which on an axis is logarithmic."""
_DECADES = 50.0
"""Below this ratio a logarithmic axis has ticks at 1, 2, 5 as well."""


def goal_name(facts: Facts, goal: int = 0) -> str:
    """Name one of the campaign's goals for an axis or a column."""
    wanted = goals(facts.config.search.objective)[goal]
    if wanted == "weighted":
        return "objective"
    if isinstance(wanted, str) and wanted.startswith("val_mae."):
        return f"validation MAE of {wanted.removeprefix('val_mae.')}"
    return goal_label(wanted)


_ENDS = {"seconds": "s", "joules": "J", "bytes": "B"}
"""Units of numbers of a result, by how their names end."""


def goal_unit(facts: Facts, goal: int = 0) -> str:
    """Return the unit of a goal: MAEs are mixed in standard deviations of their targets."""
    wanted = goals(facts.config.search.objective)[goal]
    if wanted == "weighted" or not isinstance(wanted, str):
        return "MAE / std"
    if wanted.startswith("val_mae."):
        return facts.units.get(wanted.removeprefix("val_mae."), "")
    return next((unit for end, unit in _ENDS.items() if wanted.endswith(end)), "")


def with_unit(name: str, unit: str) -> str:
    """Append a unit to a name; the unit of pure numbers is left out."""
    return f"{name} ({unit})" if unit and unit != "1" else name


def scored_trials(facts: Facts) -> list[tuple[TrialHistory, float]]:
    """Return trials that ended with a score, and that of the first goal, as proposed."""
    found = []
    for trial in facts.trials.values():
        score = first_goal(trial.trial.score)
        if score is not None and trial.trial.status in ("stopped", "completed"):
            found.append((trial, score))
    return found


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Shorten dotted keys to as many last parts as tell them apart."""
    keys = list(keys)
    return {key: _shortest(key, [other for other in keys if other != key]) for key in keys}


def _shortest(key: str, others: Sequence[str]) -> str:
    parts = key.split(".")
    for count in range(1, len(parts)):
        end = ".".join(parts[-count:])
        if not any(other == end or other.endswith("." + end) for other in others):
            return end
    return key


def axis(values: Sequence[float] | np.ndarray, title: str) -> dict[str, Any]:
    """Return a logarithmic axis for positive values over several decades, else a linear one."""
    if not wide(values):
        return {"title": {"text": title}, "type": "linear"}
    return log_axis(values, title)


def log_axis(values: Sequence[float] | np.ndarray, title: str) -> dict[str, Any]:
    """Return a logarithmic axis for positive values, with few ticks."""
    found: dict[str, Any] = {"title": {"text": title}, "type": "log"}
    low, high = float(min(values)), float(max(values))
    if high < _DECADES * low:
        tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found["tickvals"] = [float(f"{n}e{ten}") for ten in tens for n in (1, 2, 5)]
    return found


def wide(values: Sequence[float] | np.ndarray) -> bool:
    """Check whether values call for a logarithmic axis."""
    numbers = np.asarray(values, dtype=float)
    return bool(len(numbers) and numbers.min() > 0 and numbers.max() > _SPAN * numbers.min())


def best_first(rows: Iterable[tuple[TrialHistory, float]]) -> list[tuple[TrialHistory, float]]:
    """Order trials like the leaderboard: furthest trained, then lowest score."""
    return sorted(rows, key=lambda row: (-row[0].trial.until, row[1], row[0].name))


def members_of(facts: Facts) -> Mapping[str, float]:
    """Return the ensemble's members and their weights; empty before it is built."""
    return {m["trial"]: m["weight"] for m in (facts.ensemble or {}).get("members", ())}


def cell(value: Any) -> float | int | str | None:
    """Return a searched value as a cell: truth values are words."""
    return str(value).lower() if isinstance(value, bool) else value
