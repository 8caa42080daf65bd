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

    @property
    def ends(self) -> int:
        """Number of trials that ended."""
        return self.counts.get("all", [0])[0]

    def put(self, causes: tuple[str, ...], *, failed: bool) -> None:
        """Take in how a trial ended."""
        for cause in ("all", *causes):
            count = self.counts.setdefault(cause, [0, 0])
            count[0] += 1
            count[1] += failed

    def add(self, counts: Mapping[str, list[int]]) -> None:
        """Take in what another campaign counted."""
        for cause, (ends, failures) in counts.items():
            count = self.counts.setdefault(cause, [0, 0])
            count[0] += ends
            count[1] += failures

    def rate(self, cause: str) -> float:
        """Give the share that failed, smoothed."""
        ends, failures = self.counts.get(cause, (0, 0))
        return (failures + WORTH * PRIOR) / (ends + WORTH)

    def fails(self, causes: tuple[str, ...]) -> float:
        """Give the probability of failure: each cause multiplies the odds that all trials have."""
        whole, found = self.rate("all"), self.rate("all")
        for cause in causes:
            found *= self.rate(cause) / whole
        return min(found, MOST)


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
