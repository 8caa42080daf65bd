"""Propose by a scrambled Sobol sequence: covers the space more evenly than chance."""

import math
from collections.abc import Iterator, Mapping, Sequence

from hydragnn_hpo.config import Scalar, Space
from hydragnn_hpo.search.constraints import Constraint
from hydragnn_hpo.search.objective import Point
from hydragnn_hpo.search.proposal_history import ProposalHistory
from hydragnn_hpo.search.space import value_at


def sobol_points(dimensions: int, seed: int) -> Iterator[list[float]]:
    """Give the points of a scrambled Sobol sequence in the unit cube, one by one.

    Source: Joe and Kuo (2008), doi:10.1137/070709359, as built into SciPy.
    """
    from scipy.stats.qmc import Sobol

    sequence = Sobol(dimensions, scramble=True, rng=seed)
    while True:
        yield [float(position) for position in sequence.random(1)[0]]


def spread_points(dimensions: int, seed: int, initial: int) -> Iterator[list[float]]:
    """Give Sobol points whose first ``initial`` also form a Latin hypercube.

    Along each axis the first points fall into equal strata, one each, in Sobol order: each of
    n choices then appears among the first n points, which Sobol alone does not promise.
    """
    points = sobol_points(dimensions, seed)
    first = [next(points) for _ in range(initial)]
    columns = list(zip(*first, strict=True))
    ranks = [{value: rank for rank, value in enumerate(sorted(column))} for column in columns]
    for point in first:
        placed = zip(ranks, point, strict=True)
        # A point keeps its place inside its stratum; nextafter keeps it below the next one.
        yield [
            min((rank[p] + p) / initial, math.nextafter((rank[p] + 1) / initial, 0.0))
            for rank, p in placed
        ]
    yield from points


class SobolBrain:
    """Walks along one Sobol sequence over all keys."""

    def __init__(
        self, space: Space, *, seed: int, initial: int, constraints: Sequence[Constraint] = ()
    ) -> None:
        self._known = ProposalHistory(space, constraints)
        self._points = spread_points(len(space), seed, initial)

    def _draw(self) -> dict[str, Scalar]:
        space = self._known.space
        pairs = zip(space.items(), next(self._points), strict=True)
        return {name: value_at(parameter, position) for (name, parameter), position in pairs}

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
        """Remember what was proposed; the sequence then goes on where it stopped."""
        for values in [*(values for values, _ in results), *pending]:
            self._known.read(values)

    def learn(self, results: Sequence[tuple[Mapping[str, Scalar], Point | None]]) -> None:
        """Learn nothing: there is no model."""
