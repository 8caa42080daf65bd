"""Facts about this host and its processes; standard library only, because agents load it."""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MEBI = 1 << 20

SCRATCH = "HYDRAGNN_HPO_SCRATCH"
"""Environment variable: folders on this host, between colons, where processes keep large files."""


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


@dataclass(frozen=True)
class MemoryGroup:
    """A control group that may limit the memory of this process."""

    folder: Path
    limit_file: str
    usage_file: str
    cache_key: str
    """Name in ``memory.stat`` of the file caches that the kernel can drop."""
    kills_file: str

    def read(self, name: str, pattern: str = r"(\d+)\s*") -> int | None:
        """Return a number from one of its files; None if there is none, as for no limit."""
        with contextlib.suppress(OSError):
            if match := re.search(rf"^{pattern}$", (self.folder / name).read_text(), re.MULTILINE):
                return int(match[1])
        return None

    @property
    def limit(self) -> int | None:
        """Most bytes that its processes may use; None if it sets no limit."""
        return self.read(self.limit_file)

    @property
    def free(self) -> int | None:
        """Bytes that it leaves, file caches included; None if it sets no limit."""
        limit = self.limit
        used = self.read(self.usage_file)
        if limit is None or used is None:
            return None
        return limit - used + (self.read("memory.stat", rf"{self.cache_key} (\d+)") or 0)

    @property
    def kills(self) -> int | None:
        """Number of its processes that the kernel has killed for lack of memory."""
        return self.read(self.kills_file, r"oom_kill (\d+)")


_VERSION_1 = (
    *("memory.limit_in_bytes", "memory.usage_in_bytes"),
    *("total_inactive_file", "memory.oom_control"),
)
_VERSION_2 = ("memory.max", "memory.current", "inactive_file", "memory.events")


def memory_groups(root: Path = Path("/")) -> list[MemoryGroup]:
    """Return the control groups that may limit this process's memory, the innermost first.

    A batch scheduler may limit a job, its steps and its tasks, each in a group inside the other. A
    container often sees its own group as the outermost, under a path that does not exist.

    Args:
        root: folder of ``proc`` and ``sys``.
    """
    groups: list[MemoryGroup] = []
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, place = line.split(":", maxsplit=2)
            if kinds and "memory" not in kinds.split(","):
                continue
            mount = root / "sys/fs/cgroup" / ("memory" if kinds else "")
            inner = mount / place.strip("/")
            folders = (f for f in (inner, *inner.parents) if f.is_relative_to(mount))
            groups += (MemoryGroup(f, *(_VERSION_1 if kinds else _VERSION_2)) for f in folders)
    return groups


def host_memory_mb(root: Path = Path("/"), *, installed: bool = False) -> int:
    """Return the memory that this process and others of its job may use, in MiB; 0 if unknown.

    Args:
        root: folder of ``proc`` and ``sys``.
        installed: return the memory of the host, whatever control groups allow.
    """
    physical = read_memory(root / "proc/meminfo").get("MemTotal", 0)
    limits = [] if installed else [group.limit for group in memory_groups(root)]
    return min([physical, *(limit for limit in limits if limit is not None)]) // _MEBI


def free_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that this host and the control groups of this process leave free.

    Args:
        root: folder of ``proc`` and ``sys``.
    """
    available = read_memory(root / "proc/meminfo").get("MemAvailable", 2**62)
    left = (group.free for group in memory_groups(root))
    return max(min([available, *(free for free in left if free is not None)]), 0)


def count_memory_kills(root: Path = Path("/")) -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 if unknown.

    Those of this process's own control group where it counts them; else all of this host.

    Args:
        root: folder of ``proc`` and ``sys``.
    """
    counts = (group.kills for group in memory_groups(root))
    own = next((kills for kills in counts if kills is not None), None)
    if own is not None:
        return own
    with contextlib.suppress(OSError):
        text = (root / "proc/vmstat").read_text()
        if match := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
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
