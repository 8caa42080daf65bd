"""The few things only the Linux kernel can promise about processes."""

import contextlib
import ctypes
import os
import signal
import time

from hydragnn_hpo.host_info import processes_of_group

_SET_PDEATHSIG = 1
_SET_NAME = 15
_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int | bytes) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def die_with_parent(parent: int) -> None:
    """Be killed when the *thread* that started this process ends, however it ends."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the promise was made
        os._exit(99)


def adopt_orphans(adopt: bool) -> None:
    """Become, or no longer be, the parent of descendants whose parent died."""
    _prctl(_SET_CHILD_SUBREAPER, int(adopt))


def name_process(name: str) -> None:
    """Set the name that ``ps`` and ``top`` show, 15 characters."""
    _prctl(_SET_NAME, name.encode()[:15])


def end_group() -> None:
    """Kill all other processes of our process group, and what they start meanwhile.

    Returns after two seconds at the latest: a device or file system may hold some of them.
    """
    own, group = os.getpid(), os.getpgrp()
    for _ in range(200):
        others = [pid for pid in processes_of_group(group) if pid != own]
        if not others:
            return
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
