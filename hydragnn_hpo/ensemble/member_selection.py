"""Select members and weights on ``sel`` (the K best, or greedily), and measure their diversity.

A *mix* is the weighted mean of the candidates' predictions; its members are those of weight > 0.

Shapes: C candidates, M members, R rows (graphs, or nodes of a node-level head), w components.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hydragnn_hpo.ensemble.candidates import BuildContext, flops_per_graph
from hydragnn_hpo.ensemble.uncertainty_scores import mae
from hydragnn_hpo.file_records import ChosenMember, EnsembleSize, HeadDiversity, SelectionScores

FLOOR = 4
"""Fewest distinct members of greedy selection, if there are enough candidates."""

MOST = 24
"""Largest ensemble of a size curve; with more members errors hardly change."""

_TIE = 1e-12
"""Relative difference below which losses are equal, so that the order of a sum cannot decide."""

Method = Literal["top", "greedy"]
"""``top``: the K of lowest validation objective; ``greedy``: greedy selection on ``sel``."""
Weights = dict[str, np.ndarray]
"""Weights of the candidates, [C], by head; those of one head sum to 1."""
ENOUGH = 300
"""Independent groups in ``sel`` from which ``auto`` selects greedily instead of the K best."""


@dataclass(frozen=True)
class ScoredHead:
    """One head on the rows of a split that have the target."""

    predictions: np.ndarray
    """Predictions of the candidates, [C, R, w], in the target's unit."""
    truth: np.ndarray
    """The target, [R, w], in its unit."""
    weight: float
    """Share of the head in the loss, divided by the target's standard deviation, 1 / unit."""


@dataclass(frozen=True)
class Terms:
    """Constraints of greedy selection."""

    rounds: int = 12
    """Number of draws; raised to the floor if that is higher."""
    floor: int = FLOOR
    """Fewest distinct members; lowered to the number of candidates if that is lower."""
    most: int | None = None
    """Most distinct members, unless the floor is higher; no limit if None."""
    price: float = 0.0
    """Relative penalty on the loss when the members' cost doubles; 0 ignores the cost."""
    costs: Sequence[float] | None = None
    """Cost of one structure with each candidate, [C], > 0, in any unit; all equal if None."""


def loss(heads: Sequence[ScoredHead], weights: np.ndarray) -> float:
    """Return the weighted MAE of a mix, in standard deviations; ``weights`` [C] sum to 1."""
    return sum(
        head.weight * float(np.abs(np.tensordot(weights, head.predictions, 1) - head.truth).mean())
        for head in heads
    )


def select_top_k(objectives: Sequence[float], k: int) -> np.ndarray:
    """Return equal weights for the ``k`` candidates of lowest objective, 0 for the others, [C].

    Ties go to the earlier candidate.
    """
    order = np.argsort(np.asarray(objectives, dtype=np.float64), kind="stable")[:k]
    weights = np.zeros(len(objectives))
    weights[order] = 1.0 / len(order)
    return weights


def add_price(error: float, cost: float, price: float) -> float:
    """Return the loss with a penalty on cost: a factor of ``1 + price`` per doubling of the cost.

    Args:
        error: the loss, in standard deviations.
        cost: total cost of all members, > 0, in any unit: only ratios count.
        price: relative penalty when the cost doubles; 0 ignores the cost.
    """
    exponent = math.log2(1.0 + price)
    return error * float(cost**exponent)


def select_greedy(heads: Sequence[ScoredHead], terms: Terms | None = None) -> np.ndarray:
    """Draw candidates with replacement, each time the one that helps the mix most.

    The first draw is the best single candidate. Until the floor of distinct members is reached,
    only new candidates are drawn: a mix of one member has no spread to calibrate. Among the mixes
    after each draw that has reached the floor, the best is kept. Ties go to the earlier candidate
    and to the mix of fewer draws, so the result does not depend on how sums are rounded.

    Args:
        heads: the heads on the selection split, [C, R, w] each.
        terms: rounds, floor, most members, price; the default ``Terms`` if None.

    Returns:
        Weights of the candidates, [C], summing to 1.

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
        scores = [add_price(e, b, terms.price) for e, b in zip(errors, bills, strict=True)]
        lowest = min(scores)
        chosen = int(allowed[np.flatnonzero(np.array(scores) <= lowest * (1 + _TIE))[0]])
        counts = counts + (np.arange(candidates) == chosen)
        sums = [s + head.predictions[chosen] for s, head in zip(sums, heads, strict=True)]
        if np.count_nonzero(counts) >= floor and lowest < best_score * (1 - _TIE):
            best, best_score = counts, lowest
    weights: np.ndarray = best / best.sum()
    return weights


def greedy_order(heads: Sequence[ScoredHead], most: int) -> list[int]:
    """Order candidates without repeats: each lowers the loss of the mean so far the most.

    Args:
        heads: the heads on the selection split, [C, R, w] each.
        most: largest number of candidates to list.
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


TestHeads = tuple[Sequence[int], Mapping[str, ScoredHead]]
"""The M candidates that predicted ``test``, and the heads there with predictions [M, R, w]."""


def compute_size_curves(
    heads: Mapping[str, ScoredHead],
    objectives: Sequence[float],
    trials: Sequence[str],
    test: TestHeads,
) -> dict[str, list[EnsembleSize]]:
    """Compute the errors of plain means of 1, 2, 3, ... candidates; no choice depends on them.

    Args:
        heads: heads on ``sel`` with predictions of all candidates, [C, R, w].
        objectives: validation objectives of the candidates, [C], in standard deviations.
        trials: names of the candidates, [C].
        test: the candidates that predicted ``test``; no other candidate predicts it (Law 6).

    Returns:
        By method (``top``: the K of lowest objective; ``greedy``: the first K that greedy selection
        draws on ``sel``) the errors for K = 1, 2, ... up to ``MOST``.
    """
    most = min(len(objectives), MOST)
    orders = {
        "top": np.argsort(np.asarray(objectives, np.float64), kind="stable")[:most].tolist(),
        "greedy": greedy_order(list(heads.values()), most),
    }
    place = {candidate: row for row, candidate in enumerate(test[0])}
    curves: dict[str, list[EnsembleSize]] = {method: [] for method in orders}
    for method, order in orders.items():
        for count in range(1, len(order) + 1):
            members = order[:count]
            is_known = all(candidate in place for candidate in members)
            rows = [place[candidate] for candidate in members] if is_known else []
            curves[method].append(
                {
                    "members": count,
                    "added": trials[members[-1]],
                    "sel_mae": compute_errors(heads, members),
                    "test_mae": compute_errors(test[1], rows) if is_known else None,
                }
            )
    return curves


def compute_errors(heads: Mapping[str, ScoredHead], rows: Sequence[int]) -> dict[str, float]:
    """Compute the error of the plain mean of some candidates.

    Args:
        heads: heads with the predictions of all candidates, [C, R, w].
        rows: positions of the candidates, at least one.

    Returns:
        MAE by head, in the head's unit.
    """
    members = list(rows)
    return {
        name: mae(head.predictions[members].mean(axis=0), head.truth)
        for name, head in heads.items()
    }


def weigh_per_head(
    heads: Sequence[ScoredHead], members: np.ndarray, terms: Terms
) -> list[np.ndarray]:
    """Weight the members of an ensemble for each head by that head's loss alone.

    All members run whichever head is predicted, so cost is ignored here.

    Args:
        heads: the heads on the selection split, [C, R, w] each.
        members: mask of the candidates that are members, [C].
        terms: rounds and floor; the other fields do not apply.

    Returns:
        Weights of the candidates for each head, [C], each summing to 1; 0 for members that do not
        improve the head.
    """
    chosen, per_head = np.flatnonzero(members), []
    for head in heads:
        among = ScoredHead(head.predictions[chosen], head.truth, 1.0)
        weights = np.zeros(len(members))
        weights[chosen] = select_greedy([among], Terms(rounds=terms.rounds, floor=terms.floor))
        per_head.append(weights)
    return per_head


def _allowed(counts: np.ndarray, floor: int, most: int | None) -> np.ndarray:
    """Return the candidates that may be drawn next.

    Args:
        counts: draws of each candidate so far, [C].
        floor: fewest distinct members.
        most: most distinct members; any number if None.
    """
    distinct = np.count_nonzero(counts)
    if distinct < floor:
        return np.flatnonzero(counts == 0)
    full = most is not None and distinct >= most
    return np.flatnonzero(counts) if full else np.arange(len(counts))


def _loss_with(
    heads: Sequence[ScoredHead], sums: Sequence[np.ndarray], draw: tuple[int, int]
) -> float:
    """Return the loss of the mix with one more draw.

    Args:
        heads: the heads on the selection split, [C, R, w] each.
        sums: predictions of the draws so far, summed, [R, w] by head.
        draw: the candidate that is drawn, and the number of draws with it.
    """
    candidate, draws = draw
    return sum(
        head.weight * float(np.abs((s + head.predictions[candidate]) / draws - head.truth).mean())
        for s, head in zip(sums, heads, strict=True)
    )


@dataclass(frozen=True)
class Diversity:
    """How much a head gains by mixing: mse = mean_member_mse - ambiguity."""

    correlation: list[list[float]]
    """Correlation of the members' errors, M x M; 1 on the diagonal, and between constant errors."""
    mean_correlation: float | None
    """Mean off the diagonal; None for one member."""
    mse: float
    """Mean square error of the mix, in the unit squared, summed over a vector's components."""
    mean_member_mse: float
    """Weighted mean of the members' mean square errors, in the unit squared."""
    ambiguity: float
    """Weighted mean square deviation of the members from the mix, in the unit squared."""


def compute_diversity(predictions: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> Diversity:
    """Compare the members of one head; only the correlation subtracts each member's mean error.

    Args:
        predictions: predictions of the members, [M, R, w], in the unit.
        truth: the target, [R, w], in the unit.
        weights: weights of the members, [M], summing to 1.

    Source: Krogh & Vedelsby (1995), Neural network ensembles, cross validation, and active
    learning, NIPS 7, eq. 7: the identity is exact for every weighting.
    """
    errors = predictions - truth
    mix = np.tensordot(weights, predictions, 1)

    def mean_square(values: np.ndarray) -> np.ndarray:
        means: np.ndarray = (values**2).sum(axis=-1).mean(axis=-1)
        return means

    matrix = _correlation(errors.reshape(len(errors), -1))
    pairs = matrix[~np.eye(len(matrix), dtype=bool)]
    return Diversity(
        correlation=matrix.tolist(),
        mean_correlation=float(pairs.mean()) if len(pairs) else None,
        mse=float(mean_square(mix - truth)),
        mean_member_mse=float(weights @ mean_square(errors)),
        ambiguity=float(weights @ mean_square(predictions - mix)),
    )


def _correlation(errors: np.ndarray) -> np.ndarray:
    """Return the correlation, [M, M], of members' errors, [M, n]; 1 between constant errors."""
    centred = errors - errors.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1)
    flat = norms <= 1e-300
    units = centred / np.where(flat, 1.0, norms)[:, None]
    matrix = np.clip(units @ units.T, -1.0, 1.0)
    matrix[np.ix_(flat, flat)] = 1.0
    np.fill_diagonal(matrix, 1.0)
    correlation: np.ndarray = matrix
    return correlation


@dataclass(frozen=True)
class MemberSelection:
    """Members and weights by each method, and the method that is kept."""

    kept: Method
    """The method whose mix becomes the ensemble."""
    why: str
    """Reason for that method, as part of a sentence."""
    weights: dict[Method, Weights]
    """The mix of each method."""
    selection: dict[str, SelectionScores]
    """Scores on ``sel`` of both mixes, and of ``single``, the best candidate alone."""

    @property
    def best(self) -> Weights:
        """The weights of the method that is kept."""
        return self.weights[self.kept]

    @property
    def needed(self) -> list[int]:
        """Positions of the members of all mixes and of candidate 0, the best one; ascending."""
        every = [w for by_head in self.weights.values() for w in by_head.values()]
        return [
            int(c) for c in np.flatnonzero(members_in_any(every) | (np.arange(len(every[0])) == 0))
        ]

    def shares(self, rows: Sequence[int]) -> dict[str, Weights]:
        """Return the weights of some candidates.

        Args:
            rows: the M candidates, in the order wanted.

        Returns:
            Weights by method and head, [M] each.
        """
        return {
            method: {name: share[list(rows)] for name, share in by_head.items()}
            for method, by_head in self.weights.items()
        }


def members_in_any(weights: Sequence[np.ndarray]) -> np.ndarray:
    """Check which candidates have weight in any head, [C]; ``weights`` are [C] per head."""
    mask: np.ndarray = np.any(np.stack(list(weights)) > 0, axis=0)
    return mask


def select_members(context: BuildContext) -> MemberSelection:
    """Select members by both methods; predictions of no other split than ``sel`` are used.

    Raises:
        RunError: a candidate's predictions cannot be read, or ``sel`` lacks a target.
    """
    config, heads = context.campaign.ensemble, make_scored_heads(context)
    stats = context.graphs.stats
    costs = [flops_per_graph(c.config.model, stats) for c in context.candidates]
    scored, objectives = list(heads.values()), [c.objective for c in context.candidates]
    terms = Terms(config.rounds, most=config.members, price=config.price, costs=costs)
    if config.per_head:
        # Without a price fewer members save nothing: take more, and let each head weight them.
        fill = terms if config.price else replace(terms, floor=max(config.members, FLOOR))
        mixed = weigh_per_head(scored, select_greedy(scored, fill) > 0, terms)
    else:
        mixed = [select_greedy(scored, terms)] * len(heads)
    weights: dict[Method, Weights] = {
        "top": dict.fromkeys(heads, select_top_k(objectives, config.members)),
        "greedy": dict(zip(heads, mixed, strict=True)),
    }
    kept, why = choose_method(config.method, min(context.groups(name, "sel") for name in heads))
    mixes: dict[str, Weights] = {method: mix for method, mix in weights.items()}
    mixes["single"] = dict.fromkeys(heads, np.eye(len(objectives))[0])
    selection = {name: _score_mix(context, heads, mix, costs) for name, mix in mixes.items()}
    return MemberSelection(kept, why, weights, selection)


def choose_method(wanted: Literal["auto", "top", "greedy"], groups: int) -> tuple[Method, str]:
    """Choose the method that is kept.

    Args:
        wanted: ``auto``, ``top`` or ``greedy``, from the campaign.
        groups: independent groups in ``sel`` with a label of the rarest target.

    Returns:
        The method, and the reason as part of a sentence.
    """
    if wanted != "auto":
        return wanted, f"the campaign says ensemble.method = '{wanted}'"
    enough = "at least" if groups >= ENOUGH else "fewer than"
    why = (
        f"sel holds {groups} independent groups, {enough} the {ENOUGH} that greedy selection needs"
    )
    return ("greedy" if groups >= ENOUGH else "top"), why


def compare_members(context: BuildContext, weights: Weights) -> dict[str, HeadDiversity]:
    """Measure the diversity of each head's members on ``sel``.

    Returns:
        By head, in the order of ``weights``.
    """
    stored = context.stored("sel")
    by_head: dict[str, HeadDiversity] = {}
    for name, share in weights.items():
        truth, mask = context.truth(name, "sel")
        chosen = np.flatnonzero(share)
        diversity = compute_diversity(stored[name][chosen][:, mask], truth[mask], share[chosen])
        by_head[name] = {
            "members": [context.candidates[c].trial for c in chosen],
            "correlation": diversity.correlation,
            "mean_correlation": diversity.mean_correlation,
            "mse": diversity.mse,
            "mean_member_mse": diversity.mean_member_mse,
            "ambiguity": diversity.ambiguity,
        }
    return by_head


def make_scored_heads(context: BuildContext) -> dict[str, ScoredHead]:
    """Read the truth on ``sel`` and the predictions of all candidates, [C, R, w].

    Returns:
        Heads by name, with their loss weights from the campaign.
    """
    common = context.campaign.trial.get("heads", {})
    shares = {name: float(common.get(name, {}).get("weight", 1.0)) for name in context.targets}
    stored, heads = context.stored("sel"), {}
    for name in context.targets:
        truth, mask = context.truth(name, "sel")
        weight = shares[name] / sum(shares.values()) / context.scale(name)
        heads[name] = ScoredHead(stored[name][:, mask], truth[mask], weight)
    return heads


def _score_mix(
    context: BuildContext,
    heads: Mapping[str, ScoredHead],
    weights: Weights,
    costs: Sequence[float],
) -> SelectionScores:
    """Compute loss, errors by head and cost of a mix on ``sel``."""
    members = members_in_any(list(weights.values()))
    return {
        "sel_loss": sum(loss([head], weights[name]) for name, head in heads.items()),
        "sel_mae": {
            name: mae(np.tensordot(weights[name], head.predictions, 1), head.truth)
            for name, head in heads.items()
        },
        "flops_per_graph": float(np.asarray(costs)[members].sum()),
        "members": _weights_by_trial(context, weights),
    }


def _weights_by_trial(context: BuildContext, weights: Weights) -> list[ChosenMember]:
    """List the members of a mix, each with its weights by head and their mean."""
    return [
        {
            "trial": context.candidates[c].trial,
            "weight": float(np.mean([share[c] for share in weights.values()])),
            "weights": {name: float(share[c]) for name, share in weights.items() if share[c]},
        }
        for c in np.flatnonzero(members_in_any(list(weights.values())))
    ]
