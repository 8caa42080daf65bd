"""What a slot is worth in the currency of Ray."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from hydragnn_hpo.launching.job import Slot

_STEP = 1e-4
"""Ray counts resources in such steps."""


def shares(
    slots: Sequence[Slot], resources: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Give each slot an equal part of the CPUs of its host, and of its GPU if it has one.

    Args:
        slots: all slots of all hosts.
        resources: host -> its ``CPU`` and ``GPU`` as Ray counts them.

    Returns:
        Name of a slot -> what it occupies; all slots of a host together fit.
    """
    on_host = Counter(slot.host for slot in slots)
    on_device = Counter((slot.host, slot.visible) for slot in slots)
    worth = {}
    for slot in slots:
        total = resources.get(slot.host, {})
        wanted = {"CPU": _part(total.get("CPU", 0.0), on_host[slot.host])}
        if slot.visible and total.get("GPU"):
            wanted["GPU"] = _part(1.0, on_device[slot.host, slot.visible])
        worth[slot.name] = wanted
    return worth


def _part(total: float, among: int) -> float:
    """Divide in Ray's steps so that all parts together are not more than the whole."""
    return max(1, math.floor(total / among / _STEP + 1e-6)) * _STEP
