"""Scores of predictions and their uncertainties: proper scores, calibration, ranking, curves.

Each component of a vector counts as one value; all share one sigma. "Raw" is the uncertainty
without calibration, with Gaussian intervals: sigma^2 = s^2 + v, where s is the spread of the
members and v the variance that they predict.

Shapes: R rows that have the target, w components, n = R w values, L levels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata, spearmanr

from hydragnn_hpo.file_records import DistanceFigures
from hydragnn_hpo.metrics_log import replace_nonfinite
from hydragnn_hpo.uncertainty.calibrate import GRID, LEVELS, Calibration
from hydragnn_hpo.uncertainty.class_probabilities import (
    bin_by_confidence,
    class_sets,
    count_confusions,
    score_classes,
)

BINS = 10
"""Number of bins of equal count in which the error is compared with sigma. ENCE grows with this
number: compare only values computed with the same one."""

SMALLEST_BIN = 10
"""Minimum number of values in a bin, if there are that many."""

BLOCKS = 50
"""Maximum number of blocks of groups that a jackknife leaves out, one at a time."""

STEPS = 100
"""Maximum number of points of a sparsification curve in the report."""


def gaussian_scores(residual: np.ndarray, sigma: np.ndarray) -> dict[str, float]:
    """Score Gaussian uncertainties.

    Args:
        residual: truth minus mean, [R, w].
        sigma: standard deviation, [R, 1]; zeros make the likelihood infinite.

    Returns:
        ``nll`` mean negative log likelihood, in nats; ``crps`` mean continuous ranked probability
        score, in the unit; ``ence`` expected normalised calibration error; ``area`` between the
        intervals' calibration curve and the diagonal, 0 to 0.5; ``sharpness`` root mean variance,
        in the unit; ``spearman`` rank correlation of |error| and sigma; ``ause`` area between the
        sparsification curve and its oracle, 0 if sigma ranks perfectly.
    """
    error, sigma = flatten_values(residual, sigma)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "nll": nll(error, sigma),
            "crps": crps(error, sigma),
            "ence": ence(error, sigma),
            "area": miscalibration_area(error, sigma),
            "sharpness": float(np.sqrt(np.square(sigma).mean())),
            "spearman": spearman(error, sigma),
            "ause": ause(error, sigma),
        }


def flatten_values(residual: np.ndarray, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Flatten components, and repeat sigma for each of them.

    Args:
        residual: truth minus mean, [R, w].
        sigma: standard deviation, [R, 1].

    Returns:
        Residuals and sigmas of all values, [n] each.
    """
    return residual.ravel(), np.broadcast_to(sigma, residual.shape).ravel()


def mae(prediction: np.ndarray | float, truth: np.ndarray) -> float:
    """Return the mean absolute error over rows and components."""
    return float(np.abs(prediction - truth).mean())


def rmse(prediction: np.ndarray, truth: np.ndarray) -> float:
    """Return the root mean square error over rows and components."""
    return float(np.sqrt(np.square(prediction - truth).mean()))


def nll(error: np.ndarray, sigma: np.ndarray) -> float:
    """Return the mean negative log likelihood of Gaussians, in nats; infinite for a sigma of 0."""
    if not sigma.all():
        return float("inf")
    z2 = np.square(error / sigma)
    return float((0.5 * np.log(2 * np.pi * np.square(sigma)) + 0.5 * z2).mean())


def crps(error: np.ndarray, sigma: np.ndarray) -> float:
    """Return the mean continuous ranked probability score of Gaussians, in the unit.

    Source: Gneiting and Raftery (2007), J. Am. Stat. Assoc. 102, 359, section 4.2; for
    sigma = 0 it is the absolute error.
    """
    z = np.where(sigma > 0, error / np.where(sigma > 0, sigma, 1.0), 0.0)
    density = np.exp(-0.5 * np.square(z)) / np.sqrt(2 * np.pi)
    spread = sigma * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return float(np.where(sigma > 0, spread, np.abs(error)).mean())


def bin_by_sigma(error: np.ndarray, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compare sigma with the error in bins of equal count and rising sigma.

    Args:
        error: truth minus mean, [n].
        sigma: standard deviation, [n].

    Returns:
        Root mean square of sigma and of the error in each bin, at most ``BINS`` of each.
    """
    parts = bins_of_equal_count(sigma)
    expected = np.array([np.sqrt(np.square(sigma[part]).mean()) for part in parts])
    observed = np.array([np.sqrt(np.square(error[part]).mean()) for part in parts])
    return expected, observed


def bins_of_equal_count(values: np.ndarray) -> list[np.ndarray]:
    """Return the positions of values, [n], in at most ``BINS`` bins of rising value."""
    bins = max(1, min(BINS, len(values) // SMALLEST_BIN))
    return np.array_split(np.argsort(values, kind="stable"), bins)


def ence(error: np.ndarray, sigma: np.ndarray) -> float:
    """Return the expected normalised calibration error.

    Source: Levi, Gispan, Giladi, Fetaya (2022), Sensors 22, 5540, eq. 8.
    """
    expected, observed = bin_by_sigma(error, sigma)
    return float((np.abs(expected - observed) / expected).mean())


def miscalibration_area(error: np.ndarray, sigma: np.ndarray) -> float:
    """Return the area between the calibration curve of central intervals and the diagonal, exactly.

    A value lies inside the Gaussian interval of level p if p >= 2 Phi(|z|) - 1, so the share of
    values inside as a function of p, the curve, is the distribution function of 2 Phi(|z|) - 1.

    Source: Kuleshov, Fenner, Ermon (2018), ICML, and Tran et al. (2020), Mach. Learn.: Sci.
    Technol. 1, 025006 (the area).
    """
    z = np.abs(np.where(error == 0, 0.0, error / sigma))
    starts = np.sort(2 * ndtr(z) - 1)
    return step_area(np.r_[0.0, starts, 1.0], np.arange(len(starts) + 1) / len(starts))


def step_area(edges: np.ndarray, height: np.ndarray) -> float:
    """Integrate |height - p| over p, where the height is constant between edges.

    Args:
        edges: ascending edges, [k + 1].
        height: height between two edges, [k].
    """
    low, high = edges[:-1] - height, edges[1:] - height
    return float(0.5 * (high * np.abs(high) - low * np.abs(low)).sum())


def line_area(levels: np.ndarray, covered: np.ndarray) -> float:
    """Integrate |covered - level| along straight lines between levels, from 0 to 1.

    Args:
        levels: ascending levels between 0 and 1, [L].
        covered: share of values inside the interval of each level, [L].
    """
    levels, gaps = np.r_[0.0, levels, 1.0], np.r_[0.0, covered - levels, 0.0]
    left = gaps[:-1]
    right = gaps[1:]
    width = np.diff(levels)
    total = np.abs(left) + np.abs(right)
    crossing = left * right < 0
    squares = (np.square(left) + np.square(right)) / np.where(total > 0, total, 1.0)
    return float((0.5 * width * np.where(crossing, squares, total)).sum())


def gaussian_coverage(error: np.ndarray, sigma: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the share of values inside the Gaussian interval of each level, [L].

    Args:
        error: truth minus mean, [n].
        sigma: standard deviation, [n].
        levels: levels between 0 and 1, [L].
    """
    z = np.sort(np.abs(np.where(error == 0, 0.0, error / sigma)))
    inside = np.searchsorted(z, ndtri(0.5 + 0.5 * levels), side="right")
    share: np.ndarray = inside / len(z)
    return share


def spearman(error: np.ndarray, sigma: np.ndarray) -> float:
    """Return the rank correlation of |error| and sigma; NaN if one of them is constant."""
    if len(error) < 2 or np.ptp(sigma) == 0 or np.ptp(np.abs(error)) == 0:
        return float("nan")
    return float(spearmanr(np.abs(error), sigma).statistic)


def spearman_error(error: np.ndarray, by: np.ndarray, group: np.ndarray) -> float:
    """Return the standard error of ``spearman`` for groups that are the independent units.

    It is that of a jackknife that leaves out blocks of whole groups, with the ranks of all values.

    Args:
        error: truth minus mean, [n].
        by: the values that it is compared with, [n].
        group: group of each value, [n].

    Source: Efron and Tibshirani (1993), An Introduction to the Bootstrap, eq. 11.5.
    """
    _, place = np.unique(group, return_inverse=True)
    block = place % BLOCKS
    count = int(block.max(initial=-1)) + 1
    if count < 3:
        return float("nan")
    x, y = (rankdata(values) - 0.5 * (len(values) + 1) for values in (np.abs(error), by))
    sums = [np.bincount(block, of, minlength=count) for of in (x, y, x * x, y * y, x * y)]
    n = len(x) - np.bincount(block, minlength=count)
    mean_x, mean_y, xx, yy, xy = ((of.sum() - of) / np.maximum(n, 1) for of in sums)
    with np.errstate(invalid="ignore", divide="ignore"):
        without = (xy - mean_x * mean_y) / np.sqrt((xx - mean_x**2) * (yy - mean_y**2))
    return float(np.sqrt((count - 1) * without.var()))


def compute_distance_figures(
    error: np.ndarray, distance: np.ndarray, group: np.ndarray
) -> DistanceFigures:
    """Compare errors with distances to the training set.

    Args:
        error: absolute error of each row, [R].
        distance: its distance, [R].
        group: its group, [R].
    """
    bins = bins_of_equal_count(distance)
    figures: DistanceFigures = replace_nonfinite(
        {
            "spearman": spearman(error, distance),
            "spearman_error": spearman_error(error, distance, group),
            "distance": [float(distance[part].mean()) for part in bins],
            "mae": [float(np.abs(error[part]).mean()) for part in bins],
        }
    )
    return figures


def sparsification(error: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return the MAE of the values that remain when those of largest ``by`` are removed, [n].

    Element k is the MAE after removing k values, relative to the MAE of all. Values with equal
    ``by`` are averaged, so that their order does not matter.
    """
    _, place, counts = np.unique(by, return_inverse=True, return_counts=True)
    sums = np.bincount(place, weights=np.abs(error))
    rising = np.repeat(sums / counts, counts)
    remaining = np.cumsum(rising) / np.arange(1, len(error) + 1)
    curve: np.ndarray = (
        remaining[::-1] / remaining[-1] if remaining[-1] > 0 else np.ones(len(error))
    )
    return curve


def ause(error: np.ndarray, sigma: np.ndarray) -> float:
    """Return the area between the sparsification curve by sigma and the one by the error.

    Source: Ilg et al. (2018), ECCV, Uncertainty estimates and multi-hypotheses networks.
    """
    return float((sparsification(error, sigma) - sparsification(error, np.abs(error))).mean())


def random_ause(error: np.ndarray) -> float:
    """Return the area between the sparsification curve of a random order and its oracle.

    Removing values at random leaves the MAE as it is, so that curve is 1 throughout.
    """
    return float((1.0 - sparsification(error, np.abs(error))).mean())


@dataclass(frozen=True)
class HeadOnLabels:
    """Predictions and truths of one head, for the rows that have the target."""

    truth: np.ndarray
    """The label, [R, w], in the unit."""
    mean: np.ndarray
    """The ensemble's mean, [R, w], in the unit."""
    spread: np.ndarray
    """The members' spread s, [R, 1], in the unit."""
    noise: np.ndarray
    """Mean v of the variances that members predict, [R, 1], in the unit squared."""
    stratum: np.ndarray
    """Name of each row's kind of structure, [R], see ``Strata``."""
    factor: np.ndarray
    """Factor of sigma, [R, 1], see ``Calibration.factor_of_rows``."""

    @property
    def residual(self) -> np.ndarray:
        """Truth minus mean, [R, w]."""
        out: np.ndarray = self.truth - self.mean
        return out

    @property
    def raw(self) -> np.ndarray:
        """The standard deviation without calibration, [R, 1]."""
        root: np.ndarray = np.sqrt(np.square(self.spread) + self.noise)
        return root

    def sigma(self, calibration: Calibration) -> np.ndarray:
        """Return the calibrated standard deviation, [R, 1]."""
        return calibration.sigma(self.spread, self.noise, self.factor)

    def of(self, rows: np.ndarray) -> "HeadOnLabels":
        """Return some of the rows; ``rows`` is a mask, [R], or positions."""
        return HeadOnLabels(*(getattr(self, each.name)[rows] for each in fields(self)))


def compute_figures(
    predicted: HeadOnLabels, calibration: Calibration, baseline: np.ndarray | float
) -> dict[str, float]:
    """Compute every figure of one head.

    Args:
        predicted: one head on labelled structures.
        calibration: calibration of the head.
        baseline: mean of the training data, in the unit, one number, [1] or [w]; a model must beat
            it.

    Returns:
        ``rows mae rmse``; the Gaussian scores of the calibrated sigma; ``area_conformal``, and
        ``coverage50 width50`` and so on of the conformal intervals; the same of the raw spread as
        ``raw_nll`` and so on, its intervals Gaussian; ``mean_baseline_mae ratio_to_mean``. A
        figure without a value (a rank correlation of constants) is NaN or infinite. For classes
        those of ``score_classes``, and coverage and mean size (``width90``) of the sets.
    """
    if calibration.temperature is not None:
        return _class_figures(predicted, calibration, baseline)
    error = predicted.residual
    sigma = predicted.sigma(calibration)
    raw = predicted.raw
    half = {q: calibration.half_width(sigma, q, predicted.stratum) for q in LEVELS}
    wide = {q: float(ndtri(0.5 + q / 2)) * raw for q in LEVELS}
    calibrated = gaussian_scores(error, sigma)
    calibrated["area_conformal"] = conformal_area(predicted, calibration)
    before = gaussian_scores(error, raw) | _intervals(error, wide)
    error_of_mean = mae(baseline, predicted.truth)
    figures = {
        **_errors(predicted),
        **calibrated,
        **_intervals(error, half),
        **{f"raw_{name}": value for name, value in before.items()},
        "mean_baseline_mae": error_of_mean,
    }
    figures["ratio_to_mean"] = figures["mae"] / error_of_mean if error_of_mean else 0.0
    return figures


def norm_errors(predicted: HeadOnLabels, shape: str) -> dict[str, float]:
    """Return the error of whole vectors and tensors, which does not depend on the axes.

    Args:
        predicted: one head on labelled structures.
        shape: the target's.

    Returns:
        ``norm_error``, the mean over rows of the norm of the error, Frobenius' of a tensor, in the
        unit; nothing for other shapes.
    """
    if shape not in ("vector", "tensor"):
        return {}
    return {"norm_error": float(np.linalg.norm(predicted.residual, axis=1).mean())}


def _class_figures(
    predicted: HeadOnLabels, calibration: Calibration, baseline: np.ndarray | float
) -> dict[str, float]:
    """Compute every figure of a class, see ``compute_figures``."""
    frequencies = np.broadcast_to(baseline, predicted.truth.shape[1:])
    figures = score_classes(predicted.mean, predicted.truth, frequencies)
    for level in LEVELS:
        inside = class_sets(predicted.mean, calibration, level, predicted.stratum)[1]
        held = (inside * predicted.truth).sum(axis=1)
        figures[f"coverage{100 * level:.0f}"] = float(held.mean())
        figures[f"width{100 * level:.0f}"] = float(inside.sum(axis=1).mean())
    return figures


def compute_strata_figures(
    predicted: HeadOnLabels, calibration: Calibration, kinds: np.ndarray
) -> dict[str, dict[str, float]]:
    """Compute some figures for each kind of structures.

    Args:
        predicted: one head on labelled structures.
        calibration: calibration of the head.
        kinds: name of each row's kind of structure, [R]; may differ from the calibration's kinds.

    Returns:
        By kind, then by name: ``rows mae rmse crps``, and ``coverage50 width50`` and so on of the
        conformal intervals.
    """
    out = {}
    for name in np.unique(kinds).tolist():
        part = predicted.of(kinds == name)
        if calibration.temperature is not None:
            frequencies = part.truth.mean(axis=0)
            out[str(name)] = _class_figures(part, calibration, frequencies)
            continue
        sigma = part.sigma(calibration)
        half = {q: calibration.half_width(sigma, q, part.stratum) for q in LEVELS}
        out[str(name)] = {
            **_errors(part),
            "crps": crps(*flatten_values(part.residual, sigma)),
            **_intervals(part.residual, half),
        }
    return out


def _errors(predicted: HeadOnLabels) -> dict[str, float]:
    return {
        "rows": len(predicted.truth),
        "mae": mae(predicted.mean, predicted.truth),
        "rmse": rmse(predicted.mean, predicted.truth),
    }


def conformal_area(predicted: HeadOnLabels, calibration: Calibration) -> float:
    """Return the area between the conformal intervals' calibration curve and the diagonal."""
    levels = np.array(calibration.levels)
    return line_area(levels, conformal_coverage(predicted, calibration))


def conformal_coverage(predicted: HeadOnLabels, calibration: Calibration) -> np.ndarray:
    """Return the share of values inside the conformal interval of each level, rising, [L]."""
    error = np.abs(predicted.residual)
    sigma = predicted.sigma(calibration)
    shares = [
        float((error <= calibration.half_width(sigma, level, predicted.stratum)).mean())
        for level in calibration.levels
    ]
    return np.array(shares)


def compute_curves(
    predicted: HeadOnLabels, calibration: Calibration
) -> dict[str, dict[str, list[float]]]:
    """Compute the curves of the report.

    Returns:
        By curve, then by axis:
        ``calibration``: ``level`` of Gaussian intervals, shares of values inside them with sigma
        ``raw`` and calibrated (``gaussian``);
        ``conformal``: ``level`` of conformal intervals, share ``covered``;
        ``bins``: root mean square ``sigma`` and ``rms_error``, both in the unit;
        ``sparsification``: share of values ``taken``, and the relative MAE of the others when the
        largest ``sigma``, or the largest errors (``oracle``), are removed first.
    """
    if calibration.temperature is not None:
        return _class_curves(predicted, calibration)
    residual = predicted.residual
    error, sigma = flatten_values(residual, predicted.sigma(calibration))
    raw = flatten_values(residual, predicted.raw)[1]
    grid = np.array(GRID)
    with np.errstate(divide="ignore"):
        before = gaussian_coverage(error, raw, grid)
    expected, rms = bin_by_sigma(error, sigma)
    steps = np.linspace(0, len(error) - 1, min(STEPS, len(error))).astype(np.int64)
    by_sigma = sparsification(error, sigma)[steps]
    oracle = sparsification(error, np.abs(error))[steps]
    curves: dict[str, dict[str, np.ndarray]] = {
        "calibration": {
            "level": grid,
            "raw": before,
            "gaussian": gaussian_coverage(error, sigma, grid),
        },
        "conformal": {
            "level": np.array(calibration.levels),
            "covered": conformal_coverage(predicted, calibration),
        },
        "bins": {"sigma": expected, "rms_error": rms},
        "sparsification": {"taken": steps / len(error), "sigma": by_sigma, "oracle": oracle},
    }
    return _to_lists(curves)


def _to_lists(curves: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, list[float]]]:
    """Convert the arrays of curves to lists.

    Returns:
        As ``curves``.
    """
    return {
        curve: {name: values.tolist() for name, values in parts.items()}
        for curve, parts in curves.items()
    }


def _class_curves(
    predicted: HeadOnLabels, calibration: Calibration
) -> dict[str, dict[str, list[float]]]:
    """Compute the curves of a class.

    Returns:
        ``reliability``: mean ``confidence``, share ``right`` and ``count`` of rows, by bin;
        ``confusion``: a row of counts of predicted classes by the number of the true class;
        ``conformal``: ``level`` of the sets, share ``covered``.
    """
    confidence, right, count = bin_by_confidence(predicted.mean, predicted.truth)
    confusion = count_confusions(predicted.mean, predicted.truth)
    levels = calibration.levels
    covered = [
        float(
            (class_sets(predicted.mean, calibration, q, predicted.stratum)[1] * predicted.truth)
            .sum(axis=1)
            .mean()
        )
        for q in levels
    ]
    return _to_lists(
        {
            "reliability": {"confidence": confidence, "right": right, "count": count},
            "confusion": {str(number): row for number, row in enumerate(confusion)},
            "conformal": {"level": np.array(levels), "covered": np.array(covered)},
        }
    )


def _intervals(error: np.ndarray, half: dict[float, np.ndarray]) -> dict[str, float]:
    """Return coverage and mean width of intervals by name, such as ``coverage90``.

    ``half`` holds half the width of each interval, by level.
    """
    out = {}
    for level, wide in half.items():
        out[f"coverage{100 * level:.0f}"] = float((np.abs(error) <= wide).mean())
        out[f"width{100 * level:.0f}"] = float(2.0 * wide.mean())
    return out
