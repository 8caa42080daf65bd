"""Facts about this host and its processes; standard library only, because agents load it."""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

_MEBI = 1 << 20


def read_memory(meminfo: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """Return the sizes in ``/proc/meminfo``.

    Returns:
        Bytes by name, such as ``MemTotal`` and ``MemAvailable``; empty where the file cannot be
        read.
    """
    try:
        text = meminfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    lines = re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)
    return {name: int(kilobytes) * 1024 for name, kilobytes in lines}


def host_memory_mb(
    meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup/memory.max")
) -> int:
    """Return the memory of this host, or of the container of this process, in MiB; 0 if unknown."""
    physical = read_memory(meminfo).get("MemTotal", 0) // _MEBI
    if not physical:
        return 0
    try:
        return min(physical, int(group.read_text()) // _MEBI)
    except (OSError, ValueError):  # no group, or "max"
        return physical


def count_memory_kills(root: Path = Path("/")) -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 if unknown.

    Those of this process's own control group, of version 1 or 2, where it counts them; else all
    of this host.

    Args:
        root: folder of ``proc`` and ``sys``.
    """
    places = [root / "proc/vmstat"]
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, own = line.split(":", maxsplit=2)
            group = root / "sys/fs/cgroup" / ("memory" if kinds else "") / own.strip("/")
            if "memory" in kinds.split(","):
                places.insert(0, group / "memory.oom_control")
            elif not kinds:
                places.insert(-1, group / "memory.events")
    for place in places:
        with contextlib.suppress(OSError):
            if match := re.search(r"^oom_kill (\d+)$", place.read_text(), re.MULTILINE):
                return int(match[1])
    return 0


def read_process_stat(pid: int | str) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the third one, the state, on; see proc(5).

    The second, the name, is left out: it may hold spaces and parentheses. The list is empty where
    there is no such process.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return text.rpartition(b")")[2].decode("ascii", errors="replace").split()


def parent_of(pid: int) -> int:
    """Return the id of a process's parent; 0 if there is no such process."""
    fields = read_process_stat(pid)
    return int(fields[1]) if fields else 0


def start_ticks(pid: int | str) -> int | None:
    """Return when a process began, in clock ticks since boot; None if there is no such process."""
    fields = read_process_stat(pid)
    return int(fields[19]) if fields else None


def is_running(pid: int) -> bool:
    """Check whether a process exists and is no zombie."""
    fields = read_process_stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def processes_of_group(group: int) -> Iterator[int]:
    """Yield the ids of the running processes of a process group, zombies left out."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = read_process_stat(name)
        if fields and fields[2] == str(group) and fields[0] not in "ZX":
            yield int(name)


def boot_id() -> str:
    """Return the identity of this boot of the host; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def private_folder(place: Path) -> Path:
    """Return the path of this user's folder below a folder where several users may write."""
    return place / f"hydragnn-hpo-{os.getuid()}"


def create_private(folder: Path) -> bool:
    """Create a folder that only this user can enter, unless it exists.

    Returns:
        Whether it is a folder of this user that no other can enter; where several users may write,
        another may have created it.

    Raises:
        OSError: it cannot be created.
    """
    with contextlib.suppress(FileExistsError):  # also of a file or a link, which is no such folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    private = stat.S_ISDIR(status.st_mode) and not stat.S_IMODE(status.st_mode) & 0o077
    return private and status.st_uid == os.getuid()
