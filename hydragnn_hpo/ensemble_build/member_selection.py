"""Select members and their weights on ``val`` and ``sel``, and measure their diversity on ``sel``.

A *mix* is the weighted mean of the candidates' predictions; its members are those of weight > 0.
Two methods: the K best with equal weights, and weights that each head draws greedily.

Shapes: C candidates, M members, R rows (graphs, or nodes of a node-level head), w components.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hydragnn_hpo.ensemble_build.candidates import BuildContext, Net, flops_per_graph, list_nets
from hydragnn_hpo.file_records import ChosenMember, EnsembleSize, HeadDiversity, SelectionScores
from hydragnn_hpo.uncertainty import log_losses

FLOOR = 4
"""Members that a head should have, so that their spread says something, if they cost little."""

SPARE_SHARE, SPARE_LOSS = 0.05, 0.01
"""Weight of a member that is there for the spread alone, and the relative loss it may cost."""

BAGS = 24
"""Bootstrap samples of the groups whose greedy selections are averaged."""

BAG_VALUES = 20_000
"""Rows of a bootstrap sample of many rows: more would take time and change nothing."""

EQUAL_GROUPS = 50
"""Groups of structures that count as much as the assumption that members are equally good."""

LEAST = 0.2
"""Part of an equal share below which a weight is left out: it costs a prediction for nothing."""

MOST = 24
"""Largest ensemble of a size curve; with more members errors hardly change."""

_TIE = 1e-12
"""Relative difference below which losses are equal, so that the order of a sum cannot decide."""

Method = Literal["top", "greedy"]
"""``top``: the K of lowest validation objective; ``greedy``: ``weigh_members``."""
Weights = dict[str, np.ndarray]
"""Weights of the candidates, [C], by head; those of one head sum to 1."""


@dataclass(frozen=True)
class ScoredHead:
    """One head on the rows of a split that have the target."""

    predictions: np.ndarray
    """Predictions of the candidates, [C, R, w], in the target's unit."""
    truth: np.ndarray
    """The target, [R, w], in its unit."""
    weight: float
    """Share of the head in the loss, divided by the target's standard deviation, 1 / unit."""
    group: np.ndarray
    """Group of structures that each row belongs to, [R]."""
    is_class: bool = False
    """Whether predictions are probabilities of classes, whose error is the log-loss."""

    def errors(self, predictions: np.ndarray) -> np.ndarray:
        """Return the error of each row, in the unit, [..., R].

        Args:
            predictions: [..., R, w].
        """
        if self.is_class:
            return log_losses(predictions, self.truth)
        errors: np.ndarray = np.abs(predictions - self.truth).mean(axis=-1)
        return errors

    def take(self, rows: np.ndarray | slice, candidates: np.ndarray | slice) -> "ScoredHead":
        """Return some rows and candidates of the head."""
        predictions = self.predictions[candidates][:, rows]
        return replace(
            self, predictions=predictions, truth=self.truth[rows], group=self.group[rows]
        )


@dataclass(frozen=True)
class Terms:
    """Constraints of greedy selection."""

    rounds: int = 12
    """Number of draws."""
    price: float = 0.0
    """Relative penalty on the loss when the members' cost doubles; 0 ignores the cost."""
    costs: Sequence[float] | None = None
    """Cost of one structure with each candidate, [C], > 0, in any unit; all equal if None."""


def loss(heads: Sequence[ScoredHead], weights: np.ndarray) -> float:
    """Return the weighted MAE of a mix, in standard deviations; ``weights`` [C] sum to 1."""
    return sum(
        head.weight * float(head.errors(np.tensordot(weights, head.predictions, 1)).mean())
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

    The best of the mixes after each draw is kept. Ties go to the earlier candidate and to the mix
    of fewer draws, so the result does not depend on how sums are rounded.

    Args:
        heads: the heads on the selection split, [C, R, w] each.
        terms: rounds, price and costs; the default ``Terms`` if None.

    Returns:
        Weights of the candidates, [C], summing to 1.

    Source: Caruana et al. (2004), Ensemble selection from libraries of models, ICML.
    """
    terms = terms or Terms()
    candidates = len(heads[0].predictions)
    costs = np.ones(candidates) if terms.costs is None else np.asarray(terms.costs, np.float64)
    counts = np.zeros(candidates, dtype=np.int64)
    sums = [np.zeros_like(head.truth) for head in heads]
    best = counts
    best_score = np.inf
    for draw in range(1, terms.rounds + 1):
        scores = np.array([_loss_with(heads, sums, (c, draw)) for c in range(candidates)])
        if terms.price:
            bills = [
                costs[(counts > 0) | (np.arange(candidates) == c)].sum() for c in range(candidates)
            ]
            scores = np.array(
                [add_price(e, b, terms.price) for e, b in zip(scores, bills, strict=True)]
            )
        lowest = float(scores.min())
        chosen = int(np.flatnonzero(scores <= lowest * (1 + _TIE))[0])
        counts = counts + (np.arange(candidates) == chosen)
        sums = [s + head.predictions[chosen] for s, head in zip(sums, heads, strict=True)]
        if lowest < best_score * (1 - _TIE):
            best, best_score = counts, lowest
    weights: np.ndarray = best / best.sum()
    return weights


def average_bags(heads: Sequence[ScoredHead], terms: Terms | None = None) -> np.ndarray:
    """Average greedy selections on bootstrap samples of the groups.

    Where the groups are few the samples disagree and the average comes near equal weights among
    the candidates that are good in some sample; a candidate that always loses gets nothing.

    Args:
        heads: the heads on the selection split, [C, R, w] each.
        terms: of each selection; the default ``Terms`` if None.

    Returns:
        Weights of the candidates, [C], summing to 1; the same for the same input.

    Source: Caruana et al. (2004), section 2.3 (bagged ensemble selection).
    """
    rng = np.random.default_rng(0)
    groups = np.unique(np.concatenate([head.group for head in heads]))
    rows_of = [_rows_by_group(head.group, groups) for head in heads]
    most = max(len(head.group) for head in heads)
    size = math.ceil(len(groups) * min(1.0, BAG_VALUES / most))
    total = np.zeros(len(heads[0].predictions))
    for _ in range(BAGS):
        drawn = rng.integers(len(groups), size=size)
        sample = []
        for head, rows in zip(heads, rows_of, strict=True):
            some = np.concatenate([rows[g] for g in drawn])
            sample.append(head.take(some if len(some) else slice(None), slice(None)))
        total += select_greedy(sample, terms)
    weights: np.ndarray = total / BAGS
    return weights


def weigh_by_loss(heads: Sequence[ScoredHead]) -> np.ndarray:
    """Return weights by the losses of the candidates, nearly equal for those that are as good, [C].

    The weight is the inverse square of the loss, times exp(-z^2 / 2) for a candidate whose loss
    exceeds the best one's by z standard errors of their difference, before all are scaled to the
    sum 1. So where groups are too few to tell candidates apart, one of twice the error still has a
    quarter of the weight. Groups of structures are the independent units of the standard error.

    Args:
        heads: the heads on the selection split, [C, R, w] each.

    Source: Bates & Granger (1969), Operational Research Quarterly 20, 451: inverse variances.
    """
    groups = np.unique(np.concatenate([head.group for head in heads]))
    parts = np.zeros((len(heads[0].predictions), len(groups)))  # of the loss, by group
    for head in heads:
        place = np.searchsorted(groups, head.group)
        errors = head.errors(head.predictions) / len(place)
        for part, error in zip(parts, errors, strict=True):
            part += head.weight * np.bincount(place, error, len(groups))
    losses = parts.sum(axis=1)
    best = int(np.argmin(losses))
    excess = losses - losses[best]
    weights = (excess <= _TIE * losses[best]).astype(np.float64)
    if len(groups) > 1:
        error = np.sqrt(len(groups) * (parts - parts[best]).var(axis=1, ddof=1))
        known = error > 0.0
        weights[known] = np.exp(-((excess[known] / error[known]) ** 2) / 2.0)
    else:  # one group has no standard error
        weights[:] = 1.0
    known = losses > 0.0
    weights[known] *= np.square(losses[best] / losses[known])
    shares: np.ndarray = weights / weights.sum()
    return shares


def shrink_weights(heads: Sequence[ScoredHead], rounds: int) -> np.ndarray:
    """Average greedy selections of some candidates, shrunk towards the weights by loss.

    With G groups the average counts G / (G + ``EQUAL_GROUPS``).

    Args:
        heads: on the selection split, [C, R, w] each.
        rounds: draws of each greedy selection.

    Returns:
        Weights, [C], summing to 1.

    Source: Diebold & Pauly (1990), The use of prior information in forecast combination,
    International Journal of Forecasting 6, 503 (shrinkage towards prior weights).
    """
    groups = len(np.unique(np.concatenate([head.group for head in heads])))
    known = groups / (groups + EQUAL_GROUPS)
    drawn = average_bags(heads, Terms(rounds))
    weights: np.ndarray = known * drawn + (1.0 - known) * weigh_by_loss(heads)
    return weights


def weigh_alone(heads: Sequence[ScoredHead], rounds: int) -> np.ndarray:
    """Return the weights of some candidates for one head, or of several heads that share them.

    Of the weights of ``shrink_weights`` those below ``LEAST`` of an equal share are left out. If
    fewer than ``FLOOR`` members remain, the next best ones take ``SPARE_SHARE`` each, so that there
    is a spread to calibrate, unless that would raise the loss by more than ``SPARE_LOSS``.

    Args:
        heads: on the selection split, [C, R, w] each.
        rounds: draws of each greedy selection.

    Returns:
        Weights, [C], summing to 1.
    """
    weights = shrink_weights(heads, rounds)
    weights = np.where(weights < LEAST / len(weights), 0.0, weights)
    weights /= weights.sum()
    singles = [loss(heads, one) for one in np.eye(len(weights))]
    for candidate in np.argsort(singles, kind="stable"):
        if np.count_nonzero(weights) >= FLOOR:
            break
        if not weights[candidate]:
            wider = (1.0 - SPARE_SHARE) * weights
            wider[candidate] = SPARE_SHARE
            if loss(heads, wider) <= (1.0 + SPARE_LOSS) * loss(heads, weights):
                weights = wider
    return weights


def weigh_members(
    heads: Sequence[ScoredHead], terms: Terms, most: int, *, per_head: bool = True
) -> list[np.ndarray]:
    """Choose at most ``most`` members for all heads together, and weight them for each head.

    Members are the candidates of largest mean weight over the heads; with a price, those that all
    heads together choose at that price. All members run whichever head is predicted, so within
    them cost is ignored.

    Args:
        heads: the heads on the selection split, [C, R, w] each.
        terms: rounds, price and costs.
        most: most members.
        per_head: whether each head has weights of its own.

    Returns:
        Weights of the candidates for each head, [C], each summing to 1.
    """
    parts = [[head] for head in heads] if per_head else [list(heads)]
    if terms.price:
        wanted = average_bags(heads, terms)
        most = min(most, max(FLOOR, int(np.count_nonzero(wanted >= LEAST / len(wanted)))))
    else:
        wanted = np.mean([average_bags(part, terms) for part in parts], axis=0)
    chosen = np.sort(np.argsort(-wanted, kind="stable")[:most])
    by_part = []
    for part in parts:
        weights = np.zeros(len(wanted))
        among = [head.take(slice(None), chosen) for head in part]
        weights[chosen] = weigh_alone(among, terms.rounds)
        by_part.append(weights)
    return by_part if per_head else by_part * len(heads)


def _rows_by_group(group: np.ndarray, groups: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each group.

    Args:
        group: group of each row, [R].
        groups: all groups, ascending, [G].
    """
    order = np.argsort(group, kind="stable")
    return np.split(order, np.searchsorted(group[order], groups[1:]))


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
        name: float(head.errors(head.predictions[members].mean(axis=0)).mean())
        for name, head in heads.items()
    }


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
        head.weight * float(head.errors((s + head.predictions[candidate]) / draws).mean())
        for s, head in zip(sums, heads, strict=True)
    )


def compute_diversity(
    members: Sequence[str], predictions: np.ndarray, truth: np.ndarray, weights: np.ndarray
) -> HeadDiversity:
    """Compare the members of one head; only the correlation subtracts each member's mean error.

    Args:
        members: names of the M trials.
        predictions: predictions of the members, [M, R, w], in the unit.
        truth: the target, [R, w], in the unit.
        weights: weights of the members, [M], summing to 1.

    Returns:
        How much the head gains by mixing: ``mse`` is ``mean_member_mse`` less ``ambiguity``; errors
        of a vector are summed over its components, and constant errors have the correlation 1.

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
    return {
        "members": list(members),
        "correlation": matrix.tolist(),
        "mean_correlation": float(pairs.mean()) if len(pairs) else None,
        "mse": float(mean_square(mix - truth)),
        "mean_member_mse": float(weights @ mean_square(errors)),
        "ambiguity": float(weights @ mean_square(predictions - mix)),
    }


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


def share_weights(choice: MemberSelection, nets: Sequence[Net]) -> dict[Method, Weights]:
    """Share the weights of candidates among their nets.

    Args:
        choice: the candidates and their weights.
        nets: M nets of these candidates, in the order wanted.

    Returns:
        Weights by method and head, [M] each.
    """
    rows = [net.candidate for net in nets]
    parts = np.array([net.share for net in nets])
    return {
        method: {name: share[rows] * parts for name, share in by_head.items()}
        for method, by_head in choice.weights.items()
    }


def list_kept(context: BuildContext, choice: MemberSelection) -> list[Net]:
    """Return the nets of the ensemble: those of candidates with weight in any head."""
    rows = np.flatnonzero(members_in_any(list(choice.best.values()))).tolist()
    return [net for net in list_nets(context, rows) if net.share]


def members_in_any(weights: Sequence[np.ndarray]) -> np.ndarray:
    """Check which candidates have weight in any head, [C]; ``weights`` are [C] per head."""
    mask: np.ndarray = np.any(np.stack(list(weights)) > 0, axis=0)
    return mask


def select_members(context: BuildContext) -> MemberSelection:
    """Select members by both methods from the stored predictions of ``val`` and ``sel``.

    Raises:
        RunError: a candidate's predictions cannot be read, or a split lacks a target.
    """
    config = context.campaign.ensemble
    known = make_scored_heads(context, context.judged)
    costs = [flops_per_graph(c.config.model, context.graphs.stats) for c in context.candidates]
    weights = weigh_candidates(context, known, costs)
    kept, why = choose_method(
        config.method, min(len(np.unique(h.group)) for h in known.values()), context.judged
    )
    mixes: dict[str, Weights] = {method: mix for method, mix in weights.items()}
    mixes["single"] = dict.fromkeys(known, np.eye(len(costs))[0])
    heads = make_scored_heads(context)
    selection = {name: _score_mix(context, heads, mix, costs) for name, mix in mixes.items()}
    return MemberSelection(kept, why, weights, selection)


def weigh_candidates(
    context: BuildContext, known: Mapping[str, ScoredHead], costs: Sequence[float]
) -> dict[Method, Weights]:
    """Weight the candidates by both methods.

    Args:
        context: data shared by all steps of the build.
        known: heads by name on the rows to weight by, with predictions of all candidates.
        costs: cost of one structure with each candidate, [C].

    Returns:
        Weights of the candidates, [C], by method and head.
    """
    config = context.campaign.ensemble
    objectives = [c.objective for c in context.candidates]
    terms = Terms(config.rounds, config.price, costs)
    scored = list(known.values())
    mixed = weigh_members(scored, terms, config.members, per_head=config.per_head)
    return {
        "top": dict.fromkeys(known, select_top_k(objectives, config.members)),
        "greedy": dict(zip(known, mixed, strict=True)),
    }


def choose_method(
    wanted: Literal["auto", "top", "greedy"], groups: int, splits: Sequence[str] = ("val", "sel")
) -> tuple[Method, str]:
    """Choose the method that is kept.

    Args:
        wanted: ``auto``, ``top`` or ``greedy``, from the campaign.
        groups: independent groups in those splits with a label of the rarest target.
        splits: those that weights are chosen on; one alone means all folds.

    Returns:
        The method, and the reason as part of a sentence.
    """
    if wanted != "auto":
        return wanted, f"the campaign says ensemble.method = '{wanted}'"
    known = groups / (groups + EQUAL_GROUPS)
    where = " and ".join(splits) if len(splits) > 1 else "the folds"
    why = (
        f"{where} hold {groups} independent groups, so their errors count {known:.0%} in the "
        "weights, and equality of the good members the rest"
    )
    return "greedy", why


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
        members = [context.candidates[c].trial for c in chosen]
        values = stored[name][chosen][:, mask]
        by_head[name] = compute_diversity(members, values, truth[mask], share[chosen])
    return by_head


def make_scored_heads(
    context: BuildContext, splits: Sequence[str] = ("sel",)
) -> dict[str, ScoredHead]:
    """Read the truth on some splits and the stored predictions of all candidates, [C, R, w].

    Args:
        context: data shared by all steps of the build.
        splits: of ``val``, ``sel`` and ``cal``; their rows follow one another.

    Returns:
        Heads by name, with their loss weights from the campaign.

    Raises:
        RunError: predictions cannot be read, or a split lacks a target.
    """
    common = context.campaign.trial.get("heads", {})
    shares = {name: float(common.get(name, {}).get("weight", 1.0)) for name in context.targets}
    stored = {split: context.stored(split) for split in splits}
    heads = {}
    for name in context.targets:
        parts = []
        for split in splits:
            truth, mask = context.truth(name, split)
            group = context.group_of_row(name, split)
            parts.append((stored[split][name][:, mask], truth[mask], group[mask]))
        predictions, truths, groups = zip(*parts, strict=True)
        heads[name] = ScoredHead(
            np.concatenate(predictions, axis=1),
            np.concatenate(truths),
            shares[name] / sum(shares.values()) / context.scale(name),
            np.concatenate(groups),
            context.is_class(name),
        )
    return heads


def _score_mix(
    context: BuildContext,
    heads: Mapping[str, ScoredHead],
    weights: Weights,
    costs: Sequence[float],
) -> SelectionScores:
    """Compute loss, errors by head and cost of a mix on ``sel``, and list its members."""
    members = members_in_any(list(weights.values()))
    chosen: list[ChosenMember] = [
        {
            "trial": context.candidates[c].trial,
            "weight": float(np.mean([share[c] for share in weights.values()])),
            "weights": {name: float(share[c]) for name, share in weights.items() if share[c]},
        }
        for c in np.flatnonzero(members)
    ]
    return {
        "sel_loss": sum(loss([head], weights[name]) for name, head in heads.items()),
        "sel_mae": {
            name: float(head.errors(np.tensordot(weights[name], head.predictions, 1)).mean())
            for name, head in heads.items()
        },
        "flops_per_graph": float(np.asarray(costs)[members].sum()),
        "members": chosen,
    }
