"""Fit sigma and conformal intervals from the spread of members, on the calibration split."""

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize

from hydragnn_hpo.ensemble.conformal import (
    conformal_quantiles,
    conformal_rank,
    conformal_tables,
    group_weights,
    key,
)

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
    """Return the negative log likelihood and its slope; factors [p - 1], then the constant."""
    sigma2 = x @ p[:-1] + p[-1]
    slope = 0.5 * weight * (1.0 / sigma2 - y / np.square(sigma2))
    value = 0.5 * float(weight @ (np.log(sigma2) + y / sigma2))
    return value, np.r_[slope @ x, slope.sum()]


def _starts(count: int) -> list[np.ndarray]:
    """Return starting points: all variances together, and each alone."""
    shares = [np.full(count, 1.0 / count), *(np.eye(count) if count > 1 else ())]
    return [np.r_[factor * share, constant] for factor, constant in _STARTS for share in shares]


@dataclass(frozen=True)
class Calibration:
    """How one head's spread s becomes sigma: sigma^2 = a s^2 + c v + b."""

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
    c: float = 0.0
    """Factor of the variance that members predict for their own errors, >= 0."""
    tables: dict[str, dict[str, float]] = field(default_factory=dict)
    """Quantiles of kinds of structures that have their own, see ``Strata``."""

    def sigma(self, spread: np.ndarray, noise: np.ndarray | float = 0.0) -> np.ndarray:
        """Return the calibrated standard deviation, in the unit.

        Args:
            spread: of the members, in the unit.
            noise: mean of the variances that members predict, in the unit squared.
        """
        root: np.ndarray = np.sqrt(self.a * np.square(spread) + self.c * noise + self.b)
        return root

    def half_width(
        self, sigma: np.ndarray, level: float = 0.9, stratum: np.ndarray | None = None
    ) -> np.ndarray:
        """Return half the interval that covers ``level``, in the unit.

        Args:
            sigma: calibrated standard deviation, [R, 1].
            level: share to cover, one that has a quantile.
            stratum: name of each row's kind of structure, [R]; all alike if left out.
        """
        quantile = np.full(np.shape(sigma), self.quantiles[key(level)])
        if stratum is not None:
            for name, table in self.tables.items():
                quantile[stratum == name] = table[key(level)]
        half: np.ndarray = quantile * sigma
        return half

    @property
    def levels(self) -> tuple[float, ...]:
        """Return the levels that have a quantile, rising."""
        return tuple(sorted(float(name) for name in self.quantiles))

    def guaranteed(self, level: float) -> bool:
        """Check whether there were enough groups for the conformal guarantee at a level."""
        return conformal_rank(self.groups, level) <= self.groups


def calibrate(
    residual: np.ndarray,
    spread: np.ndarray,
    *,
    group: np.ndarray,
    largest: np.ndarray,
    scale: float,
    noise: np.ndarray | float = 0.0,
    stratum: np.ndarray | str = "all",
) -> Calibration:
    """Fit the affine map by Gaussian likelihood, then conformal quantiles.

    Each group (copies of a molecule, atoms of one structure, components of a vector) weighs
    the same, and the intervals are those of a value of a *new* group.

    Args:
        residual: truth minus mean, [R, w], in the unit.
        spread: the members' spread, [R, 1], in the unit.
        group: number of each row's group, [R].
        largest: for each calibration structure its largest spread, in the unit.
        scale: the target's standard deviation; keeps b above zero when all fits perfectly.
        noise: mean of the variances that members predict, [R, 1], in the unit squared.
        stratum: name of each row's kind of structure, [R], if kinds have their own intervals.
    """
    width, kinds = residual.shape[1], np.broadcast_to(stratum, group.shape)
    variances = np.concatenate((np.square(spread), np.broadcast_to(noise, spread.shape)), axis=1)
    weight, groups = group_weights(each := np.repeat(group, width))
    squares, floor = np.square(residual).ravel(), (1e-6 * scale) ** 2
    factors, b = fit_variance(np.repeat(variances, width, axis=0), squares, weight, floor)
    scores = (np.abs(residual) / np.sqrt(variances @ factors + b)[:, None]).ravel()
    return Calibration(
        a=float(factors[0]),
        b=b,
        quantiles=conformal_quantiles(scores, each),
        spread99=float(np.quantile(largest, 0.99)),
        rows=residual.size,
        groups=groups,
        c=float(factors[1]),
        tables=conformal_tables(scores, each, np.repeat(kinds, width)),
    )
