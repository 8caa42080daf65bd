"""Fit the predictions that an ensemble is compared with, and let one join where it helps.

A regression on local descriptors, or on features of a foundation model where graphs come with them,
is compared in all heads. As it has no derivatives, it may join all but energies with forces or
stress beside them, and these (Law 11), as one more configuration: fitted on what the nets were
trained on, without a fold where these were, and weighted by its errors on structures that it has
not seen (Law 6).

Shapes: C candidates, K regressions (one, or one for each fold), R rows of a head, w components.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hydragnn_hpo.config import ELEMENTS
from hydragnn_hpo.ensemble.artefact import LocalShare
from hydragnn_hpo.ensemble.baselines import CompositionModel, fit_baseline
from hydragnn_hpo.ensemble.local_descriptors import (
    MOST_ATOMS,
    LocalModels,
    find_start,
    fit_local_models,
)
from hydragnn_hpo.ensemble.local_members import LocalMember
from hydragnn_hpo.ensemble_build.candidates import BuildContext, CrossContext
from hydragnn_hpo.ensemble_build.member_selection import (
    LEAST,
    MemberSelection,
    ScoredHead,
    Weights,
    make_scored_heads,
    shrink_weights,
)
from hydragnn_hpo.file_records import LocalJoining, TargetStats
from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.uncertainty.paired_comparison import CLEAR, compare

logger = logging.getLogger(__name__)

MOST_PREDICTED = 1_000_000
"""Most atoms outside of the training split where regressions may join: to describe them all takes a
minute on one core, and so many labels leave a regression behind a net."""

LARGEST_SHARE = 0.9
"""Largest weight of the regressions of a head: the nets keep a spread of their own."""

LEAST_GAIN = 0.02
"""Least share of the error that a regression must take off on one fold: less does not pay for the
fits on the others, which take as long as all other work of a build."""

LEAST_ENERGY_GAIN = 0.1
"""The same of energies that nets give forces of, which the ensemble then has no longer."""

_INNER_SHARE = 0.2
"""Share of the groups of a fold's training structures that choose the penalties."""


class SimplerModels(NamedTuple):
    """Predictions that an ensemble is compared with."""

    baselines: dict[str, CompositionModel]
    """Predictions from the elements alone, by head; vectors per atom have none."""
    local: LocalModels | None
    """Predictions from local descriptors, by head; None where nothing is labelled."""


def fit_simpler_models(context: BuildContext) -> SimplerModels:
    """Fit the predictions that an ensemble is compared with, on the training split."""
    train = context.rows_of("train")
    val = context.rows_of("val")
    return _fit_models(context, context.targets, train=train, val=val)


def _fit_models(
    context: BuildContext,
    targets: Mapping[str, TargetStats],
    *,
    train: np.ndarray,
    val: np.ndarray,
    refit: bool = False,
) -> SimplerModels:
    """Fit the predictions from the elements, and from local descriptors on samples of many atoms.

    Args:
        context: data shared by all steps of the build.
        targets: the targets by name.
        train: positions in the store of the graphs to fit, [G].
        val: those of the graphs that choose penalties, [G].
        refit: whether the regression also fits ``val`` in the end.
    """
    fits = {
        name: fit_baseline(name, target, context.take(train), context.take(val))
        for name, target in targets.items()
    }
    baselines = {name: fit for name, fit in fits.items() if fit is not None}
    local = fit_local_models(
        targets,
        baselines,
        train=context.take(_draw_rows(context, train)),
        val=context.take(_draw_rows(context, val)),
        cutoff=min(candidate.config.model.cutoff for candidate in context.candidates),
        refit=refit,
        trunk=_choose_trunk(context),
    )
    return SimplerModels(baselines, local)


def _choose_trunk(context: BuildContext) -> str:
    """Return the foundation model that the best trial with one reads; empty if features are absent.

    What a member reads already costs a prediction nothing more.
    """
    computed = sorted(context.graphs.stats.get("features", {}))
    read = (candidate.config.model.embedding for candidate in context.candidates)
    return next((name for name in (*read, *computed) if name in computed), "")


def _draw_rows(context: BuildContext, rows: np.ndarray) -> np.ndarray:
    """Return graphs of at most ``MOST_ATOMS`` atoms together, drawn from ``rows``, ascending."""
    seed = derive_seed(context.campaign.seed, "ensemble", "local descriptors")
    drawn = rows[np.random.default_rng(seed).permutation(len(rows))]
    chosen = np.cumsum(context.graphs.num_nodes()[drawn]) <= MOST_ATOMS
    return np.sort(drawn[chosen])


def can_join(name: str, targets: Mapping[str, TargetStats]) -> bool:
    """Check whether a regression may join a head: nothing is a derivative of it, nor it of another.

    Args:
        name: name of the head.
        targets: of all heads, by name.
    """
    derived = {target.get("derived_from") for target in targets.values()}
    return name not in derived and not targets[name].get("derived_from")


def _has_derivatives(context: BuildContext, weights: np.ndarray) -> bool:
    """Check that no candidate with a weight, [C], begins from frozen features."""
    chosen = (context.candidates[c] for c in np.flatnonzero(weights))
    return all(one.config.model.embedding == ELEMENTS for one in chosen)


@dataclass(frozen=True)
class JoinedModels:
    """The regressions on local descriptors that join an ensemble."""

    members: tuple[LocalMember, ...] = ()
    """The K regressions, for the heads that they join; empty where they join none."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of the K together, by head; the nets share the rest."""
    learned: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Predictions for ``cal``, each by the one that has not seen the structure, [R, w], by head."""
    unseen: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Predictions of each for ``test``, which none has seen, [K, R, w], by head."""
    judged: dict[str, LocalJoining] = field(default_factory=dict)
    """By head, also of those that none joins: errors with and without."""

    def widen_heads(
        self, context: BuildContext, heads: Mapping[str, ScoredHead]
    ) -> dict[str, ScoredHead]:
        """Append the regressions to the candidates of the heads that they join.

        Args:
            context: data shared by all steps of the build.
            heads: heads on the labelled rows of ``cal``, [C, R, w].

        Returns:
            These heads alone, [C + 1, R, w].
        """
        return {
            name: append_candidate(heads[name], self.learned[name][context.truth(name, "cal")[1]])
            for name in self.weights
        }

    def share_of(self, head: str) -> LocalShare | None:
        """Return the entry of the regressions in the manifest; None in a head that none joins."""
        if head not in self.weights:
            return None
        elements = tuple(one.describe_start(head) for one in self.members)
        trunk = self.members[0].models.find_trunk(head)
        return LocalShare(weight=self.weights[head], elements=elements, trunk=trunk)

    def append_shares(self, weights: Weights, *, joined: bool) -> Weights:
        """Append the weights of the regressions to those of the nets.

        Args:
            weights: of the M nets, [M], by head.
            joined: whether the regressions have their weights, or 0.

        Returns:
            Weights by head, [M + K].
        """
        count = len(self.members)
        longer = {}
        for name, shares in weights.items():
            share = self.weights.get(name, 0.0) if joined else 0.0
            own = np.full(count, share / max(count, 1))
            longer[name] = np.concatenate([(1.0 - share) * shares, own])
        return longer


def join_local_models(
    context: BuildContext, choice: MemberSelection, simpler: SimplerModels
) -> JoinedModels:
    """Fit the regressions as members, and decide which heads they join.

    A regression joins where the mix with it has an error that is clearly below that of the nets, on
    structures that neither has seen. The weight is fitted to these structures, too, but that cannot
    pass for a gain: where the error falls with the slope d at weight 0 and has a minimum, the gain
    there is half of d times the weight, and its standard error the weight times that of d, so two
    standard errors of the gain are four of the slope.

    Args:
        context: data shared by all steps of the build.
        choice: the selected members and their weights.
        simpler: the fit on the training split, which joins where there are no folds.
    """
    config = context.campaign.ensemble
    first = _make_first(context, choice, simpler)
    if config.local_descriptors == "never" or choice.kept != "greedy" or first is None:
        return JoinedModels()
    members: tuple[LocalMember, ...] = (first,)
    judged = _judge_heads(context, choice, members)
    if isinstance(context, CrossContext):  # so far on one fold, which spares the other fits
        names = [name for name, one in judged.items() if is_promising(one)]
        members = _fit_on_folds(context, names) if names else ()
        judged = {name: {**one, "weight": 0.0} for name, one in judged.items()}
        judged |= _judge_heads(context, choice, members) if members else {}
    weights = {name: one["weight"] for name, one in judged.items() if one["weight"]}
    if not weights or not members:
        return JoinedModels(judged=judged)
    members = tuple(one.restrict_to([*weights]) for one in members)
    each = [_predict_rows(context, one, context.rows_of("test")) for one in members]
    return JoinedModels(
        members,
        weights,
        learned=_predict_learned(context, members, "cal"),
        unseen={name: np.stack([one[name] for one in each]) for name in weights},
        judged=judged,
    )


def _make_first(
    context: BuildContext, choice: MemberSelection, simpler: SimplerModels
) -> LocalMember | None:
    """Return the fit on the training split for the heads that it may join.

    Args:
        context: data shared by all steps of the build.
        choice: the selected members and their weights.
        simpler: has the fit.

    Returns:
        None where there is no such head, or where the data has too many atoms.
    """
    atoms = int(context.graphs.num_nodes().sum())
    local = simpler.local
    if local is None:
        return None
    names = [name for name in local.heads if can_join(name, context.targets)]
    if not names:
        return None
    if atoms > MOST_PREDICTED:
        logger.info("no regression joins, as the data has %d atoms.", atoms)
        return None
    return _make_member(context, local, simpler.baselines, names)


def _make_member(
    context: BuildContext,
    local: LocalModels,
    baselines: Mapping[str, CompositionModel],
    names: Sequence[str],
) -> LocalMember:
    """Return a fit as a member of the heads ``names``."""
    targets = {name: context.targets[name] for name in names}
    starts = {
        name: find_start(baselines.get(name), target.get("origin"), target.get("charge"))
        for name, target in targets.items()
    }
    sums = {name: target.get("sum") for name, target in targets.items()}
    return LocalMember(local, starts, sums).restrict_to(names)


def _fit_on_folds(context: CrossContext, names: Sequence[str]) -> tuple[LocalMember, ...]:
    """Fit the regressions of some heads without each fold; none where a fold lacks their labels."""
    members = []
    for fold in range(context.folds):
        fit = _fit_without_fold(context, names, fold)
        if fit.local is None or set(fit.local.heads) != set(names):
            return ()
        members.append(_make_member(context, fit.local, fit.baselines, names))
    return tuple(members)


def _fit_without_fold(context: CrossContext, names: Sequence[str], fold: int) -> SimplerModels:
    """Fit the structures of all folds but one; a share of their groups chooses the penalties."""
    learned = context.learned_rows
    learned = learned[context.fold[learned] != fold]
    groups = np.unique(context.graphs.group[learned])
    seed = derive_seed(context.campaign.seed, "ensemble", f"local descriptors without fold {fold}")
    order = np.random.default_rng(seed).permutation(groups)
    inner = np.isin(context.graphs.group[learned], order[: int(_INNER_SHARE * len(order))])
    targets = {name: context.targets[name] for name in names}
    return _fit_models(context, targets, train=learned[~inner], val=learned[inner], refit=True)


def _judge_heads(
    context: BuildContext, choice: MemberSelection, members: Sequence[LocalMember]
) -> dict[str, LocalJoining]:
    """Compare the errors of the nets with and without regressions, by head.

    Args:
        context: data shared by all steps of the build.
        choice: the selected members and their weights.
        members: a regression for each fold, or for the first folds, whose rows alone count.
    """
    seen = {split: _predict_learned(context, members, split) for split in context.judged}
    judged = {}
    rounds = context.campaign.ensemble.rounds
    for name, head in make_scored_heads(context, context.judged).items():
        if name in members[0].starts:
            masks = [context.truth(name, split)[1] for split in context.judged]
            parts = zip(context.judged, masks, strict=True)
            values = np.concatenate([seen[split][name][mask] for split, mask in parts])
            rows = np.flatnonzero(np.isfinite(values[:, 0]))
            both = append_candidate(head.take(rows, slice(None)), values[rows])
            weights = choice.best[name]
            gives_forces = context.targets[name].get("energy") and _has_derivatives(
                context, weights
            )
            least = LEAST_ENERGY_GAIN if gives_forces else 0.0
            judged[name] = judge_joining(both, weights, rounds, least)
    return judged


def _predict_rows(
    context: BuildContext, member: LocalMember, rows: np.ndarray
) -> dict[str, np.ndarray]:
    """Predict at least one structure, [R, w] by head; ``rows`` are positions in the store."""
    parts = [member.predict(piece) for piece in context.take(rows)]
    return {name: np.concatenate([part[name] for part in parts]) for name in member.starts}


def _predict_learned(
    context: BuildContext, members: Sequence[LocalMember], split: str
) -> dict[str, np.ndarray]:
    """Predict a split with, for each structure, the regression that has not seen it.

    Args:
        context: data shared by all steps of the build.
        members: the K regressions.
        split: name of the split.

    Returns:
        By head, [R, w]; NaN in folds without a regression.
    """
    rows = context.rows_of(split)
    unseen_by = context.fold[rows] if isinstance(context, CrossContext) else np.zeros(len(rows))
    whole: dict[str, np.ndarray] = {}
    for number, member in enumerate(members):
        own = unseen_by == number
        for name, values in _predict_rows(context, member, rows[own]).items():
            mask = own[context.graph_of_row(name, split)]
            whole.setdefault(name, np.full((len(mask), values.shape[1]), np.nan))[mask] = values
    return whole


def is_promising(judged: LocalJoining) -> bool:
    """Check whether a regression takes at least ``LEAST_GAIN`` off the error."""
    return judged["mae_with"] < (1.0 - LEAST_GAIN) * judged["mae_without"]


def append_candidate(head: ScoredHead, predictions: np.ndarray) -> ScoredHead:
    """Return a head with one more candidate, whose predictions are [R, w]."""
    return replace(head, predictions=np.concatenate([head.predictions, predictions[None]]))


def append_weight(weights: np.ndarray, share: float) -> np.ndarray:
    """Return the weights of candidates, [C], and of one more, which has a share of the whole."""
    return np.append((1.0 - share) * weights, share)


def weigh_last(head: ScoredHead, weights: np.ndarray, rounds: int) -> float:
    """Return the weight of the last candidate beside the mix of all others.

    Args:
        head: the head with all candidates, [C + 1, R, w].
        weights: weights of the others, [C], summing to 1.
        rounds: draws of each greedy selection.
    """
    mix = np.tensordot(weights, head.predictions[:-1], 1)
    pair = replace(head, predictions=np.stack([mix, head.predictions[-1]]))
    share = min(float(shrink_weights([pair], rounds)[1]), LARGEST_SHARE)
    # threads decide the last digits of a sum
    return float(f"{share:.6g}") if share >= LEAST / 2 else 0.0


def judge_joining(
    head: ScoredHead, weights: np.ndarray, rounds: int, least_gain: float = 0.0
) -> LocalJoining:
    """Compare the errors of a head with and without the last candidate.

    Args:
        head: the head with all candidates, [C + 1, R, w].
        weights: weights of the others, [C].
        rounds: draws of each greedy selection.
        least_gain: share of the error that the last one must take off to join.
    """
    share = weigh_last(head, weights, rounds)
    without = head.errors(np.tensordot(weights, head.predictions[:-1], 1))
    both = append_weight(weights, share)
    errors = head.errors(np.tensordot(both, head.predictions, 1))
    z = compare(errors, without, head.group).z if share else 0.0
    gains = bool(errors.mean() <= (1.0 - least_gain) * without.mean())
    joins = share > 0.0 and z <= -CLEAR and gains
    return {
        "weight": share if joins else 0.0,
        "mae": float(head.errors(head.predictions[-1]).mean()),
        "mae_without": float(without.mean()),
        "mae_with": float(errors.mean()),
        "z": z,
    }
