"""Split conformal intervals: how many sigmas cover a share of the truths, whatever their law.

Shapes: n values.
"""

import math

import numpy as np
from scipy.special import ndtri

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Shares of truths that intervals are quoted for."""

GRID = tuple(round(0.05 * step, 2) for step in range(1, 20))
"""Shares that have a quantile, ``LEVELS`` among them: enough for a whole calibration curve."""

FEWEST = 50
"""Independent groups that a kind of structures needs for intervals of its own. Coverage then
deviates by about 0.04 (standard deviation of the Beta law of split conformal at 90 %)."""


def key(level: float) -> str:
    """Return the name of a level in tables, as ``0.9``."""
    return f"{level:g}"


def group_weights(group: np.ndarray) -> tuple[np.ndarray, int]:
    """Return each value its share of its group, [n], and the number of groups."""
    _, place, counts = np.unique(group, return_inverse=True, return_counts=True)
    weights: np.ndarray = 1.0 / counts[place]
    return weights, len(counts)


def conformal_rank(count: int, level: float) -> int:
    """Return the rank, from 1, of the score that covers ``level`` of new values.

    Source: Vovk et al. (2005), Algorithmic learning in a random world: ceil((n + 1) level).
    """
    return math.ceil((count + 1) * level - 1e-9)


def conformal_quantiles(scores: np.ndarray, group: np.ndarray) -> dict[str, float]:
    """Return for every level of ``GRID``, by ``key(level)``, the score that covers a new group.

    The groups' distributions of scores are pooled with equal weight, and one more group
    whose scores are all infinite stands for the new one; with one value per group this is
    the score of the conformal rank. With too few groups no finite interval has the
    guarantee; then the larger of the largest score and the Gaussian quantile stands in
    (``Calibration.guaranteed`` tells).

    Args:
        scores: residual over sigma, [n].
        group: number of each value's group, [n].

    Source: Dunn, Wasserman, Ramdas (2023), J. Am. Stat. Assoc. 118, 2491 (pooling CDFs).
    """
    weight, groups = group_weights(group)
    order = np.argsort(scores, kind="stable")
    rising, covered = scores[order], np.cumsum(weight[order])
    return {key(level): _quantile(rising, covered, level, groups) for level in GRID}


def conformal_tables(
    scores: np.ndarray, group: np.ndarray, stratum: np.ndarray
) -> dict[str, dict[str, float]]:
    """Return own quantiles for the strata that have enough groups.

    A kind that is missing here takes the quantiles of all, as the only kind there is does.

    Args:
        scores: residual over sigma, [n].
        group: number of each value's group, [n].
        stratum: name of each value's kind of structure, [n].

    Source: Vovk, Lindsay, Nouretdinov, Gammerman (2003), Mondrian confidence machine.
    """
    tables: dict[str, dict[str, float]] = {}
    names = np.unique(stratum).tolist()
    for name in names if len(names) > 1 else ():
        here = stratum == name
        if len(np.unique(group[here])) >= FEWEST:
            tables[str(name)] = conformal_quantiles(scores[here], group[here])
    return tables


def _quantile(rising: np.ndarray, covered: np.ndarray, level: float, groups: int) -> float:
    place = int(np.searchsorted(covered, (groups + 1) * level - 1e-9))
    if place >= len(rising):
        return max(float(rising[-1]), float(ndtri(0.5 + level / 2)))
    return float(rising[place])
