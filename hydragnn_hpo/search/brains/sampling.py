"""Brains without a model: random or Sobol points, without repeated configurations."""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from hydragnn_hpo.config import Scalar, Space
from hydragnn_hpo.search.constraints import Constraint, find_broken_constraint
from hydragnn_hpo.search.objective import Point, TrialScore
from hydragnn_hpo.search.space import (
    active_parameters,
    canonical_values,
    configuration_key,
    list_configurations,
    snap_value,
    values_at,
)

PATIENCE = 1000
"""Consecutive draws of known configurations after which the rest of the space is listed instead."""


BROKEN = 100_000
"""Consecutive draws that break a rule after which the rest is listed too. It is rarely reached:
``check_feasible_share`` rejects spaces of which less than one point in a hundred is allowed."""


class ProposalHistory:
    """The configurations of a space that were proposed or reported, and the rules all must meet."""

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

    def remember(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Remember a configuration read from a file, and return its canonical form.

        Returns:
            A value for every key, see ``canonical_values``.
        """
        typed = self.convert_types(values)
        self._keys.add(configuration_key(active_parameters(self.space, typed)))
        return canonical_values(self.space, typed)

    def convert_types(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the searched values of a configuration in the types of the space.

        Returns:
            Values by key; keys of other spaces are left out.
        """
        return {
            name: snap_value(self.space[name], values[name])
            for name in self.space
            if name in values
        }

    def take(self, count: int, draw: Callable[[], dict[str, Scalar]]) -> list[dict[str, Scalar]]:
        """Draw and remember ``count`` new active configurations; fewer if there are no more."""
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


def sobol_points(dimensions: int, seed: int) -> Iterator[list[float]]:
    """Return the points of a scrambled Sobol sequence in the unit cube, one by one.

    Source: Joe and Kuo (2008), doi:10.1137/070709359, as built into SciPy.
    """
    from scipy.stats.qmc import Sobol

    sequence = Sobol(dimensions, scramble=True, rng=seed)
    while True:
        yield [float(position) for position in sequence.random(1)[0]]


def spread_points(dimensions: int, seed: int, initial: int) -> Iterator[list[float]]:
    """Yield Sobol points whose first ``initial`` also form a Latin hypercube.

    Along each axis the first points fall into equal strata, one each, in Sobol order: each of
    n choices then appears among the first n points, which Sobol alone does not promise.

    Args:
        dimensions: d, number of axes.
        seed: of the scrambling.
        initial: number of points that are spread evenly along each axis.

    Returns:
        Points in [0, 1)^d, without end.
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


def is_enough(results: Sequence[Point | None], initial: int) -> bool:
    """Check whether a model can learn: failures count once two successes stand beside them.

    Args:
        results: objectives; None for a failure.
        initial: number of results that are wanted.
    """
    successes = sum(objective is not None for objective in results)
    return len(results) >= initial and successes >= min(2, initial)


class SamplingBrain:
    """Proposes the points of a sequence, one after another; results change nothing.

    Brains with a model begin in the same way.
    """

    def __init__(
        self, space: Space, points: Iterator[Sequence[float]], constraints: Sequence[Constraint]
    ) -> None:
        """Propose from points of the unit cube with one axis for each searched key."""
        self._known = ProposalHistory(space, constraints)
        self._points = points

    def _draw(self) -> dict[str, Scalar]:
        return values_at(self._known.space, next(self._points))

    def ask(self, count: int) -> list[dict[str, Scalar]]:
        """Propose new configurations."""
        return self._known.take(count, self._draw)

    def tell(self, score: TrialScore) -> None:
        """Remember the configuration; its result changes nothing."""
        self._known.remember(score.values)

    def replay(
        self,
        results: Sequence[TrialScore],
        pending: Sequence[Mapping[str, Scalar]],
    ) -> None:
        """Take in all results, and remember what is pending; the sequence goes on after both."""
        for score in results:
            self.tell(score)
        for values in pending:
            self._expect(values)

    def _expect(self, values: Mapping[str, Scalar]) -> None:
        """Remember a proposal whose result is pending."""
        self._known.remember(values)

    def learn(self, results: Sequence[tuple[Mapping[str, Scalar], Point | None]]) -> None:
        """Learn nothing: there is no model."""


def make_random_brain(
    space: Space, *, seed: int, initial: int, constraints: Sequence[Constraint] = ()
) -> SamplingBrain:
    """Return a brain that draws every key on its own, evenly over its range: the baseline.

    Args:
        space: searched keys.
        seed: of the draws.
        initial: not used.
        constraints: what every proposal meets.
    """
    generator = random.Random(seed)
    points = ([generator.random() for _ in space] for _ in itertools.count())
    return SamplingBrain(space, points, constraints)


def make_sobol_brain(
    space: Space, *, seed: int, initial: int, constraints: Sequence[Constraint] = ()
) -> SamplingBrain:
    """Return a brain that follows one Sobol sequence over all keys, more even than random draws.

    Args:
        space: searched keys.
        seed: of the scrambling.
        initial: points that also form a Latin hypercube.
        constraints: what every proposal meets.
    """
    return SamplingBrain(space, spread_points(len(space), seed, initial), constraints)
