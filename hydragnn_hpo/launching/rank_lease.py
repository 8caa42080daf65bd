"""The lease of a job on one host: a file whose time stamp says until when its ranks may run.

The stamp is a point in this host's monotonic time, which agent and ranks share: no clock of
a file server takes part, and a laptop that slept wakes with its leases in order.
"""

import os
import signal
import time
from pathlib import Path
from typing import NoReturn

from hydragnn_hpo.launching import process_control

LAPSED = 75
"""Exit code of a rank whose lease lapsed (EX_TEMPFAIL)."""

_LOOKS = 10
"""Looks at the lease per lease time; a rank outlives its lease by one of them at most."""


def grant(lease: Path, until: float) -> None:
    """Extend the lease of ranks to a point in ``time.monotonic``.

    Raises:
        OSError: the file is gone or out of reach.
    """
    stamp = max(0, int(until * 1e9))
    os.utime(lease, ns=(stamp, stamp))


def create(lease: Path, until: float) -> None:
    """Make the file of a lease.

    Raises:
        OSError: it cannot be written.
    """
    lease.touch(mode=0o600)
    grant(lease, until)


def look_seconds(lease_seconds: float) -> float:
    """Return the time between two looks of a rank at its lease."""
    return min(1.0, lease_seconds / _LOOKS)


def watch(lease: Path, lease_seconds: float) -> NoReturn:
    """End this process once its lease is over or gone; run it in a thread.

    A thread that cannot run (somebody holds the interpreter, or the whole host was frozen) is
    backed by the kernel: an alarm that was set for the end kills the process, and a frozen one
    before it does anything else.
    """
    look = look_seconds(lease_seconds)
    end = time.monotonic() + lease_seconds
    while True:
        try:
            end = lease.stat().st_mtime_ns / 1e9
        except FileNotFoundError:
            _leave(f"lease {lease} is gone")
        except OSError:  # out of reach: what it said last counts
            pass
        left = end - time.monotonic()
        if left < 0:
            _leave(f"lease {lease} was not renewed for {lease_seconds:g} s")
        signal.setitimer(signal.ITIMER_REAL, left + 2 * look)
        time.sleep(look)


def _leave(reason: str) -> NoReturn:
    os.write(2, f"rank {os.environ.get('RANK')}: {reason}; ending.\n".encode())
    process_control.end_group()  # a frozen zygote cannot, and no child may outlive the lease
    os._exit(LAPSED)
