"""Findings of checks, and hosts that fall far behind the others."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "slow", "wrong", "unknown"]
"""``slow`` works, but is far behind the others or the profile; ``unknown`` could not be seen."""

ORDER: tuple[State, ...] = ("wrong", "slow", "unknown", "ok")
"""The worst first."""

_MOST = 400
"""Longest text of a finding: what a host prints may be long."""


def clean(text: str) -> str:
    """Return text that is safe on a terminal, in one line: nothing that cannot be printed."""
    if text.isprintable() and len(text) <= _MOST:
        return text
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= _MOST else f"{shown[: _MOST - 3]}..."


@dataclass(frozen=True)
class Finding:
    """One result of one check; its texts are single lines that a terminal can show."""

    check: str
    """A few words, such as ``all-reduce bandwidth``."""

    state: State

    found: str
    """With its unit."""

    expected: str = ""
    """As the profile or the other hosts say."""

    cure: str = ""
    """One short sentence for the user."""

    hosts: tuple[str, ...] = ()
    """The host, the two of a pair, or none where it concerns this place or all together."""

    figure: float | None = None
    """What was measured, if it is a number: rows of a table are sorted by it."""

    def __post_init__(self) -> None:
        for key in ("check", "found", "expected", "cure"):
            object.__setattr__(self, key, clean(getattr(self, key)))
        object.__setattr__(self, "hosts", tuple(map(clean, self.hosts)))

    @property
    def bad(self) -> bool:
        """Whether action is needed."""
        return self.state in ("slow", "wrong")

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"hosts": list(self.hosts)}


def worst(findings: Iterable[Finding]) -> State:
    """Return the worst state among some findings; ``ok`` of none."""
    states = {finding.state for finding in findings}
    return next((state for state in ORDER if state in states), "ok")


LEAST = 4
"""Fewest hosts that make a majority."""

_DEVIATIONS = 4.0
_NORMAL = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""


def find_outliers(
    values: Mapping[str, float], factor: float, *, low_is_bad: bool
) -> dict[str, float]:
    """Return hosts whose value is worse than the median by a factor, and by far more than is usual.

    Args:
        values: of each host.
        factor: by which it must be worse, above 1.
        low_is_bad: whether small values are bad (a speed) or large ones (a time).

    Returns:
        Host -> median of all; empty where too few hosts answered.

    Source: Leys et al. (2013), J. Exp. Soc. Psychol. 49, 764: median absolute deviation.
    """
    if len(values) < LEAST:
        return {}
    median = statistics.median(values.values())
    usual = _NORMAL * statistics.median(abs(value - median) for value in values.values())

    def bad(value: float) -> bool:
        far = value * factor < median if low_is_bad else value > median * factor
        return far and abs(value - median) > _DEVIATIONS * usual

    return {host: median for host, value in values.items() if bad(value)}
