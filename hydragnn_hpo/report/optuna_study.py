"""Searched parameters and trials in Optuna's form."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hydragnn_hpo.config.search import ParameterConfig
from hydragnn_hpo.search.space import domain
from hydragnn_hpo.text import printable

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution


def make_distribution(parameter: ParameterConfig) -> "BaseDistribution":
    """Convert a parameter; a range with steps ends at its last step."""
    from optuna import distributions as kinds

    if parameter.choices is not None:
        return kinds.CategoricalDistribution([printable(choice) for choice in parameter.choices])
    low, high, step = parameter.low, parameter.high, parameter.step
    assert low is not None
    assert high is not None
    if step is not None:  # Optuna wants the last step, and exactly: 0.9, not 3 * 0.3
        high = float((domain(parameter) or (high,))[-1])
    if parameter.integer and not isinstance(step, float):
        return kinds.IntDistribution(int(low), int(high), log=parameter.log, step=int(step or 1))
    return kinds.FloatDistribution(float(low), float(high), log=parameter.log, step=step)


def make_study(
    distributions: "Mapping[str, BaseDistribution]",
    configurations: Iterable[Mapping[str, Any]],
    values: Iterable[float],
) -> "Study":
    """Make a study of finished trials in memory.

    Args:
        distributions: of all parameters.
        configurations: parameters of each trial; some may be missing.
        values: what each trial scored.
    """
    import optuna

    trials = [
        optuna.trial.create_trial(
            params=dict(chosen),
            distributions={name: distributions[name] for name in chosen},
            value=float(value),
        )
        for chosen, value in zip(configurations, values, strict=True)
    ]
    study = optuna.create_study()
    study.add_trials(trials)
    return study
