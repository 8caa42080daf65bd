"""Find the GPUs of this host and their memory, without torch."""

import logging
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
