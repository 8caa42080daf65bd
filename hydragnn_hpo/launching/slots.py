"""Find what this computer can run ranks on, without torch.

A rank gets a GPU of its own where there are GPUs, else a share of the CPU cores.
"""

import logging
import math
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.memory import device_memory_mb, host_memory_mb

logger = logging.getLogger(__name__)
_ASK_SECONDS = 30.0

_RESERVE_MB = 512
"""What a rank takes beside its tensors: its interpreter, or its context on a GPU."""


def parse_nvidia(listing: str) -> list[str]:
    """Give the devices of ``nvidia-smi -L``: a number each, or the ids of their MIG slices."""
    found: list[tuple[str, list[str]]] = []
    for line in listing.splitlines():
        if card := re.match(r"GPU (\d+): ", line):
            found.append((card[1], []))
        elif found and (part := re.search(r"\(UUID: (MIG-[^)]+)\)", line)):
            found[-1][1].append(part[1])
    return [device for number, parts in found for device in parts or [number]]


def _nvidia() -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        answer = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=_ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("nvidia-smi -L gave no answer (%s): its GPUs are not used.", error)
        return []
    return parse_nvidia(answer.stdout) if answer.returncode == 0 else []


def _amd(nodes: Path = Path("/sys/class/kfd/kfd/topology/nodes")) -> list[str]:
    """Number the GPUs that the AMD kernel driver lists (a CPU node has no SIMD units)."""
    count = 0
    for folder in nodes.glob("*"):
        try:
            properties = (folder / "properties").read_text()
        except OSError:  # a GPU that a container may not use
            continue
        count += bool(re.search(r"^simd_count [1-9]", properties, re.MULTILINE))
    return [str(number) for number in range(count)]


def visible(devices: Sequence[str], allowed: str | None) -> list[str]:
    """Keep the devices that a ``..._VISIBLE_DEVICES`` setting allows, in its order.

    The driver stops reading at the first name it does not know, and so do we.
    """
    if allowed is None:
        return list(devices)
    kept: list[str] = []
    for name in (part.strip() for part in allowed.split(",")):
        number = name.isdigit() and int(name) < len(devices)
        if not number and not (devices and name.startswith(("GPU-", "MIG-"))):
            break
        kept.append(name)
    return kept


def find_devices(environment: Mapping[str, str]) -> list[str]:
    """Give the GPUs of this host, as CUDA_VISIBLE_DEVICES names them; [] without any."""
    if cards := _nvidia():
        return visible(cards, environment.get("CUDA_VISIBLE_DEVICES"))
    cards = _amd()
    if (below := environment.get("ROCR_VISIBLE_DEVICES")) is not None:
        cards = [str(number) for number in range(len(visible(cards, below)))]
    allowed = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    return visible(cards, allowed)


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


def share_cores(cores: Sequence[int], slots: int) -> list[tuple[int, ...]]:
    """Split the cores into equal neighbouring shares; with too few, slots take turns."""
    if slots > len(cores):
        return [(cores[index % len(cores)],) for index in range(slots)]
    edges = [index * len(cores) // slots for index in range(slots + 1)]
    return [tuple(cores[a:b]) for a, b in zip(edges, edges[1:], strict=False)]


def _share_of_memory(total_mb: int, sharers: int) -> int:
    """Give the megabytes for each of some slots that share a memory; 0, no limit, for one."""
    if sharers <= 1 or total_mb <= 0:
        return 0
    share = total_mb // sharers
    return max(share - _RESERVE_MB, share // 2)


def lay_out(
    wanted: int,
    devices: Sequence[str],
    *,
    cores: Sequence[int],
    host: str,
    lanes: int = 1,
    memory_mb: int = 0,
) -> tuple[Slot, ...]:
    """Make ``wanted`` slots of GPUs and cores, slots of one GPU side by side.

    Args:
        wanted: how many; 0: ``lanes`` for each GPU, or one for each core.
        devices: the GPUs.
        cores: the CPU cores.
        host: the id of the host.
        lanes: slots that share a GPU, if ``wanted`` does not say otherwise.
        memory_mb: of one GPU, or of the host without GPUs; 0 if unknown.
    """
    count = wanted or len(devices) * lanes or len(cores)
    gpus = [device for device in devices for _ in range(lanes)] if not wanted else list(devices)
    slots = []
    for index, share in enumerate(share_cores(cores, count)):
        gpu = gpus[index % len(gpus)] if gpus else ""
        slots.append(Slot(host, index, share, "cuda:0" if gpu else "cpu", gpu))
    sharers = Counter(slot.visible for slot in slots)
    return tuple(
        replace(slot, memory_mb=_share_of_memory(memory_mb, sharers[slot.visible]))
        for slot in slots
    )


def detect_slots(wanted: int = 0, host: str = "local", lanes: int = 1) -> tuple[Slot, ...]:
    """Give this computer's slots.

    Args:
        wanted: how many; 0 takes ``lanes`` per GPU, or one per CPU core without GPUs. More
            than there are GPUs (cores) share them in turn.
        host: the id of the agent that owns them.
        lanes: slots that share one GPU.

    Raises:
        ConfigError: ``wanted`` is negative.
    """
    if wanted < 0:
        raise ConfigError(f"{wanted} slots were asked for: give 0 (all) or a positive number.")
    cores = allowed_cores(sorted(os.sched_getaffinity(0)), _quota(), start=os.getpid())
    devices = find_devices(os.environ)
    memory = device_memory_mb() if devices else host_memory_mb()
    return lay_out(wanted, devices, cores=cores, host=host, lanes=lanes, memory_mb=memory)
