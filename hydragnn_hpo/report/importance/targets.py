"""What each trial of a run says about accuracy, cost, memory and failure.

Objectives are those at the first rung, as the brain is told them: every trial comes to rest there,
after the same number of epochs. At later rungs only the best are left, and a model of a mix of
budgets would learn who was promoted.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hydragnn_hpo.campaign.journal import Event
from hydragnn_hpo.campaign.state import RULES, Trial
from hydragnn_hpo.config.search import Objective, Scalar
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.report.importance.design import Matrix
from hydragnn_hpo.report.reading.facts import Facts, TrialFacts
from hydragnn_hpo.report.reading.scores import first_goal
from hydragnn_hpo.search.objective import goals, named

FAILED = ("diverged", "out_of_memory", "bad_config", "bug")
"""Reasons of a failure that tell of the configuration (Law 9)."""


@dataclass(frozen=True)
class Target:
    """What is explained; less is better, but for failures."""

    key: str
    """``mae``, ``mae.HEAD``, ``cost``, ``memory``, ``failure``."""
    label: str
    log: bool = True
    """Whether its logarithm is explained: effects are factors then."""

    @property
    def binary(self) -> bool:
        """Whether it is 1 (failed) or 0."""
        return self.key == "failure"

    @property
    def unit(self) -> str:
        """Give the unit of its effects."""
        return "" if self.binary or not self.log else "ln"


@dataclass(frozen=True)
class Observed:
    """What one trial says."""

    values: Mapping[str, Scalar]
    """Active searched values."""
    measured: Mapping[str, float]
    """By the key of a target; what is not known is not there."""


def observed(facts: Facts) -> list[Observed]:
    """Collect what the searched trials of a run say, in the order in which they were proposed."""
    first = facts.config.search.rungs[0]
    rested = _rested(facts.events, first)
    found: list[Observed] = []
    for name, trial in facts.trials.items():
        if trial.trial.parent is not None:  # the same values with another seed
            continue
        measured = _cost_and_memory(trial)
        if name in rested:
            measured |= _errors(rested[name])
        failed = _failed(trial.trial, first)
        if failed is not None:
            measured["failure"] = float(failed)
        found.append(Observed(trial.trial.values, measured))
    return found


def targets_of(rows: Sequence[Observed], objective: Objective) -> list[Target]:
    """List what the trials say something about, in the order in which it is shown."""
    known = {key for row in rows for key in row.measured}
    lowest = {key: min(row.measured[key] for row in rows if key in row.measured) for key in known}
    heads = sorted(key for key in known if key.startswith("mae."))
    labels = {
        "mae": _label(objective),
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


def choose(targets: Sequence[Target], wanted: str) -> Target:
    """Find a target by its key.

    Raises:
        ConfigError: no trial says anything about it.
    """
    for target in targets:
        if target.key == wanted:
            return target
    if wanted.startswith("mae."):
        heads = [t.key.removeprefix("mae.") for t in targets if t.key.startswith("mae.")]
        raise ConfigError(unknown("head", wanted.removeprefix("mae."), heads))
    raise ConfigError(f"no trial says anything about '{wanted}' yet: ask again later.")


def column(rows: Iterable[Observed], target: Target) -> Matrix:
    """Give what is explained, [N]: the logarithm where all are above 0."""
    values = [row.measured[target.key] for row in rows]
    return np.array([math.log(v) for v in values] if target.log else values, dtype=np.float64)


def _label(objective: Objective) -> str:
    first = goals(objective)[0]
    return "objective (weighted MAE)" if first == "weighted" else f"objective ({named(first)})"


def _rested(events: Iterable[Event], rung: int) -> dict[str, Event]:
    """Give the events with which trials came to rest at a rung, and not by a stopping rule."""
    until: dict[str, int] = {}
    found: dict[str, Event] = {}
    for event in events:
        if event["event"] == "placed":
            until[event["trial"]] = event["until"]
        elif event["event"] == "ended" and until.get(event["trial"]) == rung:
            at_rest = event["outcome"] in ("completed", "stopped")
            if at_rest and event.get("reason") not in RULES:
                found[event["trial"]] = event
    return found


def _errors(event: Event) -> dict[str, float]:
    """Give the first goal and the MAE of each head."""
    first = first_goal(event.get("score", event.get("objective")))
    found = {} if first is None else {"mae": float(first)}
    for head, error in event.get("val_mae", {}).items():
        if error is not None:
            found[f"mae.{head}"] = float(error)
    return {key: value for key, value in found.items() if math.isfinite(value)}


def _cost_and_memory(trial: TrialFacts) -> dict[str, float]:
    """Give slot-seconds per epoch, the median of its epochs, and the most memory it took."""
    found: dict[str, float] = {}
    costs = [epoch.seconds * epoch.width for epoch in trial.epochs]
    if not costs:  # a command says nothing of its epochs
        costs = [
            (a.ended - a.placed) * a.width / a.until
            for a in trial.attempts
            if a.ended is not None and a.outcome in ("completed", "stopped")
        ]
    if costs:
        found["cost"] = statistics.median(costs)
    if trial.peak_bytes:
        found["memory"] = float(trial.peak_bytes)
    return found


def _failed(trial: Trial, first: int) -> bool | None:
    """Say whether a trial failed for what it is; None where nobody knows yet."""
    if trial.status == "failed":
        return True if trial.reason in FAILED else None
    return False if first in trial.rests else None
