"""How busy a host is: processors, memory, network, as Linux counts them.

Source: proc(5).
"""

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

from hydragnn_hpo.launching.host.counters.reading import Reading, word

_IDLE, _WAITING, _COUNTED = 3, 4, 8
"""Places in the line ``cpu`` of /proc/stat; guests, behind these, are counted as users too."""


class System:
    """Gauges of the host."""

    def __init__(
        self,
        root: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """See ``Source``; ``clock`` gives seconds."""
        self._proc, self._clock = root / "proc", clock
        self._ticks: tuple[int, int] | None = None
        self._sent: tuple[float, int] | None = None
        self.read()

    def read(self) -> Reading:
        """See ``Source``; shares and rates are those since the last call."""
        found = {
            "busy": self._busy(),
            "load": _load(self._proc),
            "memory_mb": _memory_mb(self._proc),
            "network_mb_per_second": self._network(),
        }
        return Reading(host={name: value for name, value in found.items() if value is not None})

    def _busy(self) -> float | None:
        """Give the share of the processors' time that was not idle."""
        last, self._ticks = self._ticks, _ticks(self._proc)
        if last is None or self._ticks is None or self._ticks[1] <= last[1]:
            return None
        share = (self._ticks[0] - last[0]) / (self._ticks[1] - last[1])
        return min(1.0, max(0.0, share))

    def _network(self) -> float | None:
        """Give the megabytes per second that went out and came in, loopback left out."""
        now, moved = self._clock(), _moved(self._proc)
        last, self._sent = self._sent, None if moved is None else (now, moved)
        if last is None or moved is None or now <= last[0] or moved < last[1]:
            return None
        return (moved - last[1]) / (now - last[0]) / 1e6


def _ticks(proc: Path) -> tuple[int, int] | None:
    """Give the ticks of all processors that were busy, and all of them."""
    with contextlib.suppress(ValueError, IndexError):
        first = (word(proc / "stat") or "").partition("\n")[0].split()
        ticks = [int(part) for part in first[1 : 1 + _COUNTED]]
        return sum(ticks) - ticks[_IDLE] - ticks[_WAITING], sum(ticks)
    return None


def _load(proc: Path) -> float | None:
    with contextlib.suppress(ValueError, IndexError):
        return float((word(proc / "loadavg") or "").split()[0])
    return None


def _memory_mb(proc: Path) -> float | None:
    told = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", _text(proc / "meminfo"), re.M))
    if len(told) < 2:
        return None
    return (int(told["MemTotal"]) - int(told["MemAvailable"])) / 1024


def _moved(proc: Path) -> int | None:
    """Give the bytes that all interfaces but loopback have received and sent."""
    lines = re.findall(r"^\s*([^\s:]+):\s*(.+)$", _text(proc / "net/dev"), re.M)
    with contextlib.suppress(ValueError, IndexError):
        numbers = [told.split() for name, told in lines if name != "lo"]
        return sum(int(each[0]) + int(each[8]) for each in numbers) if numbers else None
    return None


def _text(path: Path) -> str:
    return word(path) or ""
