"""Choose members and their weights: the K best, or greedily on ``sel``.

Shapes: M candidates, R rows (graphs, or nodes of a node-level head), w components.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FLOOR = 4
"""Distinct members that greedy selection takes where there are as many candidates."""

_TIE = 1e-12
"""Losses this close (relative) are equal: the order of a sum must not decide."""


@dataclass(frozen=True)
class ScoredHead:
    """One head on the selection split: only rows that have the target."""

    predictions: np.ndarray
    """What each candidate predicts, [M, R, w], in the target's unit."""
    truth: np.ndarray
    """The target, [R, w], in its unit."""
    weight: float
    """Share of the head in the loss over the target's standard deviation, 1 / unit."""


def loss(heads: Sequence[ScoredHead], weights: np.ndarray) -> float:
    """Give the weighted MAE of a mix, in standard deviations; ``weights`` [M] sum to 1."""
    return sum(
        head.weight * float(np.abs(np.tensordot(weights, head.predictions, 1) - head.truth).mean())
        for head in heads
    )


def top_k(objectives: Sequence[float], k: int) -> np.ndarray:
    """Weigh the ``k`` candidates of lowest objective equally, the others with 0: [M].

    Equal objectives: the earlier candidate wins.
    """
    order = np.argsort(np.asarray(objectives, dtype=np.float64), kind="stable")[:k]
    weights = np.zeros(len(objectives))
    weights[order] = 1.0 / len(order)
    return weights


def greedy(heads: Sequence[ScoredHead], rounds: int, floor: int = FLOOR) -> np.ndarray:
    """Draw candidates with replacement, each time the one that helps the mix most.

    The first draw is the best single candidate. Until ``floor`` distinct members are in,
    only new ones are drawn: a mix that collapses to one member has no spread to calibrate.
    Of all mixes on the way that reach the floor the best is kept. Ties go to the earlier
    candidate and to the shorter mix, so the result depends on the candidates' order alone.

    Args:
        heads: the heads on the selection split, [M, R, w] each.
        rounds: draws in all; at least as many as needed for the floor are made.
        floor: distinct members to reach where there are as many candidates.

    Returns:
        Weights of the candidates, [M], summing to 1.

    Source: Caruana et al. (2004), Ensemble selection from libraries of models, ICML.
    """
    candidates = len(heads[0].predictions)
    floor = min(floor, candidates)
    counts = np.zeros(candidates, dtype=np.int64)
    sums = [np.zeros_like(head.truth) for head in heads]
    best, best_loss = counts, np.inf
    for draw in range(1, max(rounds, floor) + 1):
        short = np.count_nonzero(counts) < floor
        allowed = np.flatnonzero(counts == 0) if short else np.arange(candidates)
        scores = np.array([_loss_with(heads, sums, (int(c), draw)) for c in allowed])
        lowest = float(scores.min())
        chosen = int(allowed[np.flatnonzero(scores <= lowest * (1 + _TIE))[0]])
        counts = counts + (np.arange(candidates) == chosen)
        sums = [s + head.predictions[chosen] for s, head in zip(sums, heads, strict=True)]
        if np.count_nonzero(counts) >= floor and lowest < best_loss * (1 - _TIE):
            best, best_loss = counts, lowest
    weights: np.ndarray = best / best.sum()
    return weights


def _loss_with(
    heads: Sequence[ScoredHead], sums: Sequence[np.ndarray], draw: tuple[int, int]
) -> float:
    """Give the loss of the mix if a candidate became its next draw: (candidate, draws)."""
    candidate, draws = draw
    return sum(
        head.weight * float(np.abs((s + head.predictions[candidate]) / draws - head.truth).mean())
        for s, head in zip(sums, heads, strict=True)
    )
