"""All sources of numbers; the first that counts a part of a host is the one that counts."""

from pathlib import Path

from hydragnn_hpo.launching.host.counters.amd_smi import AmdSmi
from hydragnn_hpo.launching.host.counters.cray import Cray
from hydragnn_hpo.launching.host.counters.drm import Drm
from hydragnn_hpo.launching.host.counters.nvml import Nvml
from hydragnn_hpo.launching.host.counters.rapl import Rapl
from hydragnn_hpo.launching.host.counters.reading import Reading, Source
from hydragnn_hpo.launching.host.counters.system import System

SOURCES: dict[str, type[Source]] = {
    "cray": Cray,
    "rapl": Rapl,
    "drm": Drm,
    "nvml": Nvml,
    "amdsmi": AmdSmi,
    "system": System,
}


class Sources:
    """All sources of one host."""

    def __init__(self, root: Path) -> None:
        """Look what there is, see ``Source``."""
        self._sources = [source(root) for source in SOURCES.values()]

    def read(self) -> Reading:
        """Give what all of them say."""
        whole = Reading()
        for reading in (source.read() for source in self._sources):
            whole.counts |= reading.counts
            whole.host |= reading.host
            whole.notes += reading.notes
            for device, gauges in reading.devices.items():
                whole.devices[device] = whole.devices.get(device, {}) | gauges
        return whole
