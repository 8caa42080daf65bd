"""What earlier campaigns know that fits the space of this one.

Objectives of another campaign come from other epochs, data or seeds: they are worth their order,
and only where the objective has the same name and the heads the same targets. So their rows teach
the model of a brain, and are no trials of ours: each may be proposed, and trained, again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hydragnn_hpo.config.search import Scalar, Space
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.search.constraints import Constraint, broken, read_constraints
from hydragnn_hpo.search.objective import Point
from hydragnn_hpo.search.space import active, canonical, fixed_values, is_in, key, same, snap

Row = tuple[Mapping[str, Scalar], Point | None]
"""Searched values and objective (None: failed) of a trial."""


class Fitting(NamedTuple):
    """What fits."""

    kept: list[Row]
    """Active values in the types of the space, each configuration once."""
    skipped: dict[str, int]
    """How many rows do not fit, by cause."""


def fitting(
    space: Space,
    constraints: Sequence[str],
    rows: Sequence[Row],
    template: Mapping[str, Any] | None = None,
) -> Fitting:
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
        cause, typed = _read(space, rules, fixed, values)
        name = key(typed)
        if cause is None and name in kept:
            cause = "is there already"
        if cause is None:
            kept[name] = (typed, objective)
        else:
            skipped[cause] += 1
    return Fitting(list(kept.values()), dict(skipped))


def _read(
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
            typed[name] = snap(space[name], value)
        elif name not in fixed or not same(fixed[name], value):
            return f"'{name}' is not searched here", {}
    try:
        canonical(space, typed)
    except ConfigError:
        return "lacks a searched key", {}
    chosen = active(space, typed)
    rule = broken(constraints, chosen)
    return (f"breaks '{rule.text}'" if rule else None), chosen
