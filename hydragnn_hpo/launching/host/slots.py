"""Find what this computer can run ranks on, without torch.

A rank gets a GPU of its own where there are GPUs, with cores near it, else a share of the cores.
"""

import logging
import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.host.devices import Device, beside, find_devices, near
from hydragnn_hpo.launching.host.layout import Layout, Seat, seat_by, share_cores, share_near
from hydragnn_hpo.launching.host.memory import device_memory_mb, host_memory_mb
from hydragnn_hpo.launching.job import Slot

logger = logging.getLogger(__name__)

_RESERVE_MB = 512
"""What a rank takes beside its tensors: its interpreter, or its context on a GPU."""


def _quota() -> float:
    """Give the CPUs' worth of time that a container may use; infinity without a limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.inf if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return math.inf


def allowed_cores(cores: Sequence[int], quota: float, *, start: int) -> tuple[int, ...]:
    """Choose the cores to use: all, or as many as a container's quota is worth.

    With a quota the choice begins at ``start``, so that containers do not meet on core 0.
    """
    count = max(1, min(len(cores), math.ceil(quota))) if math.isfinite(quota) else len(cores)
    if count == len(cores):
        return tuple(cores)
    first = start % len(cores)
    return tuple(sorted((*cores, *cores)[first : first + count]))


def _share_of_memory(total_mb: int, sharers: int) -> int:
    """Give the megabytes for each of some slots that share a memory; 0, no limit, for one."""
    if sharers <= 1 or total_mb <= 0:
        return 0
    share = total_mb // sharers
    return max(share - _RESERVE_MB, share // 2)


def take(count: int, wanted: int, lanes: int) -> list[int]:
    """Give the seat of each slot: ``lanes`` on each, or all ``wanted`` in turn."""
    if wanted:
        return [index % count for index in range(wanted)]
    return [index for index in range(count) for _ in range(lanes)]


def share_seats(seats: Sequence[Seat], wanted: int, lanes: int) -> list[Seat]:
    """Divide the cores of seats among the slots on them."""
    taken = take(len(seats), wanted, lanes)
    sharers, seen = Counter(taken), Counter[int]()
    found = []
    for number, place in enumerate(taken):
        seat, lane = seats[place], seen[place]
        seen[place] += 1
        index = number if wanted else seat.index * lanes + lane
        found.append(Seat(index, share_cores(seat.cores, sharers[place])[lane], seat.device))
    return found


def find_seats(
    layout: Layout,
    wanted: int,
    *,
    host: str,
    lanes: int,
    cores: Sequence[int],
    devices: Sequence[Device],
) -> list[Seat]:
    """Give the seat of each slot: as the profile says, or a device with cores near it, or cores.

    Args:
        layout: what the profile says.
        wanted: slots; 0: as many as that gives.
        host: its name.
        lanes: slots that share a device, if ``wanted`` does not say otherwise.
        cores: those that we may use.
        devices: those that we may use.

    Raises:
        ConfigError: the host has not what its profile says.
    """
    if layout.cores or (layout.slots and layout.accelerator in ("cuda", "xpu")):
        seats, amiss = seat_by(layout, host=host, cores=cores, devices=devices)
        if amiss:
            logger.warning("host %s is not as its profile says: %s.", host, "; ".join(amiss))
        return share_seats(seats, wanted, lanes)
    if not devices:
        shares = share_cores(cores, wanted or layout.slots * lanes or len(cores))
        return [Seat(index, share) for index, share in enumerate(shares)]
    used = [devices[place] for place in take(len(devices), wanted, lanes)]
    ordered = beside(cores)
    shares = share_near([near(device.bus, ordered) for device in used], ordered)
    parts = enumerate(zip(shares, used, strict=True))
    return [Seat(index, tuple(sorted(share)), device) for index, (share, device) in parts]


def lay_out(
    seats: Sequence[Seat], *, host: str, memory_mb: int = 0, accelerator: str = "cuda"
) -> tuple[Slot, ...]:
    """Make a slot of every seat.

    Args:
        seats: of the host.
        host: its id.
        memory_mb: of one GPU, or of the host without GPUs; 0 if unknown.
        accelerator: what torch calls the GPUs.
    """
    crowd = Counter(seat.device for seat in seats)
    memory = {device: _share_of_memory(memory_mb, count) for device, count in crowd.items()}
    slots = []
    for seat in seats:
        device, share = seat.device, memory[seat.device]
        if device is None:
            slots.append(Slot(host, seat.index, seat.cores, "cpu", memory_mb=share))
            continue
        name, variable = f"{accelerator}:0", device.variable
        slot = Slot(host, seat.index, seat.cores, name, device.name, share, variable)
        slots.append(slot)
    return tuple(slots)


def detect_slots(
    wanted: int = 0, host: str = "local", lanes: int = 1, layout: Layout | None = None
) -> tuple[Slot, ...]:
    """Give this computer's slots.

    Args:
        wanted: how many; 0 takes ``lanes`` per seat of the layout or per GPU, or one per CPU core
            without GPUs. More than there are GPUs (cores) share them in turn.
        host: the id of the agent that owns them.
        lanes: slots that share one GPU.
        layout: what its profile says of it; found out if left out.

    Raises:
        ConfigError: ``wanted`` is negative, or the host has no device where its profile names some.
    """
    if wanted < 0:
        raise ConfigError(f"{wanted} slots were asked for: give 0 (all) or a positive number.")
    layout = layout or Layout()
    cores = allowed_cores(sorted(os.sched_getaffinity(0)), _quota(), start=os.getpid())
    computes = layout.accelerator != "cpu"
    devices = find_devices(os.environ, layout.variable) if computes else []
    seats = find_seats(layout, wanted, host=host, lanes=lanes, cores=cores, devices=devices)
    gpus = any(seat.device for seat in seats)
    memory = device_memory_mb() if gpus else host_memory_mb()
    name = layout.accelerator or "cuda"
    return lay_out(seats, host=host, memory_mb=memory, accelerator=name)
