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

    def sigma(self, spread: np.ndarray) -> np.ndarray:
        """Give the calibrated standard deviation from the members' spread, in the unit."""
        root: np.ndarray = np.sqrt(self.a * np.square(spread) + self.b)
        return root

    def half_width(self, sigma: np.ndarray, level: float = 0.9) -> np.ndarray:
        """Give half the interval that covers ``level``, in the unit."""
        return self.quantiles[f"{level:g}"] * sigma

    def guaranteed(self, level: float) -> bool:
        """Whether there were values enough for the conformal guarantee at a level."""
        return conformal_rank(self.rows, level) <= self.rows


def calibrate(
    residual: np.ndarray, spread: np.ndarray, *, largest: np.ndarray, scale: float
) -> Calibration:
    """Fit the affine map by Gaussian likelihood, then split-conformal quantiles.

    The three components of a vector are three values with one sigma. The conformal
    guarantee asks for exchangeable values. Structures drawn one by one are; the atoms (and
    components) of one structure, and the structures of one group (copies of a molecule),
    depend on each other. There the coverage holds on average, with the scatter that the
    number of structures or groups suggests, not the number of values.

    Args:
        residual: truth minus mean, [R, w], in the unit.
        spread: the members' spread, [R, 1], in the unit.
        largest: for each calibration structure its largest spread, in the unit.
        scale: the target's standard deviation; keeps b above zero when all fits perfectly.

    Returns:
        The calibration of this head.
    """
    squares = np.square(residual)
    variances = np.broadcast_to(np.square(spread), squares.shape)
    a, b = fit_affine(variances.ravel(), squares.ravel(), floor=(1e-6 * scale) ** 2)
    scores = np.abs(residual) / np.sqrt(a * variances + b)
    quantiles = {f"{level:g}": conformal_quantile(scores.ravel(), level) for level in LEVELS}
    limit = float(np.quantile(largest, 0.99))
    return Calibration(a=a, b=b, quantiles=quantiles, spread99=limit, rows=residual.size)


def fit_affine(variance: np.ndarray, square: np.ndarray, floor: float) -> tuple[float, float]:
    """Fit a >= 0 and b >= ``floor`` of sigma^2 = a s^2 + b by Gaussian likelihood.

    Args:
        variance: the members' variance s^2, [n].
        square: squared residuals, [n].
        floor: smallest b, in the unit squared, > 0.

    Returns:
        a and b; the closed form a = 0, b = mean square where the members' variance is
        constant or zero, where there are few values, and where no fit is better.
    """
    constant = max(float(square.mean()), floor)
    unit = float(variance.mean())
    if square.size < _FEW or float(np.ptp(variance)) <= 1e-12 * max(unit, floor):
        return 0.0, constant
    x, y = variance / unit, square / constant
    bounds = ((0.0, 1e6), (max(floor / constant, 1e-9), 1e6))

    def negative_log_likelihood(p: np.ndarray) -> tuple[float, np.ndarray]:
        sigma2 = p[0] * x + p[1]
        slope = 0.5 * (1.0 / sigma2 - y / np.square(sigma2))
        value = 0.5 * float((np.log(sigma2) + y / sigma2).mean())
        return value, np.array([(slope * x).mean(), slope.mean()])

    best, best_value = (0.0, 1.0), 0.5 * float(y.mean())
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


def conformal_quantile(scores: np.ndarray, level: float) -> float:
    """Give the score of the conformal rank.

    With too few scores no finite interval has the guarantee; then the larger of the
    largest score and the Gaussian quantile stands in (``Calibration.guaranteed`` tells).
    """
    rank = conformal_rank(scores.size, level)
    if rank > scores.size:
        return max(float(scores.max()), float(ndtri(0.5 + level / 2)))
    return float(np.partition(scores, rank - 1)[rank - 1])
