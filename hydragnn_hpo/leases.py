"""Leases: which process may act, and until when.

``ControllerLease``: for the one process that writes a run's journal. ``AllocationLease``: for the
one process that brings an allocation's hosts to the run. ``RankLease``: until when ranks may run on
a host. ``StampWatch``: whether the process that renews a file on shared storage is still alive.

File locks are not used, because network file systems do not keep them. Neither are the clocks of
file servers, except to detect a controller that was lost with its host: only changes of a time
stamp count, measured by the monotonic clock of the process that watches it.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Self
from urllib.parse import quote

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.host_info import boot_id, start_ticks

STALE_SECONDS = 30.0
"""Time after which the lease of a process on another host is free if it was not renewed."""

RENEWAL_GRACE_SECONDS = STALE_SECONDS / 2.0
"""Time for which renewals may fail: no other controller considers the lease stale by then."""

_RENEWAL_SECONDS = 1.0
"""Least time between two renewals."""

FINISHED, DRAINED, PAUSED, FAILED = "finished", "drained", "paused", "failed"
"""Why controllers release their lease."""

RANK_LEASE_LAPSED = 75
"""Exit code of a rank whose lease lapsed (EX_TEMPFAIL)."""

RANK_LEASE_ALARM = -signal.SIGALRM
"""Exit code of a rank that the kernel's alarm ended: it was frozen until its lease was over."""

_TIME = struct.Struct("=d")

_CHECKS_PER_LEASE = 10
"""Checks of a rank's lease in its length; a rank outlives the lease by at most one interval."""


class LeaseTaken(RunError):
    """Another process holds the lease."""


class ControllerLease:
    """The right to write the journal of a run directory.

    Each controller creates ``controller/NNNNNN.lease`` exclusively, one number above the newest;
    that number is its epoch, and fences controllers with a lower one.
    """

    def __init__(self, run: Path) -> None:
        """Take the lease.

        Raises:
            LeaseTaken: another controller is at work here.
        """
        folder = run / "controller"
        with storage(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        newest = _newest_lease(run)
        if newest and (holder := find_holder(newest)):
            raise LeaseTaken(f"{run}: is being run by {holder}; wait for it, or end it first.")
        self.epoch = int(newest.stem) + 1 if newest else 1
        self.path = folder / f"{self.epoch:06d}.lease"
        self._next = folder / f"{self.epoch + 1:06d}.lease"
        content = _describe_process()
        with storage(self.path):
            try:
                descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                raise LeaseTaken(f"{run}: another controller has just started here.") from None
            with os.fdopen(descriptor, "w") as file:
                file.write(content)
        self._renewed = time.monotonic()

    def renew(self) -> None:
        """Renew the lease, about once a second; a file server may be out of reach for a while.

        Raises:
            RunError: a newer controller has taken over; nothing may be written any more.
            StorageError: renewals have failed for ``RENEWAL_GRACE_SECONDS``.
        """
        now = time.monotonic()
        if now - self._renewed < _RENEWAL_SECONDS:
            return
        with storage(self.path):
            try:
                newer = self._next.exists()
                os.utime(self.path)
            except OSError:
                if now - self._renewed < RENEWAL_GRACE_SECONDS:
                    return
                raise
        if newer:
            raise RunError(f"{self.path.parent.parent}: a newer controller has taken over.")
        self._renewed = now

    def release(self, why: str = "") -> None:
        """Release the lease; its number is not used again.

        Args:
            why: ``FINISHED``, ``DRAINED``, ``PAUSED`` or ``FAILED``, see ``read_release_reason``.
        """
        with storage(self.path):
            self.path.write_text(json.dumps({"left": why}))


class AllocationLease:
    """The right of one process to bring an allocation's hosts; two would replace each other's."""

    def __init__(self, run: Path, allocation: str) -> None:
        """Take the lease.

        Raises:
            LeaseTaken: another process of this allocation works for the run already.
        """
        self._path = run / "controller" / "allocations" / f"{quote(allocation, safe='')}.lease"
        with storage(self._path):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._path.exists() and (holder := find_holder(self._path)):
            raise LeaseTaken(
                f"{run}: allocation {allocation} works for it already, by {holder}; wait for it, "
                "or end it first."
            )
        self._content = _describe_process()
        write_text(self._path, self._content)
        self._renewed = time.monotonic()

    def renew(self) -> None:
        """Renew the lease, about once a second, whenever files can be reached.

        Raises:
            LeaseTaken: another process took it at the same moment, and later.
        """
        if time.monotonic() - self._renewed < _RENEWAL_SECONDS:
            return
        self._renewed = time.monotonic()
        with contextlib.suppress(OSError):  # an allocation is not lost for a short outage
            if self._path.read_text() != self._content:
                raise LeaseTaken(f"{self._path}: another process took this allocation's place.")
            os.utime(self._path)

    def release(self) -> None:
        """Release the lease, unless another process has taken it."""
        with contextlib.suppress(OSError):
            if self._path.read_text() == self._content:
                self._path.unlink()


def find_controller(run: Path) -> str | None:
    """Return the name of the controller at work in a run directory, or None."""
    newest = _newest_lease(run)
    return find_holder(newest) if newest else None


def read_release_reason(run: Path) -> str:
    """Return why the last controller released its lease; empty if it did not."""
    newest = _newest_lease(run)
    try:
        content = json.loads(newest.read_text()) if newest else {}
    except (OSError, ValueError):
        return ""
    return str(content.get("left", "")) if isinstance(content, dict) else ""


def find_holder(path: Path) -> str | None:
    """Return the name of the process that holds a controller's or an allocation's lease.

    An empty lease is being written at this moment, as when many copies of one job script start in
    the same second.

    Returns:
        Such as ``process 12 on host``; None where the lease is free.
    """
    try:
        text = path.read_text()
        age = time.time() - path.stat().st_mtime
        process = json.loads(text or "{}")
    except (OSError, ValueError):
        return None
    if not text and age < STALE_SECONDS:
        return "a process that has just started"
    match process:
        case {"pid": int(pid), "host": str(host)}:
            here = host == socket.gethostname()
            held = _is_alive(pid, process.get("born", "")) if here else age <= STALE_SECONDS
            return f"process {pid} on {host}" if held else None
    return None


def _newest_lease(run: Path) -> Path | None:
    numbered = (path for path in (run / "controller").glob("*.lease") if path.stem.isdecimal())
    return max(numbered, key=lambda path: int(path.stem), default=None)


def _describe_process() -> str:
    pid = os.getpid()
    process: dict[str, str | int] = {"pid": pid, "host": socket.gethostname(), "born": _birth(pid)}
    return json.dumps(process)


def _birth(pid: int) -> str:
    """Return an identity of a process: boot of this host and start in ticks; empty without one."""
    ticks = start_ticks(pid)
    return "" if ticks is None else f"{boot_id()}/{ticks}"


def _is_alive(pid: int, born: str) -> bool:
    """Check whether a process exists and has the identity ``born``, as numbers are used again."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return (b"python" in command or b"hydragnn" in command) and born in ("", _birth(pid))


class StampWatch:
    """Watches the time stamp of a file, whose changes show that its writer is alive."""

    def __init__(self, path: Path, lease_seconds: float, now: float) -> None:
        """Begin with a whole lease.

        Args:
            path: the file.
            lease_seconds: how long the writer counts as alive after a change of the stamp.
            now: time of a monotonic clock in seconds.
        """
        self._path, self._seconds = path, lease_seconds
        self._stamp = -1
        self.until = now + lease_seconds

    def update(self, now: float) -> None:
        """Extend ``until`` if the stamp has changed since the last call.

        Raises:
            OSError: the file does not exist (``FileNotFoundError``) or is out of reach.
        """
        with self._path.open(
            "rb"
        ) as file:  # an open file has the stamp of the file server, not a cached one
            stamp = os.fstat(file.fileno()).st_mtime_ns
        if stamp != self._stamp:
            self._stamp, self.until = stamp, now + self._seconds


class RankLease:
    """Until when the ranks of one agent may run, in this host's monotonic time.

    It is a number in memory that the agent, its fork server and all ranks share by an inherited
    descriptor, so that no file system can delay or lose it. ``time.monotonic`` stands still while a
    host is suspended, so leases stay valid.
    """

    def __init__(self, descriptor: int) -> None:
        """Open the lease of an inherited file descriptor."""
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> Self:
        """Create a lease that is over until it is granted.

        Raises:
            OSError: the system has no descriptor left.
        """
        lease = cls(os.memfd_create("hydragnn-hpo-lease"))
        lease.grant(0.0)
        return lease

    def grant(self, until: float) -> None:
        """Allow ranks to run until a point in ``time.monotonic``."""
        os.pwrite(self.descriptor, _TIME.pack(until), 0)

    def read(self) -> float:
        """Return the end of the lease in ``time.monotonic``."""
        (until,) = _TIME.unpack(os.pread(self.descriptor, _TIME.size, 0))
        return float(until)


def watch_rank_lease(
    lease: RankLease, lease_seconds: float, end_group: Callable[[], object]
) -> NoReturn:
    """End this process once its lease is over; run it in a thread.

    The thread may not get to run, as when another holds the interpreter or the host was frozen. So
    an alarm of the kernel, set for the end of the lease, kills the process then; one that was
    frozen dies before it does anything else.

    Args:
        lease: of this host.
        lease_seconds: length of a whole lease.
        end_group: called at the end, to kill the other processes of this process group.
    """
    pause = min(1.0, lease_seconds / _CHECKS_PER_LEASE)
    while (left := lease.read() - time.monotonic()) >= 0:
        signal.setitimer(signal.ITIMER_REAL, left + 2 * pause)
        time.sleep(pause)
    _leave(f"its lease of {lease_seconds:g} s was not renewed", end_group)


def _leave(reason: str, end_group: Callable[[], object]) -> NoReturn:
    os.write(2, f"rank {os.environ.get('RANK')}: {reason}; ending.\n".encode())
    end_group()  # a frozen fork server cannot, and no child may outlive the lease
    os._exit(RANK_LEASE_LAPSED)
