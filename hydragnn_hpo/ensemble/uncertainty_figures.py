"""Figures and curves of one head on labelled structures, calibrated and for the raw spread.

"Raw" is what the members say without calibration: sigma^2 = s^2 + v, Gaussian intervals.
Shapes: R rows that have the target, w components, L levels.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from hydragnn_hpo.ensemble import uncertainty_scores
from hydragnn_hpo.ensemble.calibrate import Calibration
from hydragnn_hpo.ensemble.conformal import GRID, LEVELS

STEPS = 100
"""Steps of a sparsification curve that is drawn."""


@dataclass(frozen=True)
class HeadOnLabels:
    """Predictions and truths of one head, for the rows that have the target."""

    truth: np.ndarray
    """[R, w]."""
    mean: np.ndarray
    """The ensemble's mean, [R, w]."""
    spread: np.ndarray
    """The members' spread, [R, 1]."""
    noise: np.ndarray
    """Mean of the variances that members predict, [R, 1]."""
    stratum: np.ndarray
    """Name of each row's kind of structure, [R], see ``Strata``."""

    @property
    def residual(self) -> np.ndarray:
        """Return truth minus mean, [R, w]."""
        out: np.ndarray = self.truth - self.mean
        return out

    @property
    def raw(self) -> np.ndarray:
        """Return the standard deviation that members claim, [R, 1]."""
        root: np.ndarray = np.sqrt(np.square(self.spread) + self.noise)
        return root

    def sigma(self, calibration: Calibration) -> np.ndarray:
        """Return the calibrated standard deviation, [R, 1]."""
        return calibration.sigma(self.spread, self.noise)

    def of(self, rows: np.ndarray) -> "HeadOnLabels":
        """Return some of the rows."""
        parts = (self.truth, self.mean, self.spread, self.noise, self.stratum)
        return HeadOnLabels(*(part[rows] for part in parts))


def compute_figures(found: HeadOnLabels, calibration: Calibration) -> dict[str, float]:
    """Return every figure of one head by name.

    ``rows mae rmse``; ``nll crps ence area sharpness spearman ause`` of the calibrated
    Gaussian; ``area_conformal``, and ``coverage50 width50`` and so on of the conformal
    intervals; the same of the raw spread as ``raw_nll`` and so on, its intervals Gaussian.
    Where a figure has no value (a rank correlation of constants) it is NaN or infinite.
    """
    error, sigma, raw = found.residual, found.sigma(calibration), found.raw
    out: dict[str, float] = {
        "rows": len(error),
        "mae": uncertainty_scores.mae(found.mean, found.truth),
        "rmse": uncertainty_scores.rmse(found.mean, found.truth),
        **uncertainty_scores.quality(error, sigma).as_plain(),
        "area_conformal": conformal_area(found, calibration),
    }
    out |= _intervals(error, {q: calibration.half_width(sigma, q, found.stratum) for q in LEVELS})
    out |= uncertainty_scores.quality(error, raw).as_plain("raw_")
    wide = {q: float(ndtri(0.5 + q / 2)) * raw for q in LEVELS}
    return out | {f"raw_{name}": value for name, value in _intervals(error, wide).items()}


def compute_strata_figures(
    found: HeadOnLabels, calibration: Calibration, kinds: np.ndarray
) -> dict[str, dict[str, float]]:
    """Return ``rows mae rmse crps`` and the intervals' coverage and width of each kind.

    Args:
        found: one head.
        calibration: the head's.
        kinds: name of each row's kind of structure, [R].
    """
    out = {}
    for name in np.unique(kinds).tolist():
        part = found.of(kinds == name)
        error, sigma = part.residual, part.sigma(calibration)
        half = {q: calibration.half_width(sigma, q, part.stratum) for q in LEVELS}
        out[str(name)] = {
            "rows": len(error),
            "mae": uncertainty_scores.mae(part.mean, part.truth),
            "rmse": uncertainty_scores.rmse(part.mean, part.truth),
            "crps": uncertainty_scores.crps(*uncertainty_scores.flatten_values(error, sigma)),
            **_intervals(error, half),
        }
    return out


def conformal_area(found: HeadOnLabels, calibration: Calibration) -> float:
    """Return the area between the conformal intervals' calibration curve and the diagonal."""
    levels = np.array(calibration.levels)
    return uncertainty_scores.line_area(levels, conformal_coverage(found, calibration))


def conformal_coverage(found: HeadOnLabels, calibration: Calibration) -> np.ndarray:
    """Return the share of values inside the interval of each level that has one, [L]."""
    error, sigma = np.abs(found.residual), found.sigma(calibration)
    shares = [
        float((error <= calibration.half_width(sigma, level, found.stratum)).mean())
        for level in calibration.levels
    ]
    return np.array(shares)


def compute_curves(
    found: HeadOnLabels, calibration: Calibration
) -> dict[str, dict[str, list[float]]]:
    """Return the curves of the report: calibration curves, error over sigma, sparsification."""
    error, sigma = uncertainty_scores.flatten_values(found.residual, found.sigma(calibration))
    raw, grid = uncertainty_scores.flatten_values(found.residual, found.raw)[1], np.array(GRID)
    with np.errstate(divide="ignore"):
        before = uncertainty_scores.gaussian_coverage(error, raw, grid)
    expected, rms = uncertainty_scores.bin_by_sigma(error, sigma)
    steps = np.linspace(0, len(error) - 1, min(STEPS, len(error))).astype(np.int64)
    by_sigma = uncertainty_scores.sparsification(error, sigma)[steps]
    oracle = uncertainty_scores.sparsification(error, np.abs(error))[steps]
    curves: dict[str, dict[str, Any]] = {
        "calibration": {
            "level": grid,
            "raw": before,
            "gaussian": uncertainty_scores.gaussian_coverage(error, sigma, grid),
        },
        "conformal": {
            "level": np.array(calibration.levels),
            "covered": conformal_coverage(found, calibration),
        },
        "bins": {"sigma": expected, "rms_error": rms},
        "sparsification": {"taken": steps / len(error), "sigma": by_sigma, "oracle": oracle},
    }
    return {
        curve: {name: values.tolist() for name, values in parts.items()}
        for curve, parts in curves.items()
    }


def _intervals(error: np.ndarray, half: dict[float, np.ndarray]) -> dict[str, float]:
    """Return coverage and mean width of intervals by level, as ``coverage90``."""
    out = {}
    for level, wide in half.items():
        out[f"coverage{100 * level:.0f}"] = float((np.abs(error) <= wide).mean())
        out[f"width{100 * level:.0f}"] = float(2.0 * wide.mean())
    return out
