"""Mean and spread over members, streamed; and how far members disagree about forces."""

from collections.abc import Iterable, Sequence

import numpy as np


class Moments:
    """Weighted mean and sum of squared deviations of what arrives, in fp64.

    Source: West (1979), Comm. ACM 22, 532, eqs. for weighted data.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._weight = 0.0
        self._mean: np.ndarray = np.zeros(())
        self._squares: np.ndarray = np.zeros(())
        self._noise: np.ndarray | float = 0.0

    def add(self, values: np.ndarray, weight: float, noise: np.ndarray | None = None) -> None:
        """Take one member's prediction in.

        Args:
            values: what it predicts, [R, w].
            weight: its weight, > 0.
            noise: the variance that it predicts for its own errors, [R, 1]; none is 0.
        """
        self._weight += weight
        if noise is not None:
            self._noise = self._noise + weight * noise
        values = np.asarray(values, dtype=np.float64)
        change = values - self._mean
        self._mean = self._mean + change * (weight / self._weight)
        self._squares = self._squares + weight * change * (values - self._mean)

    def merge(self, other: "Moments") -> None:
        """Take in what others have gathered of the same rows; the order does not matter.

        Args:
            other: moments of other members; it stays as it is.

        Source: Chan, Golub, LeVeque (1979), STAN-CS-79-773, eqs. 2.1, weighted.
        """
        if not other._weight:
            return
        whole = self._weight + other._weight
        change = other._mean - self._mean
        shared = self._weight * other._weight / whole
        self._mean = self._mean + change * (other._weight / whole)
        self._squares = self._squares + other._squares + shared * change * change
        self._noise = self._noise + other._noise
        self._weight = whole

    @property
    def mean(self) -> np.ndarray:
        """Return the weighted mean, shaped like the predictions."""
        return self._mean

    @property
    def variance(self) -> np.ndarray:
        """Return the weighted variance about the mean, in the unit squared."""
        return np.maximum(self._squares / self._weight, 0.0)

    @property
    def noise(self) -> np.ndarray:
        """Return the weighted mean of the variances that members predict, [R, 1]; 0 without any."""
        whole: np.ndarray = np.broadcast_to(self._noise / self._weight, (*self._mean.shape[:-1], 1))
        return whole

    @property
    def spread(self) -> np.ndarray:
        """Return the members' spread of each row, [R, 1]: root mean variance of its components.

        One number for all components of a vector, so that it does not depend on the axes.
        """
        root: np.ndarray = np.sqrt(self.variance.mean(axis=-1, keepdims=True))
        return root


def compute_moments(
    predictions: Sequence[np.ndarray] | np.ndarray,
    weights: Iterable[float],
    noises: Sequence[np.ndarray] | np.ndarray | None = None,
) -> Moments:
    """Gather members' predictions; members of weight 0 are left out.

    Args:
        predictions: of the members, [R, w] each.
        weights: their weights.
        noises: the variances that they predict for their own errors, [R, 1] each.
    """
    moments = Moments()
    each = [None] * len(predictions) if noises is None else noises
    for values, weight, noise in zip(predictions, weights, each, strict=True):
        if weight > 0:
            moments.add(values, float(weight), noise)
    return moments


def force_deviation(variance: np.ndarray) -> np.ndarray:
    """Return the members' disagreement about each atom's force, in the unit, [N].

    It is the root of the mean squared distance of the members' vectors from their mean; the
    spread of ``Moments``, one number per component, is smaller by the root of 3.

    Args:
        variance: the members' variance of each component, [N, 3], in the unit squared.

    Source: Zhang et al. (2020), Comput. Phys. Commun. 253, 107206 (DP-GEN), eq. 1.
    """
    root: np.ndarray = np.sqrt(variance.sum(axis=-1))
    return root


def largest_deviation(deviation: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the largest disagreement within each structure, [G]; 0 without atoms.

    Args:
        deviation: of the atoms, [N].
        offsets: first atom of each structure, and the end, [G + 1].
    """
    largest = np.zeros(len(offsets) - 1)
    np.maximum.at(largest, np.repeat(np.arange(len(largest)), np.diff(offsets)), deviation)
    return largest
