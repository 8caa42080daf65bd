"""Energy of processors and their memory, as Linux shows what Intel and AMD count (RAPL).

A package holds its cores, so only packages and the memories beside them are read. A counter
begins at 0 again behind ``max_energy_range_uj``: after minutes under load. Since Linux 5.10
only root may read it (CVE-2020-8694).

Source: Linux, Documentation/power/powercap/powercap.rst.
"""

from pathlib import Path

from hydragnn_hpo.launching.host.counters.reading import Count, Part, Reading, number, word

FOLDER = "sys/class/powercap"


def _part(name: str | None) -> Part | None:
    if name == "dram":
        return "memory"
    return "cpu" if name is not None and name.startswith("package") else None


class Rapl:
    """Energy of packages and memories."""

    def __init__(self, root: Path) -> None:
        """See ``Source``."""
        zones = sorted((root / FOLDER).glob("intel-rapl:*"))
        self._zones = {zone: part for zone in zones if (part := _part(word(zone / "name")))}
        self._denied: list[str] = []
        for zone in self._zones:
            try:
                (zone / "energy_uj").read_bytes()
            except PermissionError:
                self._denied = [f"{zone / 'energy_uj'} may only be read by root"]
            except OSError:
                continue

    def read(self) -> Reading:
        """See ``Source``; that root alone may read is said once."""
        reading = Reading(notes=self._denied)
        self._denied = []
        for zone, part in self._zones.items():
            energy, largest = number(zone / "energy_uj"), number(zone / "max_energy_range_uj")
            if energy is not None and largest:
                count = Count(energy / 1e6, part, wraps=largest / 1e6)
                reading.counts[f"rapl/{zone.name}"] = count
        return reading
