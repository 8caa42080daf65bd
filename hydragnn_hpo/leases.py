"""Leases: which process may act, and until when.

``ControllerLease``: held by the one process that writes a run's journal. ``AllocationLease``: held
by the one process that adds an allocation's hosts to the run. ``RankLease``: how long ranks may run
on a host. ``StampWatch``: whether the process that renews a file on shared storage is still alive.

File locks are not used, because not all network file systems support them. The clock of a file
server is used only to detect a controller that was lost with its host. Otherwise only changes of a
time stamp count, timed by the monotonic clock of the process that watches the file.
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
"""Seconds without renewal after which the lease of a process on another host is free."""

RENEWAL_GRACE_SECONDS = STALE_SECONDS / 2.0
"""Seconds for which renewals may fail, before another controller considers the lease stale."""

_RENEWAL_SECONDS = 1.0
"""Least time between two renewals, in seconds."""

FINISHED, DRAINED, PAUSED, FAILED = "finished", "drained", "paused", "failed"
"""Reasons for which a controller releases its lease."""

RANK_LEASE_LAPSED = 75
"""Exit code of a rank whose lease expired (EX_TEMPFAIL)."""

RANK_LEASE_ALARM = -signal.SIGALRM
"""Exit code of a rank that SIGALRM killed: it was frozen until its lease had expired."""

_TIME = struct.Struct("=d")

_CHECKS_PER_LEASE = 10
"""How often a rank checks its lease per lease; it outlives the lease by at most one interval."""


class LeaseTaken(RunError):
    """Another process holds the lease."""


class ControllerLease:
    """The right to write the journal of a run directory.

    Each controller creates ``controller/NNNNNN.lease`` exclusively, one number above the newest;
    that number is its epoch. A controller with a lower number must stop writing.
    """

    def __init__(self, run: Path) -> None:
        """Take the lease.

        Raises:
            LeaseTaken: another controller is running in this directory.
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
        """Renew the lease, at most once a second; short outages of the file server are tolerated.

        Raises:
            RunError: a newer controller has taken over; this one must stop writing.
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
            raise RunError(
                f"{self.path.parent.parent}: a newer controller has taken over; see status."
            )
        self._renewed = now

    def release(self, why: str = "") -> None:
        """Release the lease; its number is never used again.

        Args:
            why: ``FINISHED``, ``DRAINED``, ``PAUSED`` or ``FAILED``, see ``read_release_reason``.
        """
        with storage(self.path):
            self.path.write_text(json.dumps({"left": why}))


class AllocationLease:
    """The right to add an allocation's hosts to a run; two processes would replace each other's."""

    def __init__(self, run: Path, allocation: str) -> None:
        """Take the lease.

        Raises:
            LeaseTaken: another process already adds hosts of this allocation to the run.
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
        write_text(self._path, self._content, private=True)
        self._renewed = time.monotonic()

    def renew(self) -> None:
        """Renew the lease, at most once a second; failures to reach the file are ignored.

        Raises:
            LeaseTaken: another process took the lease just after this one.
        """
        if time.monotonic() - self._renewed < _RENEWAL_SECONDS:
            return
        self._renewed = time.monotonic()
        with contextlib.suppress(OSError):  # an allocation is not lost for a short outage
            if self._path.read_text() != self._content:
                raise LeaseTaken(
                    f"{self._path}: another process took this allocation's place; start it again "
                    "if it is needed."
                )
            os.utime(self._path)

    def release(self) -> None:
        """Release the lease, unless another process has taken it."""
        with contextlib.suppress(OSError):
            if self._path.read_text() == self._content:
                self._path.unlink()


def find_controller(run: Path) -> str | None:
    """Return the controller running in a directory, as ``find_holder`` names it, or None."""
    newest = _newest_lease(run)
    return find_holder(newest) if newest else None


def read_release_reason(run: Path) -> str:
    """Return why the newest controller released its lease; empty if it has not."""
    newest = _newest_lease(run)
    try:
        content = json.loads(newest.read_text()) if newest else {}
    except (OSError, ValueError):
        return ""
    return str(content.get("left", "")) if isinstance(content, dict) else ""


def find_holder(path: Path) -> str | None:
    """Return the name of the process that holds a controller's or an allocation's lease.

    An empty file is a lease that another process is writing at this moment, for example when many
    copies of one job script start in the same second.

    Returns:
        For example ``process 12 on host``; None if the lease is free.
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
    """Return the boot id and start time of a process, which identify it; empty if there is none."""
    ticks = start_ticks(pid)
    return "" if ticks is None else f"{boot_id()}/{ticks}"


def _is_alive(pid: int, born: str) -> bool:
    """Check whether a process exists with the identity ``born``, since pids are reused."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return (b"python" in command or b"hydragnn" in command) and born in ("", _birth(pid))


class StampWatch:
    """Watches the time stamp of a file; each change shows that its writer is alive."""

    def __init__(self, path: Path, lease_seconds: float, now: float) -> None:
        """Begin with a full lease.

        Args:
            path: the file.
            lease_seconds: how long the writer counts as alive after each change.
            now: monotonic time in seconds.
        """
        self._path, self._seconds = path, lease_seconds
        self._stamp = -1
        self.until = now + lease_seconds

    def update(self, now: float) -> None:
        """Extend ``until`` if the stamp has changed since the last call.

        Raises:
            OSError: the file does not exist (``FileNotFoundError``) or cannot be reached.
        """
        # Opening fetches the time stamp from the file server; ``stat`` may return a cached one.
        with self._path.open("rb") as file:
            stamp = os.fstat(file.fileno()).st_mtime_ns
        if stamp != self._stamp:
            self._stamp = stamp
            self.until = now + self._seconds


class RankLease:
    """The time until which the ranks of one agent may run, in this host's monotonic time.

    It is a number in memory that the agent, its fork server and all ranks share through an
    inherited descriptor, so it depends on no file system. ``time.monotonic`` stops while a host is
    suspended, so leases stay valid.
    """

    def __init__(self, descriptor: int) -> None:
        """Use the lease behind an inherited file descriptor."""
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> Self:
        """Create a lease, which counts as expired until ``grant`` is called.

        Raises:
            OSError: no file descriptor is left.
        """
        lease = cls(os.memfd_create("hydragnn-hpo-lease"))
        lease.grant(0.0)
        return lease

    def grant(self, until: float) -> None:
        """Allow ranks to run until a time of ``time.monotonic``, in seconds."""
        os.pwrite(self.descriptor, _TIME.pack(until), 0)

    def read(self) -> float:
        """Return the end of the lease as a time of ``time.monotonic``, in seconds."""
        (until,) = _TIME.unpack(os.pread(self.descriptor, _TIME.size, 0))
        return float(until)


def watch_rank_lease(
    lease: RankLease, lease_seconds: float, end_group: Callable[[], object]
) -> NoReturn:
    """End this process when its lease has expired; run it in a thread.

    The thread may be unable to run, for example while another thread holds the interpreter lock or
    the host is frozen. So a kernel alarm (SIGALRM), set shortly after the end of the lease, kills
    the process in that case; a process that was frozen dies before it does anything else.

    Args:
        lease: the lease of this host's ranks.
        lease_seconds: length of a full lease.
        end_group: called at the end, to kill the other processes of this process group.
    """
    pause = min(1.0, lease_seconds / _CHECKS_PER_LEASE)
    while (left := lease.read() - time.monotonic()) >= 0:
        signal.setitimer(signal.ITIMER_REAL, left + 2 * pause)
        time.sleep(pause)
    _leave(f"its lease of {lease_seconds:g} s was not renewed", end_group)


def _leave(reason: str, end_group: Callable[[], object]) -> NoReturn:
    os.write(2, f"rank {os.environ.get('RANK')}: {reason}; ending.\n".encode())
    end_group()  # a frozen fork server cannot do it, and no child process may outlive the lease
    os._exit(RANK_LEASE_LAPSED)
