"""What is minimized: one number of a trial's result, or several and their Pareto front.

A *point* is what a trial scored: one number, or one for each of several goals.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hydragnn_hpo.config import Objective, Scalar
from hydragnn_hpo.config.search_config import Goal
from hydragnn_hpo.errors import ConfigError, unknown

Point = float | tuple[float, ...]


class TrialScore(NamedTuple):
    """What a trial scored at a rung."""

    values: Mapping[str, Scalar]
    """Searched values of the trial."""
    objective: Point | None
    """None for a failure."""
    rung: int = 0
    """Counted from 0, the shortest training."""


TRAINED_NUMBERS = (
    *("weighted", "objective", "best_epoch", "joules", "micro_batches", "parameters"),
    *("peak_bytes", "train_seconds"),
)
"""Numbers of a training's result that may be minimized, beside ``val_mae.HEAD``; ``joules`` only
where ranks measure energy."""


def goals(objective: Objective) -> tuple[Goal, ...]:
    """Return the goals of an objective, in order.

    Returns:
        One goal or several.
    """
    return objective if isinstance(objective, tuple) else (objective,)


def goal_label(goal: Goal) -> str:
    """Return a goal's name for tables."""
    return goal if isinstance(goal, str) else " + ".join(f"{w:g} {h}" for h, w in goal.items())


def check_objective(objective: Objective, heads: Iterable[str] | None) -> None:
    """Raise an error if a goal is no number that a trial writes, or is named twice.

    Args:
        objective: ``search.objective``.
        heads: of the trials; None where trials are a command, which may write any number.

    Raises:
        ConfigError: a head or a number is unknown, or a goal is named twice.
    """
    known = None if heads is None else list(heads)
    seen: list[Goal] = []
    for goal in goals(objective):
        if goal in seen:
            raise ConfigError(f"search.objective: '{goal_label(goal)}' is named twice: drop one.")
        seen.append(goal)
        if known is not None:
            _check_goal(goal, known)
        elif isinstance(goal, dict):
            raise ConfigError(
                "search.objective: weights of heads are for trainings; name a number that the "
                "command writes."
            )


def _check_goal(goal: Goal, heads: Sequence[str]) -> None:
    """Raise an error if no training with these heads writes what a goal names."""
    if isinstance(goal, str) and not goal.startswith("val_mae."):
        numbers = [*TRAINED_NUMBERS, *(f"val_mae.{head}" for head in heads)]
        if goal not in numbers:
            message = unknown("number of a training's result", goal, numbers)
            raise ConfigError(f"search.objective: {message}")
        return
    for head in goal if isinstance(goal, dict) else [goal.removeprefix("val_mae.")]:
        if head not in heads:
            raise ConfigError(f"search.objective: {unknown('head', head, heads)}")


def read_objective(
    objective: Objective, result: Mapping[str, Any], spreads: Mapping[str, float] | None = None
) -> Point | None:
    """Read the score of a trial from its result.

    Args:
        objective: ``search.objective``.
        result: content of ``result.json``, or an epoch record.
        spreads: standard deviation of each target in its unit, for weights of heads.

    Returns:
        One number, or one for each goal; None if one is missing or not finite.
    """
    every = [_score(goal, result, spreads or {}) for goal in goals(objective)]
    scores = tuple(score for score in every if score is not None)
    if len(scores) < len(every):
        return None
    return scores if isinstance(objective, tuple) else scores[0]


def finite_or_none(point: Point | None) -> Point | None:
    """Return a point if all its numbers are finite; else None, which stands for a failure."""
    parts = point if isinstance(point, tuple) else (point,)
    return point if all(part is not None and math.isfinite(part) for part in parts) else None


def finite_number(value: Any) -> float | None:
    """Return a value as a float if it is a finite number; else None (also for a bool)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer may be too large for a float
        return None


def read_epoch_objective(
    objective: Objective, record: Mapping[str, Any], spreads: Mapping[str, float] | None = None
) -> float | None:
    """Read the first goal from an epoch record, for a stopping rule.

    Args:
        objective: ``search.objective``.
        record: of an epoch, as in ``metrics.jsonl``.
        spreads: standard deviation of each target in its unit, for weights of heads.

    Returns:
        A number to be minimized; None if it is missing or not finite.
    """
    return _score(goals(objective)[0], record, spreads or {})


def _score(goal: Goal, result: Mapping[str, Any], spreads: Mapping[str, float]) -> float | None:
    if isinstance(goal, str):
        return _number(result, "objective" if goal == "weighted" else goal)
    total = 0.0
    for head, weight in goal.items():
        error = _number(result, f"val_mae.{head}")
        if error is None or head not in spreads:
            return None
        total += weight * error / spreads[head]
    return total / sum(goal.values())


def lacks_number(objective: Objective, result: Mapping[str, Any]) -> bool:
    """Check whether a result lacks a number that a goal names; one may be there and not finite."""
    names = ["objective" if g == "weighted" else g for g in goals(objective) if isinstance(g, str)]
    return any(not isinstance(_value(result, name), (int, float)) for name in names)


def _number(result: Mapping[str, Any], path: str) -> float | None:
    return finite_number(_value(result, path))


def _value(result: Mapping[str, Any], path: str) -> Any:
    value: Any = result
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def pareto_front(points: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the indices of the points that no other point dominates.

    Equal points do not dominate each other.
    """
    return [place for place, layer in enumerate(pareto_layers(points)) if layer == 0]


def pareto_layers(points: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the front of each point: 0 for the Pareto front, 1 for that of the rest, and so on.

    Source: Deb et al. (2002), doi:10.1109/4235.996017.
    """
    if not points:
        return []
    no_worse: np.ndarray = np.ones((len(points), len(points)), dtype=bool)
    for column in np.asarray(points, dtype=float).T:
        no_worse &= column[:, None] <= column[None, :]
    dominates = no_worse & ~no_worse.T
    ahead: np.ndarray = np.sum(dominates, axis=0)
    layers = np.full(len(points), -1)
    layer = 0
    while (front := (ahead == 0) & (layers < 0)).any():
        layers[front] = layer
        ahead -= np.sum(dominates[front], axis=0)
        layer += 1
    return [int(number) for number in layers]


def rank_points(points: Sequence[Point]) -> list[int]:
    """Return the indices of points, best first: by value, or by front and crowding distance.

    Ties go to the earlier point, so that a replay of the journal gives the same order.
    """
    several = [point for point in points if isinstance(point, tuple)]
    if len(several) < len(points) or not points:
        return [int(place) for place in np.argsort(np.asarray(points, dtype=float), kind="stable")]
    fronts = pareto_layers(several)
    alone = [0.0] * len(points)
    members_of: dict[int, list[int]] = {}
    for place, front in enumerate(fronts):
        members_of.setdefault(front, []).append(place)
    for members in members_of.values():
        spread = _crowding_distance([several[place] for place in members])
        for place, distance in zip(members, spread, strict=True):
            alone[place] = distance
    return sorted(range(len(points)), key=lambda place: (fronts[place], -alone[place], place))


def _crowding_distance(points: Sequence[tuple[float, ...]]) -> list[float]:
    """Return the distance between each point's neighbours, summed over goals; infinite at the ends.

    Each goal is scaled by its range. Source: Deb et al. (2002), doi:10.1109/4235.996017.
    """
    distance = [0.0] * len(points)
    for goal in range(len(points[0])):
        line = sorted(range(len(points)), key=lambda place: (points[place][goal], place))
        low, high = points[line[0]][goal], points[line[-1]][goal]
        if high == low:
            continue
        distance[line[0]] = distance[line[-1]] = math.inf
        for before, here, after in zip(line, line[1:], line[2:], strict=False):
            distance[here] += (points[after][goal] - points[before][goal]) / (high - low)
    return distance
