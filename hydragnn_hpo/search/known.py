"""Memory of what was proposed, so that no configuration is trained twice."""

import itertools
from collections.abc import Callable, Mapping

from hydragnn_hpo.config.search import Scalar, Space
from hydragnn_hpo.search.space import active, canonical, key, leaves, snap

PATIENCE = 1000
"""Known draws in a row after which the rest of the space is listed instead."""


class Known:
    """The configurations of a space that were asked or told."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._keys: set[str] = set()

    def __contains__(self, values: Mapping[str, Scalar]) -> bool:
        return key(active(self.space, values)) in self._keys

    def add(self, values: Mapping[str, Scalar]) -> bool:
        """Remember a configuration; say whether it was new."""
        name = key(active(self.space, values))
        new = name not in self._keys
        self._keys.add(name)
        return new

    def read(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Remember a configuration as it came from a file, and give its canonical form."""
        typed = {
            name: snap(self.space[name], values[name]) for name in self.space if name in values
        }
        self.add(typed)
        return canonical(self.space, typed)

    def take(self, count: int, draw: Callable[[], dict[str, Scalar]]) -> list[dict[str, Scalar]]:
        """Draw new active configurations and remember them; fewer if there are no more."""
        taken: list[dict[str, Scalar]] = []
        misses = 0
        while len(taken) < count and misses < PATIENCE:
            values = draw()
            if self.add(values):
                taken.append(active(self.space, values))
                misses = 0
            else:
                misses += 1
        rest = (values for values in leaves(self.space) if self.add(values))
        return taken + list(itertools.islice(rest, count - len(taken)))
