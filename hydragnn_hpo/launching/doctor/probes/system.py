"""Cores, memory and limits of this host, and the cores that its slots really get."""

import os
import resource
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydragnn_hpo.config.site import cores_of
from hydragnn_hpo.launching.doctor.order import Order
from hydragnn_hpo.launching.host.memory import host_memory_mb

_MEBI = 1 << 20
_SHM = Path("/dev/shm")


def look_at_system(order: Order) -> dict[str, Any]:
    """Give what the host has, and what we may use of it."""
    return {
        "cores": physical_cores(),
        "allowed": as_list(os.sched_getaffinity(0)),
        "memory_mb": host_memory_mb(),
        "kernel": os.uname().release,
        "files": _hard(resource.RLIMIT_NOFILE),
        "core_bytes": _soft(resource.RLIMIT_CORE),
        "locked_bytes": _soft(resource.RLIMIT_MEMLOCK),
        "shm_mb": shutil.disk_usage(_SHM).free // _MEBI if _SHM.exists() else 0,
    }


def _soft(limit: int) -> int:
    """Give a limit as it is; -1 for none."""
    soft, _ = resource.getrlimit(limit)
    return -1 if soft == resource.RLIM_INFINITY else soft


def _hard(limit: int) -> int:
    """Give what a limit can be raised to; -1 for none."""
    _, hard = resource.getrlimit(limit)
    return -1 if hard == resource.RLIM_INFINITY else hard


def physical_cores(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Count the cores of the host, threads of one core once; 0 if unknown."""
    siblings = set()
    for path in cpus.glob("cpu[0-9]*/topology/thread_siblings_list"):
        siblings.add(path.read_text().strip())
    return len(siblings)


def look_at_binding(order: Order) -> dict[str, Any]:
    """Start one process for each slot, bind it as agents do, and read what it got."""
    allowed = os.sched_getaffinity(0)
    return {"masks": [_mask_of(allowed.intersection(cores_of(text))) for text in order.slots]}


def _mask_of(cores: set[int]) -> str:
    """Give the cores that a bound process may use, or the kernel's excuse.

    Agents bind ranks to those of a slot's cores that they may use themselves.
    """
    if not cores:
        return "none of its cores"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.sched_setaffinity(0, cores)
            said = _allowed_of_status()
        except OSError as error:
            said = f"none ({error.strerror})"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


def _allowed_of_status() -> str:
    """Read the kernel's own word, beside what the call promised."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return line.partition(":")[2].strip()
    return as_list(os.sched_getaffinity(0))


def as_list(cores: Iterable[int]) -> str:
    """Write cores as the kernel does: ``0-3,8``."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1][1:] = [core]
        else:
            runs.append([core])
    return ",".join("-".join(map(str, run)) for run in runs)
