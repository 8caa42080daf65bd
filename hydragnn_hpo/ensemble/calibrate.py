"""Turn the members' spread into an honest uncertainty, on the calibration split.

Shapes: R rows (graphs, or nodes of a node-level head), w components.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtri

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Shares of truths that the intervals are to cover."""

_STARTS = ((1.0, 0.1), (0.5, 0.5), (0.05, 1.0))
_FEW = 10
"""With fewer values than this two parameters cannot be fitted: the constant is used."""


@dataclass(frozen=True)
class Calibration:
    """How one head's spread s becomes sigma: sigma^2 = a s^2 + b, and its intervals."""

    a: float
    """Factor of the members' variance, >= 0."""
    b: float
    """Variance that the members do not see, in the unit squared, > 0."""
    quantiles: dict[str, float]
    """By level, as ``"0.9"``: the interval is mean -+ quantile * sigma."""
    spread99: float
    """99th percentile over the calibration structures of their largest spread, in the unit."""
    rows: int
    """Values (rows times components) that it was fitted on."""
    groups: int
    """Groups of structures they come from: what counts as independent."""

    def sigma(self, spread: np.ndarray) -> np.ndarray:
        """Give the calibrated standard deviation from the members' spread, in the unit."""
        root: np.ndarray = np.sqrt(self.a * np.square(spread) + self.b)
        return root

    def half_width(self, sigma: np.ndarray, level: float = 0.9) -> np.ndarray:
        """Give half the interval that covers ``level``, in the unit."""
        return self.quantiles[f"{level:g}"] * sigma

    def guaranteed(self, level: float) -> bool:
        """Whether there were groups enough for the conformal guarantee at a level."""
        return conformal_rank(self.groups, level) <= self.groups


def calibrate(
    residual: np.ndarray,
    spread: np.ndarray,
    *,
    group: np.ndarray,
    largest: np.ndarray,
    scale: float,
) -> Calibration:
    """Fit the affine map by Gaussian likelihood, then conformal quantiles.

    The three components of a vector are three values with one sigma. Atoms of one
    structure and structures of one group (copies of a molecule) depend on each other, so
    each group weighs the same and the intervals are made for a value of a *new* group.
    With one value per group that is ordinary split conformal.

    Args:
        residual: truth minus mean, [R, w], in the unit.
        spread: the members' spread, [R, 1], in the unit.
        group: number of each row's group, [R].
        largest: for each calibration structure its largest spread, in the unit.
        scale: the target's standard deviation; keeps b above zero when all fits perfectly.

    Returns:
        The calibration of this head.
    """
    squares = np.square(residual)
    variances = np.broadcast_to(np.square(spread), squares.shape)
    weight, groups = group_weights(np.repeat(group, residual.shape[1]))
    a, b = fit_affine(variances.ravel(), squares.ravel(), weight, floor=(1e-6 * scale) ** 2)
    scores = (np.abs(residual) / np.sqrt(a * variances + b)).ravel()
    quantiles = {f"{q:g}": conformal_quantile(scores, q, weight, groups) for q in LEVELS}
    return Calibration(
        a=a,
        b=b,
        quantiles=quantiles,
        spread99=float(np.quantile(largest, 0.99)),
        rows=residual.size,
        groups=groups,
    )


def group_weights(group: np.ndarray) -> tuple[np.ndarray, int]:
    """Give each value its share of its group, [n], and the number of groups."""
    _, place, counts = np.unique(group, return_inverse=True, return_counts=True)
    weights: np.ndarray = 1.0 / counts[place]
    return weights, len(counts)


def fit_affine(
    variance: np.ndarray, square: np.ndarray, weight: np.ndarray, floor: float
) -> tuple[float, float]:
    """Fit a >= 0 and b >= ``floor`` of sigma^2 = a s^2 + b by weighted Gaussian likelihood.

    Args:
        variance: the members' variance s^2, [n].
        square: squared residuals, [n].
        weight: how much each value counts, [n], > 0.
        floor: smallest b, in the unit squared, > 0.

    Returns:
        a and b; the closed form a = 0, b = mean square where the members' variance is
        constant or zero, where there are few values, and where no fit is better.
    """
    weight = weight / weight.sum()
    constant = max(float(weight @ square), floor)
    unit = float(weight @ variance)
    if square.size < _FEW or float(np.ptp(variance)) <= 1e-12 * max(unit, floor):
        return 0.0, constant
    x, y = variance / unit, square / constant
    bounds = ((0.0, 1e6), (max(floor / constant, 1e-9), 1e6))

    def negative_log_likelihood(p: np.ndarray) -> tuple[float, np.ndarray]:
        sigma2 = p[0] * x + p[1]
        slope = 0.5 * (1.0 / sigma2 - y / np.square(sigma2))
        value = 0.5 * float(weight @ (np.log(sigma2) + y / sigma2))
        return value, np.array([weight @ (slope * x), weight @ slope])

    best, best_value = (0.0, 1.0), 0.5 * float(weight @ y)
    for start in _STARTS:
        found = minimize(negative_log_likelihood, start, jac=True, bounds=bounds, method="L-BFGS-B")
        if np.isfinite(found.fun) and found.fun < best_value - 1e-12:
            best, best_value = (float(found.x[0]), float(found.x[1])), float(found.fun)
    return best[0] * constant / unit, max(best[1] * constant, floor)


def conformal_rank(count: int, level: float) -> int:
    """Give the rank, from 1, of the score that covers ``level`` of new values.

    Source: Vovk et al. (2005), Algorithmic learning in a random world: ceil((n + 1) level).
    """
    return math.ceil((count + 1) * level - 1e-9)


def conformal_quantile(scores: np.ndarray, level: float, weight: np.ndarray, groups: int) -> float:
    """Give the score that covers ``level`` of the values of a new group.

    The groups' distributions of scores are pooled with equal weight, and one more group
    whose scores are all infinite stands for the new one; with one value per group this is
    the score of the conformal rank. With too few groups no finite interval has the
    guarantee; then the larger of the largest score and the Gaussian quantile stands in
    (``Calibration.guaranteed`` tells).

    Args:
        scores: residual over sigma, [n].
        level: share to cover.
        weight: each value's share of its group, [n].
        groups: number of groups.

    Source: Dunn, Wasserman, Ramdas (2023), J. Am. Stat. Assoc. 118, 2491 (pooling CDFs).
    """
    order = np.argsort(scores, kind="stable")
    covered = np.cumsum(weight[order])
    place = int(np.searchsorted(covered, (groups + 1) * level - 1e-9))
    if place >= len(order):
        return max(float(scores.max()), float(ndtri(0.5 + level / 2)))
    return float(scores[order[place]])
