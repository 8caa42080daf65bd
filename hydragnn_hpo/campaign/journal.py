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
from typing import IO, Any, cast

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.files import storage
from hydragnn_hpo.journal_events import JournalEvent
from hydragnn_hpo.metrics_log import replace_nonfinite

_BODY = len(b'{"c":"00000000","e":')
GROUP_SECONDS = 0.2
"""Time between two fsyncs of records that no action waits for."""


def encode(event: JournalEvent) -> bytes:
    """Write one event as one line."""
    body = json.dumps(replace_nonfinite(event), separators=(",", ":"), allow_nan=False).encode()
    return _framed(body)


def decode(line: bytes) -> JournalEvent | None:
    """Read one line; None if it is torn or damaged, be it in one bit."""
    body = line[_BODY:-2]
    if line != _framed(body):
        return None
    event: JournalEvent = json.loads(body)
    return event


def _framed(body: bytes) -> bytes:
    return b'{"c":"%08x","e":' % zlib.crc32(body) + body + b"}\n"


def read_journal(path: Path) -> Iterator[JournalEvent]:
    """Yield the events of a journal; a torn last line is left out.

    Raises:
        RunError: a line before the last is damaged.
    """
    return (event for event, _ in _scan(path))


def _scan(path: Path) -> Iterator[tuple[JournalEvent, int]]:
    """Yield events with the offset behind each."""
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
        raise RunError(f"{path}: cannot be read ({error.strerror}).") from error


def _whole_lines(
    file: IO[bytes], path: Path, *, lines: int, offset: int
) -> Iterator[tuple[JournalEvent, bytes]]:
    """Yield the events from here to the last whole line, each with its line.

    Args:
        file: the journal, open at the begin of a line.
        path: of the journal.
        lines: before this place.
        offset: of this place, in bytes.

    Raises:
        RunError: a line before the last is damaged.
    """
    for number, line in enumerate(file, start=lines + 1):
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
        yield event, line


class JournalReplaced(RunError):
    """The journal is not the one that was read so far: start again."""


class JournalFollower:
    """A reader of a journal that another process writes: every line once."""

    def __init__(self, path: Path) -> None:
        """Start before the first line; the file need not exist yet."""
        self.path = path
        self.offset = self._lines = 0
        """Bytes and number of the whole lines that were read."""
        self._last = b""
        """The newest line that was read: it has to stand where it stood."""

    def read_new(self) -> Iterator[JournalEvent]:
        """Yield the events written since the last call; a line without its end has to wait.

        Raises:
            JournalReplaced: the file is gone, or another one stands in its place.
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
                raise RunError(f"{self.path}: cannot be read ({error.strerror}).") from error

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

    def append(self, kind: str, *, durable: bool = True, **values: Any) -> JournalEvent:
        """Write one event.

        Args:
            kind: what happened.
            durable: fsync before returning, for what will be acted on; other records are
                made durable in groups by ``sync`` or ``flush``.
            values: the event's content.
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
