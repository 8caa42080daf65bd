"""Energy of a training in joules, from the counters of its host; parts without one are omitted.

The counters of a host include other processes on it.
Sources: Linux, Documentation/power/powercap/powercap.rst (RAPL); HPE Cray EX, pm_counters(5).
"""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

CRAY = Path("/sys/cray/pm_counters")
POWERCAP = Path("/sys/class/powercap")

REGIONS = ("train", "val", "checkpoint")
"""Parts of an epoch for which energy is counted separately."""

PARTS = ("host", "cpu", "memory", "accelerator")
"""Parts of a machine; ``host`` includes all other parts."""


class Counter(Protocol):
    """A monotonic counter of joules."""

    name: str
    """Name of the counter, unique on its host."""
    part: str
    """Part of the machine that it counts, one of ``PARTS``."""

    def joules(self) -> float:
        """Return the joules since an arbitrary time.

        Raises:
            OSError: the counter is no longer available.
        """
        ...


class FileCounter:
    """A counter that the kernel shows as a file."""

    def __init__(self, path: Path, part: str, *, unit: float = 1.0, wraps: float = 0.0) -> None:
        """Read a counter for the first time.

        Args:
            path: file whose first word is the number.
            part: part of the machine that it counts, one of ``PARTS``.
            unit: joules per unit of the number.
            wraps: joules after which the number wraps to 0; 0 if it never does.

        Raises:
            OSError: the file is missing, or this user cannot read it.
            ValueError: the file holds no number.
        """
        self.path, self.part, self.unit, self.wraps = path, part, unit, wraps
        self.name = f"{path.parent.name}/{path.name}"
        self._total = 0.0
        self._last = self._read()

    def _read(self) -> float:
        return float(self.path.read_text().split()[0]) * self.unit

    def joules(self) -> float:
        """Return the joules since this object was created."""
        now = self._read()
        passed = now - self._last
        # A number that fell has wrapped, or its counter was reset to 0.
        self._total += passed if passed >= 0 else passed + self.wraps if self.wraps else now
        self._last = now
        return self._total


class NvidiaCounter:
    """One NVIDIA GPU, through NVML (package nvidia-ml-py)."""

    part = "accelerator"

    def __init__(self, bus: str) -> None:
        """Open the GPU at a PCI address, such as ``0000:65:00.0``, and read it once.

        Raises:
            Exception: of any kind, where the library or the counter is missing.
        """
        self.nvml: Any = importlib.import_module("pynvml")
        self.nvml.nvmlInit()
        self.handle = self.nvml.nvmlDeviceGetHandleByPciBusId_v2(bus.encode())
        self.name = f"nvml/{bus}"
        self.joules()

    def joules(self) -> float:
        """Return the joules since its driver was loaded; NVML counts millijoules."""
        return float(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)) / 1e3


class AmdCounter:
    """One AMD GPU, through ROCm's amdsmi."""

    part = "accelerator"

    def __init__(self, bus: str) -> None:
        """Open the GPU at a PCI address, such as ``0000:65:00.0``, and read it once.

        Raises:
            Exception: of any kind, where the library or the counter is missing.
        """
        self.smi: Any = importlib.import_module("amdsmi")
        self.smi.amdsmi_init()
        self.handle = self.smi.amdsmi_get_processor_handle_from_bdf(bus)
        self.name = f"amdsmi/{bus}"
        self.joules()

    def joules(self) -> float:
        """Return the joules since its driver was loaded; the resolution is in microjoules."""
        count = self.smi.amdsmi_get_energy_count(self.handle)
        return float(count["energy_accumulator"] * count["counter_resolution"]) / 1e6


def find_counters(
    device: torch.device, *, whole_host: bool, cray: Path = CRAY, powercap: Path = POWERCAP
) -> list[Counter]:
    """Find the counters that this rank reads; over all ranks each counter is read once.

    Args:
        device: device of this rank; each rank reads its own GPU.
        whole_host: whether this rank reads the host's counters too, as one rank of each host does.
        cray: folder of Cray's counters.
        powercap: folder of Linux's processor counters (RAPL).
    """
    of_cray = list(_cray(cray))
    # Cray's counters cover the whole host and its GPUs: others would count the same energy twice.
    host = (of_cray or list(_processors(powercap))) if whole_host else []
    if any(counter.part == "accelerator" for counter in of_cray) or device.type != "cuda":
        return host
    return [*host, *_gpu(device)]


def _cray(root: Path) -> Iterator[Counter]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        yield FileCounter(root / "energy", "host")
    for path in sorted(root.glob("accel*_energy")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield FileCounter(path, "accelerator")


def _processors(root: Path) -> Iterator[Counter]:
    """Yield RAPL's counters of packages and memories; a package includes its cores."""
    for folder in sorted(root.glob("intel-rapl:*")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            name = (folder / "name").read_text().strip()
            part = "memory" if name == "dram" else "cpu" if name.startswith("package") else None
            if part:
                wraps = float((folder / "max_energy_range_uj").read_text()) / 1e6
                yield FileCounter(folder / "energy_uj", part, unit=1e-6, wraps=wraps)


def _gpu(device: torch.device) -> Iterator[Counter]:
    """Yield the counter of one GPU, or nothing if its library fails with any error."""
    kind = AmdCounter if torch.version.hip else NvidiaCounter
    with contextlib.suppress(Exception):
        yield kind(bus_of(device))


def bus_of(device: torch.device) -> str:
    """Return a GPU's PCI address, which unlike its index depends on no environment variable."""
    gpu: Any = torch.cuda.get_device_properties(device)
    return f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"


class Energy:
    """Joules by region of the training and by part of the machine."""

    def __init__(self, counters: Sequence[Counter]) -> None:
        """Start counting."""
        self.counters = counters
        self._last = [0.0] * len(counters)
        self._sums = torch.zeros(len(REGIONS), len(PARTS), dtype=torch.float64)
        self.count("train")
        self.take_joules()

    def count(self, region: str) -> None:
        """Count the joules since the last call for a region, one of ``REGIONS``."""
        for place, counter in enumerate(self.counters):
            with contextlib.suppress(Exception):  # a counter that fails is skipped
                now = counter.joules()
                self._sums[REGIONS.index(region), PARTS.index(counter.part)] += (
                    now - self._last[place]
                )
                self._last[place] = now

    def take_joules(self) -> Tensor:
        """Return the joules since the last call, fp64, [REGIONS, PARTS], and reset the sums."""
        taken = self._sums.clone()
        self._sums.zero_()
        return taken
