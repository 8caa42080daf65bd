"""Importances of all parameters for one target, by three methods, and whether to trust them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.search import ParameterConfig, Scalar
from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.report.importance import anova, forest
from hydragnn_hpo.report.importance.design import Design, Matrix, design_of, uniform
from hydragnn_hpo.report.importance.targets import Observed, Target, column
from hydragnn_hpo.search.space import position_of

LEAST_TRIALS = 20
"""Trials that must say something before anything is believed."""

SHOWN_TRIALS = 6
"""Trials without which nothing is computed."""

LEAST_FAILURES = 8
"""Trials that must have failed, and that must not."""

LEAST_SKILL = 0.3
"""Out-of-bag R2 below which importances are those of noise."""

LEAST_FAILURE_SKILL = 0.1
"""The same for failures. A model that knows each trial's probability of failure exactly does not
reach 1, since what happens to it is still chance."""

LEAST_IN_GROUP = 3
"""Explained trials that a choice, or a third of a range, must have to be compared."""

MOST_TRIALS = 2000
"""Trials that are learnt from, evenly over all: time."""

VARIANCE_TRIALS = 1000
"""Trials that go into fANOVA and PED-ANOVA: Optuna takes a millisecond to note each."""

EXPLAINED, BACKGROUND = 200, 50
"""Trials that SHAP explains, and points of the space that it compares them with."""

METHODS = (
    "SHAP (interventional TreeSHAP of a forest, against points drawn evenly over the space) says "
    "how far each parameter moves a trial's prediction; fANOVA, what part of the variance over the "
    "whole space is due to a parameter alone; PED-ANOVA, how much the best trials' values differ "
    "from those of all trials. The first two see what makes trials differ, good or bad, the last "
    f"only what makes them good; it needs {anova.LEAST_TOP} trials in the best tenth."
)
"""How the methods differ."""


@dataclass(frozen=True)
class Effect:
    """What one parameter does to a target."""

    shap: float
    """Mean of the absolute SHAP values over the explained trials, in the unit of the target."""
    shap_share: float
    """The same as a share of the sum over parameters."""
    fanova: float
    """Share of the variance that is due to it alone."""
    ped_anova: float | None
    """Share of what distinguishes the best trials; None where they are too few."""
    least_at: str
    """Where it makes the target least: a choice, or a third of its range; empty if unknown."""


@dataclass(frozen=True)
class Importance:
    """What the searched parameters do to one target."""

    target: Target
    trials: int
    """Trials that say something about it."""
    skill: float | None
    """Out-of-bag R2 of the forest; None where none was fitted."""
    doubt: str | None
    """Why not to trust it; None where it can be trusted."""
    effects: Mapping[str, Effect] = field(default_factory=dict)
    """By parameter, the most important first; empty where nothing could be computed."""
    parameters: tuple[str, ...] = ()
    """Searched parameters, in the order of the space."""
    shap: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    """SHAP values of the explained trials, [N, P], in the order of ``parameters``."""
    positions: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    """Where in its range each of their values stands, [N, P]; inactive ones nan."""

    @property
    def has_ped_anova(self) -> bool:
        """Say whether there were enough trials for PED-ANOVA."""
        return any(effect.ped_anova is not None for effect in self.effects.values())

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        return {
            "target": self.target.key,
            "label": self.target.label,
            "logarithm": self.target.log,
            "trials": self.trials,
            "out_of_bag_r2": self.skill,
            "trusted": self.doubt is None,
            "doubt": self.doubt,
            "parameters": {name: vars(effect) for name, effect in self.effects.items()},
        }


def analyse(config: CampaignConfig, rows: Sequence[Observed], target: Target) -> Importance:
    """Explain one target by the searched parameters.

    Args:
        config: the campaign: its space, its constraints, its seed.
        rows: what its trials say.
        target: what to explain.
    """
    known = [row for row in rows if target.key in row.measured]
    kept = _thinned(known, MOST_TRIALS)
    values, design = column(kept, target), design_of(config.space)
    nothing = _nothing(target, values, len(known), design)
    if nothing is not None:
        return Importance(target, len(known), None, nothing)
    seed = derive_seed(config.seed, target.key, "importance")
    model = forest.fit(design.rows(row.values for row in kept), values, seed=seed)
    shown = _thinned(kept, EXPLAINED)
    chosen = [row.values for row in shown]
    compared = design.rows(_background(config, seed) or chosen)
    parts = forest.shap_values(model, design.rows(chosen), compared) @ design.credits
    return Importance(
        target=target,
        trials=len(known),
        skill=model.skill,
        doubt=_doubt(target, values, model.skill, len(known)),
        effects=_effects(design, shown, parts, _by_variance(config, kept, target, seed)),
        parameters=design.names,
        shap=parts,
        positions=design.positions(chosen),
    )


def _background(config: CampaignConfig, seed: int) -> list[dict[str, Scalar]]:
    """Draw the points of the space that trials are compared with."""
    return uniform(
        config.space,
        BACKGROUND,
        seed=seed,
        constraints=config.search.constraints,
        template=config.trial,
    )


def _by_variance(
    config: CampaignConfig, rows: Sequence[Observed], target: Target, seed: int
) -> tuple[dict[str, float], dict[str, float] | None]:
    """Give fANOVA and PED-ANOVA; the best of failures are those that fail."""
    kept = _thinned(rows, VARIANCE_TRIALS)
    chosen, values = [row.values for row in kept], column(kept, target)
    by_all = anova.fanova(config.space, chosen, values, seed=seed)
    least = -values if target.binary else values
    # Half a trial less than all that failed, since their share times all may round up.
    share = float(values.sum() - 0.5) / len(values) if target.binary else anova.TOP_SHARE
    return by_all, anova.ped_anova(config.space, chosen, least, share=share)


def _effects(
    design: Design,
    rows: Sequence[Observed],
    parts: Matrix,
    by_variance: tuple[Mapping[str, float], Mapping[str, float] | None],
) -> dict[str, Effect]:
    size = np.abs(parts).mean(axis=0)
    total, (by_all, by_best) = float(size.sum()), by_variance
    found = {
        name: Effect(
            shap=float(size[place]),
            shap_share=float(size[place]) / total if total else 0.0,
            fanova=by_all[name],
            ped_anova=None if by_best is None else by_best[name],
            least_at=_least_at(design.space[name], name, rows, parts[:, place]),
        )
        for place, name in enumerate(design.names)
    }
    return dict(sorted(found.items(), key=lambda item: -item[1].shap))


def _least_at(
    parameter: ParameterConfig, name: str, rows: Sequence[Observed], parts: Matrix
) -> str:
    """Give the choice, or the third of a range, whose trials have the least effect on average."""
    groups: dict[str | int, list[tuple[Scalar, float]]] = {}
    for row, part in zip(rows, parts, strict=True):
        if name in row.values:
            value = row.values[name]
            third = min(int(3.0 * position_of(parameter, value)), 2)
            group = third if parameter.choices is None else str(value)
            groups.setdefault(group, []).append((value, float(part)))
    groups = {group: pairs for group, pairs in groups.items() if len(pairs) >= LEAST_IN_GROUP}
    means = {group: np.mean([part for _, part in pairs]) for group, pairs in groups.items()}
    if len(means) < 2 or np.ptp(list(means.values())) == 0.0:
        return ""
    best = min(means, key=lambda group: means[group])
    if isinstance(best, str):
        return best
    numbers = [float(value) for value, _ in groups[best]]
    low, high = f"{min(numbers):.3g}", f"{max(numbers):.3g}"
    return low if low == high else f"{low} to {high}"


def _nothing(target: Target, values: Matrix, count: int, design: Design) -> str | None:
    """Say why nothing can be computed; None if something can."""
    if count < SHOWN_TRIALS:
        said = "1 trial says" if count == 1 else f"{count} trials say"
        return f"{said} something about it, {SHOWN_TRIALS} are needed at least."
    if target.binary and np.ptp(values) == 0.0:
        return "All trials failed." if values[0] == 1.0 else "No trial failed."
    if np.ptp(values) == 0.0:
        return "It is the same in all trials."
    return None if design.columns else "Nothing was searched: the space holds one configuration."


def _doubt(target: Target, values: Matrix, skill: float, count: int) -> str | None:
    """Say why importances are not to be trusted; None if they are."""
    if count < LEAST_TRIALS:
        return f"{count} trials are too few to learn from: {LEAST_TRIALS} are needed."
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


def _thinned(rows: Sequence[Observed], most: int) -> list[Observed]:
    """Keep some, evenly over all."""
    if len(rows) <= most:
        return list(rows)
    return [rows[index * len(rows) // most] for index in range(most)]
