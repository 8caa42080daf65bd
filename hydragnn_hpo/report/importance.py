"""Hyperparameter importance for one target, by three methods, and whether to trust it.

SHAP explains a random forest. fANOVA and PED-ANOVA are Optuna's, except for choices in PED-ANOVA.
The others read a value as its position in its range, which is uniform over the search's draws, and
an inactive parameter as its canonical value; PED-ANOVA reads active parameters only.

Shapes: N trials, P searched parameters.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hydragnn_hpo.config import CampaignConfig, ParameterConfig, Scalar, Space
from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.report.observations import Target, TrialObservation, target_values
from hydragnn_hpo.report.surrogate import (
    Matrix,
    draw_uniform,
    encode,
    encode_active,
    fit_forest,
    make_distribution,
    shap_values,
)
from hydragnn_hpo.search import snap_value
from hydragnn_hpo.search.brains.optuna_brain import silence_optuna

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.importance import BaseImportanceEvaluator

TRIALS_PER_PARAMETER = 10
"""Minimum number of measured trials for each searched parameter, to trust an importance."""

SHOWN_TRIALS = 6
"""Minimum number of measured trials to compute an importance."""

LEAST_FAILURES = 8
"""Minimum number of failed, and of other, trials to trust causes of failures."""

LEAST_SKILL = 0.5
"""Out-of-bag R2 from which importances are trusted: below it, more than half of what makes trials
differ is not explained. Noise reaches less than 0.3."""

LEAST_FAILURE_SKILL = 0.1
"""The same for failures. A model that knows each trial's probability of failure exactly does not
reach 1, since the outcome is still random. Of 40 campaigns of noise, 1 passes with 60 trials
and none with 100."""

LEAST_IN_GROUP = 3
"""Minimum number of explained trials with a choice, or in a third of a range, to compare it."""

MOST_TRIALS = 2000
"""Maximum number of trials to fit the forest to, evenly sampled, to limit the time."""

VARIANCE_TRIALS = 1000
"""Maximum number of trials for fANOVA and PED-ANOVA: Optuna takes a millisecond to add each."""

EXPLAINED, BACKGROUND = 200, 50
"""Numbers of trials that SHAP explains, and of points of the space to compare them with."""

TOP_SHARE = 0.1
"""Share of the trials that count as good in PED-ANOVA."""

LEAST_TOP = 5
"""Minimum number of good trials, as Optuna advises: with fewer, PED-ANOVA measures noise."""

FANOVA_TREES, FANOVA_DEPTH = 16, 7
"""The time of fANOVA grows with the square of the number of leaves; 64 trees of any depth, its
default, take a minute for 2,000 trials."""

METHODS = (
    "SHAP (interventional TreeSHAP of a forest, against points drawn evenly over the space) says "
    "how far each parameter moves a trial's prediction; fANOVA, what part of the variance over the "
    "whole space is due to a parameter alone; PED-ANOVA, how much the best trials' values differ "
    "from those of all trials. The first two see what makes trials differ, good or bad, the last "
    f"only what makes them good; it needs {LEAST_TOP} trials in the best tenth."
)
"""How the methods differ."""


@dataclass(frozen=True)
class Effect:
    """The effect of one parameter on a target."""

    shap: float
    """Mean of the absolute SHAP values over the explained trials, in the unit of the target."""
    shap_share: float
    """``shap`` as a share of its sum over all parameters."""
    fanova: float
    """Share of the variance that is due to this parameter alone."""
    ped_anova: float | None
    """Share of the difference between the best and all trials; None if the best are too few."""
    least_at: str
    """Choice, or third of the range, with the lowest effect on the target; empty if unknown."""


@dataclass(frozen=True)
class Importance:
    """The effects of the searched parameters on one target."""

    target: Target
    trials: int
    """Number of trials with a measurement of the target."""
    skill: float | None
    """Out-of-bag R2 of the forest; None if none was fitted."""
    doubt: str | None
    """Why the importance is not to be trusted; None if it is."""
    effects: Mapping[str, Effect] = field(default_factory=dict)
    """Effect by parameter, the most important first; empty if none could be computed."""
    parameters: tuple[str, ...] = ()
    """Searched parameters, in the order of the space."""
    shap: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    """SHAP values of the explained trials, [N, P], in the order of ``parameters``."""
    positions: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    """Position in its range of each value of the explained trials, [N, P]; nan if inactive."""

    @property
    def has_ped_anova(self) -> bool:
        """Whether there were enough trials for PED-ANOVA."""
        return any(effect.ped_anova is not None for effect in self.effects.values())


def analyse_importance(
    config: CampaignConfig, rows: Sequence[TrialObservation], target: Target
) -> Importance:
    """Explain one target by the searched parameters.

    Args:
        config: the campaign, for its space, constraints and seed.
        rows: observations of its trials.
        target: the target to explain.
    """
    measured = [row for row in rows if target.key in row.measured]
    kept = _thin_out(measured, MOST_TRIALS)
    values = target_values(kept, target)
    obstacle = _find_obstacle(config.space, target, values, len(measured))
    if obstacle is not None:
        return Importance(target, len(measured), None, obstacle)
    seed = derive_seed(config.seed, target.key, "importance")
    forest = fit_forest(encode(config.space, (row.values for row in kept)), values, seed=seed)
    chosen = [row.values for row in _thin_out(kept, EXPLAINED)]
    background = draw_uniform(config, BACKGROUND, seed=seed) or chosen
    shap = shap_values(forest, encode(config.space, chosen), encode(config.space, background))
    skill = float(forest.oob_score_)
    few = _thin_out(kept, VARIANCE_TRIALS)
    by_all, by_best = _anova(config.space, few, target, seed)
    sizes = np.abs(shap).mean(axis=0)
    positions = encode_active(config.space, chosen)
    effects = {
        name: Effect(
            shap=float(sizes[column]),
            shap_share=float(sizes[column]) / (float(sizes.sum()) or 1.0),
            fanova=by_all[name],
            ped_anova=None if by_best is None else by_best[name],
            least_at=_least_at(
                parameter, [v.get(name) for v in chosen], positions[:, column], shap[:, column]
            ),
        )
        for column, (name, parameter) in enumerate(config.space.items())
    }
    return Importance(
        target=target,
        trials=len(measured),
        skill=skill,
        doubt=_find_doubt(target, values, skill, len(measured), len(config.space)),
        effects=dict(sorted(effects.items(), key=lambda item: -item[1].shap)),
        parameters=tuple(config.space),
        shap=shap,
        positions=positions,
    )


def _thin_out(rows: Sequence[TrialObservation], most: int) -> list[TrialObservation]:
    """Return at most ``most`` rows, evenly sampled in their order."""
    count = min(len(rows), most)
    return [rows[index * len(rows) // count] for index in range(count)]


def _find_obstacle(space: Space, target: Target, values: Matrix, count: int) -> str | None:
    """Return why no importance can be computed; None if one can.

    Args:
        space: searched keys.
        target: the explained target.
        values: its values, [N].
        count: number of measured trials.
    """
    if count < SHOWN_TRIALS:
        trials = "1 trial says" if count == 1 else f"{count} trials say"
        return f"{trials} something about it, {SHOWN_TRIALS} are needed at least."
    if target.binary and np.ptp(values) == 0.0:
        return "All trials failed." if values[0] == 1.0 else "No trial failed."
    if np.ptp(values) == 0.0:
        return "It is the same in all trials."
    if all(parameter.choices and len(parameter.choices) == 1 for parameter in space.values()):
        return "Nothing was searched: the space holds one configuration."
    return None


def _find_doubt(
    target: Target, values: Matrix, skill: float, count: int, parameters: int
) -> str | None:
    """Return why importances are not to be trusted; None if they are.

    Args:
        target: the explained target.
        values: its values in the trials that the forest was fitted to, [N].
        skill: out-of-bag R2 of the forest.
        count: number of measured trials.
        parameters: number of searched parameters.
    """
    needed = TRIALS_PER_PARAMETER * parameters
    if count < needed:
        return (
            f"{count} trials are too few for {parameters} parameters: {needed} are needed, "
            f"{TRIALS_PER_PARAMETER} for each."
        )
    failures = int(values.sum()) if target.binary else LEAST_FAILURES
    if target.binary and min(failures, len(values) - failures) < LEAST_FAILURES:
        return (
            f"{failures} of {len(values)} trials failed: at least {LEAST_FAILURES} failures and as "
            "many others are needed."
        )
    least = LEAST_FAILURE_SKILL if target.binary else LEAST_SKILL
    if skill < least:
        return (
            f"The model explains too little of trials that it has not seen: out-of-bag R2 "
            f"{skill:.2f}, {least:g} is needed. What is below may be chance."
        )
    return None


def _anova(
    space: Space, rows: Sequence[TrialObservation], target: Target, seed: int
) -> tuple[dict[str, float], dict[str, float] | None]:
    """Compute fANOVA and PED-ANOVA.

    Args:
        space: searched keys.
        rows: trials with a measurement of the target.
        target: the target to explain.
        seed: seed of the forest.

    Returns:
        Shares by parameter of each method; the second is None if too few trials count as good.
    """
    chosen = [row.values for row in rows]
    values = target_values(rows, target)
    by_all = fanova(space, chosen, values, seed=seed)
    if not target.binary:
        return by_all, ped_anova(space, chosen, values, share=TOP_SHARE)
    # The failed trials count as best. Half a trial is subtracted from their number, since the
    # share times the number of all trials may be rounded up.
    share = float(values.sum() - 0.5) / len(values)
    return by_all, ped_anova(space, chosen, -values, share=share)


def _least_at(
    parameter: ParameterConfig, values: Sequence[Scalar | None], positions: Matrix, shap: Matrix
) -> str:
    """Find the choice, or the third of a range, whose trials have the lowest mean SHAP value.

    Args:
        parameter: the parameter.
        values: its value in each explained trial; None where it is inactive.
        positions: positions of the values, [N].
        shap: SHAP values of the parameter, [N].
    """
    count = 3 if parameter.choices is None else len(parameter.choices)
    groups = np.minimum(np.floor(count * positions), count - 1)  # nan where inactive
    members = {group: np.flatnonzero(groups == group) for group in range(count)}
    members = {group: rows for group, rows in members.items() if len(rows) >= LEAST_IN_GROUP}
    means = {group: float(shap[rows].mean()) for group, rows in members.items()}
    if len(means) < 2 or np.ptp(list(means.values())) == 0.0:
        return ""
    best = min(means, key=lambda group: means[group])
    if parameter.choices is not None:
        return str(parameter.choices[best])
    numbers = [float(values[row] or 0.0) for row in members[best].tolist()]
    low = f"{min(numbers):.3g}"
    high = f"{max(numbers):.3g}"
    return low if low == high else f"{low} to {high}"


def fanova(
    space: Space, configurations: Sequence[Mapping[str, Scalar]], values: Matrix, *, seed: int
) -> dict[str, float]:
    """Compute the share of the variance over the whole space that is due to each parameter alone.

    Args:
        space: searched keys.
        configurations: active values of each trial, [N].
        values: values of the target, [N].
        seed: seed of the forest.

    Returns:
        Share by parameter; the sum is at most 1.

    Source: Hutter, Hoos and Leyton-Brown (2014), proceedings.mlr.press/v32/hutter14.html.
    """
    from optuna.distributions import FloatDistribution
    from optuna.importance import FanovaImportanceEvaluator

    evaluator = FanovaImportanceEvaluator(n_trees=FANOVA_TREES, max_depth=FANOVA_DEPTH, seed=seed)
    positions = [
        dict(zip(space, row, strict=True)) for row in encode(space, configurations).tolist()
    ]
    unit = dict.fromkeys(space, FloatDistribution(0.0, 1.0))
    try:
        shares = _evaluate(evaluator, unit, positions, values)
    except RuntimeError:  # no tree splits: there is no variance to explain
        shares = {}
    return {name: float(shares.get(name, 0.0)) for name in space}


def ped_anova(
    space: Space, configurations: Sequence[Mapping[str, Scalar]], values: Matrix, *, share: float
) -> dict[str, float] | None:
    """Compute how much each parameter's values in the best trials differ from those in all trials.

    Args:
        space: searched keys.
        configurations: active values of each trial, [N].
        values: values to minimize, [N].
        share: share of the trials that count as good, from 0 to 1.

    Returns:
        Share by parameter, with sum 1 unless all are 0; None if too few trials count as good.

    Source: Watanabe, Bansal and Hutter (2023), arXiv:2304.10255; conditions: arXiv:2601.20800.
    """
    if share * len(values) < LEAST_TOP:
        return None
    from optuna.importance import PedAnovaImportanceEvaluator

    best = values <= np.sort(values)[math.ceil(share * len(values)) - 1]
    ranges = {name: one for name, one in space.items() if one.choices is None}
    rows = [
        {name: snap_value(one, chosen[name]) for name, one in ranges.items() if name in chosen}
        for chosen in configurations
    ]
    distributions = {name: make_distribution(one) for name, one in ranges.items()}
    evaluator = PedAnovaImportanceEvaluator(target_quantile=share)
    parts = _evaluate(evaluator, distributions, rows, values) if ranges else {}
    positions = encode_active(space, configurations)
    for column, (name, parameter) in zip(positions.T, space.items(), strict=True):
        if parameter.choices is not None:
            parts[name] = _choice_divergence(column, len(parameter.choices), best)
    total = math.fsum(parts.values()) or 1.0
    return {name: float(parts.get(name, 0.0)) / total for name in space}


def _choice_divergence(positions: Matrix, count: int, best: npt.NDArray[np.bool_]) -> float:
    """Compute how the choices of the best trials diverge from those of all, in Optuna's scale.

    Optuna's own function is not used: it adds its prior to every distinct choice, and finds 4.3 %
    where the formula of the paper gives 12.1 % and this function 12.7 %. Only trials in which the
    parameter is active count. One more trial, spread evenly over the choices, keeps the frequency
    of an untried choice above 0.

    Args:
        positions: position of each trial's choice, [N]; nan where the parameter is inactive.
        count: number of choices.
        best: which trials count as good, [N].
    """
    on = ~np.isnan(positions)
    if not (on & best).any():
        return 0.0
    every, good = (
        np.bincount((count * positions[rows]).astype(int), minlength=count) + 1.0 / count
        for rows in (on, on & best)
    )
    ratio = good / good.sum() / (every / every.sum())
    divergence = float(np.sum(every / every.sum() * (ratio - 1.0) ** 2))
    weight = (np.sum(on & best) / best.sum()) ** 2 / np.mean(on)
    return float(divergence * weight * np.mean(best) ** 2)


def _evaluate(
    evaluator: "BaseImportanceEvaluator",
    distributions: "Mapping[str, BaseDistribution]",
    configurations: Iterable[Mapping[str, Scalar]],
    values: Matrix,
) -> dict[str, float]:
    """Return Optuna's importances of finished trials.

    Args:
        evaluator: the method.
        distributions: distribution by parameter.
        configurations: parameters of each trial; some may be missing.
        values: score of each trial, [N].
    """
    from optuna import create_study
    from optuna.trial import create_trial

    with silence_optuna():
        study = create_study()
        for chosen, value in zip(configurations, values.tolist(), strict=True):
            kinds = {name: distributions[name] for name in chosen}
            study.add_trial(create_trial(params=dict(chosen), distributions=kinds, value=value))
        return evaluator.evaluate(study)


# -- drawing ---------------------------------------------------------------------------------

SWARM_BINS = 40
SWARM_HALF_HEIGHT = 0.38
"""Half the height of the fullest bin; rows are 1 apart."""

SWARM_CROWD = 8
"""Number of points in the fullest bin from which on it has the full height."""


def beeswarm_offsets(places: Matrix) -> Matrix:
    """Compute the offsets of a beeswarm plot, [N], which separate neighbouring points."""
    heights = np.zeros(len(places))
    spread = float(np.ptp(places)) if len(places) else 0.0
    if spread == 0.0:
        return heights
    scaled = SWARM_BINS * (places - places.min()) / spread
    bins = np.minimum(scaled.astype(int), SWARM_BINS - 1)
    most = int(np.bincount(bins).max())
    for one in np.unique(bins):
        members = np.flatnonzero(bins == one)
        at = np.arange(len(members)) - 0.5 * (len(members) - 1)
        heights[members] = at * 2.0 * SWARM_HALF_HEIGHT / max(most, SWARM_CROWD)
    return heights
