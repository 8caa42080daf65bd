"""Who is at work on what: claims that end with those who made them.

Every rank renews the time stamp of a file of its own while it lives. A claim is a file that one
rank alone can create; once its owner is gone the next number of the same claim is free. Stamps
are compared with our own stamp, not with a clock. Nothing depends on claims but time: two ranks
on the same piece write the same bytes.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
from pathlib import Path
from typing import Any, Self

from hydragnn_hpo.files import storage
from hydragnn_hpo.host_info import boot_id, is_running, start_ticks

LEASE_SECONDS = 60.0
"""A rank of another host that has not shown for so long is gone."""

MOST_DEATHS = 3
"""So many ranks may end while they are at work on a piece; then nobody tries again."""

_RANK = "rank"

_BEATS = 6
"""Renewals per lease."""


class Claims:
    """One rank's view of a folder of claims; use it in a ``with``."""

    def __init__(self, folder: Path, *, lease_seconds: float = LEASE_SECONDS) -> None:
        """Take the folder; it is made if need be, its parent is not.

        Args:
            folder: that all ranks see.
            lease_seconds: how long others wait for a rank that does not show.
        """
        self._folder, self._lease = folder, lease_seconds
        self._token = secrets.token_hex(8)
        self._own = self._of(self._token)
        self._left = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True, name="claims")

    def __enter__(self) -> Self:
        """Show that we are here.

        Raises:
            StorageError: the folder cannot be written.
        """
        with storage(self._folder):
            self._folder.mkdir(exist_ok=True)
            self._own.write_text(json.dumps(identity(os.getpid())))
        self._beating.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave: what we had claimed and not dropped is free at once."""
        self._left.set()
        self._beating.join()
        with contextlib.suppress(OSError):
            self._own.unlink(missing_ok=True)

    def take(self, name: str) -> bool:
        """Claim something, unless somebody alive has it or it has ended too many.

        Raises:
            StorageError: the folder cannot be written.
        """
        for deaths in range(MOST_DEATHS):
            if self._create(self._claim(name, deaths)):
                return True
            if self._is_held(self._claim(name, deaths)):
                return False
        return False

    def drop(self, name: str) -> None:
        """Give something back that is done, or not there; its deaths are forgotten."""
        for deaths in reversed(range(MOST_DEATHS)):
            with contextlib.suppress(OSError):
                self._claim(name, deaths).unlink(missing_ok=True)

    def is_lost(self, name: str) -> bool:
        """Tell whether so many have ended at this that nobody tries again."""
        last = self._claim(name, MOST_DEATHS - 1)
        return last.exists() and not self._is_held(last)

    def others(self) -> int:
        """Count the other ranks that are here and alive."""
        return sum(self._is_alive(token) for token in self._tokens() if token != self._token)

    def forget_dead(self) -> None:
        """Begin a new life: what ranks of an earlier one have ended at may be tried again.

        For whoever starts ranks, or the first of them.
        """
        for path in list(self._folder.iterdir()):
            if path.stem != _RANK and not self._is_held(path):
                path.unlink(missing_ok=True)
        for token in self._tokens():
            if not self._is_alive(token):
                self._of(token).unlink(missing_ok=True)

    def _tokens(self) -> list[str]:
        return [path.suffix.removeprefix(".") for path in self._folder.glob(f"{_RANK}.*")]

    def _create(self, path: Path) -> bool:
        with storage(path):
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                return False
            with os.fdopen(descriptor, "w") as file:
                file.write(self._token)
        return True

    def _is_held(self, claim: Path) -> bool:
        """Tell whether a claim's owner lives; one that is being written counts as such."""
        try:
            token = claim.read_text()
            if not token:
                return self._is_recent(claim)
        except OSError:  # dropped this moment
            return True
        return self._is_alive(token)

    def _is_alive(self, token: str) -> bool:
        path = self._of(token)
        try:
            who: dict[str, Any] = json.loads(path.read_text() or "{}")
        except (OSError, ValueError):
            return False
        if who and who["place"] == _place():
            return identity(who["pid"]) == who
        return self._is_recent(path)

    def _is_recent(self, path: Path) -> bool:
        """Compare with our own stamp, which the same file server gives."""
        try:
            self._renew()
            return self._own.stat().st_mtime - path.stat().st_mtime < self._lease
        except OSError:
            return False

    def _beat(self) -> None:
        while not self._left.wait(self._lease / _BEATS):
            with contextlib.suppress(OSError):  # the next beat may find the folder again
                self._renew()

    def _renew(self) -> None:
        os.utime(self._own)

    def _of(self, token: str) -> Path:
        return self._folder / f"{_RANK}.{token}"

    def _claim(self, name: str, deaths: int) -> Path:
        return self._folder / f"{name}.{deaths}"


def identity(pid: int) -> dict[str, Any]:
    """Say which process of which host a number means; nothing of one that is gone or a zombie."""
    if not is_running(pid) or (ticks := start_ticks(pid)) is None:
        return {}
    return {"pid": pid, "born": ticks, "place": _place()}


def _place() -> str:
    """Name this host and its table of processes: containers may have tables of their own."""
    return f"{socket.gethostname()}/{boot_id()}/{os.readlink('/proc/self/ns/pid')}"
