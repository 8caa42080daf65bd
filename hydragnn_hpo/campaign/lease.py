"""Exactly one controller per run directory: numbered lease files with a heartbeat.

Each controller creates ``controller/NNNNNN.lease`` exclusively, one number above the newest;
that number is its epoch. File locks are not trusted on network file systems.
"""

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.files import storage
from hydragnn_hpo.host_info import boot_id, start_ticks

STALE_SECONDS = 30.0
"""A lease on another host that was not renewed for so long is free."""

AWAY_SECONDS = STALE_SECONDS / 2.0
"""So long a lease may fail to be renewed: nobody else takes it for stale yet."""

FINISHED, DRAINED, PAUSED, FAILED = "finished", "drained", "paused", "failed"
"""With what word controllers give their lease back."""


class Taken(RunError):
    """Another controller is at work in the run directory."""


class Lease:
    """Our right to write the journal."""

    def __init__(self, run: Path) -> None:
        """Take the lease.

        Raises:
            Taken: another controller is at work here.
        """
        folder = run / "controller"
        with storage(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        newest = max((int(p.stem) for p in folder.glob("[0-9]*.lease")), default=0)
        if newest:
            _refuse_if_alive(folder / f"{newest:06d}.lease", run)
        self.epoch = newest + 1
        self.path = folder / f"{self.epoch:06d}.lease"
        self._next = folder / f"{self.epoch + 1:06d}.lease"
        content = whoever()
        with storage(self.path):
            try:
                descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                raise Taken(f"{run}: another controller has just started here.") from None
            with os.fdopen(descriptor, "w") as file:
                file.write(content)
        self._touched = time.monotonic()

    def renew(self) -> None:
        """Show that we are alive, about once a second; a file server may be away for a moment.

        Raises:
            RunError: a newer controller has taken over; nothing may be written any more.
            StorageError: it could not be renewed for so long that one may soon do so.
        """
        now = time.monotonic()
        if now - self._touched < 1.0:
            return
        with storage(self.path):
            try:
                newer = self._next.exists()
                os.utime(self.path)
            except OSError:
                if now - self._touched < AWAY_SECONDS:
                    return
                raise
        if newer:
            raise RunError(f"{self.path.parent.parent}: a newer controller has taken over.")
        self._touched = now

    def release(self, why: str = "") -> None:
        """Return the lease back; the number stays used.

        Args:
            why: tells those who would take over what they are to know, see ``left``.
        """
        with storage(self.path):
            self.path.write_text(json.dumps({"left": why}))


def alive(run: Path) -> str | None:
    """Name the controller at work in a run directory, or None."""
    newest = _newest(run)
    return holder(newest) if newest else None


def left(run: Path) -> str:
    """Return the word with which the last controller released its lease, if any."""
    newest = _newest(run)
    try:
        found = json.loads(newest.read_text()) if newest else {}
    except (OSError, ValueError):
        return ""
    return str(found.get("left", ""))


def _newest(run: Path) -> Path | None:
    return max((run / "controller").glob("[0-9]*.lease"), default=None)


def holder(path: Path) -> str | None:
    """Name the process that holds a lease, or None once it is free.

    One without content belongs to somebody who is just writing it: K copies of one job script
    start in the same second.
    """
    try:
        text = path.read_text()
        age = time.time() - path.stat().st_mtime
        found = json.loads(text or "{}")
    except (OSError, ValueError):
        return None
    if not text and age < STALE_SECONDS:
        return "somebody who has just started"
    if "pid" not in found:
        return None
    if found["host"] == socket.gethostname():
        if not _is_python(int(found["pid"])) or found.get("born", "") not in ("", _born(found)):
            return None
    elif age > STALE_SECONDS:
        return None
    return f"process {found['pid']} on {found['host']}"


def _refuse_if_alive(path: Path, run: Path) -> None:
    if somebody := holder(path):
        raise Taken(f"{run}: is being run by {somebody}; wait for it, or end it first.")


def whoever() -> str:
    """Return this process as JSON for a lease, with its birth: process numbers are used again."""
    who = {"pid": os.getpid(), "host": socket.gethostname()}
    return json.dumps({**who, "born": _born(who)})


def _born(who: Mapping[str, Any]) -> str:
    """Give the boot of this host, and when after it a process began; empty where there is none."""
    ticks = start_ticks(who["pid"])
    return "" if ticks is None else f"{boot_id()}/{ticks}"


def _is_python(pid: int) -> bool:
    """Whether a process exists and still looks like one of ours (numbers are reused)."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"python" in command or b"hydragnn" in command
