"""Memory of a rank: its limit, its peak, release of caches, and out-of-memory errors."""

import contextlib
import ctypes
import gc
import re
import resource
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.host_info import free_bytes

_TRIM, _TOP, _MAP = -1, -2, -3
"""Numbers of glibc's ``M_TRIM_THRESHOLD``, ``M_TOP_PAD`` and ``M_MMAP_THRESHOLD``."""

LARGEST = 32 * 2**20
"""Largest array that glibc takes from its heap instead of mapping it, in bytes."""

MEMORY = "HYDRAGNN_HPO_MEMORY_MB"
"""Environment variable: MiB that the tensors of one rank may use, for ranks that share a GPU."""

CPU_IS_FULL = "DefaultCPUAllocator: can't allocate memory"
"""Text of torch's RuntimeError on a CPU; torch has an out-of-memory class only for GPUs."""

_FULL = (CPU_IS_FULL, "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of out-of-memory errors from torch, drivers and libraries."""


def keep_freed_memory() -> bool:
    """Stop the C library from returning freed memory to the system after each operation.

    By default every array of some megabytes is mapped again, and the first access to its pages
    costs more than the arithmetic on them: a step of PaiNN took 1.5 times as long. With these
    settings the process keeps its peak memory.

    Returns:
        Whether the C library accepted the settings; only glibc has them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    wanted = ((_MAP, LARGEST), (_TRIM, 2**31 - 1), (_TOP, 2 * LARGEST))
    return all(mallopt(option, value) == 1 for option, value in wanted)


def release_memory(device: torch.device) -> None:
    """Release unused memory that allocators keep, to the system or to other ranks of a GPU."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    with contextlib.suppress(AttributeError, OSError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an error means that there is no memory left, on any device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _FULL)


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory of this rank in bytes: of the process, or of torch on its GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_peak_bytes(work: Callable[[], None], device: torch.device) -> int | None:
    """Call ``work`` and measure the peak of the memory that it uses.

    Returns:
        Bytes above the memory in use before; None if this system does not report them.
    """
    release_memory(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    except OSError:
        work()
        return None
    before = _status("VmRSS")
    work()
    return max(_status("VmHWM") - before, 0)


def _status(key: str) -> int:
    """Return a size in bytes from ``/proc/self/status``; 0 if it is not reported."""
    with contextlib.suppress(OSError):
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        if match := re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE):
            return int(match[1]) * 1024
    return 0


def limit_bytes(device: torch.device, held: int, environment: Mapping[str, str]) -> int:
    """Return how many bytes the tensors of this rank may use.

    On a GPU that is its free memory plus what torch has reserved; on a CPU it is this rank's part
    of the memory that the host, its control group and its process limits leave free.

    Args:
        device: device of the rank.
        held: bytes of the tensors that already exist; on a CPU they are added to the free memory.
        environment: variables of the process: ``HYDRAGNN_HPO_MEMORY_MB`` overrides everything else,
            ``LOCAL_WORLD_SIZE`` is the number of ranks that share the host.

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
    """Yield each limit of this process in bytes, and the ``/proc`` key of its usage."""
    for which, key in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft = resource.getrlimit(which)[0]
        if soft != resource.RLIM_INFINITY:
            yield soft, key
