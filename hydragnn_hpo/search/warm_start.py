"""What earlier campaigns know that fits the space of this one.

Objectives of another campaign come from other epochs, data or seeds: they are worth their order,
and only where the objective has the same name and the heads the same targets. So their rows teach
the model of a brain, and are no trials of ours: each may be proposed, and trained, again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hydragnn_hpo.config import Scalar, Space
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.search.constraints import Constraint, find_broken_constraint, read_constraints
from hydragnn_hpo.search.objective import Point
from hydragnn_hpo.search.space import (
    active_parameters,
    canonical_values,
    configuration_key,
    fixed_values,
    is_in,
    same_value,
    snap_value,
)

Row = tuple[Mapping[str, Scalar], Point | None]
"""Searched values and objective (None: failed) of a trial."""


class WarmStart(NamedTuple):
    """What fits."""

    kept: list[Row]
    """Active values in the types of the space, each configuration once."""
    skipped: dict[str, int]
    """How many rows do not fit, by cause."""


def select_warm_start(
    space: Space,
    constraints: Sequence[str],
    rows: Sequence[Row],
    template: Mapping[str, Any] | None = None,
) -> WarmStart:
    """Choose the rows of earlier campaigns that are points of a space.

    Args:
        space: searched keys of this campaign.
        constraints: ``search.constraints`` of this campaign.
        rows: from earlier ones, in their journals' order; whoever reads them adds what an earlier
            campaign had fixed and this one searches.
        template: values fixed in this campaign: a row that has them too has no foreign key.
    """
    fixed, rules = (
        fixed_values(template or {}),
        read_constraints(constraints, space, template or {}),
    )
    kept: dict[str, Row] = {}
    skipped: Counter[str] = Counter()
    for values, objective in rows:
        cause, typed = _read_row(space, rules, fixed, values)
        name = configuration_key(typed)
        if cause is None and name in kept:
            cause = "is there already"
        if cause is None:
            kept[name] = (typed, objective)
        else:
            skipped[cause] += 1
    return WarmStart(list(kept.values()), dict(skipped))


def _read_row(
    space: Space,
    constraints: Sequence[Constraint],
    fixed: Mapping[str, Any],
    values: Mapping[str, Scalar],
) -> tuple[str | None, dict[str, Scalar]]:
    """Give a cause for skipping a row, or its active values."""
    typed: dict[str, Scalar] = {}
    for name, value in values.items():
        if name in space:
            if not is_in(space[name], value):
                return f"'{name}' is outside its range", {}
            typed[name] = snap_value(space[name], value)
        elif name not in fixed or not same_value(fixed[name], value):
            return f"'{name}' is not searched here", {}
    try:
        canonical_values(space, typed)
    except ConfigError:
        return "lacks a searched key", {}
    chosen = active_parameters(space, typed)
    rule = find_broken_constraint(constraints, chosen)
    return (f"breaks '{rule.text}'" if rule else None), chosen
