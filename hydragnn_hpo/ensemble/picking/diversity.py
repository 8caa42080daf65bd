"""Of many uncertain structures choose some that lie far from each other.

Shapes: M points, D dimensions, n chosen.
"""

from dataclasses import dataclass

import numpy as np

SAME = 0.01
"""Structures nearer than this, in standard deviations of the descriptors, are one."""


@dataclass(frozen=True)
class Choice:
    """What was chosen, in order."""

    rows: np.ndarray
    """Rows of the points, [n]."""
    distances: np.ndarray
    """Distance of each to the nearest one chosen before it, [n]; infinite for the first."""
    same: int
    """Points that were left out because a chosen one is as good as equal."""


def farthest_first(points: np.ndarray, scores: np.ndarray, wanted: int) -> Choice:
    """Choose greedily: the best score first, then whatever has the largest score x distance.

    With equal scores this is the greedy k-center cover of the points, at most twice as wide as
    the best one. The score weighs it, so that a far but well-known point does not win.

    Args:
        points: descriptors, [M, D].
        scores: > 0, [M].
        wanted: n, at most.

    Source: Gonzalez (1985), Theor. Comput. Sci. 38, 293; as a core-set for labels, Sener &
    Savarese (2018), arXiv:1708.00489.
    """
    nearest = np.full(len(points), np.inf)
    open_ = np.ones(len(points), dtype=bool)
    rows: list[int] = []
    distances: list[float] = []
    same = 0
    while len(rows) < wanted and open_.any():
        weighted = np.where(np.isinf(nearest), scores, scores * nearest)
        row = int(np.argmax(np.where(open_, weighted, -np.inf)))
        rows.append(row)
        distances.append(float(nearest[row]))
        nearest = np.minimum(nearest, np.linalg.norm(points - points[row], axis=1))
        open_[row] = False
        equal = open_ & (nearest < SAME)
        same += int(equal.sum())
        open_ &= ~equal
    return Choice(np.array(rows, dtype=np.int64), np.array(distances), same)


def standardised(features: np.ndarray) -> np.ndarray:
    """Scale columns so that two random points are about 1.4 apart: mean 0, sum of variances 1.

    Args:
        features: [M, D]; a column that never changes becomes 0.
    """
    spread = features.std(axis=0)
    moving = spread > 1e-9 * np.maximum(np.abs(features).max(axis=0, initial=0.0), 1e-30)
    if not moving.any():
        return np.zeros((len(features), 1))
    kept = features[:, moving]
    scaled: np.ndarray = (kept - kept.mean(axis=0)) / spread[moving] / np.sqrt(moving.sum())
    return scaled


def mean_distance(points: np.ndarray) -> float:
    """Give the mean distance over all pairs of points; 0 where there are none."""
    if len(points) < 2:
        return 0.0
    total = sum(np.linalg.norm(points[k + 1 :] - p, axis=1).sum() for k, p in enumerate(points))
    return float(total) / (len(points) * (len(points) - 1) / 2)
