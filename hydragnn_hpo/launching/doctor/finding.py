"""What a check finds: where, how it stands, what was found and expected, and the cure."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "slow", "wrong", "unknown"]
"""``slow`` works, but is far behind the others or the profile; ``unknown`` could not be seen."""

ORDER: tuple[State, ...] = ("wrong", "slow", "unknown", "ok")
"""The worst first."""

_MOST = 400
"""Letters of what one finding says: what a host prints may be long."""


def clean(text: str) -> str:
    """Give text that is safe on a terminal, in one line: nothing that cannot be printed."""
    if text.isprintable() and len(text) <= _MOST:
        return text
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= _MOST else f"{shown[: _MOST - 3]}..."


@dataclass(frozen=True)
class Finding:
    """One answer of one check; what it says is one line that a terminal can show."""

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
        """Whether something is to be done."""
        return self.state in ("slow", "wrong")

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        return asdict(self) | {"hosts": list(self.hosts)}


def worst(findings: Iterable[Finding]) -> State:
    """Give the worst state among some findings; ``ok`` of none."""
    states = {finding.state for finding in findings}
    return next((state for state in ORDER if state in states), "ok")
