"""How good predictions and their uncertainties are: proper scores, calibration, ranking.

A vector's components are values of their own that share one sigma.
Shapes: R rows that have the target, w components, n = R w values, L levels.
"""

from dataclasses import asdict, dataclass

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import spearmanr

BINS = 10
"""Bins of equal count in which the error is held against sigma. ENCE grows with their number:
compare only what has the same."""

SMALLEST_BIN = 10
"""Values that a bin holds at least, where there are so many."""


@dataclass(frozen=True)
class Quality:
    """Quality of an uncertainty; in the target's unit where it has one."""

    nll: float
    """Mean negative log likelihood of a Gaussian, in nats."""
    crps: float
    """Mean continuous ranked probability score of a Gaussian, in the unit."""
    ence: float
    """Expected normalised calibration error: |RMS error - RMS sigma| / RMS sigma over bins."""
    area: float
    """Area between the Gaussian intervals' calibration curve and the diagonal, 0 to 0.5."""
    sharpness: float
    """Root mean variance, in the unit."""
    spearman: float
    """Rank correlation of |error| and sigma."""
    ause: float
    """Area between the sparsification curve and its oracle; 0 where sigma ranks perfectly."""

    def as_plain(self, prefix: str = "") -> dict[str, float]:
        """Return the figures by name."""
        return {prefix + name: value for name, value in asdict(self).items()}


def quality(residual: np.ndarray, sigma: np.ndarray) -> Quality:
    """Judge Gaussian uncertainties.

    Args:
        residual: truth minus mean, [R, w].
        sigma: standard deviation, [R, 1]; zeros make the likelihood infinite.
    """
    error, sigma = flatten_values(residual, sigma)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Quality(
            nll=nll(error, sigma),
            crps=crps(error, sigma),
            ence=ence(error, sigma),
            area=miscalibration_area(error, sigma),
            sharpness=float(np.sqrt(np.square(sigma).mean())),
            spearman=spearman(error, sigma),
            ause=ause(error, sigma),
        )


def flatten_values(residual: np.ndarray, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each component its sigma: [R, w] and [R, 1] become [n] and [n]."""
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

    Source: Gneiting and Raftery (2007), J. Am. Stat. Assoc. 102, 359, section 4.2; where
    sigma is 0 it is the absolute error.
    """
    z = np.where(sigma > 0, error / np.where(sigma > 0, sigma, 1.0), 0.0)
    density = np.exp(-0.5 * np.square(z)) / np.sqrt(2 * np.pi)
    spread = sigma * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return float(np.where(sigma > 0, spread, np.abs(error)).mean())


def bin_by_sigma(error: np.ndarray, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the root mean square of sigma and of the error in bins of rising sigma."""
    bins = max(1, min(BINS, len(error) // SMALLEST_BIN))
    parts = np.array_split(np.argsort(sigma, kind="stable"), bins)
    expected = np.array([np.sqrt(np.square(sigma[part]).mean()) for part in parts])
    found = np.array([np.sqrt(np.square(error[part]).mean()) for part in parts])
    return expected, found


def ence(error: np.ndarray, sigma: np.ndarray) -> float:
    """Return the expected normalised calibration error.

    Source: Levi, Gispan, Giladi, Fetaya (2022), Sensors 22, 5540, eq. 8.
    """
    expected, found = bin_by_sigma(error, sigma)
    return float((np.abs(expected - found) / expected).mean())


def miscalibration_area(error: np.ndarray, sigma: np.ndarray) -> float:
    """Return the area between the calibration curve of central intervals and the diagonal, exact.

    A value is inside the Gaussian interval of level p from p = 2 Phi(|z|) - 1 on, so the
    curve is the distribution function of those levels.

    Source: Kuleshov, Fenner, Ermon (2018), ICML, and Tran et al. (2020), Mach. Learn.: Sci.
    Technol. 1, 025006 (the area).
    """
    z = np.abs(np.where(error == 0, 0.0, error / sigma))
    starts = np.sort(2 * ndtr(z) - 1)
    return step_area(np.r_[0.0, starts, 1.0], np.arange(len(starts) + 1) / len(starts))


def step_area(edges: np.ndarray, height: np.ndarray) -> float:
    """Integrate |height - p| over p, where the height is constant between edges.

    Args:
        edges: rising, [k + 1].
        height: between two edges, [k].
    """
    low, high = edges[:-1] - height, edges[1:] - height
    return float(0.5 * (high * np.abs(high) - low * np.abs(low)).sum())


def line_area(levels: np.ndarray, covered: np.ndarray) -> float:
    """Integrate |covered - level| along straight lines between levels; 0 and 1 are added."""
    levels, gaps = np.r_[0.0, levels, 1.0], np.r_[0.0, covered - levels, 0.0]
    left, right, width = gaps[:-1], gaps[1:], np.diff(levels)
    total = np.abs(left) + np.abs(right)
    crossing = left * right < 0
    squares = (np.square(left) + np.square(right)) / np.where(total > 0, total, 1.0)
    return float((0.5 * width * np.where(crossing, squares, total)).sum())


def gaussian_coverage(error: np.ndarray, sigma: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the share of values inside the Gaussian interval of each level, [L]."""
    z = np.sort(np.abs(np.where(error == 0, 0.0, error / sigma)))
    inside = np.searchsorted(z, ndtri(0.5 + 0.5 * levels), side="right")
    share: np.ndarray = inside / len(z)
    return share


def spearman(error: np.ndarray, sigma: np.ndarray) -> float:
    """Return the rank correlation of |error| and sigma; NaN where one of them is constant."""
    if len(error) < 2 or np.ptp(sigma) == 0 or np.ptp(np.abs(error)) == 0:
        return float("nan")
    return float(spearmanr(np.abs(error), sigma).statistic)


def sparsification(error: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return the MAE of what is left when the values of largest ``by`` are taken away, [n].

    Element k is for k values taken away, relative to the MAE of all. Values with equal
    ``by`` leave in any order: each counts as the mean of them.
    """
    _, place, counts = np.unique(by, return_inverse=True, return_counts=True)
    sums = np.bincount(place, weights=np.abs(error))
    rising = np.repeat(sums / counts, counts)
    left = np.cumsum(rising) / np.arange(1, len(error) + 1)
    curve: np.ndarray = left[::-1] / left[-1] if left[-1] > 0 else np.ones(len(error))
    return curve


def ause(error: np.ndarray, sigma: np.ndarray) -> float:
    """Return the area between the sparsification curve by sigma and the one by the error.

    Source: Ilg et al. (2018), ECCV, Uncertainty estimates and multi-hypotheses networks.
    """
    return float((sparsification(error, sigma) - sparsification(error, np.abs(error))).mean())
