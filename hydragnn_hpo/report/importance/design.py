"""Trials as a matrix: what a model of the search space learns from.

A parameter has one column (its logarithm where it is searched on a logarithmic scale), choices
have one for each, and where a condition can switch a parameter off, a column says whether it is on.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hydragnn_hpo.config.search import ParameterConfig, Scalar, Space
from hydragnn_hpo.search.constraints import broken, read_constraints
from hydragnn_hpo.search.space import active, canonical, is_on, position_of, same, value_at

Matrix = npt.NDArray[np.float64]

DRAWS = 200
"""Draws from the space for each point wanted, at most: constraints may leave little of it."""


@dataclass(frozen=True)
class Column:
    """A column of the matrix."""

    parameter: str
    kind: Literal["value", "level", "active"]
    level: Scalar | None = None
    """The choice that a ``level`` stands for."""


@dataclass(frozen=True)
class Design:
    """How the configurations of a space become rows."""

    space: Space
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Give the searched parameters, in the order of the campaign."""
        return tuple(self.space)

    @property
    def credits(self) -> Matrix:
        """Give each column's owners: its effect times this belongs to parameters, [C, P].

        Whether a parameter is on is decided by the ones that its condition names, so the effect
        of that belongs to them, in equal parts.
        """
        places = {name: place for place, name in enumerate(self.names)}
        shares = np.zeros((len(self.columns), len(self.names)))
        for row, column in zip(shares, self.columns, strict=True):
            owners = [column.parameter]
            if column.kind == "active":
                owners = _deciders(self.space, column.parameter)
            for owner in owners:
                row[places[owner]] = 1.0 / len(owners)
        return shares

    def rows(self, configurations: Iterable[Mapping[str, Scalar]]) -> Matrix:
        """Encode active values, [N, C]; what is inactive stands at its canonical value.

        Raises:
            ConfigError: an active key has no value.
        """
        found = [self._row(values) for values in configurations]
        return np.array(found, dtype=np.float64).reshape(len(found), len(self.columns))

    def positions(self, configurations: Iterable[Mapping[str, Scalar]]) -> Matrix:
        """Give where in its range each parameter stands, [N, P], in (0, 1); inactive ones nan."""
        found = [
            [position_of(self.space[n], v[n]) if n in v else math.nan for n in self.names]
            for v in (active(self.space, values) for values in configurations)
        ]
        return np.array(found, dtype=np.float64).reshape(len(found), len(self.names))

    def _row(self, values: Mapping[str, Scalar]) -> list[float]:
        full = canonical(self.space, values)
        return [self._cell(column, full) for column in self.columns]

    def _cell(self, column: Column, full: Mapping[str, Scalar]) -> float:
        parameter, value = self.space[column.parameter], full[column.parameter]
        if column.kind == "active":
            return float(is_on(self.space, column.parameter, full))
        if column.kind == "level":
            return float(same(value, column.level))
        return math.log(float(value)) if parameter.log else float(value)


def design_of(space: Space) -> Design:
    """Choose the columns of a space; a parameter with one value needs none."""
    columns: list[Column] = []
    for name, parameter in space.items():
        columns += _value_columns(name, parameter)
        if _deciders(space, name):
            columns.append(Column(name, "active"))
    return Design(space, tuple(columns))


def uniform(
    space: Space,
    count: int,
    *,
    seed: int,
    constraints: tuple[str, ...] = (),
    template: Mapping[str, Any] | None = None,
) -> list[dict[str, Scalar]]:
    """Draw configurations evenly over a space: what trials would be if nothing had searched.

    Args:
        space: searched keys.
        count: how many; fewer where the constraints leave almost nothing.
        seed: of the draws.
        constraints: ``search.constraints``.
        template: values fixed in the campaign, which constraints may name.
    """
    rules = read_constraints(constraints, space, template or {})
    generator = np.random.default_rng(seed)
    found: list[dict[str, Scalar]] = []
    for _ in range(DRAWS):
        for draw in generator.random((count, len(space))):
            pairs = zip(space.items(), draw, strict=True)
            values = {name: value_at(parameter, float(at)) for (name, parameter), at in pairs}
            chosen = active(space, values)
            if broken(rules, chosen) is None:
                found.append(chosen)
        if len(found) >= count:
            break
    return found[:count]


def _value_columns(name: str, parameter: ParameterConfig) -> list[Column]:
    if parameter.choices is None:
        return [Column(name, "value")]
    levels = parameter.choices
    if len(levels) == 2:
        levels = levels[1:]  # the other column would say the same
    return [Column(name, "level", level) for level in levels] if len(parameter.choices) > 1 else []


def _deciders(space: Space, name: str) -> list[str]:
    """Give the searched keys that a parameter's condition names."""
    return [parent for parent in space[name].when if parent in space]
