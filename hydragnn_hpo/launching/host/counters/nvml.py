"""NVIDIA's GPUs, through NVML (the package nvidia-ml-py), where the driver is loaded.

Energy counts in millijoules since the driver was loaded (Volta and newer). Clocks that a power
limit lowers are normal under load; those that heat or the power supply lower are not.

Source: NVML API reference, nvmlDeviceGetTotalEnergyConsumption, NVML_CLOCKS_EVENT_REASONS.
"""

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydragnn_hpo.launching.host.counters.reading import Count, Reading

DRIVER = "proc/driver/nvidia"

_SLOWED = 0x08 | 0x20 | 0x40 | 0x80
"""Hardware slowdown, heat seen by software, heat seen by hardware, power brake."""

_CELSIUS = 0
"""NVML_TEMPERATURE_GPU."""


class Nvml:
    """NVIDIA's GPUs, numbered as ``nvidia-smi`` numbers them."""

    def __init__(
        self,
        root: Path,
        load: Callable[[str], Any] = importlib.import_module,
    ) -> None:
        """See ``Source``; ``load`` imports the library."""
        self._nvml: Any = None
        self._devices: dict[tuple[str, ...], Any] = {}
        if not (root / DRIVER).exists():
            return
        with contextlib.suppress(Exception):  # whatever it says instead, it has no numbers for us
            self._nvml = load("pynvml")
            self._nvml.nvmlInit()
            for number in range(self._nvml.nvmlDeviceGetCount()):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(number)
                unique = self._nvml.nvmlDeviceGetUUID(handle)
                self._devices[str(number), _text(unique)] = handle

    def read(self) -> Reading:
        """See ``Source``."""
        reading = Reading()
        for names, handle in self._devices.items():
            energy = self._ask("nvmlDeviceGetTotalEnergyConsumption", handle)
            if energy is not None:
                reading.counts[f"nvml/{names[0]}"] = Count(energy / 1e3, "card", names)
            reading.devices[names[0]] = self._gauges(handle)
        return reading

    def _gauges(self, handle: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        if (use := self._ask("nvmlDeviceGetUtilizationRates", handle)) is not None:
            found["busy"] = use.gpu / 100.0
        if (memory := self._ask("nvmlDeviceGetMemoryInfo", handle)) is not None:
            found["memory_mb"] = memory.used / (1 << 20)
        if (watts := self._ask("nvmlDeviceGetPowerUsage", handle)) is not None:
            found["watts"] = watts / 1e3
        if (celsius := self._ask("nvmlDeviceGetTemperature", handle, _CELSIUS)) is not None:
            found["celsius"] = float(celsius)
        slowed = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        if slowed is not None:
            found["throttled"] = float(bool(slowed & _SLOWED))
        return found

    def _ask(self, name: str, *values: Any) -> Any:
        """Ask one thing; None where this GPU, driver or library does not know it."""
        with contextlib.suppress(Exception):
            return getattr(self._nvml, name)(*values)
        return None


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
