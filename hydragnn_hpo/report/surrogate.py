"""A surrogate model of the search space: trials as positions, a forest, and explanations of it.

A parameter has one column: the position of its value in its range, in (0, 1), which is uniform
over the search's draws. An inactive parameter stands at its canonical value.

Shapes: N configurations, P searched parameters, V values of one parameter.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hydragnn_hpo.config import CampaignConfig, ParameterConfig, Scalar, Space
from hydragnn_hpo.sanitize import sanitize_values
from hydragnn_hpo.search import (
    active_parameters,
    canonical_values,
    find_broken_constraint,
    read_constraints,
)
from hydragnn_hpo.search.space import list_values, position_of, value_at

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from sklearn.ensemble import ExtraTreesRegressor

Matrix = npt.NDArray[np.float64]

DRAWS = 200
"""Maximum number of draws for each wanted point: constraints may reject most of them."""

TREES, DEPTH, LEAF = 100, 8, 2
"""Trees, depth and leaf size of the forest: deeper trees explain 1 % more of the variance of 2,000
trials, and SHAP takes 50 % longer."""

AT_A_TIME = 20
"""Trials that SHAP explains in one call: a call of over ten seconds would draw a progress bar."""

GRID_STEPS = 12
"""Number of values of a range at which the partial dependence is evaluated."""


def encode(space: Space, configurations: Iterable[Mapping[str, Scalar]]) -> Matrix:
    """Return the position of each value in its range, [N, P]; values beyond it stand at its ends.

    Raises:
        ConfigError: an active key has no value.
    """
    full = [canonical_values(space, values) for values in configurations]
    places = [[position_of(space[name], value) for name, value in v.items()] for v in full]
    return np.clip(np.array(places, dtype=np.float64).reshape(len(full), len(space)), 0.0, 1.0)


def encode_active(space: Space, configurations: Sequence[Mapping[str, Scalar]]) -> Matrix:
    """Return positions as ``encode`` does, [N, P]; nan where a parameter is inactive."""
    active = [active_parameters(space, values) for values in configurations]
    on = np.array([[name in values for name in space] for values in active], dtype=bool)
    return np.where(on.reshape(len(active), len(space)), encode(space, configurations), np.nan)


def make_distribution(parameter: ParameterConfig) -> "BaseDistribution":
    """Convert a parameter to an Optuna distribution; a range with steps ends at its last step."""
    from optuna import distributions as kinds

    if parameter.choices is not None:
        return kinds.CategoricalDistribution(
            [sanitize_values(choice) for choice in parameter.choices]
        )
    low, high, step = parameter.low, parameter.high, parameter.step
    assert low is not None
    assert high is not None
    if step is not None:  # Optuna requires the exact last step: 0.9, not 3 * 0.3
        high = float((list_values(parameter) or (high,))[-1])
    if parameter.integer and not isinstance(step, float):
        return kinds.IntDistribution(int(low), int(high), log=parameter.log, step=int(step or 1))
    return kinds.FloatDistribution(float(low), float(high), log=parameter.log, step=step)


def draw_uniform(config: CampaignConfig, count: int, *, seed: int) -> list[dict[str, Scalar]]:
    """Draw configurations uniformly from a space, as a search without a model would.

    Args:
        config: the campaign, for its space and constraints.
        count: number of configurations; fewer are returned if constraints reject almost all draws.
        seed: seed of the draws.

    Returns:
        A value for every key, also for inactive ones.
    """
    space = config.space
    rules = read_constraints(config.search.constraints, space, config.trial)
    generator = np.random.default_rng(seed)
    drawn: list[dict[str, Scalar]] = []
    for _ in range(DRAWS):
        for draw in generator.random((count, len(space))):
            pairs = zip(space.items(), draw, strict=True)
            values = {name: value_at(parameter, float(at)) for (name, parameter), at in pairs}
            if find_broken_constraint(rules, active_parameters(space, values)) is None:
                drawn.append(values)
        if len(drawn) >= count:
            break
    return drawn[:count]


def fit_forest(positions: Matrix, values: Matrix, *, seed: int) -> "ExtraTreesRegressor":
    """Fit a forest of extra trees.

    Each tree is fitted to a bootstrap sample of the rows, and tested on the others: ``oob_score_``
    is the share of the variance that the forest explains in trials that its trees have not seen
    (out-of-bag R2). For failures, which are 0 or 1, this is the Brier skill score against their
    base rate.

    Args:
        positions: encoded configurations, [N, P].
        values: quantity to predict, [N].
        seed: seed of the bootstrap and of the splits.

    Source: Geurts, Ernst and Wehenkel (2006), doi:10.1007/s10994-006-6226-1.
    """
    from sklearn.ensemble import ExtraTreesRegressor

    forest = ExtraTreesRegressor(
        n_estimators=TREES,
        max_depth=DEPTH,
        min_samples_leaf=LEAF,
        bootstrap=True,
        oob_score=True,
        random_state=seed,
    )
    return forest.fit(positions, values)


def shap_values(forest: "ExtraTreesRegressor", points: Matrix, background: Matrix) -> Matrix:
    """Return the SHAP value of each parameter for each prediction, [N, P].

    A row sums to its prediction minus the mean prediction of the background. The background should
    be drawn uniformly from the space: with the trials as background, a parameter on which the
    search has converged would seem unimportant.

    Args:
        forest: the fitted model.
        points: rows to explain, [N, P].
        background: B rows to compare them with, [B, P].

    Source: Lundberg et al. (2020), doi:10.1038/s42256-019-0138-9 (interventional).
    """
    with warnings.catch_warnings():  # shap also imports its plots, which use deprecated colours
        warnings.simplefilter("ignore")
        from shap import TreeExplainer

    explainer = TreeExplainer(forest, data=background, feature_perturbation="interventional")
    parts = [
        explainer.shap_values(points[begin : begin + AT_A_TIME], check_additivity=False)
        for begin in range(0, len(points), AT_A_TIME)
    ]
    return np.concatenate(parts).reshape(points.shape).astype(np.float64)


Predict = Callable[[list[dict[str, Scalar]]], np.ndarray]
"""Function that maps N active configurations to predictions, [N]."""


@dataclass(frozen=True)
class Dependence:
    """Partial dependence: expected target at some values of a parameter."""

    values: tuple[Scalar, ...]
    expected: np.ndarray
    """Mean over the background, [V]."""


def partial_dependence(
    space: Space, name: str, predict: Predict, background: Sequence[Mapping[str, Scalar]]
) -> Dependence | None:
    """Compute the partial dependence of a model on one parameter.

    Args:
        space: searched keys.
        name: the parameter.
        predict: the model.
        background: configurations with a value for every key, also for inactive ones. Those in
            which the parameter is inactive are left out.

    Returns:
        Predictions averaged over the background; None if the parameter is never active.

    Source: Friedman (2001), doi:10.1214/aos/1013203451, section 8.2.
    """
    values = tuple(grid_values(space[name]))
    points: list[dict[str, Scalar]] = []
    for value in values:
        set_here = (active_parameters(space, {**full, name: value}) for full in background)
        points += [point for point in set_here if name in point]
    if not points:
        return None
    return Dependence(values, predict(points).reshape(len(values), -1).mean(axis=1))


def grid_values(parameter: ParameterConfig) -> list[Scalar]:
    """Return all choices, or distinct values spread over a range."""
    if parameter.choices is not None:
        return list(parameter.choices)
    every = list_values(parameter)
    if every is not None and len(every) <= GRID_STEPS:
        return list(every)
    places = np.linspace(0.0, 1.0 - 1e-9, GRID_STEPS)
    return list(dict.fromkeys(value_at(parameter, float(place)) for place in places))
