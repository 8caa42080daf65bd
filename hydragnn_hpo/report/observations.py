"""Observations of the search: accuracy, cost, memory and failure of each trial, as targets.

Objectives are those at the first rung, from which the brain learns as well: every trial reaches it,
after the same number of epochs. Only the best trials reach later rungs, so a model of mixed budgets
would learn which trials were promoted. A trial that a stopping rule ended has no accuracy.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hydragnn_hpo.campaign import Trial
from hydragnn_hpo.campaign.history import TrialHistory
from hydragnn_hpo.campaign.state import RULES, first_goal
from hydragnn_hpo.config import Objective, Scalar
from hydragnn_hpo.errors import ConfigError, RunError, unknown
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.surrogate import Matrix
from hydragnn_hpo.search.objective import goal_label, goals

FAILED = ("diverged", "out_of_memory", "bad_config", "bug")
"""Reasons for a failure that depend on the configuration, not on the machine (Law 9)."""


@dataclass(frozen=True)
class Target:
    """A quantity to explain; lower is better, except for failures."""

    key: str
    """``mae``, ``mae.HEAD``, ``cost``, ``memory``, ``failure``."""
    label: str
    log: bool = True
    """Whether its logarithm is explained; effects are then factors."""

    @property
    def binary(self) -> bool:
        """Whether the target has two values: 1 (failed) and 0."""
        return self.key == "failure"

    @property
    def unit(self) -> str:
        """Unit of the effects: ``ln`` for a logarithm, else empty."""
        return "" if self.binary or not self.log else "ln"


@dataclass(frozen=True)
class TrialObservation:
    """One trial's configuration and measurements."""

    values: Mapping[str, Scalar]
    """Active searched values."""
    measured: Mapping[str, float]
    """Measurement by key of a target; unknown ones are left out."""


def observe_trials(facts: Facts) -> list[TrialObservation]:
    """Collect the searched trials of a run, in the order in which they were proposed."""
    rung = facts.config.search.rungs[0]
    rows: list[TrialObservation] = []
    for trial in facts.trials.values():
        if trial.trial.parent is not None:  # repeats its parent's values with another seed
            continue
        measured = _cost_and_memory(trial) | _errors(trial, rung)
        failed = _has_failed(trial.trial, rung)
        if failed is not None:
            measured["failure"] = float(failed)
        rows.append(TrialObservation(trial.trial.values, measured))
    return rows


def _errors(trial: TrialHistory, rung: int) -> dict[str, float]:
    """Return the score of the first goal and the MAE of each head at the end of a rung."""
    ends = [a for a in trial.attempts if a.until == rung and a.outcome in ("completed", "stopped")]
    ends = [attempt for attempt in ends if attempt.reason not in RULES]
    if not ends:
        return {}
    errors: dict[str, float | None] = {"mae": first_goal(ends[-1].score)}
    errors |= {f"mae.{head}": error for head, error in ends[-1].val_mae.items()}
    return {k: float(v) for k, v in errors.items() if v is not None and math.isfinite(v)}


def _cost_and_memory(trial: TrialHistory) -> dict[str, float]:
    """Return the median slot-seconds per epoch and the peak memory in bytes, where known."""
    measured: dict[str, float] = {}
    costs = [epoch["seconds"] * epoch["width"] for epoch in trial.epochs]
    if not costs:  # a command reports no epochs
        costs = [
            (a.ended - a.placed) * a.width / a.until
            for a in trial.attempts
            if a.ended is not None and a.outcome in ("completed", "stopped")
        ]
    if costs:
        measured["cost"] = statistics.median(costs)
    if trial.peak_bytes:
        measured["memory"] = float(trial.peak_bytes)
    return measured


def _has_failed(trial: Trial, rung: int) -> bool | None:
    """Check whether a trial failed because of its configuration; None if unknown."""
    if trial.status == "failed":
        return True if trial.reason in FAILED else None
    return False if rung in trial.rung_scores else None


def list_targets(rows: Sequence[TrialObservation], objective: Objective) -> list[Target]:
    """List the targets that any trial has a measurement of, in the order in which they are shown.

    Args:
        rows: the trials.
        objective: ``search.objective``, for the label.
    """
    known = {key for row in rows for key in row.measured}
    lowest = {key: min(row.measured[key] for row in rows if key in row.measured) for key in known}
    heads = sorted(key for key in known if key.startswith("mae."))
    first = goals(objective)[0]
    name = "weighted MAE" if first == "weighted" else goal_label(first)
    labels = {
        "mae": f"objective ({name})",
        **{key: f"MAE of {key.removeprefix('mae.')}" for key in heads},
        "cost": "cost (slot-seconds per epoch)",
        "memory": "peak memory of a rank",
        "failure": "P(failure)",
    }
    return [
        Target(key, label, log=key != "failure" and lowest[key] > 0.0)
        for key, label in labels.items()
        if key in known
    ]


def choose_targets(
    rows: Sequence[TrialObservation], objective: Objective, wanted: Sequence[str]
) -> list[Target]:
    """Find targets by their keys; of several, those without measurements are left out.

    Args:
        rows: the trials.
        objective: ``search.objective``, for the label.
        wanted: keys of targets.

    Raises:
        RunError: no trial has a measurement of anything yet.
        ConfigError: only one target is wanted, and no trial has a measurement of it.
    """
    targets = {target.key: target for target in list_targets(rows, objective)}
    if not targets:
        raise RunError("no trial has come to rest or failed yet: ask again later.")
    if len(wanted) > 1 or wanted[0] in targets:
        return [target for key, target in targets.items() if key in wanted]
    if wanted[0].startswith("mae."):
        heads = [key.removeprefix("mae.") for key in targets if key.startswith("mae.")]
        raise ConfigError(unknown("head", wanted[0].removeprefix("mae."), heads))
    raise ConfigError(f"no trial says anything about '{wanted[0]}' yet: ask again later.")


def target_values(rows: Iterable[TrialObservation], target: Target) -> Matrix:
    """Return the values to explain, [N]; their logarithms if ``target.log``."""
    values = [row.measured[target.key] for row in rows]
    return np.array([math.log(v) for v in values] if target.log else values, dtype=np.float64)
