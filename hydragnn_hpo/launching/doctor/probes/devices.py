"""Devices that a process sees here."""

import os
from typing import Any

from hydragnn_hpo.launching.doctor.order import Order
from hydragnn_hpo.launching.host.devices import find_devices
from hydragnn_hpo.launching.host.memory import device_memory_mb


def look_at_devices(order: Order) -> dict[str, Any]:
    """Count devices as the driver and the environment show them to a process of ours."""
    seen = find_devices(os.environ)
    return {"seen": len(seen), "memory_mb": device_memory_mb() if seen else 0}
