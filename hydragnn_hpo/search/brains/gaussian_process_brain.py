"""Propose with a Gaussian process over values and rungs, which learns from short trainings, too.

A search with rungs has many short trainings and a few long ones, and what leads early need not
lead at the end. One process models both, and the points with the greatest expected improvement at
the highest rung are proposed. Costs grow with the cube of ``MOST_RESULTS``, whatever was trained.

Shapes: n results, m candidates, D axes of the encoded space, P groups of axes.

Source: Klein et al. (2020), "Model-based asynchronous hyperparameter and neural architecture
search", arXiv:2003.10865, in its simplest form; Swersky et al. (2013), "Multi-task Bayesian
optimization", NeurIPS, for the product of kernels.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hydragnn_hpo.config import ParameterConfig, Scalar, Space
from hydragnn_hpo.search.brains.sampling import SamplingBrain, is_enough, spread_points
from hydragnn_hpo.search.constraints import Constraint
from hydragnn_hpo.search.objective import Point, TrialScore, finite_or_none, rank_points
from hydragnn_hpo.search.space import (
    active_parameters,
    configuration_key,
    position_of,
    value_at,
    values_at,
)

POOL, FRESH = 500, 50
"""Random candidates kept between requests, and new ones drawn for each request."""

LEADERS, NEIGHBOURS, JUMP = 5, 10, 0.2
"""Configurations with the best predictions, candidates beside each, and the standard deviation of
a step along a range, in units of its length."""

MOST_RESULTS, BEST = 300, 100
"""Results that the process sees: the best, and others spread evenly over all."""

PENDING = 64
"""Newest pending proposals that it sees."""

BATCH = 16
"""Most proposals of a request that take account of those before; further ones are the next best."""

REFIT = 1.25
"""Growth of the number of results after which the hyperparameters are fitted again."""

WORST = 3.0
"""Where scores are cut off, in spreads above the median of the first rung: how bad a bad one is
says nothing about the good ones."""

LEAST_GAIN = 1e-300
"""Expected improvement of what promises none, so that it has a logarithm."""

WARM = -1
"""Rung of results of earlier campaigns, which had another budget."""

RUNG_VARIANCE = 4.0
"""Variance of the level of a whole rung, over that of the objective across the space."""

PRIOR_WIDTH, PRIOR_SHARE, PRIOR_RESULTS = 0.15, 0.5, 5.0
"""Belief in the prior of a key: standard deviation in units of its range, probability of a choice,
and the number of results at which it counts as much as they do (beta of the source is 10)."""

STEPS = (2.0, 1.0, 1.0)
"""Sizes of the steps of each sweep over the logarithms of all hyperparameters."""


class GaussianProcessBrain(SamplingBrain):
    """Spreads its first proposals evenly, then follows a Gaussian process over values and rungs.

    A pending proposal counts as if it had the expected result (the kriging believer), a failure
    as the worst. Several goals are learned by their ranks. Source of the weight of a user's
    priors: Hvarfner et al. (2022), "piBO", arXiv:2204.11051.
    """

    def __init__(
        self, space: Space, *, seed: int, initial: int, constraints: Sequence[Constraint] = ()
    ) -> None:
        """Start without results."""
        super().__init__(space, spread_points(len(space), seed, initial), constraints)
        self._generator = random.Random(seed)
        self._initial = max(1, initial)
        self._encoder = Encoder(space)
        self._results: list[TrialScore] = []
        self._pending: dict[str, dict[str, Scalar]] = {}
        self._pool: dict[str, dict[str, Scalar]] = {}
        self._hyperparameters: Hyperparameters | None = None
        self._fitted = 0
        """Number of results when the hyperparameters were fitted."""

    def ask(self, count: int) -> list[dict[str, Scalar]]:
        """Propose new configurations: spread ones first, then modelled ones."""
        first = [result.objective for result in self._results if result.rung <= 0]
        if is_enough(first, self._initial):
            taken = self._propose_modelled(count)
            taken += self._known.take(count - len(taken), self._draw_random)
        else:
            taken = super().ask(count)
        self._pending |= {configuration_key(values): values for values in taken}
        return taken

    def tell(self, score: TrialScore) -> None:
        """Take in a result; the model learns it at the next ``ask``."""
        chosen = active_parameters(self._known.space, self._known.remember(score.values))
        self._pending.pop(configuration_key(chosen), None)
        self._results.append(TrialScore(chosen, finite_or_none(score.objective), score.rung))

    def _draw(self) -> dict[str, Scalar]:
        return self._draw_believed(next(self._points))

    def _draw_believed(self, positions: Sequence[float]) -> dict[str, Scalar]:
        """Return the values at positions of the unit cube, which priors draw towards them."""
        from scipy.special import ndtri

        space = self._known.space
        drawn: dict[str, Scalar] = {}
        for (name, parameter), position in zip(space.items(), positions, strict=True):
            if parameter.prior is None:
                drawn[name] = value_at(parameter, position)
            elif parameter.choices is None:
                center = position_of(parameter, parameter.prior)
                drawn[name] = _value_near(parameter, center + PRIOR_WIDTH * float(ndtri(position)))
            elif position < PRIOR_SHARE:
                drawn[name] = parameter.prior
            else:
                drawn[name] = value_at(parameter, (position - PRIOR_SHARE) / (1.0 - PRIOR_SHARE))
        return drawn

    def _log_prior(self, values: Mapping[str, Scalar]) -> float:
        """Return the logarithm of the belief in a configuration, but for a constant."""
        total = 0.0
        for name, value in values.items():
            parameter = self._known.space[name]
            if parameter.prior is None:
                continue
            if parameter.choices is None:
                away = position_of(parameter, value) - position_of(parameter, parameter.prior)
                total -= 0.5 * (away / PRIOR_WIDTH) ** 2
            elif value != parameter.prior:
                share = (1.0 - PRIOR_SHARE) / max(1, len(parameter.choices) - 1)
                total += math.log(share / PRIOR_SHARE)
        return total

    def _expect(self, values: Mapping[str, Scalar]) -> None:
        chosen = active_parameters(self._known.space, self._known.remember(values))
        self._pending[configuration_key(chosen)] = chosen

    def learn(self, results: Sequence[tuple[Mapping[str, Scalar], Point | None]]) -> None:
        """Take in results of earlier campaigns, as a rung below the first."""
        for values, objective in results:
            chosen = active_parameters(self._known.space, self._known.convert_types(values))
            self._results.append(TrialScore(chosen, finite_or_none(objective), WARM))

    def _propose_modelled(self, count: int) -> list[dict[str, Scalar]]:
        """Propose the candidates that promise most; fewer if they run out."""
        process = self._fit_process()
        for values in list(self._pending.values())[-PENDING:]:
            process.add_expected(self._encoder.encode(values))
        self._renew_pool(process.leaders, max(POOL, 2 * count))
        candidates = list(self._pool.values())
        rows = np.array([self._encoder.encode(values) for values in candidates])
        beliefs = np.array([self._log_prior(values) for values in candidates])
        beliefs *= PRIOR_RESULTS / len(self._results)
        taken: list[dict[str, Scalar]] = []
        for batch in [1] * min(count, BATCH) + [max(0, count - BATCH)]:
            if not candidates or not batch:
                break
            promise = np.log(process.expected_improvement(rows)) + beliefs
            order = np.argsort(-promise, kind="stable")
            chosen = order[:batch]
            taken += [candidates[place] for place in chosen]
            process.add_expected(rows[chosen[0]])
            rest = np.sort(order[batch:])
            candidates = [candidates[place] for place in rest]
            rows, beliefs = rows[rest], beliefs[rest]
        return [values for values in taken if self._known.offer(values)]

    def _renew_pool(self, leaders: Sequence[int], size: int) -> None:
        """Drop candidates that were tried, and draw new ones: anywhere, and beside the leaders.

        Args:
            leaders: places of the results with the best predictions.
            size: most candidates to keep.
        """
        missing = size - len(self._pool)
        fresh = max(FRESH, missing)
        drawn = [self._draw_random() for _ in range(fresh - fresh // 2)]
        drawn += [self._draw_believed(self._draw_positions()) for _ in range(fresh // 2)]
        for place in leaders:
            drawn += [self._mutate(self._results[place].values) for _ in range(NEIGHBOURS)]
        for values in drawn:
            chosen = active_parameters(self._known.space, values)
            if self._known.allows(chosen):
                self._pool[configuration_key(chosen)] = chosen
        new = [(key, values) for key, values in self._pool.items() if self._known.is_new(values)]
        self._pool = dict(new[-size:])

    def _draw_random(self) -> dict[str, Scalar]:
        return values_at(self._known.space, self._draw_positions())

    def _draw_positions(self) -> list[float]:
        return [self._generator.random() for _ in self._known.space]

    def _mutate(self, leader: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Change one or two values of a configuration, and those that then become active."""
        space, generator = self._known.space, self._generator
        values = self._draw_random() | dict(leader)
        for name in generator.sample(sorted(leader), min(len(leader), generator.choice((1, 2)))):
            parameter = space[name]
            place = generator.random()
            if parameter.choices is None:
                step = generator.gauss(0.0, JUMP)
                place = position_of(parameter, leader[name]) + step
            values[name] = _value_near(parameter, place)
        return values

    def _fit_process(self) -> "RungProcess":
        """Return the process of the results; hyperparameters are those of the last fit."""
        scores = scale_scores(self._results)
        places = _thin_out(scores)
        trials = [configuration_key(result.values) for result in self._results]
        data = Observations(
            places=places,
            rows=np.array([self._encoder.encode(self._results[i].values) for i in places]),
            rungs=np.array([float(self._results[i].rung) for i in places]),
            trials=np.unique([trials[i] for i in places], return_inverse=True)[1],
            scores=scores[places],
        )
        if self._hyperparameters is None or len(scores) >= REFIT * self._fitted:
            self._hyperparameters = fit_hyperparameters(data, self._encoder.groups)
            self._fitted = len(scores)
        return RungProcess(data, self._hyperparameters)


def _value_near(parameter: ParameterConfig, place: float) -> Scalar:
    """Return the value at a position, or at the nearer end of [0, 1)."""
    return value_at(parameter, min(max(place, 0.0), math.nextafter(1.0, 0.0)))


class Encoder:
    """Places configurations in a cube: ordered values in [0, 1], labels on axes of their own.

    Keys with a condition share one group of axes, as each is active in few configurations.
    """

    def __init__(self, space: Space) -> None:
        """Choose the axes of each key."""
        self.space = space
        self._labels: dict[str, tuple[Scalar, ...]] = {}
        groups: list[int] = []
        for name, parameter in space.items():
            choices = parameter.choices or ()
            labelled = any(isinstance(c, str | bool) for c in choices)
            self._labels[name] = choices if labelled else ()
            group = 0 if parameter.when else max([0, *groups]) + 1
            groups += [group] * max(1, len(self._labels[name]))
        self.groups = np.array(groups)
        """Group of each axis, [D]."""

    def encode(self, values: Mapping[str, Scalar]) -> np.ndarray:
        """Return the place of an active configuration, [D]; inactive ranges are at their middle."""
        row: list[float] = []
        for name, labels in self._labels.items():
            if labels:  # two labels are at a distance of 1
                row += [math.sqrt(0.5) * (values.get(name) == label) for label in labels]
            else:
                row.append(position_of(self.space[name], values[name]) if name in values else 0.5)
        return np.array(row)


def scale_scores(results: Sequence[TrialScore]) -> np.ndarray:
    """Return results as numbers of about unit spread, the lower the better, [n].

    Logarithms of errors: what matters about them is their ratio. Several goals become ranks,
    failures the worst.
    """
    objectives = [result.objective for result in results]
    known = [place for place, objective in enumerate(objectives) if objective is not None]
    points = [objective for objective in objectives if objective is not None]
    scores = np.full(len(results), np.nan)
    if any(isinstance(point, tuple) for point in points):
        ranks = rank_points(points)
        scores[[known[rank] for rank in ranks]] = np.linspace(0.0, 1.0, len(points))
    else:
        scores[known] = np.array(points, dtype=float)
        if np.nanmin(scores) > 0.0:
            scores = np.log(scores)
    rungs = np.array([result.rung for result in results])
    first = scores[known][rungs[known] == rungs[known].min()]
    middle, low = np.percentile(first, [50.0, 16.0])  # one standard deviation of a normal one
    spread = middle - low if middle > low else 1.0
    scores = np.where(np.isnan(scores), np.nanmax(scores), scores)
    return np.asarray(np.minimum((scores - middle) / spread, WORST))


def _thin_out(scores: np.ndarray) -> np.ndarray:
    """Return the places of the results that the process sees, in their order."""
    if len(scores) <= MOST_RESULTS:
        return np.arange(len(scores))
    order = np.argsort(scores, kind="stable")
    others = order[BEST:]
    spread = np.linspace(0, len(others) - 1, MOST_RESULTS - BEST).astype(int)
    return np.sort(np.concatenate([order[:BEST], others[spread]]))


@dataclass(frozen=True)
class Observations:
    """What a process learns from, or pretends to."""

    places: np.ndarray
    """Among all results, [n]."""
    rows: np.ndarray
    """Encoded configurations, [n, D]."""
    rungs: np.ndarray
    """Number of each rung, [n]."""
    trials: np.ndarray
    """Number of each trial, [n]: one trial has a result at each rung that it reached."""
    scores: np.ndarray
    """Scaled objectives, [n]."""


@dataclass(frozen=True)
class Hyperparameters:
    """Of the covariance; variances are relative to that of the objective across the space."""

    axes: np.ndarray
    """Inverse squared length scale of each axis, [D]."""
    kept: float
    """Correlation of two neighbouring rungs."""
    trial: float
    """Variance that all results of one trial share: its seed, and what the axes miss."""
    noise: float
    """Variance of one result."""

    def covariance(self, data: Observations) -> np.ndarray:
        """Return the covariance of results with each other, [n, n]."""
        apart = np.abs(data.rungs[:, None] - data.rungs)
        return np.asarray(
            matern(data.rows, data.rows, self.axes) * self.kept**apart
            + self.trial * (data.trials[:, None] == data.trials)
            + RUNG_VARIANCE * (apart == 0.0)
            + self.noise * np.eye(len(data.rows))
        )


def matern(rows: np.ndarray, others: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Return the Matern 5/2 correlation of points, [n, m].

    Args:
        rows: places of points, [n, D].
        others: places of points, [m, D].
        axes: inverse squared length scale of each axis, [D].
    """
    one = rows * np.sqrt(axes)
    two = others * np.sqrt(axes)
    squares = (one**2).sum(1)[:, None] + (two**2).sum(1) - 2.0 * one @ two.T
    distance = np.sqrt(5.0 * np.maximum(squares, 0.0))
    return np.asarray((1.0 + distance + distance**2 / 3.0) * np.exp(-distance))


BELIEFS = {"axes": (0.5, 1.5), "lost": (0.2, 1.0), "trial": (0.1, 1.5), "noise": (0.05, 1.5)}
"""Log-normal priors of the hyperparameters: median, and standard deviation of the logarithm."""


def fit_hyperparameters(data: Observations, groups: np.ndarray) -> Hyperparameters:
    """Return the most probable hyperparameters, by sweeps that change one after another.

    Args:
        data: the results.
        groups: group of each axis; axes of a group share their length scale.
    """
    axes = int(groups.max()) + 1
    beliefs = np.array([BELIEFS["axes"]] * axes + [BELIEFS[k] for k in ("lost", "trial", "noise")])
    logs = np.log(beliefs[:, 0])
    free = list(range(axes)) + [axes + 2]
    if len(np.unique(data.rungs)) > 1:  # else nothing tells a trial's variance from noise
        free += [axes, axes + 1]

    def unpack(logs: np.ndarray) -> Hyperparameters:
        values = np.exp(logs)
        kept = 1.0 - min(values[axes], 1.0)
        return Hyperparameters(values[:axes][groups], kept, values[axes + 1], values[axes + 2])

    def log_posterior(logs: np.ndarray) -> float:
        away = (logs - np.log(beliefs[:, 0])) / beliefs[:, 1]
        return log_likelihood(data, unpack(logs)) - 0.5 * float(away @ away)

    best = log_posterior(logs)
    for step in STEPS:
        for place in free:
            for sign in (step, -step):
                moved = logs.copy()
                moved[place] += sign
                value = log_posterior(moved)
                if value > best:
                    best, logs = value, moved
                    break
    return unpack(logs)


def log_likelihood(data: Observations, hyperparameters: Hyperparameters) -> float:
    """Return the logarithm of the marginal likelihood, but for a constant.

    The variance of the objective has its most likely value.
    Source: Rasmussen and Williams (2006), "Gaussian processes for machine learning", section 2.3.
    """
    from scipy.linalg import solve_triangular

    lower = np.linalg.cholesky(hyperparameters.covariance(data))
    white = solve_triangular(lower, data.scores, lower=True)
    variance = max(float(white @ white) / len(white), 1e-9)
    return -0.5 * len(white) * math.log(variance) - float(np.log(np.diag(lower)).sum())


class RungProcess:
    """What results at all rungs let one expect at the highest of them."""

    def __init__(self, data: Observations, hyperparameters: Hyperparameters) -> None:
        """Learn from results."""
        from scipy.linalg import solve_triangular

        self._solve = partial(solve_triangular, lower=True, check_finite=False)
        self._hyperparameters = hyperparameters
        self._last = float(data.rungs.max())
        self._learn(data)
        self._variance = max(float(self._white @ self._white) / len(self._white), 1e-9)
        means = self.predict(data.rows)[0]
        self._incumbent = float(means.min())
        """The best that is expected of what was tried: of a lucky seed less than it had."""
        ranked = np.argsort(means, kind="stable")
        _, firsts = np.unique(data.trials[ranked], return_index=True)
        self.leaders = [int(data.places[ranked[first]]) for first in np.sort(firsts)[:LEADERS]]
        """Places of the results with the best predictions, one of each trial."""

    def _learn(self, data: Observations) -> None:
        self._data = data
        self._lower = np.linalg.cholesky(self._hyperparameters.covariance(data))
        self._white = self._solve(self._lower, data.scores)

    def predict(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Predict scores at the highest rung, but for the level that all there share.

        Args:
            rows: encoded configurations, [m, D].

        Returns:
            Means and standard deviations, [m] each.
        """
        kept = self._hyperparameters.kept ** np.abs(self._last - self._data.rungs)
        cross = matern(self._data.rows, rows, self._hyperparameters.axes) * kept[:, None]
        half = self._solve(self._lower, cross)
        variance = self._variance * np.maximum(1.0 - (half**2).sum(0), 1e-9)
        return half.T @ self._white, np.sqrt(variance)

    def expected_improvement(self, rows: np.ndarray) -> np.ndarray:
        """Return by how much configurations are expected to be better than the best, [m].

        Source: Jones et al. (1998), doi:10.1023/A:1008306431147.
        """
        from scipy.special import ndtr

        means, spreads = self.predict(rows)
        gain = (self._incumbent - means) / spreads
        density = np.exp(-0.5 * gain**2) / math.sqrt(2.0 * math.pi)
        return np.asarray(np.maximum(spreads * (gain * ndtr(gain) + density), LEAST_GAIN))

    def add_expected(self, row: np.ndarray) -> None:
        """Take a proposal as if it had reached what is expected of it at the highest rung."""
        data = self._data
        level = self._solve(self._lower, RUNG_VARIANCE * (data.rungs == self._last)) @ self._white
        expected = float(self.predict(row[None])[0][0] + level)
        self._learn(
            Observations(
                places=np.append(data.places, -1),
                rows=np.vstack([data.rows, row]),
                rungs=np.append(data.rungs, self._last),
                trials=np.append(data.trials, data.trials.max() + 1),
                scores=np.append(data.scores, expected),
            )
        )
