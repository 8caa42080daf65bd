"""Find the slots of this computer without torch: a GPU or a share of the cores for each rank."""

import logging
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.host_info import host_memory_mb
from hydragnn_hpo.launching.devices import (
    Device,
    device_memory_mb,
    find_devices,
    near,
    sort_by_core,
)
from hydragnn_hpo.launching.job import Slot


@dataclass(frozen=True)
class Layout:
    """Slots, cores and devices of a host by its machine's profile; the rest is detected."""

    slots: int = 0
    """Slots of a host; 0: as many as there are devices, or cores."""

    cores: tuple[tuple[int, ...], ...] = ()
    """Cores of each slot."""

    devices: tuple[int, ...] = ()
    """Device number of each slot; the slot's own number if empty."""

    accelerator: str = ""
    """Torch's name of the devices; detected if empty."""

    variable: str = ""
    """Environment variable that selects the device of a rank."""


@dataclass(frozen=True)
class Seat:
    """Cores and device for one slot, or for several slots (lanes) that share the device."""

    index: int
    cores: tuple[int, ...]
    device: Device | None = None


def share_cores(cores: Sequence[int], slots: int) -> list[tuple[int, ...]]:
    """Split the cores into equal neighbouring shares; with too few, slots take turns."""
    if slots > len(cores):
        return [(cores[index % len(cores)],) for index in range(slots)]
    edges = [index * len(cores) // slots for index in range(slots + 1)]
    return [tuple(cores[a:b]) for a, b in zip(edges, edges[1:], strict=False)]


def share_near(near: Sequence[Sequence[int]], cores: Sequence[int]) -> list[tuple[int, ...]]:
    """Divide cores among devices, each among those it is nearest to.

    Args:
        near: for each device the cores of its NUMA domain, threads of a core next to each other.
        cores: all usable cores.

    Returns:
        The cores of each device; equal shares of all where a domain is unknown or has none left.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, local in enumerate(near):
        groups.setdefault(tuple(local), []).append(number)
    listed = [core for group in groups for core in group]
    unclear = () in groups or len(set(listed)) < len(listed)
    if unclear or any(len(group) < len(members) for group, members in groups.items()):
        return share_cores(cores, len(near))
    shares: dict[int, tuple[int, ...]] = {}
    for group, members in groups.items():
        shares |= dict(zip(members, share_cores(group, len(members)), strict=True))
    return [shares[number] for number in range(len(near))]


def _seat_by(
    layout: Layout, *, host: str, cores: Sequence[int], devices: Sequence[Device]
) -> tuple[list[Seat], list[str]]:
    """Return the seats of a host as its profile lays them out, and what does not fit.

    Args:
        layout: layout with devices or cores for ``layout.slots`` slots.
        host: name of the host.
        cores: usable cores.
        devices: usable devices.

    Returns:
        Seats that have a device (if the profile wants one) and at least one core, and clauses for
        a warning.

    Raises:
        ConfigError: none of the devices exists.
    """
    amiss: list[str] = []
    numbers = layout.devices or tuple(range(layout.slots))
    held: dict[int, Device | None] = dict.fromkeys(range(layout.slots))
    if layout.accelerator in ("cuda", "xpu"):
        held = _devices_of(layout, numbers, devices)
        if not held:
            raise ConfigError(
                f"host {host} has no {layout.accelerator} device, its profile names "
                f"{layout.slots}: leave the host out, or choose another profile."
            )
        if gone := [str(n) for slot, n in enumerate(numbers) if slot not in held]:
            amiss.append(f"devices {','.join(gone)} are not there: their slots are left out")
    shares = _cores_of(layout, list(held), cores, amiss)
    return [Seat(slot, shares[slot], device) for slot, device in held.items()], amiss


def _devices_of(
    layout: Layout, numbers: Sequence[int], devices: Sequence[Device]
) -> dict[int, Device | None]:
    """Find the device of each slot, by its number where devices are named by numbers."""
    if layout.accelerator == "xpu" and not devices:  # no known tool lists them: trust the profile
        known = {str(n): Device(str(n), layout.variable) for n in numbers}
    elif all(device.name.isdigit() for device in devices):
        known = {device.name: device for device in devices}
    else:  # ids instead of numbers: number them in their order
        known = {str(number): device for number, device in enumerate(devices)}
    return {slot: known[str(n)] for slot, n in enumerate(numbers) if str(n) in known}


def _cores_of(
    layout: Layout, slots: Sequence[int], cores: Sequence[int], amiss: list[str]
) -> dict[int, tuple[int, ...]]:
    """Return the usable cores of each slot, at least one; shared if a slot would have none."""
    if not layout.cores:
        return dict(zip(slots, share_cores(cores, len(slots)), strict=True))
    ours = set(cores)
    shares = {slot: tuple(c for c in layout.cores[slot] if c in ours) for slot in slots}
    if all(shares.values()):
        if short := [slot for slot in slots if len(shares[slot]) < len(layout.cores[slot])]:
            amiss.append(f"some cores of slots {','.join(map(str, short))} are not ours")
        return shares
    amiss.append("not every slot has cores of its own here: slots share those that we have")
    return dict(zip(slots, share_cores(cores, len(slots)), strict=True))


logger = logging.getLogger(__name__)

_RESERVE_MB = 512
"""Memory of a rank besides its tensors: its interpreter, or its context on a GPU."""


def _quota() -> float:
    """Return the CPU quota of the container in CPUs; infinity without a limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.inf if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return math.inf


def allowed_cores(cores: Sequence[int], quota: float, *, start: int) -> tuple[int, ...]:
    """Choose the cores to use: all, or as many as a container's CPU quota covers.

    Args:
        cores: numbers of the cores that this process may use.
        quota: CPU quota in CPUs; infinite without a limit.
        start: where the choice begins with a quota, so that containers do not all use core 0.

    Returns:
        Numbers of cores, ascending; at least one.
    """
    count = max(1, min(len(cores), math.ceil(quota))) if math.isfinite(quota) else len(cores)
    if count == len(cores):
        return tuple(cores)
    first = start % len(cores)
    return tuple(sorted((*cores, *cores)[first : first + count]))


def _share_of_memory(total_mb: int, sharers: int) -> int:
    """Return the MiB of each slot that shares a memory; 0 (no limit) for a lone slot."""
    if sharers <= 1 or total_mb <= 0:
        return 0
    share = total_mb // sharers
    return max(share - _RESERVE_MB, share // 2)


def take(count: int, wanted: int, lanes: int) -> list[int]:
    """Choose the seat of each slot.

    Args:
        count: number of seats.
        wanted: number of slots, which take the seats in turn; 0: ``lanes`` per seat.
        lanes: slots on each seat if ``wanted`` is 0.
    """
    if wanted:
        return [index % count for index in range(wanted)]
    return [index for index in range(count) for _ in range(lanes)]


def _share_seats(seats: Sequence[Seat], wanted: int, lanes: int) -> list[Seat]:
    """Divide the cores of seats among the slots on them, see ``take``."""
    taken = take(len(seats), wanted, lanes)
    sharers = Counter(taken)
    seen = Counter[int]()
    slots = []
    for number, place in enumerate(taken):
        seat, lane = seats[place], seen[place]
        seen[place] += 1
        index = number if wanted else seat.index * lanes + lane
        slots.append(Seat(index, share_cores(seat.cores, sharers[place])[lane], seat.device))
    return slots


def find_seats(
    layout: Layout,
    wanted: int,
    *,
    host: str,
    lanes: int,
    cores: Sequence[int],
    devices: Sequence[Device],
) -> list[Seat]:
    """Return the seat of each slot: by the profile, or a device with cores near it, or cores.

    Args:
        layout: layout of the profile.
        wanted: number of slots; 0: ``lanes`` per device or slot of the layout, or one per core.
        host: name of the host.
        lanes: slots that share a device if ``wanted`` is 0.
        cores: usable cores.
        devices: usable devices.

    Raises:
        ConfigError: the host has none of its profile's devices.
    """
    if layout.cores or (layout.slots and layout.accelerator in ("cuda", "xpu")):
        seats, amiss = _seat_by(layout, host=host, cores=cores, devices=devices)
        if amiss:
            logger.warning("host %s is not as its profile says: %s.", host, "; ".join(amiss))
        return _share_seats(seats, wanted, lanes)
    if not devices:
        shares = share_cores(cores, wanted or layout.slots * lanes or len(cores))
        return [Seat(index, share) for index, share in enumerate(shares)]
    used = [devices[place] for place in take(len(devices), wanted, lanes)]
    ordered = sort_by_core(cores)
    shares = share_near([near(device.bus, ordered) for device in used], ordered)
    parts = enumerate(zip(shares, used, strict=True))
    return [Seat(index, tuple(sorted(share)), device) for index, (share, device) in parts]


def lay_out(
    seats: Sequence[Seat], *, host: str, memory_mb: int = 0, accelerator: str = "cuda"
) -> tuple[Slot, ...]:
    """Make a slot of every seat.

    Args:
        seats: seats of the host.
        host: id of the host.
        memory_mb: memory of one GPU, or of the host without GPUs, in MiB; 0 if unknown.
        accelerator: torch's name of the GPUs.

    Returns:
        One slot per seat, in their order.
    """
    crowd = Counter(seat.device for seat in seats)
    memory = {device: _share_of_memory(memory_mb, count) for device, count in crowd.items()}
    slots = []
    for seat in seats:
        device = seat.device
        share = memory[seat.device]
        if device is None:
            slots.append(Slot(host, seat.index, seat.cores, "cpu", memory_mb=share))
            continue
        name = f"{accelerator}:0"
        variable = device.variable
        slot = Slot(host, seat.index, seat.cores, name, device.name, share, variable)
        slots.append(slot)
    return tuple(slots)


def detect_slots(
    wanted: int = 0, host: str = "local", lanes: int = 1, layout: Layout | None = None
) -> tuple[Slot, ...]:
    """Return this computer's slots.

    Args:
        wanted: number of slots; 0: ``lanes`` per seat of the layout or per GPU, or one per core
            without GPUs. If there are fewer GPUs (cores), slots share them in turn.
        host: id of the agent that owns them.
        lanes: slots that share one GPU.
        layout: layout of the profile; detected if None.

    Returns:
        Slots in the order of their numbers.

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
