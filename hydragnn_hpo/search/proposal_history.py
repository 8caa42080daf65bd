"""Memory of what was proposed, so that no configuration is trained twice."""

import itertools
from collections.abc import Callable, Mapping, Sequence

from hydragnn_hpo.config import Scalar, Space
from hydragnn_hpo.search.constraints import Constraint, find_broken_constraint
from hydragnn_hpo.search.space import (
    active_parameters,
    canonical_values,
    configuration_key,
    list_configurations,
    snap_value,
)

PATIENCE = 1000
"""Known draws in a row after which the rest of the space is listed instead."""


BROKEN = 100_000
"""Draws in a row that break a rule, after which the same is done: ``check_feasible_share``
lets no space pass of which rules leave less than one point in a hundred."""


class ProposalHistory:
    """The configurations of a space that were asked or told, and the rules all must meet."""

    def __init__(self, space: Space, constraints: Sequence[Constraint] = ()) -> None:
        self.space, self.constraints = space, constraints
        self._keys: set[str] = set()

    def allows(self, chosen: Mapping[str, Scalar]) -> bool:
        """Check whether active values meet all rules."""
        return find_broken_constraint(self.constraints, chosen) is None

    def is_new(self, chosen: Mapping[str, Scalar]) -> bool:
        """Check whether active values are new."""
        return configuration_key(chosen) not in self._keys

    def offer(self, values: Mapping[str, Scalar]) -> bool:
        """Remember a configuration if it may be proposed: it is new and meets all rules."""
        chosen = active_parameters(self.space, values)
        free = self.allows(chosen) and self.is_new(chosen)
        if free:
            self._keys.add(configuration_key(chosen))
        return free

    def read(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Remember a configuration as it came from a file, and give its canonical form."""
        typed = self.typed(values)
        self._keys.add(configuration_key(active_parameters(self.space, typed)))
        return canonical_values(self.space, typed)

    def typed(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the searched values of a configuration in the types of the space."""
        return {
            name: snap_value(self.space[name], values[name])
            for name in self.space
            if name in values
        }

    def take(self, count: int, draw: Callable[[], dict[str, Scalar]]) -> list[dict[str, Scalar]]:
        """Draw new active configurations and remember them; fewer if there are no more."""
        taken: list[dict[str, Scalar]] = []
        repeated = wrong = 0
        while len(taken) < count and repeated < PATIENCE and wrong < BROKEN:
            values = draw()
            if self.offer(values):
                taken.append(active_parameters(self.space, values))
                repeated = wrong = 0
            elif self.allows(active_parameters(self.space, values)):
                repeated += 1
            else:
                wrong += 1
        rest = (values for values in list_configurations(self.space) if self.offer(values))
        return taken + list(itertools.islice(rest, count - len(taken)))
