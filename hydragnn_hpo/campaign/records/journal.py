"""The journal: append-only JSON lines with a checksum; the truth about a campaign (Law 3).

A line is ``{"c":"<crc32>","e":{...}}``; the checksum is over the bytes of ``e`` exactly as
they stand. A torn last line is cut off when the journal is opened for writing; anything
wrong before it is an error.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.files import storage
from hydragnn_hpo.records import finite

Event = dict[str, Any]

_BODY = len(b'{"c":"00000000","e":')
GROUP_SECONDS = 0.2
"""Records that nobody acts on are made durable together, this often."""


def encode(event: Event) -> bytes:
    """Write one event as one line."""
    body = json.dumps(finite(event), separators=(",", ":"), allow_nan=False).encode()
    return _framed(body)


def decode(line: bytes) -> Event | None:
    """Read one line; None if it is torn or damaged, be it in one bit."""
    body = line[_BODY:-2]
    if line != _framed(body):
        return None
    event: Event = json.loads(body)
    return event


def _framed(body: bytes) -> bytes:
    return b'{"c":"%08x","e":' % zlib.crc32(body) + body + b"}\n"


def read(path: Path) -> Iterator[Event]:
    """Give all events of a journal; a torn last line is left out.

    Raises:
        RunError: a line before the last is damaged.
    """
    for event, _ in _scan(path):
        yield event


def _scan(path: Path) -> Iterator[tuple[Event, int]]:
    """Give events with the offset behind each."""
    if not path.exists():
        return
    offset = 0
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            event = decode(line)
            if event is None:
                # One without an end was the last when it was read, whatever was written since.
                if line.endswith(b"\n") and file.read(1):
                    raise RunError(
                        f"{path}: line {number} (byte {offset}) is damaged and lines follow it; "
                        "restore the file from a copy."
                    )
                return
            offset += len(line)
            yield event, offset


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}).") from error


class Journal:
    """A journal open for writing, by one controller."""

    def __init__(
        self,
        path: Path,
        epoch: int,
        clock: Callable[[], float],
        see: Callable[[Event], None] = lambda _: None,
    ) -> None:
        """Open, cutting off a torn last line.

        Args:
            path: the file; created with mode 0600.
            epoch: the controller's epoch, written into every event.
            clock: gives seconds since the epoch.
            see: called with every event that is there; none is kept in memory.
        """
        self.path, self.epoch, self.clock = path, epoch, clock
        end = 0
        for event, offset in _scan(path):
            see(event)
            end = offset
        with storage(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.ftruncate(self._descriptor, end)
            os.lseek(self._descriptor, end, os.SEEK_SET)
        self._end, self._pending, self._synced = end, False, 0.0

    def append(self, kind: str, *, durable: bool = True, **values: Any) -> Event:
        """Write one event.

        Args:
            kind: what happened.
            durable: fsync before returning, for what will be acted on; other records are
                made durable in groups by ``sync`` or ``flush``.
            values: the event's content.
        """
        event: Event = {"event": kind, "time": self.clock(), "epoch": self.epoch, **values}
        line = encode(event)
        with storage(self.path):
            try:
                _write_all(self._descriptor, line)
                if durable:
                    os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, self._end)
                os.lseek(self._descriptor, self._end, os.SEEK_SET)
                raise
        self._end += len(line)
        self._pending = not durable
        return event

    def sync(self) -> None:
        """Make all that was written durable: it may be acted on."""
        if self._pending:
            with storage(self.path):
                os.fsync(self._descriptor)
            self._pending, self._synced = False, self.clock()

    def flush(self) -> None:
        """Make records durable if the last time is long enough ago."""
        if self.clock() - self._synced >= GROUP_SECONDS:
            self.sync()

    def close(self) -> None:
        """Make everything durable and close."""
        with storage(self.path):
            os.fsync(self._descriptor)
        os.close(self._descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    written = 0
    while written < len(content):
        written += os.write(descriptor, content[written:])
