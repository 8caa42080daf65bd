"""Keep memory that was freed: a training step asks for the same megabytes again and again."""

import ctypes

_TRIM, _TOP, _MAP = -1, -2, -3
"""Numbers of glibc's ``M_TRIM_THRESHOLD``, ``M_TOP_PAD`` and ``M_MMAP_THRESHOLD``."""

LARGEST = 32 * 2**20
"""Most that glibc takes from its own heap at once, bytes."""


def keep_freed_memory() -> bool:
    """Tell the C library not to give freed memory back to the system after each operation.

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
