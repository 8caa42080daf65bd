"""How likely a trial is to fail: few counts, smoothed."""

import math
from collections.abc import Mapping

from hydragnn_hpo.config.trial import TrialConfig

PRIOR, WORTH = 0.05, 4.0
"""Share of trials that fail as long as nobody knows, and how many trials that belief is worth."""

MOST = 0.95
"""Nothing is certain to fail."""


class Chances:
    """Counts ends and failures by what may have caused them."""

    def __init__(self) -> None:
        """Nothing has ended."""
        self.counts: dict[str, list[int]] = {}
        self._lent: dict[str, list[int]] = {}

    @property
    def ends(self) -> int:
        """Number of trials that ended."""
        return self.counts.get("all", [0])[0]

    def put(self, causes: tuple[str, ...], *, failed: bool) -> None:
        """Take in how a trial ended."""
        for cause in ("all", *causes):
            _count(self.counts, cause, 1, int(failed))

    def lend(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Take in what somebody else counted, which is not ours to hand on."""
        for cause, (ends, failures) in counts.items():
            _count(self._lent, cause, ends, failures)

    def rate(self, cause: str) -> float:
        """Give the share that failed, smoothed."""
        own, lent = self.counts.get(cause, [0, 0]), self._lent.get(cause, [0, 0])
        return (own[1] + lent[1] + WORTH * PRIOR) / (own[0] + lent[0] + WORTH)

    def fails(self, causes: tuple[str, ...]) -> float:
        """Give the probability of failure: each cause multiplies the odds that all trials have."""
        whole, found = self.rate("all"), self.rate("all")
        for cause in causes:
            found *= self.rate(cause) / whole
        return min(found, MOST)


def _count(counts: dict[str, list[int]], cause: str, ends: int, failures: int) -> None:
    known = counts.get(cause, [0, 0])
    counts[cause] = [known[0] + ends, known[1] + failures]


def causes_of(config: TrialConfig) -> tuple[str, ...]:
    """Name what may make a trial fail: its conv, and its learning rate within half a decade."""
    decade = round(2 * math.log10(config.training.learning_rate)) / 2
    return (f"conv:{config.model.conv}", f"rate:1e{decade:g}")


def above(expected: float, limit: float, sigma: float) -> float:
    """Give the probability that something lognormal is above a limit.

    Args:
        expected: its median.
        limit: may be infinite.
        sigma: standard deviation of its logarithm.
    """
    if math.isinf(limit):
        return 0.0
    return 0.5 * math.erfc(math.log(limit / expected) / (sigma * math.sqrt(2.0)))
