"""Find the slots of this computer without torch: a GPU or a share of the cores for each rank."""

import logging
import math
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.host_info import host_memory_mb
from hydragnn_hpo.launching.job import Slot

logger = logging.getLogger(__name__)

_ASK_SECONDS = 30.0

KFD = Path("/sys/class/kfd/kfd/topology/nodes")
"""Where the AMD kernel driver lists processors and GPUs."""


@dataclass(frozen=True)
class Device:
    """One GPU, or a slice of one."""

    name: str
    """Its value in ``variable``, provided that no other variable hides devices."""

    variable: str
    """Environment variable that selects it for a process."""

    bus: str = ""
    """Its PCI address, such as ``0000:c1:00.0``; empty if unknown."""


def parse_nvidia(listing: str) -> list[str]:
    """Return the devices in the output of ``nvidia-smi -L``: GPU numbers, or ids of MIG slices."""
    cards: dict[str, list[str]] = {}
    for line in listing.splitlines():
        if card := re.match(r"GPU (\d+): ", line):
            slices = cards[card[1]] = []
        elif cards and (part := re.search(r"\(UUID: (MIG-[^)]+)\)", line)):
            slices.append(part[1])
    return [device for number, slices in cards.items() for device in slices or [number]]


def parse_buses(listing: str) -> dict[str, str]:
    """Read the output of ``nvidia-smi --query-gpu=index,pci.bus_id``.

    Returns:
        Number of a GPU -> its PCI address as the kernel writes it.
    """
    rows = re.findall(r"^(\d+), ([0-9A-Fa-f]+):(\S+)$", listing, re.MULTILINE)
    return {number: f"{int(domain, 16):04x}:{rest.lower()}" for number, domain, rest in rows}


def _ask_nvidia(*arguments: str) -> str:
    """Return the output of ``nvidia-smi``; empty where it is missing, fails or hangs."""
    if not (tool := shutil.which("nvidia-smi")):
        return ""
    try:
        answer = subprocess.run(
            [tool, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("nvidia-smi gave no answer (%s): its GPUs are not used.", error)
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def _nvidia() -> list[Device]:
    names = parse_nvidia(_ask_nvidia("-L"))
    query = ("--query-gpu=index,pci.bus_id", "--format=csv,noheader")
    buses = parse_buses(_ask_nvidia(*query)) if names else {}
    return [Device(name, "CUDA_VISIBLE_DEVICES", buses.get(name, "")) for name in names]


def _amd(variable: str, nodes: Path = KFD) -> list[Device]:
    """Number the GPUs that the AMD kernel driver lists (a CPU node has no SIMD units)."""
    folders = [path for path in nodes.glob("*") if path.name.isdigit()]
    gpus: list[Device] = []
    for folder in sorted(folders, key=lambda path: int(path.name)):
        try:
            properties = (folder / "properties").read_text()
        except OSError:  # a GPU that a container may not use
            continue
        values = dict(re.findall(r"^(\w+) (\d+)$", properties, re.MULTILINE))
        if int(values.get("simd_count", "0")):
            gpus.append(Device(str(len(gpus)), variable, _bus_of(values)))
    return gpus


def _bus_of(values: Mapping[str, str]) -> str:
    """Return a PCI address from ``domain`` and ``location_id`` (bus, device, function in bits)."""
    if "location_id" not in values:
        return ""
    place = int(values["location_id"])
    domain = int(values.get("domain", "0"))
    bus = place >> 8 & 0xFF
    return f"{domain:04x}:{bus:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def visible(devices: Sequence[Device], allowed: str | None) -> list[Device]:
    """Keep the devices that a ``..._VISIBLE_DEVICES`` setting allows, in its order.

    As in the driver, the first unknown name ends the list.
    """
    if allowed is None:
        return list(devices)
    kept: list[Device] = []
    for name in (part.strip() for part in allowed.split(",")):
        if name.isdigit() and int(name) < len(devices):
            kept.append(devices[int(name)])
        elif devices and name.startswith(("GPU-", "MIG-")):
            kept.append(Device(name, devices[0].variable))
        else:
            break
    return kept


def find_devices(environment: Mapping[str, str], variable: str = "") -> list[Device]:
    """Return the GPUs of this host that an environment leaves visible.

    Args:
        environment: its ``..._VISIBLE_DEVICES`` may hide some.
        variable: variable that selects AMD GPUs; ``HIP_VISIBLE_DEVICES`` if empty.
    """
    if cards := _nvidia():
        return visible(cards, environment.get("CUDA_VISIBLE_DEVICES"))
    below = environment.get("ROCR_VISIBLE_DEVICES")
    cards = visible(_amd(variable or "HIP_VISIBLE_DEVICES"), below)
    allowed = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    return visible(cards, allowed)


def near(bus: str, allowed: Sequence[int], tree: Path = Path("/sys/bus/pci/devices")) -> list[int]:
    """Return the cores that share a NUMA domain with a device; [] if the domain is unknown.

    Args:
        bus: PCI address of the device; empty if unknown.
        allowed: the cores to choose from.
        tree: where the kernel lists PCI devices.
    """
    try:
        text = (tree / bus / "local_cpulist").read_text() if bus else ""
    except OSError:
        return []
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    local = {n for first, last in ranges for n in range(int(first), int(last or first) + 1)}
    return [core for core in allowed if core in local]


def sort_by_core(cores: Sequence[int], tree: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """Order logical processors so that those of one physical core are neighbours."""

    def first_thread(core: int) -> int:
        try:
            text = (tree / f"cpu{core}/topology/thread_siblings_list").read_text()
        except OSError:
            return core
        match = re.match(r"\d+", text)
        return int(match[0]) if match else core

    return sorted(cores, key=lambda core: (first_thread(core), core))


_MEBI = 1 << 20


def device_memory_mb(drivers: Path = Path("/sys/class/drm")) -> int:
    """Return the memory of the smallest GPU in MiB; 0 if unknown."""
    answer = _ask_nvidia("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    if sizes := re.findall(r"^\d+", answer, re.MULTILINE):
        return min(map(int, sizes))
    if shutil.which("nvidia-smi"):
        return 0  # it failed, and the kernel's list holds other vendors' cards only
    files = drivers.glob("card*/device/mem_info_vram_total")
    return min((int(path.read_text()) // _MEBI for path in files), default=0)


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


def share_near(nearest: Sequence[Sequence[int]], cores: Sequence[int]) -> list[tuple[int, ...]]:
    """Divide cores among devices, each among those it is nearest to.

    Args:
        nearest: for each device the cores of its NUMA domain, threads of a core next to each other.
        cores: all usable cores.

    Returns:
        The cores of each device; equal shares of all where a domain is unknown or has none left.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, local in enumerate(nearest):
        groups.setdefault(tuple(local), []).append(number)
    listed = [core for group in groups for core in group]
    unclear = () in groups or len(set(listed)) < len(listed)
    if unclear or any(len(group) < len(members) for group, members in groups.items()):
        return share_cores(cores, len(nearest))
    shares: dict[int, tuple[int, ...]] = {}
    for group, members in groups.items():
        shares |= dict(zip(members, share_cores(group, len(members)), strict=True))
    return [shares[number] for number in range(len(nearest))]


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
