"""Checks of a conv, their measurements, and the report of all checks."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import JsonValue

from hydragnn_hpo.metrics_log import replace_nonfinite
from hydragnn_hpo.testing.conv_under_test import ConvUnderTest


@dataclass(frozen=True)
class Measurement:
    """A measured number and its limit."""

    value: float
    """Measured number; NaN fails."""
    limit: float
    """Largest or smallest allowed value, see ``at_most``."""
    at_most: bool = True
    """Whether ``limit`` is the largest allowed value, else the smallest."""
    detail: str = ""
    """Explanation for a person, where a number is not enough."""

    @property
    def passed(self) -> bool:
        """Whether the value is within the limit."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit


@dataclass(frozen=True)
class ConvCheck:
    """One check of the suite."""

    name: str
    """Short name, unique in the suite."""
    asks: str
    """Property that must hold, as text."""
    advice: str
    """What the author of the conv can do if it does not hold."""
    measure: Callable[[ConvUnderTest], Measurement]
    """Measures a conv; any exception is a failure."""
    needs: Literal["", "forces", "exports", "smooth"] = ""
    """Attribute of ``ConvUnderTest`` without which the check is left out."""


@dataclass(frozen=True)
class CheckFinding:
    """The result of one check."""

    name: str
    """Name of the check."""
    asks: str
    """Property that must hold, as text."""
    result: Literal["passed", "failed", "left out"]
    """How the check ended."""
    measured: float | None = None
    """Measured number; None where nothing could be measured."""
    limit: float | None = None
    """Largest or smallest allowed value, see ``at_most``."""
    at_most: bool = True
    """Whether ``limit`` is the largest allowed value, else the smallest."""
    detail: str = ""
    """Explanation for a person: an exception, or why the check was left out."""
    place: str = ""
    """The line of the conv that raised, as ``file:line: code``."""
    advice: str = ""
    """``ConvCheck.advice``; empty unless the check failed."""

    @property
    def failed(self) -> bool:
        """Whether the check failed."""
        return self.result == "failed"

    @property
    def bound(self) -> str:
        """The limit as text, such as ``<= 1e-09``; ``-`` without one."""
        if self.limit is None:
            return "-"
        if self.at_most and self.limit == 0:
            return "0"
        return f"{'<=' if self.at_most else '>='} {self.limit:.2g}"

    @property
    def sentence(self) -> str:
        """The result as text: ``failed: 0.2, must be <= 1e-09``."""
        number = "" if self.measured is None else f"{self.measured:.2g}, must be {self.bound}"
        parts = [part.rstrip(".") for part in (number, self.detail) if part]
        return f"{self.result}: {'; '.join(parts)}" if parts else self.result


@dataclass(frozen=True)
class CheckReport:
    """The results of all checks on a conv."""

    conv: str
    """Name of the conv."""
    options: dict[str, Any]
    """Its options, every value resolved."""
    findings: tuple[CheckFinding, ...]
    """One per check, in the order of the suite."""
    seconds: float
    """Time of all checks."""

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckFinding, ...]:
        """Findings of failed checks.

        Returns:
            In the order of the suite.
        """
        return tuple(finding for finding in self.findings if finding.failed)

    def to_plain(self) -> dict[str, JsonValue]:
        """Return plain data for JSON; numbers that are not finite become None.

        Returns:
            The output of ``check-layer --json``: the fields, ``findings`` as ``checks``, and
            ``passed``.
        """
        return {
            "conv": self.conv,
            "options": self.options,
            "passed": self.passed,
            "seconds": round(self.seconds, 3),
            "checks": [replace_nonfinite(asdict(finding)) for finding in self.findings],
        }
