"""What a model of the search space expects of one parameter, averaged over all others.

Source: Friedman (2001), doi:10.1214/aos/1013203451, section 8.2 (partial dependence).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hydragnn_hpo.config.search import ParameterConfig, Scalar, Space
from hydragnn_hpo.search.space import active, domain, value_at

Predict = Callable[[list[dict[str, Scalar]]], np.ndarray]
"""Active configurations in, what is expected of each out, [N]."""

STEPS = 12
"""Values at which a range is tried."""


@dataclass(frozen=True)
class Dependence:
    """What is expected at some values of a parameter."""

    values: tuple[Scalar, ...]
    expected: np.ndarray
    """Mean over the background, [V]."""


def dependence(
    space: Space, name: str, predict: Predict, background: Sequence[Mapping[str, Scalar]]
) -> Dependence | None:
    """Average a model's predictions over a background in which one parameter is set.

    Args:
        space: searched keys.
        name: the parameter.
        predict: the model.
        background: configurations with a value for every key, also for inactive ones. Those in
            which the parameter plays no part are left out.

    Returns:
        None where it plays no part in any of them.
    """
    values = tuple(grid(space[name]))
    points: list[dict[str, Scalar]] = []
    for value in values:
        set_here = (active(space, {**full, name: value}) for full in background)
        points += [point for point in set_here if name in point]
    if not points:
        return None
    expected = predict(points).reshape(len(values), -1).mean(axis=1)
    return Dependence(values, expected)


def grid(parameter: ParameterConfig) -> list[Scalar]:
    """Give all choices, or values spread over a range, each once."""
    if parameter.choices is not None:
        return list(parameter.choices)
    every = domain(parameter)
    if every is not None and len(every) <= STEPS:
        return list(every)
    places = np.linspace(0.0, 1.0 - 1e-9, STEPS)
    return list(dict.fromkeys(value_at(parameter, float(place)) for place in places))


def filled(
    space: Space, drawn: Sequence[Mapping[str, Scalar]], *, seed: int
) -> list[dict[str, Scalar]]:
    """Give every key of some active configurations a value: inactive ones one drawn evenly."""
    random = np.random.default_rng(seed).random((len(drawn), len(space)))
    return [
        {
            name: some.get(name, value_at(parameter, float(at)))
            for (name, parameter), at in zip(space.items(), row, strict=True)
        }
        for some, row in zip(drawn, random, strict=True)
    ]
