"""Compare the errors of two predictors on the same rows."""

import math
from typing import NamedTuple

import numpy as np

CLEAR = 2.0
"""Standard errors that a difference must have: one in twenty is chance."""


class Comparison(NamedTuple):
    """The ensemble against another predictor on the same rows; NaN where there is no such one."""

    mae: float = math.nan
    """Error of the other predictor, in the unit."""
    z: float = math.nan
    """Difference ensemble minus other, in standard errors over groups; 0 where there are none."""


def compare(errors: np.ndarray, other: np.ndarray, group: np.ndarray) -> Comparison:
    """Compare the absolute errors of the ensemble with those of another predictor.

    The standard error of the mean difference treats groups as the independent units.

    Args:
        errors: absolute errors of the ensemble, [R].
        other: absolute errors of the other predictor, [R].
        group: group of each row, [R].
    """
    _, place = np.unique(group, return_inverse=True)
    by_group = np.bincount(place, errors - other)
    spread = math.sqrt(len(by_group) * by_group.var(ddof=1)) if len(by_group) > 1 else 0.0
    z = float(by_group.sum() / spread) if spread else 0.0
    return Comparison(float(f"{other.mean():.6g}"), z)  # threads decide the last digits of a sum
