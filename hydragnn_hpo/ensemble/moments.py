"""Mean and spread over members, streamed: one member's prediction in memory at a time."""

from collections.abc import Iterable

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

    def add(self, values: np.ndarray, weight: float) -> None:
        """Take one member's prediction in, with its weight > 0."""
        self._weight += weight
        values = np.asarray(values, dtype=np.float64)
        change = values - self._mean
        self._mean = self._mean + change * (weight / self._weight)
        self._squares = self._squares + weight * change * (values - self._mean)

    @property
    def mean(self) -> np.ndarray:
        """Give the weighted mean, shaped like the predictions."""
        return self._mean

    @property
    def variance(self) -> np.ndarray:
        """Give the weighted variance about the mean, in the unit squared."""
        return np.maximum(self._squares / self._weight, 0.0)

    @property
    def spread(self) -> np.ndarray:
        """Give the members' spread of each row, [R, 1]: root mean variance of its components.

        One number for all components of a vector, so that it does not depend on the axes.
        """
        root: np.ndarray = np.sqrt(self.variance.mean(axis=-1, keepdims=True))
        return root


def moments_of(predictions: Iterable[np.ndarray], weights: Iterable[float]) -> Moments:
    """Gather members' predictions, [R, w] each; members of weight 0 are left out."""
    moments = Moments()
    for values, weight in zip(predictions, weights, strict=True):
        if weight > 0:
            moments.add(values, float(weight))
    return moments
