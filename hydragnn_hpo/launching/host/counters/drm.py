"""GPUs of AMD and Intel, as their kernel drivers show them; no tool, no library.

``energy1_input`` is in microjoules and ``power1_average`` in microwatts, as for all of hwmon;
``gpu_busy_percent`` and ``mem_info_vram_used`` (bytes) are amdgpu's own. Devices are numbered by
their PCI addresses, as ROCm does.

Sources: Linux, Documentation/hwmon/sysfs-interface.rst and Documentation/gpu/amdgpu/.
"""

import re
from pathlib import Path

from hydragnn_hpo.launching.host.counters.reading import Count, Reading, number, word

FOLDER = "sys/class/drm"
AMD, INTEL = "0x1002", "0x8086"
_DRIVERS = ("amdgpu", "i915", "xe")


def cards_of(root: Path, *vendors: str) -> list[Path]:
    """Give the device folders of some vendors' GPUs, by PCI address."""
    cards = [path for path in (root / FOLDER).glob("card*") if re.fullmatch(r"card\d+", path.name)]
    cards.sort(key=lambda path: int(path.name[4:]))
    found = [card / "device" for card in cards if word(card / "device/vendor") in vendors]
    return sorted(found, key=_address)


def _address(device: Path) -> str:
    """Give the PCI address of a device; empty, which keeps their order, where it is no link."""
    name = device.resolve().name
    return name if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", name) else ""


def _sensors(device: Path) -> Path | None:
    folders = sorted((device / "hwmon").glob("hwmon*"))
    return next((folder for folder in folders if word(folder / "name") in _DRIVERS), None)


class Drm:
    """GPUs of one kind: AMD's, or Intel's where there are none of AMD's."""

    def __init__(self, root: Path) -> None:
        """See ``Source``."""
        devices = cards_of(root, AMD) or cards_of(root, INTEL)
        self._devices = [(device, _sensors(device)) for device in devices]

    def read(self) -> Reading:
        """See ``Source``."""
        reading = Reading()
        last = ""
        for place, (device, sensors) in enumerate(self._devices):
            if gauges := _gauges(device, sensors):
                reading.devices[str(place)] = gauges
            energy = number(sensors / "energy1_input") if sensors else None
            if energy == 0.0 and last:
                # The second die of an MI250X counts nothing: the first counts for both.
                first = reading.counts[last]
                both = (*first.devices, str(place))
                reading.counts[last] = Count(first.joules, "card", both)
            elif energy:
                last = f"drm/{place}"
                reading.counts[last] = Count(energy / 1e6, "card", (str(place),))
        return reading


def _gauges(device: Path, sensors: Path | None) -> dict[str, float]:
    found = {
        "busy": _scaled(device / "gpu_busy_percent", 0.01),
        "memory_mb": _scaled(device / "mem_info_vram_used", 1.0 / (1 << 20)),
    }
    if sensors is not None:
        average = _scaled(sensors / "power1_average", 1e-6)
        found["watts"] = average if average else _scaled(sensors / "power1_input", 1e-6)
        found["celsius"] = _scaled(sensors / "temp1_input", 1e-3)
    return {name: value for name, value in found.items() if value is not None}


def _scaled(path: Path, unit: float) -> float | None:
    found = number(path)
    return None if found is None else found * unit
