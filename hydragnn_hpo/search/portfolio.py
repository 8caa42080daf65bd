"""Settings that did well on other data, which a first campaign tries before all others.

``portfolio.toml`` is made by ``tests/benchmarks/make_portfolio.py`` from recorded learning curves.
Source of the idea: Feurer et al. (2022), "Auto-sklearn 2.0", JMLR 23(261), section 3.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from hydragnn_hpo.config import ParameterConfig, Scalar, Space
from hydragnn_hpo.search.space import active_parameters, is_in, snap_value

PORTFOLIOS = Path(__file__).with_name("portfolio.toml")

Kind = Literal["features", "elements"]
"""Whether nets may begin from features of a foundation model, or from elements alone."""

CONV, EMBEDDING, ELEMENTS = "model.conv", "model.embedding", "elements"


def choose_points(kind: Kind, space: Space, count: int) -> list[dict[str, Scalar]]:
    """Return what a space has nearest to the first entries of a portfolio, each once.

    Args:
        kind: of the search.
        space: searched keys.
        count: most points.
    """
    points: list[dict[str, Scalar]] = []
    for entry in tomllib.loads(PORTFOLIOS.read_text())[kind]:
        point = fit_to_space(entry, space)
        if point is not None and point not in points:
            points.append(point)
    return points[:count]


def fit_to_space(entry: Mapping[str, Scalar], space: Space) -> dict[str, Scalar] | None:
    """Return the active values of an entry, each moved to the nearest that a space has.

    Keys are left out if they are not searched, or if no choice is like the entry's.

    Args:
        entry: values by key.
        space: searched keys.

    Returns:
        Values by key; None if the space lacks the conv, or the foundation model.
    """
    entry = {EMBEDDING: ELEMENTS, **entry}
    if EMBEDDING not in space and entry[EMBEDDING] != ELEMENTS:
        return None
    moved: dict[str, Scalar] = {}
    for key, value in entry.items():
        near = find_nearest_value(space[key], value) if key in space else None
        if near is not None:
            moved[key] = near
        elif key in space and key in (CONV, EMBEDDING):
            return None
    return active_parameters(space, moved)


def find_nearest_value(parameter: ParameterConfig, value: Scalar) -> Scalar | None:
    """Return the value of a parameter that is nearest to another; None if none is like it."""
    if is_in(parameter, value):
        return snap_value(parameter, value)
    if isinstance(value, bool | str):
        return None
    if parameter.choices is None:
        low, high = parameter.low, parameter.high
        assert low is not None
        assert high is not None
        return snap_value(parameter, min(max(value, low), high))
    numbers = [c for c in parameter.choices if not isinstance(c, bool | str)]
    return min(numbers, key=lambda number: abs(number - value), default=None)
