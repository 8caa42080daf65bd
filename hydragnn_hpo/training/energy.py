"""Energy of a training in joules, from the counters of its host; parts without one are omitted.

The counters of a host include other processes on it.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydragnn_hpo.energy_counters import Part, Reading, Source, card_at, cray, joules_between, rapl

REGIONS = ("train", "val", "checkpoint")
"""Parts of an epoch for which energy is counted separately."""

PARTS = ("host", "cpu", "memory", "accelerator")
"""Parts of a machine; ``host`` includes all other parts."""

_PLACES: dict[Part, int] = {"host": 0, "cpu": 1, "memory": 2, "card": 3}


def find_counters(device: torch.device, *, whole_host: bool, root: Path = Path("/")) -> Source:
    """Return a reader of this rank's counters; over all ranks each counter is read once.

    Args:
        device: device of this rank; each rank reads its own GPU.
        whole_host: whether this rank reads the host's counters too, as one rank of each host does.
        root: folder that holds ``sys``.
    """
    # Cray's counters cover the whole host and its GPUs: others would count the same energy twice.
    of_cray = cray(root)
    counted = of_cray().counts.values()
    sources = [of_cray if counted else rapl(root)] if whole_host else []
    if device.type == "cuda" and all(count.part != "card" for count in counted):
        with contextlib.suppress(Exception):  # torch finds no such GPU
            sources.append(card_at(bus_of(device), rocm=torch.version.hip is not None))
    return lambda: Reading({n: each for read in sources for n, each in read().counts.items()})


def bus_of(device: torch.device) -> str:
    """Return a GPU's PCI address, which unlike its index depends on no environment variable."""
    gpu: Any = torch.cuda.get_device_properties(device)
    return f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"


class Energy:
    """Joules by region of the training and by part of the machine."""

    def __init__(self, read: Source, clock: Callable[[], float] = time.monotonic) -> None:
        """Start counting; ``clock`` returns seconds."""
        self._read, self._clock = read, clock
        self._at = clock()
        self._last = read().counts
        self.counters = list(self._last)
        """Names of the counters."""
        self._sums = torch.zeros(len(REGIONS), len(PARTS), dtype=torch.float64)

    def count(self, region: str) -> None:
        """Count the joules since the last call for a region, one of ``REGIONS``."""
        now = self._clock()
        counts = self._read().counts
        for name, last in self._last.items():
            joules = joules_between(last, counts.get(name), now - self._at)
            self._sums[REGIONS.index(region), _PLACES[last.part]] += joules or 0.0
        self._at = now
        self._last |= counts

    def take_joules(self) -> Tensor:
        """Return the joules since the last call, fp64, [REGIONS, PARTS], and reset the sums."""
        taken = self._sums.clone()
        self._sums.zero_()
        return taken
