"""Two analyses of variance by Optuna: what makes trials good, and what makes them differ.

PED-ANOVA sees active parameters only, as the search did. fANOVA needs a value of each, so what is
inactive stands at its canonical value; and it integrates over ranges, so it gets positions in them:
even in the measure in which the search draws.
"""

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydragnn_hpo.config.search import ParameterConfig, Scalar, Space
from hydragnn_hpo.report.importance.design import Matrix
from hydragnn_hpo.search.space import canonical, choice_index, position_of

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
    if share * len(values) < LEAST_TOP:
        return None
    from optuna.importance import PedAnovaImportanceEvaluator

    with _quiet():
        study = _study(space, configurations, values)
        evaluator = PedAnovaImportanceEvaluator(target_quantile=share)
        return _shares(space, evaluator.evaluate(study))


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
    with _quiet():
        study = _study(space, full, values, positions=True)
        evaluator = FanovaImportanceEvaluator(n_trees=TREES, max_depth=DEPTH, seed=seed)
        try:
            found = evaluator.evaluate(study)
        except RuntimeError:  # no tree splits: there is no variance to explain
            found = {}
    return {name: float(found.get(name, 0.0)) for name in space}


def _shares(space: Space, found: Mapping[str, float]) -> dict[str, float]:
    total = math.fsum(found.values())
    return {name: float(found.get(name, 0.0)) / total if total else 0.0 for name in space}


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
    """Give Optuna's form of a range; choices are known by their places."""
    import optuna

    kinds = optuna.distributions
    if parameter.choices is not None:
        return kinds.CategoricalDistribution(tuple(range(len(parameter.choices))))
    low, high = parameter.low, parameter.high
    assert low is not None
    assert high is not None
    if parameter.step is not None:
        last = low + math.floor((high - low) / parameter.step + 1e-9) * parameter.step
        return kinds.FloatDistribution(float(low), float(last), step=float(parameter.step))
    if parameter.integer:
        return kinds.IntDistribution(int(low), int(high), log=parameter.log)
    return kinds.FloatDistribution(float(low), float(high), log=parameter.log)


def _internal(parameter: ParameterConfig, raw: Scalar) -> Any:
    if parameter.choices is not None:
        return choice_index(parameter, raw)
    return int(raw) if parameter.integer and parameter.step is None else float(raw)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from telling of every study, and of regimes with few trials."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
