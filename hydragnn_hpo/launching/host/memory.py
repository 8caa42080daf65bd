"""How much memory this host and its GPUs have, without torch."""

import re
import shutil
import subprocess
from pathlib import Path

_ASK_SECONDS = 30.0
_MEBI = 1 << 20


def host_memory_mb(
    meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup/memory.max")
) -> int:
    """Give the MiB of this host, or of the container that we are in; 0 if unknown."""
    try:
        found = re.search(r"^MemTotal:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return 0
    physical = int(found[1]) // 1024 if found else 0
    try:
        return min(physical, int(group.read_text()) // _MEBI)
    except (OSError, ValueError):  # no group, or "max"
        return physical


def device_memory_mb(drivers: Path = Path("/sys/class/drm")) -> int:
    """Give the MiB of the smallest GPU, 0 if unknown."""
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        query = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(query, capture_output=True, text=True, timeout=_ASK_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return 0
        return min((int(size) for size in re.findall(r"^\d+", answer.stdout, re.M)), default=0)
    sizes = [path.read_text() for path in drivers.glob("card*/device/mem_info_vram_total")]
    return min((int(size) // _MEBI for size in sizes), default=0)
