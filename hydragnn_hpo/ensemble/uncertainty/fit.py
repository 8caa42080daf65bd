"""Fit a variance as a sum of what is known about it, by Gaussian likelihood.

Shapes: n values, p known variances.
"""

import numpy as np
from scipy.optimize import minimize

_STARTS = ((1.0, 0.1), (0.5, 0.5), (0.05, 1.0))
_FEW = 10
"""With fewer values than this several parameters cannot be fitted: the constant is used."""


def fit_variance(
    known: np.ndarray, square: np.ndarray, weight: np.ndarray, floor: float
) -> tuple[np.ndarray, float]:
    """Fit factors f >= 0 and b >= ``floor`` of sigma^2 = known f + b by weighted likelihood.

    Args:
        known: variances that may explain the squared residuals, [n, p]; the members'
            variance, the variance that members predict.
        square: squared residuals, [n].
        weight: how much each value counts, [n], > 0.
        floor: smallest b, in the unit squared, > 0.

    Returns:
        The factors, [p], 0 where a known variance is the same everywhere, and b; the closed
        form f = 0, b = mean square where there are few values, and where no fit is better.
        Never less likely than f = 1, b = ``floor``.
    """
    weight = weight / weight.sum()
    constant = max(float(weight @ square), floor)
    factors, unit = np.zeros(known.shape[1]), weight @ known
    used = np.flatnonzero(np.ptp(known, axis=0) > 1e-12 * np.maximum(unit, floor))
    if len(square) < _FEW or not len(used):
        return factors, constant
    x, y = known[:, used] / unit[used], square / constant
    low = max(floor / constant, 1e-9)
    bounds = [(0.0, 1e6)] * len(used) + [(low, 1e6)]
    best, lowest = np.r_[np.zeros(len(used)), 1.0], 0.5 * float(weight @ y)
    for start in (*_starts(len(used)), np.r_[unit[used] / constant, low]):
        found = minimize(
            _cost, start, args=(x, y, weight), jac=True, bounds=bounds, method="L-BFGS-B"
        )
        if np.isfinite(found.fun) and found.fun < lowest - 1e-12:
            best, lowest = found.x, float(found.fun)
    factors[used] = best[:-1] * constant / unit[used]
    return factors, max(float(best[-1]) * constant, floor)


def _cost(
    p: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> tuple[float, np.ndarray]:
    """Give the negative log likelihood and its slope; factors [p - 1], then the constant."""
    sigma2 = x @ p[:-1] + p[-1]
    slope = 0.5 * weight * (1.0 / sigma2 - y / np.square(sigma2))
    value = 0.5 * float(weight @ (np.log(sigma2) + y / sigma2))
    return value, np.r_[slope @ x, slope.sum()]


def _starts(count: int) -> list[np.ndarray]:
    """Let all known variances share the work, and each do it alone."""
    shares = [np.full(count, 1.0 / count), *(np.eye(count) if count > 1 else ())]
    return [np.r_[factor * share, constant] for factor, constant in _STARTS for share in shares]
