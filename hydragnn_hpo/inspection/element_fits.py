"""Fits of properties by the elements: whether one grows with the structure, what elements explain.

Shapes: G structures, Z kinds of elements.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MIN_FITTED = 12
"""Smallest number of structures for a regression."""

MIN_SIZE_RATIO = 1.3
"""Smallest ratio of the largest to the smallest structure for classifying growth with size."""

MARGIN = 0.02
"""Smallest difference in explained variance by which one fit counts as better than the other."""

MIN_EXPLAINED = 0.1
"""Smallest share of the variance that a fit by elements must explain."""

HEAVY = 1.8
"""Standard deviation over mean absolute deviation from which tails are heavy: 1.25 is that of a
normal distribution, 1.41 of a Laplace distribution, 1.57 of Student's with 3 degrees."""


def count_elements(numbers: Sequence[NDArray[np.int64]]) -> tuple[Array, list[int]]:
    """Count the atoms of each element.

    Args:
        numbers: atomic numbers of each structure, G arrays.

    Returns:
        Counts, [G, Z], and the atomic numbers of the columns, ascending, [Z].
    """
    kinds = sorted({int(z) for each in numbers for z in np.unique(each)})
    counts = np.array([[np.count_nonzero(each == z) for z in kinds] for each in numbers])
    return counts.astype(np.float64), kinds


def classify_growth(values: Array, counts: Array) -> Literal["extensive", "intensive"] | None:
    """Classify whether a property grows with the structure; None where that stays undecided.

    One coefficient per element is fitted on half of the structures, once to sums over atoms, once
    to means. The fit that explains more of the variance of the other half decides.

    Args:
        values: value of each structure, [G].
        counts: atoms of each element, [G, Z].
    """
    sizes = counts.sum(axis=1)
    few = len(values) < MIN_FITTED or sizes.max() < MIN_SIZE_RATIO * sizes.min()
    if few or np.ptp(values) == 0:
        return None
    # A random half, as every second structure of a file may be of the same kind.
    fit = np.zeros(len(values), dtype=bool)
    fit[np.random.default_rng(0).permutation(len(values))[::2]] = True
    total = explained_variance(values, counts, fit)
    mean = explained_variance(values, counts / sizes[:, None], fit)
    if total > max(mean, 0.5) + MARGIN or (total > 0.999 and total > mean):
        return "extensive"
    # Even a mean that explains little decides where the sum is far worse than no fit at all.
    trusted = mean > MIN_EXPLAINED or total < -1.0
    return "intensive" if trusted and mean > total + MARGIN else None


def explained_variance(values: Array, weights: Array, fit: NDArray[np.bool_]) -> float:
    """Fit one coefficient per element; return the share of variance it explains on other rows.

    Args:
        values: value of each structure, [G].
        weights: weight of each element, [G, Z].
        fit: whether a row is fitted, [G]; the others measure the fit.

    Returns:
        1 for a perfect fit, 0 for one as good as the mean, below 0 for a worse one.
    """
    held = ~fit
    residual = values[held] - weights[held] @ fit_elements(values[fit], weights[fit])
    variance = max(float(np.var(values[held])) * len(residual), 1e-300)
    return 1.0 - float((residual**2).sum()) / variance


def fit_elements(values: Array, weights: Array) -> Array:
    """Return the coefficient of each element of least squares with a small penalty, [Z]."""
    penalty = 1e-6 * np.eye(weights.shape[1]) * max(float((weights**2).mean()), 1e-12)
    gram = weights.T @ weights + penalty * len(weights)
    return np.asarray(np.linalg.solve(gram, weights.T @ values), dtype=np.float64)


def has_heavy_tails(values: Array, weights: Array) -> bool:
    """Check whether few values hold most of the spread that is left beside the elements.

    Args:
        values: value of each structure, [G].
        weights: weight of each element, [G, Z].
    """
    rest = values - weights @ fit_elements(values, weights)
    deviation = float(np.abs(rest - np.median(rest)).mean())
    return len(values) >= MIN_FITTED and bool(rest.std() > HEAVY * deviation > 0.0)
