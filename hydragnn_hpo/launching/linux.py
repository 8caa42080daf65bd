"""The few things only the Linux kernel can promise about processes."""

import ctypes
import os
import signal

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
