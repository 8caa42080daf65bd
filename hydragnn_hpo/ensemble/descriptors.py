"""Descriptors of structures from the features of the members, and diverse selection among them.

Shapes: M structures, D dimensions, F features of a member, n chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hydragnn_hpo.data.columns import columns_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, member_batches, pieces
from hydragnn_hpo.ensemble.inference import Ensemble, as_array
from hydragnn_hpo.model.pooling import pool_mean

SAME = 0.01
"""Structures nearer than this, in standard deviations of the descriptors, are one."""


@dataclass(frozen=True)
class DiverseSelection:
    """Rows chosen by ``farthest_first``, in order."""

    rows: np.ndarray
    """Rows of the points, [n]."""
    distances: np.ndarray
    """Distance of each to the nearest one chosen before it, [n]; infinite for the first."""
    duplicates: int
    """Points left out because a chosen one is nearer than ``SAME``."""


def farthest_first(points: np.ndarray, scores: np.ndarray, count: int) -> DiverseSelection:
    """Choose greedily: the best score first, then whatever has the largest score x distance.

    With equal scores this is the greedy k-center cover of the points, at most twice as wide as
    the best one. The score weighs it, so that a far but well-known point does not win.

    Args:
        points: descriptors, [M, D].
        scores: > 0, [M].
        count: n, at most.

    Source: Gonzalez (1985), Theor. Comput. Sci. 38, 293; as a core-set for labels, Sener &
    Savarese (2018), arXiv:1708.00489.
    """
    nearest = np.full(len(points), np.inf)
    open_ = np.ones(len(points), dtype=bool)
    rows: list[int] = []
    distances: list[float] = []
    duplicates = 0
    while len(rows) < count and open_.any():
        weighted = np.where(np.isinf(nearest), scores, scores * nearest)
        row = int(np.argmax(np.where(open_, weighted, -np.inf)))
        rows.append(row)
        distances.append(float(nearest[row]))
        nearest = np.minimum(nearest, np.linalg.norm(points - points[row], axis=1))
        open_[row] = False
        equal = open_ & (nearest < SAME)
        duplicates += int(equal.sum())
        open_ &= ~equal
    return DiverseSelection(np.array(rows, dtype=np.int64), np.array(distances), duplicates)


def standardize(features: np.ndarray) -> np.ndarray:
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
    """Return the mean distance over all pairs of points; 0 where there are none."""
    if len(points) < 2:
        return 0.0
    total = sum(np.linalg.norm(points[k + 1 :] - p, axis=1).sum() for k, p in enumerate(points))
    return float(total) / (len(points) * (len(points) - 1) / 2)


@torch.no_grad()
def compute_descriptors(ensemble: Ensemble, graphs: Sequence[Graph]) -> np.ndarray:
    """Return a point for each structure, [M, D]; near ones look alike to the members.

    The mean over a structure's atoms of every member's last features, each member's
    standardised over these structures and as heavy as any other's. They do not change when a
    structure is turned, shifted, or repeated.
    """
    rules = ensemble.rules
    columns = columns_of(graphs, {}, {"cutoff": rules.cutoff}, attributes=rules.attributes)
    found: dict[str, list[np.ndarray]] = {member.trial: [] for member in ensemble.members}
    for piece in pieces(columns, np.arange(len(graphs)), EDGES_PER_BATCH):
        for member, batch in member_batches(ensemble.members, columns, piece, ensemble.device):
            pooled = pool_mean(member.model.trunk(batch).scalars, batch)
            found[member.trial].append(as_array(pooled))
    each = [standardize(np.concatenate(parts)) for parts in found.values() if parts]
    if not each:
        return np.zeros((0, 1))
    points: np.ndarray = np.concatenate(each, axis=1) / np.sqrt(len(each))
    return points
