"""Propose at random: the baseline every other brain must beat."""

import random
from collections.abc import Mapping, Sequence

from hydragnn_hpo.config import Scalar, Space
from hydragnn_hpo.search.constraints import Constraint
from hydragnn_hpo.search.objective import Point
from hydragnn_hpo.search.proposal_history import ProposalHistory
from hydragnn_hpo.search.space import value_at


class RandomBrain:
    """Draws every key on its own, evenly over its range."""

    def __init__(
        self, space: Space, *, seed: int, initial: int, constraints: Sequence[Constraint] = ()
    ) -> None:
        self._known = ProposalHistory(space, constraints)
        self._generator = random.Random(seed)

    def _draw(self) -> dict[str, Scalar]:
        space = self._known.space
        return {name: value_at(space[name], self._generator.random()) for name in space}

    def ask(self, count: int) -> list[dict[str, Scalar]]:
        """Propose new configurations."""
        return self._known.take(count, self._draw)

    def tell(self, values: Mapping[str, Scalar], objective: Point | None) -> None:
        """Remember the configuration; its result changes nothing."""
        self._known.read(values)

    def replay(
        self,
        results: Sequence[tuple[Mapping[str, Scalar], Point | None]],
        pending: Sequence[Mapping[str, Scalar]],
    ) -> None:
        """Remember what was proposed; the draws then go on where they stopped."""
        for values in [*(values for values, _ in results), *pending]:
            self._known.read(values)

    def learn(self, results: Sequence[tuple[Mapping[str, Scalar], Point | None]]) -> None:
        """Learn nothing: there is no model."""
