"""What a check measures, and what is said about it."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hydragnn_hpo.testing.subject import Subject


@dataclass(frozen=True)
class Measured:
    """One number beside its limit."""

    found: float
    """What was found; not a number fails."""
    limit: float
    """What is allowed."""
    at_most: bool = True
    """Whether the limit is the most that may be found, else the least."""
    detail: str = ""
    """Where or what, if a number does not say it."""

    @property
    def passed(self) -> bool:
        """Whether the limit is kept."""
        return self.found <= self.limit if self.at_most else self.found >= self.limit


@dataclass(frozen=True)
class Check:
    """One question that a conv is asked."""

    name: str
    """Short name, unique in the suite."""
    asks: str
    """What must hold."""
    advice: str
    """What to do where it does not."""
    measure: Callable[[Subject], Measured]
    """Gives the answer; what it raises is a failure."""
    needs_forces: bool = False
    """Left out for a conv that says ``forces = False``."""


@dataclass(frozen=True)
class Finding:
    """The answer to one check."""

    name: str
    """Name of the check."""
    asks: str
    """What must hold."""
    result: Literal["passed", "failed", "left out"]
    """How it ended."""
    found: float | None = None
    """What was found; None where nothing could be measured."""
    limit: float | None = None
    """What is allowed."""
    at_most: bool = True
    """Whether the limit is the most that may be found, else the least."""
    detail: str = ""
    """Where or what, an exception, or why it was left out."""
    place: str = ""
    """The line of the conv that raised, as ``file:line: code``."""
    advice: str = ""
    """What to do; empty unless it failed."""

    @property
    def failed(self) -> bool:
        """Whether the conv breaks this law."""
        return self.result == "failed"

    @property
    def sentence(self) -> str:
        """Say what was found and what to do."""
        if not self.failed:
            return f"{self.name}: {self.result}{f', {self.detail}' if self.detail else ''}."
        parts = [f"{self.name}: must hold: {self.asks}."]
        if self.found is not None and self.limit is not None:
            bound = "at most" if self.at_most else "at least"
            parts.append(f"Found {self.found:.2g}, {bound} {self.limit:.2g} is allowed.")
        parts += [f"{self.detail.rstrip('.')}."] if self.detail else []
        parts += [f"At {self.place}"] if self.place else []
        return " ".join([*parts, self.advice])


@dataclass(frozen=True)
class Report:
    """What the suite found."""

    conv: str
    """Name of the conv."""
    options: dict[str, Any]
    """Its options, every value resolved."""
    findings: tuple[Finding, ...]
    """One per check, in the order of the suite."""
    seconds: float
    """How long it took."""

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Finding, ...]:
        """What failed."""
        return tuple(finding for finding in self.findings if finding.failed)

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON; numbers that are not finite become None."""
        findings = []
        for finding in self.findings:
            plain = asdict(finding)
            for name in ("found", "limit"):
                value = plain[name]
                plain[name] = value if value is not None and math.isfinite(value) else None
            findings.append(plain)
        return {
            "conv": self.conv,
            "options": self.options,
            "passed": self.passed,
            "seconds": round(self.seconds, 3),
            "checks": findings,
        }
