"""Limits of memory and time for parsers that believe what a file says about itself.

A header may announce 10**9 atoms: some parsers take memory for all of them, others look for them
to the end of time. What a file may take is in proportion to its bytes.
"""

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SECONDS, SECONDS_PER_BYTE = 4.0, 2e-5
"""Seconds of CPU for one structure, and more by the size of its file: CIF takes a tenth of it."""

MEMORY = 1 << 30
MEMORY_PER_BYTE = 200
"""Bytes of memory for one structure, and more by the size of its file."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


class LimitExceeded(Exception):
    """A parser takes more than its file can need."""


@contextlib.contextmanager
def read_limits(size: int) -> Iterator[None]:
    """Limit the memory and, in the main thread, the CPU seconds of parsing one structure.

    The limit of memory is that of the kernel on what this process allocates, for the while.

    Args:
        size: bytes of the file, or characters of the text.

    Raises:
        LimitExceeded: the block needs more.
    """
    timed = threading.current_thread() is threading.main_thread()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _allocated() + MEMORY + MEMORY_PER_BYTE * size
    limits = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
        if timed:
            signal.signal(signal.SIGVTALRM, _stop)
            # Again and again, since a parser may swallow the error.
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS + SECONDS_PER_BYTE * size, 0.1)
        yield
    except MemoryError:
        raise LimitExceeded("it needs more memory than a file of its size can hold") from None
    finally:
        try:
            if timed:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        finally:  # also where the last signal arrives here
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise LimitExceeded("it takes longer than a file of its size can need")


def _allocated() -> int:
    """Return the bytes that this process has allocated, as the kernel counts them."""
    file = os.open("/proc/self/statm", os.O_RDONLY)  # ``open`` takes ten times as long
    try:
        return int(os.read(file, 200).split()[5]) * _PAGE
    finally:
        os.close(file)
