"""Memory of a rank: its limit, its peak, freeing what is kept, and out-of-memory errors."""

import contextlib
import ctypes
import gc
import re
import resource
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.host_info import read_memory

_TRIM, _TOP, _MAP = -1, -2, -3
"""Numbers of glibc's ``M_TRIM_THRESHOLD``, ``M_TOP_PAD`` and ``M_MMAP_THRESHOLD``."""

LARGEST = 32 * 2**20
"""Most that glibc takes from its own heap at once, bytes."""

MEMORY = "HYDRAGNN_HPO_MEMORY_MB"
"""Environment variable: MiB that the tensors of one rank may take, where ranks share a card."""

CPU_IS_FULL = "DefaultCPUAllocator: can't allocate memory"
"""What torch says in a plain RuntimeError; it has a class of its own for GPUs only."""

_FULL = (CPU_IS_FULL, "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""The same in the words of drivers and libraries."""


def keep_freed_memory() -> bool:
    """Keep the C library from giving freed memory back to the system after each operation.

    By default every array of some megabytes is mapped anew, and touching its pages for the first
    time costs more than the arithmetic on them: a step of PaiNN took 1.5 times as long. The
    process holds on to the most it ever used.

    Returns:
        Whether this C library can be told; others than glibc are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    wanted = ((_MAP, LARGEST), (_TRIM, 2**31 - 1), (_TOP, 2 * LARGEST))
    return all(mallopt(option, value) == 1 for option, value in wanted)


def release_memory(device: torch.device) -> None:
    """Release what is kept but not used to the system, or to the other ranks of a card."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    with contextlib.suppress(AttributeError, OSError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an error says that there is no memory left."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _FULL)


def peak_bytes(device: torch.device) -> int:
    """Return the most memory this rank took so far: of the process, or of torch on its GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_peak_bytes(work: Callable[[], None], device: torch.device) -> int | None:
    """Do some work, and give the bytes it took at most beside what was there before.

    Returns:
        None where this system does not tell.
    """
    release_memory(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    except OSError:
        work()
        return None
    before = _status("VmRSS")
    work()
    return max(_status("VmHWM") - before, 0)


def _status(key: str) -> int:
    """Return a size in bytes that Linux keeps of this process; 0 elsewhere."""
    with contextlib.suppress(OSError):
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        if match := re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE):
            return int(match[1]) * 1024
    return 0


def limit_bytes(device: torch.device, held: int, environment: Mapping[str, str]) -> int:
    """Return how much the tensors of this rank may take.

    On a GPU that is what is free, on a CPU this rank's part of what its host, its control group
    and its own limits leave free.

    Args:
        device: of the rank.
        held: bytes of the tensors that are there already; they belong to the limit.
        environment: ``HYDRAGNN_HPO_MEMORY_MB`` in place of all that; ``LOCAL_WORLD_SIZE``.

    Raises:
        ConfigError: ``HYDRAGNN_HPO_MEMORY_MB`` is not a number.
    """
    fixed = environment.get(MEMORY)
    if fixed is not None:
        if not (fixed.isascii() and fixed.isdigit() and int(fixed)):
            raise ConfigError(f"{MEMORY} is {fixed!r}: set it to a number of MiB, 1 or more.")
        return int(fixed) * 2**20
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device) + torch.cuda.mem_get_info(device)[0]
    neighbours = max(int(environment.get("LOCAL_WORLD_SIZE", "1")), 1)
    own = [limit - _status(key) for limit, key in _own_limits()]
    return held + max(min(free_bytes() // neighbours, *own, 2**62), 0)


def _own_limits() -> Iterator[tuple[int, str]]:
    """Return the limits of this process, and what counts against each."""
    for which, key in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft = resource.getrlimit(which)[0]
        if soft != resource.RLIM_INFINITY:
            yield soft, key


def free_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that this host and this process' control groups leave free.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    free = [2**62]
    free += [read_memory(root / "proc/meminfo").get("MemAvailable", 2**62)]
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, place = line.split(":", maxsplit=2)
            if not kinds or "memory" in kinds.split(","):
                free += _free_in_cgroup(
                    root / "sys/fs/cgroup", place.strip("/"), version=1 + (not kinds)
                )
    return max(min(free), 0)


def _free_in_cgroup(mount: Path, place: str, *, version: int) -> Iterator[int]:
    """Return what a control group and those around it leave; file caches are given up for us.

    A container often sees its own group as the root, under a path that does not exist.
    """
    if version == 2:
        names = ("memory.max", "memory.current", "inactive_file")
    else:
        mount = mount / "memory"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    inner = mount / place
    for folder in (inner, *inner.parents):
        if not folder.is_relative_to(mount):
            return
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
            limit, used = (int((folder / name).read_text()) for name in names[:2])
            stat = (folder / "memory.stat").read_text()
            cached = re.search(rf"^{names[2]} (\d+)", stat, re.MULTILINE)
            yield limit - used + (int(cached[1]) if cached else 0)
