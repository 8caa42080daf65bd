"""Two analyses of variance by Optuna: what makes trials good, and what makes them differ.

PED-ANOVA sees active parameters only, as the search did. fANOVA needs a value of each, so what is
inactive stands at its canonical value; and it integrates over ranges, so it gets positions in them:
even in the measure in which the search draws.

Choices are ours in PED-ANOVA: Optuna 5.0 gives its prior as much weight as one choice has on
average, however many trials there are, which leaves a third of a choice's importance.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hydragnn_hpo.config.search import ParameterConfig, Scalar, Space
from hydragnn_hpo.report.importance.design import Matrix
from hydragnn_hpo.search.quiet_optuna import quiet_optuna
from hydragnn_hpo.search.space import canonical, domain, position_of, same

TOP_SHARE = 0.1
"""Trials that count as good."""

LEAST_TOP = 5
"""Fewest of them, as Optuna advises: with fewer PED-ANOVA sees chance."""

TREES, DEPTH = 16, 7
"""Of fANOVA's forest: its time grows with the square of the leaves; 64 trees of any depth, its
default, take a minute for 2,000 trials."""


def ped_anova(
    space: Space, configurations: Sequence[Mapping[str, Scalar]], values: Matrix, *, share: float
) -> dict[str, float] | None:
    """Give how much the best trials' values differ from all trials', by parameter; sum 1.

    Args:
        space: searched keys.
        configurations: active values of each trial, [N].
        values: what is minimized, [N].
        share: of the trials that count as good.

    Returns:
        None where too few trials count as good.

    Source: Watanabe, Bansal and Hutter (2023), arXiv:2304.10255; conditions: arXiv:2601.20800.
    """
    best = values <= np.sort(values)[max(math.ceil(share * len(values)), 1) - 1]
    if share * len(values) < LEAST_TOP:
        return None
    from optuna.importance import PedAnovaImportanceEvaluator

    ranges = {name: one for name, one in space.items() if one.choices is None}
    found: dict[str, float] = {}
    if ranges:
        with quiet_optuna():
            study = _study(ranges, configurations, values)
            found |= PedAnovaImportanceEvaluator(target_quantile=share).evaluate(study)
    for name in space.keys() - ranges.keys():
        found[name] = _of_choices(space[name].choices or (), name, configurations, best)
    total = math.fsum(found.values())
    return {name: float(found.get(name, 0.0)) / total if total else 0.0 for name in space}


def fanova(
    space: Space, configurations: Sequence[Mapping[str, Scalar]], values: Matrix, *, seed: int
) -> dict[str, float]:
    """Give each parameter's part of the variance over the whole space; alone, 1 at most in sum.

    Args:
        space: searched keys.
        configurations: active values of each trial, [N].
        values: what is explained, [N].
        seed: of the forest.

    Source: Hutter, Hoos and Leyton-Brown (2014), proceedings.mlr.press/v32/hutter14.html.
    """
    from optuna.importance import FanovaImportanceEvaluator

    full = [canonical(space, chosen) for chosen in configurations]
    with quiet_optuna():
        study = _study(space, full, values, positions=True)
        evaluator = FanovaImportanceEvaluator(n_trees=TREES, max_depth=DEPTH, seed=seed)
        try:
            found = evaluator.evaluate(study)
        except RuntimeError:  # no tree splits: there is no variance to explain
            found = {}
    return {name: float(found.get(name, 0.0)) for name in space}


def _of_choices(
    choices: Sequence[Scalar],
    name: str,
    configurations: Sequence[Mapping[str, Scalar]],
    best: npt.NDArray[np.bool_],
) -> float:
    """Give the divergence of the best trials' choices from all trials', in Optuna's scale.

    Of a parameter that may be off, trials count where it is on. One further trial, spread evenly
    over the choices, stands for what nobody tried.
    """
    on = np.array([name in chosen for chosen in configurations])
    if len(choices) < 2 or on.sum() < 2 or not (on & best).any():
        return 0.0

    def frequencies(trials: npt.NDArray[np.bool_]) -> Matrix:
        counts = np.full(len(choices), 1.0 / len(choices))
        for chosen, kept in zip(configurations, trials, strict=True):
            if kept:
                counts[[same(c, chosen[name]) for c in choices].index(True)] += 1.0
        return np.asarray(counts / counts.sum(), dtype=np.float64)

    every, good = frequencies(on), frequencies(on & best)
    divergence = float(np.sum(every * (good / every - 1.0) ** 2))
    weight = (np.sum(on & best) / best.sum()) ** 2 / np.mean(on)
    return float(divergence * weight * np.mean(best) ** 2)


def _study(
    space: Space,
    configurations: Sequence[Mapping[str, Scalar]],
    values: Matrix,
    *,
    positions: bool = False,
) -> Any:
    """Make a study of finished trials.

    Args:
        space: searched keys.
        configurations: of the trials.
        values: what they scored.
        positions: whether all parameters are given as positions in their ranges.
    """
    import optuna

    kinds = optuna.distributions
    unit, ranges = kinds.FloatDistribution(0.0, 1.0), {n: _range(p) for n, p in space.items()}
    trials = []
    for chosen, value in zip(configurations, values, strict=True):
        params: dict[str, Any] = {}
        for name, raw in chosen.items():
            if name not in space:
                continue
            if positions:
                params[name] = min(max(position_of(space[name], raw), 0.0), 1.0)
            else:
                params[name] = _internal(space[name], raw)
        shapes = {name: unit if positions else ranges[name] for name in params}
        trials.append(
            optuna.trial.create_trial(params=params, distributions=shapes, value=float(value))
        )
    study = optuna.create_study()
    study.add_trials(trials)
    return study


def _range(parameter: ParameterConfig) -> Any:
    """Give Optuna's form of a range; steps are known by their numbers."""
    import optuna

    kinds, low, high = optuna.distributions, parameter.low, parameter.high
    if parameter.choices is not None:
        return None  # only ever given as a position
    assert low is not None
    assert high is not None
    if parameter.step is not None:
        return kinds.IntDistribution(0, len(domain(parameter) or ()) - 1)
    if parameter.integer:
        return kinds.IntDistribution(int(low), int(high), log=parameter.log)
    return kinds.FloatDistribution(float(low), float(high), log=parameter.log)


def _internal(parameter: ParameterConfig, raw: Scalar) -> Any:
    """Give a value of a range in Optuna's form, moved into it where rounding left it."""
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.step is not None:
        return round((float(raw) - parameter.low) / parameter.step)
    if parameter.integer:
        return int(raw)
    return min(max(float(raw), float(parameter.low)), float(parameter.high))
