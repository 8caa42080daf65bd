"""Claims on chunks: which rank is at which, known from files that one rank alone can create.

A rank renews the time stamp of the claims it holds. Where a stamp has not changed for a lease, the
rank is gone, and the next attempt at the same chunk is free. Stamps are compared with what the same
process saw earlier, never with a clock. Only time depends on claims: two ranks at the same chunk
write the same bytes.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from hydragnn_hpo.files import storage

LEASE_SECONDS = 30.0
"""A claim whose stamp has not changed for so long is of a rank that is gone."""

MAX_ATTEMPTS = 3
"""Ranks that may be lost at a chunk; then it is given up until the next start."""

_BEATS = 6
"""Renewals per lease."""


class ChunkClaims:
    """One rank's view of a folder of claims; claims taken in a ``with`` are renewed."""

    def __init__(
        self,
        folder: Path,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember the folder; it is made on entering, its parent is not.

        Args:
            folder: seen by all ranks.
            lease_seconds: how long a claim lasts that is not renewed.
            clock: any clock that never goes back, in seconds.
        """
        self._folder, self._lease, self._clock = folder, lease_seconds, clock
        self._held: set[Path] = set()
        self._seen: dict[Path, tuple[int, float]] = {}
        self._left = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True, name="claims")

    def __enter__(self) -> Self:
        """Make the folder and begin to renew.

        Raises:
            StorageError: the folder cannot be written.
        """
        with storage(self._folder):
            self._folder.mkdir(exist_ok=True)
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Renew no more: what is still claimed is free after a lease."""
        self._left.set()
        self._heart.join()

    def take(self, name: str) -> bool:
        """Claim a chunk, unless a live rank has it or too many were lost at it.

        Raises:
            StorageError: the folder cannot be written.
        """
        for attempt in range(MAX_ATTEMPTS):
            path = self._path(name, attempt)
            if self._create(path):
                self._held.add(path)
                return True
            if self._is_alive(path):
                return False
        return False

    def drop(self, name: str) -> None:
        """Release a chunk that is done, or left undone in order; its lost ranks are forgotten."""
        for attempt in reversed(range(MAX_ATTEMPTS)):
            path = self._path(name, attempt)
            self._held.discard(path)
            self._seen.pop(path, None)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def is_given_up(self, name: str) -> bool:
        """Check whether ranks were lost at all attempts at a chunk."""
        last = self._path(name, MAX_ATTEMPTS - 1)
        return last.exists() and not self._is_alive(last)

    def last_attempts(self) -> list[str]:
        """Return the names of all chunks at their last attempt, live or not."""
        return sorted(path.stem for path in self._folder.glob(f"[0-9]*.{MAX_ATTEMPTS - 1}"))

    def clear(self) -> None:
        """Remove all claims: what ranks of an earlier start were lost at may be tried again."""
        for path in list(self._folder.glob("*")):
            path.unlink(missing_ok=True)

    def _create(self, path: Path) -> bool:
        with storage(path):
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                return False
        return True

    def _is_alive(self, path: Path) -> bool:
        """Check whether a claim was renewed within a lease, as far as this process has watched."""
        try:
            with path.open("rb") as file:  # opening asks the file server; a cached stamp may be old
                stamp = os.fstat(file.fileno()).st_mtime_ns
        except OSError:  # dropped this moment
            return True
        now = self._clock()
        known, since = self._seen.setdefault(path, (stamp, now))
        if stamp != known:
            self._seen[path] = (stamp, now)
            return True
        return now - since < self._lease

    def _beat(self) -> None:
        while not self._left.wait(self._lease / _BEATS):
            for path in tuple(self._held):
                with contextlib.suppress(OSError):  # the next beat may find the folder again
                    os.utime(path)

    def _path(self, name: str, attempt: int) -> Path:
        return self._folder / f"{name}.{attempt}"
