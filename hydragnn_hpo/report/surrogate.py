"""A surrogate model of the search space: trials as a matrix, a forest, and explanations of it.

A numeric parameter has one column (its logarithm if the search is logarithmic), and a choice has
one column per option. A conditional parameter has one more column: whether it is active.

Shapes: N configurations, C columns, P searched parameters, V values of one parameter.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from hydragnn_hpo.config import ParameterConfig, Scalar, Space
from hydragnn_hpo.sanitize import sanitize_values
from hydragnn_hpo.search import (
    active_parameters,
    canonical_values,
    find_broken_constraint,
    is_active,
    list_values,
    position_of,
    read_constraints,
    same_value,
    value_at,
)

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

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


@dataclass(frozen=True)
class DesignColumn:
    """A column of the matrix."""

    parameter: str
    kind: Literal["value", "level", "active"]
    owners: tuple[str, ...]
    """Parameters to which the column's effect is attributed, in equal parts. The effect of an
    ``active`` column belongs to the parameters that the condition names."""
    level: Scalar | None = None
    """Option that a ``level`` column stands for."""


@dataclass(frozen=True)
class Design:
    """The encoding of a space's configurations as rows."""

    space: Space
    columns: tuple[DesignColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The searched parameters.

        Returns:
            Dotted keys, in the order of the campaign.
        """
        return tuple(self.space)

    @property
    def credits(self) -> Matrix:
        """Share of each column's effect that belongs to each parameter, [C, P]."""
        shares = np.zeros((len(self.columns), len(self.names)))
        for row, column in zip(shares, self.columns, strict=True):
            for owner in column.owners:
                row[self.names.index(owner)] = 1.0 / len(column.owners)
        return shares

    def rows(self, configurations: Iterable[Mapping[str, Scalar]]) -> Matrix:
        """Encode active values as rows, [N, C]; an inactive parameter gets its canonical value.

        Raises:
            ConfigError: an active key has no value.
        """
        full = [canonical_values(self.space, values) for values in configurations]
        cells = [[self._cell(column, values) for column in self.columns] for values in full]
        return np.array(cells, dtype=np.float64).reshape(len(full), len(self.columns))

    def positions(self, configurations: Iterable[Mapping[str, Scalar]]) -> Matrix:
        """Return each parameter's position in its range, [N, P], in (0, 1); nan if inactive."""
        chosen = [active_parameters(self.space, values) for values in configurations]
        places = [
            [position_of(p, values[n]) if n in values else math.nan for n, p in self.space.items()]
            for values in chosen
        ]
        return np.array(places, dtype=np.float64).reshape(len(chosen), len(self.space))

    def _cell(self, column: DesignColumn, full: Mapping[str, Scalar]) -> float:
        parameter, value = self.space[column.parameter], full[column.parameter]
        if column.kind == "active":
            return float(is_active(self.space, column.parameter, full))
        if column.kind == "level":
            return float(same_value(value, column.level))
        return math.log(float(value)) if parameter.log else float(value)


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


def make_design(space: Space) -> Design:
    """Choose the columns of a space; a parameter with one value needs none."""
    columns: list[DesignColumn] = []
    for name, parameter in space.items():
        if parameter.choices is None:
            columns.append(DesignColumn(name, "value", (name,)))
        elif len(parameter.choices) > 1:
            two = len(parameter.choices) == 2  # the other column would be redundant
            levels = parameter.choices[1:] if two else parameter.choices
            columns += [DesignColumn(name, "level", (name,), level) for level in levels]
        deciders = tuple(key for key in parameter.when if key in space)
        if deciders:
            columns.append(DesignColumn(name, "active", deciders))
    return Design(space, tuple(columns))


def draw_uniform(
    space: Space,
    count: int,
    *,
    seed: int,
    constraints: tuple[str, ...] = (),
    template: Mapping[str, Any] | None = None,
) -> list[dict[str, Scalar]]:
    """Draw configurations uniformly from a space, as a search without a model would.

    Args:
        space: searched keys.
        count: number of configurations; fewer are returned if constraints reject almost all draws.
        seed: seed of the draws.
        constraints: ``search.constraints``.
        template: values fixed in the campaign, which constraints may name.
    """
    rules = read_constraints(constraints, space, template or {})
    generator = np.random.default_rng(seed)
    drawn: list[dict[str, Scalar]] = []
    for _ in range(DRAWS):
        for draw in generator.random((count, len(space))):
            pairs = zip(space.items(), draw, strict=True)
            values = {name: value_at(parameter, float(at)) for (name, parameter), at in pairs}
            chosen = active_parameters(space, values)
            if find_broken_constraint(rules, chosen) is None:
                drawn.append(chosen)
        if len(drawn) >= count:
            break
    return drawn[:count]


@dataclass(frozen=True)
class Forest:
    """A fitted forest of extra trees."""

    model: Any
    """The fitted model of scikit-learn."""
    skill: float
    """Share of the variance that the forest explains in trials that its trees have not seen
    (out-of-bag R2). For failures, which are 0 or 1, this is the Brier skill score against their
    base rate."""


def fit_forest(rows: Matrix, values: Matrix, *, seed: int) -> Forest:
    """Fit a forest of extra trees.

    Each tree is fitted to a bootstrap sample of the rows, and tested on the others.

    Args:
        rows: encoded configurations, [N, C].
        values: quantity to predict, [N].
        seed: seed of the bootstrap and of the splits.

    Source: Geurts, Ernst and Wehenkel (2006), doi:10.1007/s10994-006-6226-1.
    """
    from sklearn.ensemble import ExtraTreesRegressor

    model = ExtraTreesRegressor(
        n_estimators=TREES,
        max_depth=DEPTH,
        min_samples_leaf=LEAF,
        bootstrap=True,
        oob_score=True,
        random_state=seed,
    )
    model.fit(rows, values)
    return Forest(model, float(model.oob_score_))


def shap_values(forest: Forest, points: Matrix, background: Matrix) -> Matrix:
    """Return the SHAP value of each column for each prediction, [N, C].

    A row sums to its prediction minus the mean prediction of the background. The background should
    be drawn uniformly from the space: with the trials as background, a parameter on which the
    search has converged would seem unimportant.

    Args:
        forest: the fitted model.
        points: rows to explain, [N, C].
        background: B rows to compare them with, [B, C].

    Source: Lundberg et al. (2020), doi:10.1038/s42256-019-0138-9 (interventional).
    """
    with warnings.catch_warnings():  # shap also imports its plots, which use deprecated colours
        warnings.simplefilter("ignore")
        from shap import TreeExplainer

    explainer = TreeExplainer(forest.model, data=background, feature_perturbation="interventional")
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


def fill_inactive(
    space: Space, drawn: Sequence[Mapping[str, Scalar]], *, seed: int
) -> list[dict[str, Scalar]]:
    """Complete active configurations with a uniformly drawn value for every inactive key.

    Args:
        space: searched keys.
        drawn: active configurations.
        seed: seed of the draws.
    """
    random = np.random.default_rng(seed).random((len(drawn), len(space)))
    return [
        {
            name: some.get(name, value_at(parameter, float(at)))
            for (name, parameter), at in zip(space.items(), row, strict=True)
        }
        for some, row in zip(drawn, random, strict=True)
    ]
