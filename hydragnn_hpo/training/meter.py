"""Where the time of an epoch goes, as a rank sees it."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Meter:
    """Adds up wall-clock seconds by region."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Count the time inside for a region: ``data forward backward update look``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def add(self, name: str, seconds: float) -> None:
        """Count seconds that somebody else measured for a region."""
        self.seconds[name] += seconds

    def take(self) -> dict[str, float]:
        """Give the seconds since the last call, and start again."""
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken
