"""Choose members and their weights: the K best, or greedily on ``sel``.

Shapes: M candidates, R rows (graphs, or nodes of a node-level head), w components.
"""

import math
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


@dataclass(frozen=True)
class Terms:
    """What greedy selection has to keep to."""

    rounds: int = 12
    """Draws in all; at least as many as the floor needs are made."""
    floor: int = FLOOR
    """Distinct members to reach where there are as many candidates."""
    most: int | None = None
    """Most distinct members; any number if None. The floor comes first."""
    price: float = 0.0
    """Part of the loss that a doubling of the members' cost must save."""
    costs: Sequence[float] | None = None
    """What a structure costs with each candidate, > 0, in any unit; all alike if None."""


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


def priced(error: float, cost: float, price: float) -> float:
    """Give a loss that counts cost: as bad is ``1 + price`` times the loss at half the cost.

    Args:
        error: the loss.
        cost: of all members together, > 0, in any unit: only ratios count.
        price: relative loss that a doubling of the cost must save, 0 for none.
    """
    exponent = math.log2(1.0 + price)
    return error * float(cost**exponent)


def greedy(heads: Sequence[ScoredHead], terms: Terms | None = None) -> np.ndarray:
    """Draw candidates with replacement, each time the one that helps the mix most.

    The first draw is the best single candidate. Until the floor of distinct members is in, only
    new ones are drawn: a mix that collapses to one member has no spread to calibrate. Of all
    mixes on the way that reach the floor the best is kept. Ties go to the earlier candidate and
    to the shorter mix, so the result depends on the candidates' order alone.

    Args:
        heads: the heads on the selection split, [M, R, w] each.
        terms: rounds, floor, most members, price.

    Returns:
        Weights of the candidates, [M], summing to 1.

    Source: Caruana et al. (2004), Ensemble selection from libraries of models, ICML.
    """
    terms = terms or Terms()
    candidates = len(heads[0].predictions)
    floor = min(terms.floor, candidates)
    costs = np.ones(candidates) if terms.costs is None else np.asarray(terms.costs, np.float64)
    counts = np.zeros(candidates, dtype=np.int64)
    sums = [np.zeros_like(head.truth) for head in heads]
    best, best_score = counts, np.inf
    for draw in range(1, max(terms.rounds, floor) + 1):
        allowed = _allowed(counts, floor, terms.most)
        errors = [_loss_with(heads, sums, (int(c), draw)) for c in allowed]
        bills = [costs[(counts > 0) | (np.arange(candidates) == c)].sum() for c in allowed]
        scores = [priced(e, b, terms.price) for e, b in zip(errors, bills, strict=True)]
        lowest = min(scores)
        chosen = int(allowed[np.flatnonzero(np.array(scores) <= lowest * (1 + _TIE))[0]])
        counts = counts + (np.arange(candidates) == chosen)
        sums = [s + head.predictions[chosen] for s, head in zip(sums, heads, strict=True)]
        if np.count_nonzero(counts) >= floor and lowest < best_score * (1 - _TIE):
            best, best_score = counts, lowest
    weights: np.ndarray = best / best.sum()
    return weights


def greedy_order(heads: Sequence[ScoredHead], most: int) -> list[int]:
    """List candidates, each the one that helps the mean of those before it most, without repeats.

    Args:
        heads: the heads on the selection split, [M, R, w] each.
        most: how many to list, where there are as many.
    """
    order: list[int] = []
    sums = [np.zeros_like(head.truth) for head in heads]
    left = list(range(len(heads[0].predictions)))
    while left and len(order) < most:
        errors = [_loss_with(heads, sums, (c, len(order) + 1)) for c in left]
        lowest = min(errors)
        chosen = next(c for c, e in zip(left, errors, strict=True) if e <= lowest * (1 + _TIE))
        sums = [s + head.predictions[chosen] for s, head in zip(sums, heads, strict=True)]
        order.append(chosen)
        left.remove(chosen)
    return order


def per_head(heads: Sequence[ScoredHead], members: np.ndarray, terms: Terms) -> list[np.ndarray]:
    """Weigh some members for each head by its own loss alone.

    They all run anyway, so none has a price here.

    Args:
        heads: the heads on the selection split, [M, R, w] each.
        members: which candidates are members, [M].
        terms: rounds and floor.

    Returns:
        Weights of the candidates for each head, [M], each summing to 1; 0 where a head does
        better without a member.
    """
    chosen, found = np.flatnonzero(members), []
    for head in heads:
        among = ScoredHead(head.predictions[chosen], head.truth, 1.0)
        weights = np.zeros(len(members))
        weights[chosen] = greedy([among], Terms(rounds=terms.rounds, floor=terms.floor))
        found.append(weights)
    return found


def _allowed(counts: np.ndarray, floor: int, most: int | None) -> np.ndarray:
    """Give the candidates that may be drawn next."""
    there = np.count_nonzero(counts)
    if there < floor:
        return np.flatnonzero(counts == 0)
    full = most is not None and there >= most
    return np.flatnonzero(counts) if full else np.arange(len(counts))


def _loss_with(
    heads: Sequence[ScoredHead], sums: Sequence[np.ndarray], draw: tuple[int, int]
) -> float:
    """Give the loss of the mix if a candidate became its next draw: (candidate, draws)."""
    candidate, draws = draw
    return sum(
        head.weight * float(np.abs((s + head.predictions[candidate]) / draws - head.truth).mean())
        for s, head in zip(sums, heads, strict=True)
    )
