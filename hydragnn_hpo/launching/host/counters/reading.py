"""What a source of numbers gives, and how little it takes to read one from a file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Part = Literal["host", "cpu", "memory", "card"]
"""What a counter counts. ``host`` is everything in a host, the other parts included."""


@dataclass(frozen=True)
class Count:
    """How far a counter of energy has come; it only rises."""

    joules: float
    part: Part

    devices: tuple[str, ...] = ()
    """Of a card: its devices, by the numbers that the host has for them (``Slot.visible``)."""

    wraps: float = 0.0
    """Where it begins at 0 again, in joules; 0 if it never does."""

    life: str = ""
    """Another one says that it has begun anew."""


@dataclass
class Reading:
    """What a source says at one moment; what it cannot tell is left out."""

    counts: dict[str, Count] = field(default_factory=dict)
    """Counters of energy by name."""

    host: dict[str, float] = field(default_factory=dict)
    """Gauges of the host."""

    devices: dict[str, dict[str, float]] = field(default_factory=dict)
    """Gauges by device: ``busy`` (share), ``memory_mb``, ``celsius``, ``watts``, ``throttled``."""

    notes: list[str] = field(default_factory=list)
    """Sentences on what is there but may not be read."""


class Source(Protocol):
    """Numbers from one kind of counter; built once for each host, and asked again and again."""

    def __init__(self, root: Path) -> None:
        """Look what there is in the folder that holds ``sys`` and ``proc``."""

    def read(self) -> Reading:
        """Give what can be read now; raises nothing, takes milliseconds."""


def word(path: Path) -> str | None:
    """Give what a file of one line holds; None where it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def number(path: Path) -> float | None:
    """Give the number that a file holds; None where it holds none, or a negative one."""
    try:
        found = int(word(path) or "")
    except ValueError:
        return None
    return float(found) if found >= 0 else None
