"""What a check measures, and what is said about it."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hydragnn_hpo.testing.conv_under_test import ConvUnderTest


@dataclass(frozen=True)
class Measurement:
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
class ConvCheck:
    """One question that a conv is asked."""

    name: str
    """Short name, unique in the suite."""
    asks: str
    """What must hold."""
    advice: str
    """What to do where it does not."""
    measure: Callable[[ConvUnderTest], Measurement]
    """Gives the answer; what it raises is a failure."""
    needs: Literal["", "forces", "exports"] = ""
    """The flag of the class without which the check is left out."""


@dataclass(frozen=True)
class CheckFinding:
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
    def bound(self) -> str:
        """Write the limit with its sign: ``<= 1e-09``."""
        if self.limit is None:
            return "-"
        if self.at_most and self.limit == 0:
            return "0"
        return f"{'<=' if self.at_most else '>='} {self.limit:.2g}"

    @property
    def sentence(self) -> str:
        """Return what was measured, as text."""
        number = "" if self.found is None else f"{self.found:.2g}, must be {self.bound}"
        parts = [part.rstrip(".") for part in (number, self.detail) if part]
        return f"{self.result}: {'; '.join(parts)}" if parts else self.result


@dataclass(frozen=True)
class CheckReport:
    """What the suite found."""

    conv: str
    """Name of the conv."""
    options: dict[str, Any]
    """Its options, every value resolved."""
    findings: tuple[CheckFinding, ...]
    """One per check, in the order of the suite."""
    seconds: float
    """How long it took."""

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckFinding, ...]:
        """What failed."""
        return tuple(finding for finding in self.findings if finding.failed)

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON; numbers that are not finite become None."""
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
