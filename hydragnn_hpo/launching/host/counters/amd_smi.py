"""Energy of AMD's GPUs through ROCm's ``amdsmi``, where nothing else counts it.

amdgpu shows power as a file, but not the energy that it counts. The counter's unit is told with
it, in microjoules.

Source: AMD SMI, Python API, amdsmi_get_energy_count.
"""

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydragnn_hpo.launching.host.counters.cray import FOLDER as CRAY
from hydragnn_hpo.launching.host.counters.drm import AMD, cards_of
from hydragnn_hpo.launching.host.counters.reading import Count, Reading


class AmdSmi:
    """Energy of AMD's GPUs, numbered as ROCm numbers them."""

    def __init__(
        self,
        root: Path,
        load: Callable[[str], Any] = importlib.import_module,
    ) -> None:
        """See ``Source``; ``load`` imports the library, if a file does not say as much."""
        self._smi: Any = None
        self._handles: list[Any] = []
        cards = cards_of(root, AMD)
        told = any(path for card in cards for path in card.glob("hwmon/hwmon*/energy1_input"))
        if not cards or told or (root / CRAY / "accel0_energy").exists():
            return
        with contextlib.suppress(Exception):  # whatever it says instead, it has no numbers for us
            self._smi = load("amdsmi")
            self._smi.amdsmi_init()
            self._handles = list(self._smi.amdsmi_get_processor_handles())

    def read(self) -> Reading:
        """See ``Source``."""
        reading, last = Reading(), ""
        for place, handle in enumerate(self._handles):
            devices = (str(place),)
            energy = self._energy(handle)
            if energy == 0.0 and last:  # the second die of an MI250X: the first counts for both
                first = reading.counts[last]
                reading.counts[last] = Count(first.joules, "card", (*first.devices, *devices))
            elif energy:
                last = f"amdsmi/{place}"
                reading.counts[last] = Count(energy, "card", devices)
        return reading

    def _energy(self, handle: Any) -> float | None:
        with contextlib.suppress(Exception):
            told = self._smi.amdsmi_get_energy_count(handle)
            return float(told["energy_accumulator"]) * float(told["counter_resolution"]) / 1e6
        return None
