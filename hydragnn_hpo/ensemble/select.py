"""Select members and their weights on ``sel``: the K best, or greedily; how alike members err.

Shapes: C candidates, M members, R rows (graphs, or nodes of a node-level head), w components.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from hydragnn_hpo.ensemble.candidates import BuildContext, flops_per_graph
from hydragnn_hpo.ensemble.uncertainty_scores import mae

FLOOR = 4
"""Distinct members that greedy selection takes where there are as many candidates."""

MOST = 24
"""Largest ensemble of a size curve: errors hardly move any more."""

_TIE = 1e-12
"""Losses this close (relative) are equal: the order of a sum must not decide."""

Method = Literal["top", "greedy"]
Weights = dict[str, np.ndarray]
"""Of the candidates, [C], by head; each sums to 1."""
ENOUGH = 300
"""Groups in ``sel`` from which on greedy selection is better than the K best."""


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
    """Constraints of greedy selection."""

    rounds: int = 12
    """Draws in all; at least as many as the floor needs are made."""
    floor: int = FLOOR
    """Distinct members to reach where there are as many candidates."""
    most: int | None = None
    """Most distinct members; any number if None. The floor comes first."""
    price: float = 0.0
    """Part of the loss that a doubling of the members' cost must save."""
    costs: Sequence[float] | None = None
    """Cost of a structure with each candidate, > 0, in any unit; all alike if None."""


def loss(heads: Sequence[ScoredHead], weights: np.ndarray) -> float:
    """Return the weighted MAE of a mix, in standard deviations; ``weights`` [M] sum to 1."""
    return sum(
        head.weight * float(np.abs(np.tensordot(weights, head.predictions, 1) - head.truth).mean())
        for head in heads
    )


def select_top_k(objectives: Sequence[float], k: int) -> np.ndarray:
    """Weigh the ``k`` candidates of lowest objective equally, the others with 0: [M].

    Equal objectives: the earlier candidate wins.
    """
    order = np.argsort(np.asarray(objectives, dtype=np.float64), kind="stable")[:k]
    weights = np.zeros(len(objectives))
    weights[order] = 1.0 / len(order)
    return weights


def add_price(error: float, cost: float, price: float) -> float:
    """Return the loss with a price on cost: half the cost is worth a factor ``1 + price``.

    Args:
        error: the loss.
        cost: of all members together, > 0, in any unit: only ratios count.
        price: relative loss that a doubling of the cost must save, 0 for none.
    """
    exponent = math.log2(1.0 + price)
    return error * float(cost**exponent)


def select_greedy(heads: Sequence[ScoredHead], terms: Terms | None = None) -> np.ndarray:
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


Known = tuple[Sequence[int], Mapping[str, ScoredHead]]
"""The candidates that predicted another split, and its heads: predictions [M, R, w] of those."""


def compute_size_curves(
    heads: Mapping[str, ScoredHead], objectives: Sequence[float], test: Known
) -> dict[str, list[dict[str, Any]]]:
    """Return the errors of means of 1, 2, 3 and more candidates; nothing is chosen by them.

    Args:
        heads: on ``sel``, of all candidates, [C, R, w].
        objectives: of the candidates, [C].
        test: what some of the candidates predicted on ``test``; no other is run there (Law 6).

    Returns:
        By method (``top``: the K of lowest objective; ``greedy``: the first K that greedy selection
        draws on ``sel``), for K = 1, 2 and so on: ``members``; ``added``, the candidate that came
        in; ``sel_mae`` by head; ``test_mae`` by head, None where one of them did not predict
        ``test``.
    """
    most = min(len(objectives), MOST)
    orders = {
        "top": np.argsort(np.asarray(objectives, np.float64), kind="stable")[:most].tolist(),
        "greedy": greedy_order(list(heads.values()), most),
    }
    place = {candidate: row for row, candidate in enumerate(test[0])}
    curves: dict[str, list[dict[str, Any]]] = {method: [] for method in orders}
    for method, order in orders.items():
        for count in range(1, len(order) + 1):
            members = order[:count]
            is_known = all(candidate in place for candidate in members)
            rows = [place[candidate] for candidate in members] if is_known else []
            curves[method].append(
                {
                    "members": count,
                    "added": members[-1],
                    "sel_mae": compute_errors(heads, members),
                    "test_mae": compute_errors(test[1], rows) if is_known else None,
                }
            )
    return curves


def compute_errors(heads: Mapping[str, ScoredHead], rows: Sequence[int]) -> dict[str, float]:
    """Return the error of the plain mean of some candidates, by head."""
    taken = list(rows)
    return {
        name: mae(head.predictions[taken].mean(axis=0), head.truth) for name, head in heads.items()
    }


def weigh_per_head(
    heads: Sequence[ScoredHead], members: np.ndarray, terms: Terms
) -> list[np.ndarray]:
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
        weights[chosen] = select_greedy([among], Terms(rounds=terms.rounds, floor=terms.floor))
        found.append(weights)
    return found


def _allowed(counts: np.ndarray, floor: int, most: int | None) -> np.ndarray:
    """Return the candidates that may be drawn next."""
    there = np.count_nonzero(counts)
    if there < floor:
        return np.flatnonzero(counts == 0)
    full = most is not None and there >= most
    return np.flatnonzero(counts) if full else np.arange(len(counts))


def _loss_with(
    heads: Sequence[ScoredHead], sums: Sequence[np.ndarray], draw: tuple[int, int]
) -> float:
    """Return the loss of the mix if a candidate became its next draw: (candidate, draws)."""
    candidate, draws = draw
    return sum(
        head.weight * float(np.abs((s + head.predictions[candidate]) / draws - head.truth).mean())
        for s, head in zip(sums, heads, strict=True)
    )


@dataclass(frozen=True)
class Diversity:
    """How much a head gains by mixing: mse = mean_member_mse - ambiguity."""

    correlation: list[list[float]]
    """Of the members' errors, M x M; 1 on the diagonal. Errors that are all alike count as 1."""
    mean_correlation: float | None
    """Mean off the diagonal; None for one member."""
    mse: float
    """Of the mix, in the unit squared; per row, its components summed."""
    mean_member_mse: float
    """Weighted mean over the members."""
    ambiguity: float
    """Weighted mean square by which members differ from the mix."""

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def compute_diversity(predictions: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> Diversity:
    """Compare the members of one head; their errors are centred only in the correlation.

    Args:
        predictions: of each member, [M, R, w].
        truth: [R, w].
        weights: of the members, [M], summing to 1.

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
    """Correlate rows; rows that do not vary differ in nothing."""
    centred = errors - errors.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1)
    flat = norms <= 1e-300
    units = centred / np.where(flat, 1.0, norms)[:, None]
    matrix = np.clip(units @ units.T, -1.0, 1.0)
    matrix[np.ix_(flat, flat)] = 1.0
    np.fill_diagonal(matrix, 1.0)
    found: np.ndarray = matrix
    return found


@dataclass(frozen=True)
class MemberSelection:
    """Members and weights by each method, and the one that is kept."""

    kept: Method
    why: str
    """Why that one."""
    weights: dict[Method, Weights]
    selection: dict[str, Any]
    """How each does on ``sel``, beside the best single: plain data for the table."""

    @property
    def best(self) -> Weights:
        """Return the weights of the method that is kept."""
        return self.weights[self.kept]

    @property
    def needed(self) -> list[int]:
        """List the candidates that any method takes, and the first: the best single."""
        every = [w for by_head in self.weights.values() for w in by_head.values()]
        return [
            int(c) for c in np.flatnonzero(members_in_any(every) | (np.arange(len(every[0])) == 0))
        ]

    def shares(self, rows: Sequence[int]) -> dict[str, Weights]:
        """Return the weights of some candidates by method and head, [len(rows)] each."""
        return {
            method: {name: share[list(rows)] for name, share in by_head.items()}
            for method, by_head in self.weights.items()
        }


def members_in_any(weights: Sequence[np.ndarray]) -> np.ndarray:
    """Check which candidates have weight in any head, [C]."""
    taken: np.ndarray = np.any(np.stack(list(weights)) > 0, axis=0)
    return taken


def select_members(context: BuildContext) -> MemberSelection:
    """Choose by both methods, from what the candidates predicted on ``sel`` alone."""
    config, heads = context.campaign.ensemble, make_scored_heads(context)
    stats = context.graphs.stats
    costs = [flops_per_graph(c.config.model, stats) for c in context.candidates]
    scored, objectives = list(heads.values()), [c.objective for c in context.candidates]
    terms = Terms(config.rounds, most=config.members, price=config.price, costs=costs)
    if config.per_head:
        # Nothing is saved by fewer members: each head says what a further one is worth to it.
        fill = terms if config.price else replace(terms, floor=max(config.members, FLOOR))
        mixed = weigh_per_head(scored, select_greedy(scored, fill) > 0, terms)
    else:
        mixed = [select_greedy(scored, terms)] * len(heads)
    weights: dict[Method, Weights] = {
        "top": dict.fromkeys(heads, select_top_k(objectives, config.members)),
        "greedy": dict(zip(heads, mixed, strict=True)),
    }
    kept, why = choose_method(config.method, min(context.groups(name, "sel") for name in heads))
    selection: dict[str, Any] = {
        method: _diversity_of_heads(heads, mix, costs)
        | {"members": _weights_by_trial(context, mix)}
        for method, mix in weights.items()
    }
    alone = dict.fromkeys(heads, np.eye(len(objectives))[0])
    selection["single"] = _diversity_of_heads(heads, alone, costs) | {
        "members": _weights_by_trial(context, alone)
    }
    return MemberSelection(kept, why, weights, selection)


def choose_method(wanted: Literal["auto", "top", "greedy"], groups: int) -> tuple[Method, str]:
    """Return the method that is kept, and why.

    Args:
        wanted: ``auto``, ``top`` or ``greedy``, as the campaign says.
        groups: independent groups of ``sel`` that have the rarest target.
    """
    if wanted != "auto":
        return wanted, f"the campaign says ensemble.method = '{wanted}'"
    enough = "at least" if groups >= ENOUGH else "fewer than"
    why = (
        f"sel holds {groups} independent groups, {enough} the {ENOUGH} that greedy selection needs"
    )
    return ("greedy" if groups >= ENOUGH else "top"), why


def compare_members(context: BuildContext, weights: Weights) -> dict[str, Any]:
    """Return the diversity of each head's members on ``sel``, and their names."""
    stored, found = context.stored("sel"), {}
    for name, share in weights.items():
        truth, mask = context.truth(name, "sel")
        chosen = np.flatnonzero(share)
        seen = compute_diversity(stored[name][chosen][:, mask], truth[mask], share[chosen])
        found[name] = {"members": [context.candidates[c].trial for c in chosen]} | seen.to_plain()
    return found


def make_scored_heads(context: BuildContext) -> dict[str, ScoredHead]:
    """Return each head's predictions on ``sel`` beside the truth, with its share in the loss."""
    common = context.campaign.trial.get("heads", {})
    shares = {name: float(common.get(name, {}).get("weight", 1.0)) for name in context.targets}
    stored, heads = context.stored("sel"), {}
    for name in context.targets:
        truth, mask = context.truth(name, "sel")
        weight = shares[name] / sum(shares.values()) / context.scale(name)
        heads[name] = ScoredHead(stored[name][:, mask], truth[mask], weight)
    return heads


def _diversity_of_heads(
    heads: Mapping[str, ScoredHead], weights: Weights, costs: Sequence[float]
) -> dict[str, Any]:
    """Return loss, errors by head and cost of a mix on ``sel``."""
    members = members_in_any(list(weights.values()))
    return {
        "sel_loss": sum(loss([head], weights[name]) for name, head in heads.items()),
        "sel_mae": {
            name: mae(np.tensordot(weights[name], head.predictions, 1), head.truth)
            for name, head in heads.items()
        },
        "flops_per_graph": float(np.asarray(costs)[members].sum()),
    }


def _weights_by_trial(context: BuildContext, weights: Weights) -> list[dict[str, Any]]:
    """Return the members of a mix, each with its weights by head and their mean."""
    return [
        {
            "trial": context.candidates[c].trial,
            "weight": float(np.mean([share[c] for share in weights.values()])),
            "weights": {name: float(share[c]) for name, share in weights.items() if share[c]},
        }
        for c in np.flatnonzero(members_in_any(list(weights.values())))
    ]
