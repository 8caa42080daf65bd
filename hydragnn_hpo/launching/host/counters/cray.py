"""HPE Cray EX: the node's own power management, read through the kernel by anybody.

``energy`` is the whole host, its accelerators included; ``accelK_energy`` one accelerator module:
on an MI250X both of its dies, module K being devices 2K and 2K + 1. A file reads
``12044825101 J 7810213855886 us``; all are renewed ten times a second. ``startup`` changes when
the node's controller restarts, and its counters with it.

Sources: HPE Cray System Management, "User Access to Compute Node Power Data"; CSCS, "HPC Clusters"
(files of a GH200 host); a dump of an MI300A host of HLRS's Hunter. All read 2026-11-21.
"""

import re
from pathlib import Path

from hydragnn_hpo.launching.host.counters.drm import cards_of
from hydragnn_hpo.launching.host.counters.reading import Count, Part, Reading, word

FOLDER = "sys/cray/pm_counters"

_PARTS: dict[str, Part] = {"energy": "host", "cpu_energy": "cpu", "memory_energy": "memory"}


def joules(path: Path) -> float | None:
    """Give the joules of one file; None unless it says that they are joules."""
    said = re.match(r"(\d+) J\b", word(path) or "")
    return float(said[1]) if said else None


class Cray:
    """Energy of a Cray host."""

    def __init__(self, root: Path) -> None:
        """See ``Source``."""
        self._folder = root / FOLDER
        found = (re.fullmatch(r"accel(\d+)_energy", path.name) for path in self._listed())
        numbers = sorted(int(match[1]) for match in found if match)
        amd = len(cards_of(root, "0x1002"))
        each = max(1, amd // len(numbers)) if numbers else 1
        self._modules = {
            number: tuple(str(place * each + die) for die in range(each))
            for place, number in enumerate(numbers)
        }

    def _listed(self) -> list[Path]:
        try:
            return list(self._folder.iterdir())
        except OSError:
            return []

    def read(self) -> Reading:
        """See ``Source``."""
        life, reading = word(self._folder / "startup") or "", Reading()
        for name, part in _PARTS.items():
            if (found := joules(self._folder / name)) is not None:
                reading.counts[f"cray/{name}"] = Count(found, part, life=life)
        for number, devices in self._modules.items():
            name = f"accel{number}_energy"
            if (found := joules(self._folder / name)) is not None:
                reading.counts[f"cray/{name}"] = Count(found, "card", devices, life=life)
        return reading
