"""Interface of brains, the table of brains, and warm starts from earlier campaigns."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hydragnn_hpo.config import Scalar, Space
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.search.brains.deephyper_brain import DeepHyperBrain
from hydragnn_hpo.search.brains.gaussian_process_brain import GaussianProcessBrain
from hydragnn_hpo.search.brains.optuna_brain import OptunaBrain
from hydragnn_hpo.search.brains.sampling import make_random_brain, make_sobol_brain
from hydragnn_hpo.search.constraints import Constraint, find_broken_constraint, read_constraints
from hydragnn_hpo.search.objective import Point, TrialScore
from hydragnn_hpo.search.space import (
    active_parameters,
    canonical_values,
    configuration_key,
    fixed_values,
    is_in,
    order_by_conditions,
    same_value,
    snap_value,
)


class Brain(Protocol):
    """Proposes trials that minimize an objective; used by one thread at a time.

    Proposals depend only on the seed and on the sequence of calls.
    """

    def ask(self, count: int) -> list[dict[str, Scalar]]:
        """Propose ``count`` active configurations that were neither proposed nor reported before.

        Fewer are returned only when the space is exhausted.
        """
        ...

    def tell(self, score: TrialScore) -> None:
        """Take in a result; an objective that is not finite is a failure.

        Brains that learn nothing from higher rungs pass over them.
        """
        ...

    def replay(
        self,
        results: Sequence[TrialScore],
        pending: Sequence[Mapping[str, Scalar]],
    ) -> None:
        """Bring a fresh brain up to date after a restart.

        Args:
            results: of earlier calls of ``tell``, in the journal's order.
            pending: proposals without a result yet, which are not to be proposed again.
        """
        ...

    def learn(self, results: Sequence[tuple[Mapping[str, Scalar], Point | None]]) -> None:
        """Take in results of earlier campaigns, before the first ``ask`` or ``tell``.

        They train the model but do not count as proposed: each may be proposed again.
        """
        ...


BRAINS: dict[str, Callable[..., Brain]] = {
    "gp": GaussianProcessBrain,
    "deephyper": DeepHyperBrain,
    "optuna": OptunaBrain,
    "random": make_random_brain,
    "sobol": make_sobol_brain,
}
"""Brains by name; each takes the space, ``seed``, ``initial`` and ``constraints``."""

READ_PRIORS = frozenset({"gp"})
"""Brains that begin around the ``prior`` of a key."""


def make_brain(
    name: str,
    space: Space,
    *,
    seed: int,
    initial: int,
    constraints: Sequence[str] = (),
    template: Mapping[str, Any] | None = None,
    warm: Sequence[tuple[Mapping[str, Scalar], Point | None]] = (),
) -> Brain:
    """Build a brain without results of this campaign.

    Args:
        name: key of ``BRAINS``.
        space: searched keys and their ranges, already checked.
        seed: source of all its randomness.
        initial: number of evenly spread proposals before a model proposes.
        constraints: ``search.constraints``, which every proposal meets.
        template: fixed values of all trials, which constraints may name.
        warm: results of earlier campaigns, see ``select_warm_start``.

    Raises:
        ConfigError: the name is unknown or its library missing, the conditions of the space are
            circular, or a constraint cannot be read.
    """
    if name not in BRAINS:
        raise ConfigError(unknown("brain", name, BRAINS))
    order_by_conditions(space)
    rules = read_constraints(constraints, space, template or {})
    brain = BRAINS[name](space, seed=seed, initial=initial, constraints=rules)
    if warm:
        brain.learn(warm)
    return brain


Row = tuple[Mapping[str, Scalar], Point | None]
"""Searched values and objective of a trial; the objective of a failed one is None."""


class WarmStart(NamedTuple):
    """Results of earlier campaigns that fit the space of this one.

    Objectives of another campaign come from other epochs, data or seeds, so only their order is
    meaningful, and only for the same objective and targets. They train a brain's model but are not
    trials of this campaign: each configuration may be proposed and trained again.
    """

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
        rows: of earlier campaigns, in journal order; the caller adds values that an earlier
            campaign had fixed and this one searches.
        template: fixed values of this campaign; a row may name a fixed key with the same value.
    """
    fixed = fixed_values(template or {})
    rules = read_constraints(constraints, space, template or {})
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
    """Return a cause for skipping a row, or its active values."""
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
