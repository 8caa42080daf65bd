"""The journal: the append-only record from which a campaign's state is rebuilt.

A line is ``{"c":"<crc32>","e":{...}}``; the checksum covers the bytes of ``e`` as written. An
incomplete last line is cut off when the journal is opened for writing; a damaged line before it
is an error. An event is written and fsynced before it is acted on (Law 3).
"""

import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.files import storage
from hydragnn_hpo.journal_events import JournalEvent
from hydragnn_hpo.metrics_log import replace_nonfinite

_BODY = len(b'{"c":"00000000","e":')
GROUP_SECONDS = 0.2
"""Shortest time between two fsyncs of records that no action waits for."""


def encode(event: JournalEvent) -> bytes:
    """Return an event as one line of the journal."""
    body = json.dumps(replace_nonfinite(event), separators=(",", ":"), allow_nan=False).encode()
    return _framed(body)


def decode(line: bytes) -> JournalEvent | None:
    """Decode one line; return None if it is incomplete or its checksum does not match."""
    body = line[_BODY:-2]
    if line != _framed(body):
        return None
    event: JournalEvent = json.loads(body)
    return event


def _framed(body: bytes) -> bytes:
    return b'{"c":"%08x","e":' % zlib.crc32(body) + body + b"}\n"


def read_journal(path: Path) -> Iterator[JournalEvent]:
    """Yield the events of a journal; an incomplete last line is left out.

    Raises:
        RunError: a line before the last is damaged.
    """
    return (event for event, _ in _scan(path))


def _scan(path: Path) -> Iterator[tuple[JournalEvent, int]]:
    """Yield each event with the offset of the byte after its line."""
    try:
        file = _open_journal(path)
    except FileNotFoundError:
        return
    offset = 0
    with file:
        for event, line in _whole_lines(file, path, lines=0, offset=0):
            offset += len(line)
            yield event, offset


def _open_journal(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(
            f"{path}: cannot be read ({error.strerror}); correct its permissions."
        ) from error


def _whole_lines(
    file: IO[bytes], path: Path, *, lines: int, offset: int
) -> Iterator[tuple[JournalEvent, bytes]]:
    """Yield the events from the file's position to its last whole line, each with its line.

    Args:
        file: the journal, positioned at the start of a line.
        path: of the journal, for messages.
        lines: number of lines before the position.
        offset: of the position, in bytes.

    Raises:
        RunError: a line before the last is damaged.
    """
    for number, line in enumerate(file, start=lines + 1):
        event = decode(line)
        if event is None:
            # A line without a newline was the last one when it was read, so it is only incomplete.
            if line.endswith(b"\n") and file.read(1):
                raise RunError(
                    f"{path}: line {number} (byte {offset}) is damaged and lines follow it; "
                    "restore the file from a copy."
                )
            return
        offset += len(line)
        yield event, line


class JournalReplaced(RunError):
    """The journal was replaced or removed since the last read: read it from the start."""


class JournalFollower:
    """Reads a journal that another process writes; yields every event once."""

    def __init__(self, path: Path) -> None:
        """Start before the first line; the file need not exist yet."""
        self.path = path
        self.offset = self._lines = 0
        """Bytes, and number, of the whole lines read so far."""
        self._last = b""
        """The newest line read; it must still be in its place, else the file was replaced."""

    def read_new(self) -> Iterator[JournalEvent]:
        """Yield the events written since the last call; an incomplete line is left for later.

        Raises:
            JournalReplaced: the file was removed or replaced.
            RunError: a line before the last is damaged.
        """
        try:
            file = _open_journal(self.path)
        except FileNotFoundError:
            if not self.offset:
                return
            raise JournalReplaced(f"{self.path}: was removed; is the run elsewhere now?") from None
        with file:
            try:
                yield from self._read_new(file)
            except OSError as error:
                raise RunError(
                    f"{self.path}: cannot be read ({error.strerror}); correct its permissions."
                ) from error

    def _read_new(self, file: IO[bytes]) -> Iterator[JournalEvent]:
        file.seek(self.offset - len(self._last))
        if file.read(len(self._last)) != self._last:
            raise JournalReplaced(f"{self.path}: was replaced while it was read; read it again.")
        place = {"lines": self._lines, "offset": self.offset}
        for event, line in _whole_lines(file, self.path, **place):
            self.offset, self._last = self.offset + len(line), line
            self._lines += 1
            yield event


class Journal:
    """A journal open for writing, by one controller."""

    def __init__(
        self,
        path: Path,
        epoch: int,
        clock: Callable[[], float],
        see: Callable[[JournalEvent], None] = lambda _: None,
    ) -> None:
        """Open the journal and cut off an incomplete last line.

        Args:
            path: the file; created with mode 0600.
            epoch: the controller's epoch, written into every event.
            clock: returns seconds since the epoch.
            see: called with every event already in the file; none is kept in memory.
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

    def append(self, kind: str, *, durable: bool = True, **values: Any) -> JournalEvent:
        """Write one event and return it.

        Args:
            kind: name of the event.
            durable: fsync before returning, for events that are acted on; others are made
                durable in groups by ``sync`` or ``flush``.
            values: fields of the event.
        """
        fields = {"event": kind, "time": self.clock(), "epoch": self.epoch, **values}
        event = cast("JournalEvent", fields)
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
        """Fsync all events written so far; then they may be acted on."""
        if self._pending:
            with storage(self.path):
                os.fsync(self._descriptor)
            self._pending, self._synced = False, self.clock()

    def flush(self) -> None:
        """Call ``sync`` if the last one is at least ``GROUP_SECONDS`` ago."""
        if self.clock() - self._synced >= GROUP_SECONDS:
            self.sync()

    def close(self) -> None:
        """Fsync and close the file."""
        with storage(self.path):
            os.fsync(self._descriptor)
        os.close(self._descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    written = 0
    while written < len(content):
        written += os.write(descriptor, content[written:])
