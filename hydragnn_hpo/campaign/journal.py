"""The journal: the append-only record from which a campaign's state is rebuilt.

A line is ``{"c":"<crc32>","e":{...}}``; the checksum covers the bytes of ``e`` as written. An
incomplete last line is cut off when the journal is opened for writing; a damaged line before it
is an error. An event is written and fsynced before it is acted on (Law 3). Each event that is read
is held against its type and the trials before it, so that no reader meets one that it cannot fold.
"""

import functools
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypedDict, cast, get_args, get_type_hints

import msgspec

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.files import FILE_MODE, storage
from hydragnn_hpo.journal_events import JournalEvent
from hydragnn_hpo.metrics_log import replace_nonfinite

_BODY = len(b'{"c":"00000000","e":')
GROUP_SECONDS = 0.2
"""Shortest time between two fsyncs of records that no action waits for."""

LARGEST_STEP_BACK = 60.0
"""Seconds by which an event may be older than the one before it; more is a jump of the clock."""

LONGEST_GAP = 86_400.0
"""Seconds between two events of a controller above which its clock has jumped, or it was frozen."""

_END_OF_TIME = 253_402_300_800.0
"""The year 10000, in seconds since the Unix epoch: dates end here."""

_RESULT_NUMBERS = (
    *("reached", "objective", "score", "best_epoch", "parameters", "train_seconds"),
    *("peak_bytes", "micro_batches", "joules"),
)
"""Keys of ``AttemptOutcome`` from a result; a user's command may write any kind of number."""


class DamagedJournal(RunError):
    """A line of the journal cannot be used: the user restores the file from a copy."""

    exit_code = 1


def encode(event: JournalEvent) -> bytes:
    """Return an event as one line of the journal."""
    body = json.dumps(replace_nonfinite(event), separators=(",", ":"), allow_nan=False).encode()
    return _framed(body)


def decode(line: bytes) -> JournalEvent | None:
    """Decode one line; return None if it is incomplete or its checksum does not match.

    Raises:
        ValueError, RecursionError: the checksum is right, but this is no JSON.
    """
    body = line[_BODY:-2]
    if line != _framed(body):
        return None
    event: JournalEvent = json.loads(body, parse_constant=_refuse)
    return event


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


@functools.cache
def _types() -> dict[str, type]:
    """Return the type of each kind of event, by the kind's name."""
    hints = ((get_type_hints(event)["event"], event) for event in get_args(JournalEvent))
    return {kind: event for kinds, event in hints for kind in get_args(kinds)}


_STARTED = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def steady_time() -> float:
    """Return seconds since the Unix epoch, by a clock that is set once, when the process starts.

    It runs on while the computer sleeps, and takes no part in later corrections of the clock.
    """
    return _STARTED + time.clock_gettime(time.CLOCK_BOOTTIME)


class EventReader:
    """Checks events in the order of the journal, and evens out jumps of their controller's clock.

    A step back by more than ``LARGEST_STEP_BACK``, or forward by more than ``LONGEST_GAP``, counts
    as no time. Time between two controllers is left as it is.
    """

    def __init__(self) -> None:
        """Start before the first event."""
        self._trials: dict[str, bool] = {}
        """Whether it has a score, by trial."""
        self._goals: tuple[str, int] | None = None
        """The first trial with a score, and the number of goals in every score."""
        self._epoch = -1
        self._time = self._offset = 0.0
        """Time of the last event as written, and what is added to those of its controller."""

    def read(self, event: JournalEvent) -> JournalEvent:
        """Return the event, with its time evened out.

        Raises:
            ValueError: it is not as this program writes it; the message says where.
        """
        self._check_type(event)
        self._check_trials(event)
        if event["epoch"] != self._epoch:
            self._epoch = event["epoch"]
            self._offset = 0.0
        elif not -LARGEST_STEP_BACK <= (passed := event["time"] - self._time) <= LONGEST_GAP:
            self._offset -= passed
        self._time = event["time"]
        if self._offset:
            return cast("JournalEvent", {**event, "time": event["time"] + self._offset})
        return event

    def _check_type(self, event: Any) -> None:
        """Hold an event against the type of its kind; later versions may write further kinds."""
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise ValueError("it is no event")
        checked = event
        if event["event"] == "ended":
            numbers = (int, float, type(None))
            checked = {
                key: value
                for key, value in event.items()
                if key not in _RESULT_NUMBERS or not isinstance(value, numbers)
            }
        try:
            msgspec.convert(checked, _types().get(event["event"], _AnyEvent))
        except (msgspec.ValidationError, RecursionError) as error:
            what = str(error).replace("Object missing required field", "it lacks")
            raise ValueError(f"event {event['event'][:40]!r}: {what}") from error
        if not 0.0 <= event["time"] < _END_OF_TIME:
            raise ValueError(f"its time {event['time']:g} is no date")

    def _check_trials(self, event: JournalEvent) -> None:
        """Check that the trials of an event were proposed before it."""
        match event["event"]:
            case "proposed":
                if event["trial"] in self._trials:
                    raise ValueError(f"trial {event['trial']!r:.40} is proposed for a second time")
                named = [event["parent"]] if "parent" in event else []
                self._trials[event["trial"]] = False
            case "promoted" | "energy":
                named = list(event["trials"])
            case _:
                trial = event.get("trial")
                named = [trial] if isinstance(trial, str) else []
        if unknown := [name for name in named if name not in self._trials]:
            raise ValueError(f"trial {unknown[0]!r:.40} was not proposed before it")
        if event["event"] == "rested" and not self._trials[event["trial"]]:
            raise ValueError(f"trial {event['trial']!r:.40} has no score before it")
        if event["event"] == "ended":
            self._check_score(event["trial"], event.get("score", event.get("objective")))

    def _check_score(self, trial: str, score: float | Sequence[float] | None) -> None:
        """Check that all scores have as many goals as the first."""
        if score is None:
            return
        goals = len(score) if isinstance(score, Sequence) else 0
        first, known = self._goals or (trial, goals)
        if (known != goals and trial != first) or score == []:
            raise ValueError(f"the score of trial {trial!r:.40} has other goals than those before")
        self._goals = (first, goals)
        self._trials[trial] = True


class _AnyEvent(TypedDict):
    """What events of all kinds have."""

    time: float
    epoch: int


def _framed(body: bytes) -> bytes:
    return b'{"c":"%08x","e":' % zlib.crc32(body) + body + b"}\n"


def read_journal(path: Path) -> Iterator[JournalEvent]:
    """Yield the events of a journal; an incomplete last line is left out.

    Raises:
        RunError: a line before the last is damaged, or an event is not as this program writes it.
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
        for event, line in _whole_lines(file, path, EventReader(), lines=0, offset=0):
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
    file: IO[bytes], path: Path, reader: EventReader, *, lines: int, offset: int
) -> Iterator[tuple[JournalEvent, bytes]]:
    """Yield the events from the file's position to its last whole line, each with its line.

    Args:
        file: the journal, positioned at the start of a line.
        path: of the journal, for messages.
        reader: has read the events before the position.
        lines: number of lines before the position.
        offset: of the position, in bytes.

    Raises:
        RunError: a line before the last is damaged, or an event is not as this program writes it.
    """
    for number, line in enumerate(file, start=lines + 1):
        try:
            event = decode(line)
            if event is not None:
                event = reader.read(event)
        except (ValueError, RecursionError) as error:
            why = "nested too deep" if isinstance(error, RecursionError) else error
            raise DamagedJournal(
                f"{path}: line {number} (byte {offset}) was not written by this program, although "
                f"its checksum is right ({why}); restore the file from a copy."
            ) from error
        if event is None:
            # A line without a newline was the last one when it was read, so it is only incomplete.
            if line.endswith(b"\n") and file.read(1):
                raise DamagedJournal(
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
        self._reader = EventReader()

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
            raise JournalReplaced(
                f"{self.path}: was removed; name the run's new place if it was moved."
            ) from None
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
        for event, line in _whole_lines(file, self.path, self._reader, **place):
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
            path: the file.
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
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, FILE_MODE)
            os.ftruncate(self._descriptor, end)
            os.lseek(self._descriptor, end, os.SEEK_SET)
        self._end = end
        self._pending = False
        self._synced = 0.0

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
            self._pending = False
            self._synced = self.clock()

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
