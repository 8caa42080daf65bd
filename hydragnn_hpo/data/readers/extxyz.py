"""Extended XYZ, compressed or not: any run of structures, and a bad one does not stop the others.

Each frame is cut out of the file by its number of atoms and parsed alone. ASE parses the comment
line letter by letter, which takes most of the time of a small frame. A line that holds only
``key=value`` and ``key="value"`` with plain numbers and words is parsed here by one regular
expression, six times faster. ASE parses every other line, so results always equal those of ASE.
"""

import contextlib
import functools
import io
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from ase.io.extxyz import SPECIAL_3_3_KEYS, UNPROCESSED_KEYS, key_val_str_to_dict, read_xyz

from hydragnn_hpo.data.readers.ase_file import unreadable
from hydragnn_hpo.data.readers.lengths import to_angstrom
from hydragnn_hpo.data.readers.read_limits import LimitExceeded, read_limits
from hydragnn_hpo.data.readers.source import (
    OPENERS,
    Item,
    Source,
    count_lines,
    open_text,
    text_errors,
)
from hydragnn_hpo.errors import ConfigError, DataError

_PAIR = re.compile(r'([A-Za-z_][\w.\-]*)=(?:"([^"\\,]+)"|([^\s"\'{}\[\]\\=,]+))(?:\s+|$)', re.ASCII)
_MOST_COLUMNS = 100_000
"""Most columns of an atom: ASE takes memory for each that the comment announces."""

LONGEST_LINE = 1_000_000
"""Most characters of a line: ASE takes a second and 100 MB for a comment of this length."""

_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_REAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_WORD = re.compile(r"(?!nan|inf)[A-Za-z]\S*", re.ASCII | re.IGNORECASE)
_FLAGS = {
    **dict.fromkeys(("T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("F", "false", "False", "FALSE"), False),
}


def parse_comment(line: str) -> dict[str, Any]:
    """Parse the comment line of a frame as ``ase.io.extxyz.key_val_str_to_dict`` does.

    Returns:
        Values by key, of the types that ASE gives them.
    """
    line = line.strip()
    values: dict[str, Any] = {}
    end = 0
    while match := _PAIR.match(line, end):  # ``finditer`` would take quadratic time
        end = match.end()
        key, quoted, bare = match.groups()
        value = _value(key, quoted or bare)
        if value is None:
            break
        values[key] = value
    else:
        if values and end == len(line) and line.isascii():
            return values
    by_ase: dict[str, Any] = key_val_str_to_dict(line)  # type: ignore[no-untyped-call]
    return by_ase


def _parse_checked(line: str) -> dict[str, Any]:
    """Parse a comment line, and refuse one that announces too many columns."""
    values = parse_comment(line)
    columns = values.get("Properties")
    if isinstance(columns, str):
        widths = [int(word) for word in columns.split(":")[2::3]]
        if sum(widths) > _MOST_COLUMNS:
            raise ValueError(f"Properties announces {sum(widths)} columns")
    return values


def _value(key: str, text: str) -> Any:
    """Parse a value as ASE does; None where only ASE can."""
    words = text.split()
    if not words or key.lower() in UNPROCESSED_KEYS:
        return None
    if len(words) == 1 and key not in SPECIAL_3_3_KEYS:
        return _single(words[0], text)
    if all(map(_INTEGER.fullmatch, words)):
        numbers: Any = np.array(list(map(int, words)))
    elif all(map(_REAL.fullmatch, words)):
        numbers = np.array(list(map(float, words)))
    elif key in SPECIAL_3_3_KEYS:
        return None
    elif all(word in _FLAGS for word in words):
        return [_FLAGS[word] for word in words]
    else:
        plain = text[:5] != "_JSON" and any(map(_WORD.fullmatch, words))
        return text if plain else None
    if key in SPECIAL_3_3_KEYS:
        return numbers.reshape((3, 3), order="F") if len(numbers) == 9 else None
    return numbers


def _single(word: str, text: str) -> Any:
    """Parse a value of one word as ASE does; None where only ASE can."""
    if _INTEGER.fullmatch(word):
        return np.int64(word)
    if _REAL.fullmatch(word):
        return np.float64(word)
    if word in _FLAGS:
        return _FLAGS[word]
    return text if text[:5] != "_JSON" and _WORD.fullmatch(word) else None


def count_extxyz(source: Source) -> int | None:
    """Count the frames; None where the file is damaged, which ``read_extxyz`` reports."""
    try:
        return sum(1 for _ in _frames(source, 0, None))
    except DataError:
        return None


def read_extxyz(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read frames ``start`` to ``stop`` (not included).

    Args:
        source: the file.
        start: first structure, counted from 0.
        stop: one after the last structure; None means the end.

    Raises:
        DataError: the file is unreadable or empty, or no frame begins where one should.
    """
    for number, text in _frames(source, start, stop):
        name, atoms = _item(source.path, number, text)
        yield name, atoms if isinstance(atoms, DataError) else to_angstrom(atoms, source.length)


def has_one_frame(path: Path) -> bool:
    """Check whether at most one line of a file is a number of atoms, also if it is damaged."""
    return count_lines(path, _HEAD) <= 1


_HEAD = re.compile(rb"\s*\d+\s*$")
"""A line with a number of atoms."""


def estimate_unread(path: Path, number: int) -> int | None:
    """Estimate by its size how many frames a file has after those that could be read.

    Args:
        path: the file.
        number: number of frames that could be read.

    Returns:
        The estimate; None where there is none: the file is compressed, or nothing could be read, or
        less than a frame is left, so that the file itself was cut off.
    """
    if not number or path.suffix.lower() in OPENERS:
        return None
    with contextlib.suppress(DataError, OSError):
        frames = _frames(Source(path), 0, number)
        read = sum(len(text) for _, text in frames if isinstance(text, str))
        left = round(number * (path.stat().st_size - read) / max(read, 1))
        return left if left >= 1 else None
    return None


def read_stream(file: IO[str], path: Path) -> Iterator[Item]:
    """Read frames from an open file, such as standard input, to its end.

    Args:
        file: text whose next line begins a frame.
        path: name of the file for structures and errors.

    Raises:
        DataError: the file is unreadable or empty, or no frame begins where one should.
    """
    with text_errors(path):
        for number, text in _Scan((path, 0, 0), file).frames(0, None):
            yield _item(path, number, text)


def _item(path: Path, number: int, text: str | DataError) -> Item:
    """Parse a frame; see ``Item``."""
    name = f"{path.name}@{number}"
    if isinstance(text, DataError):
        return name, text
    if not __debug__:  # its parser reads a line within an ``assert``
        raise ConfigError(
            f"{path}: ASE cannot read extxyz under 'python -O' or PYTHONOPTIMIZE; run without."
        )
    try:
        return name, next(read_xyz(io.StringIO(text), 0, _parse_checked))
    except MemoryError:
        raise
    except Exception as error:  # ASE's parsers raise errors of many types
        return name, unreadable(f"{path}: structure {number}", "extxyz", error)


Frame = tuple[int, str | DataError]
"""Number of a frame, counted from 0, and its text or the error of a bad one."""


def _frames(source: Source, start: int, stop: int | None) -> Iterator[Frame]:
    """Yield frames ``start`` to ``stop`` (not included)."""
    with text_errors(source.path):
        scan = _scan(source.path, start)
        try:
            yield from scan.frames(start, stop)
        except BaseException:
            scan.file.close()
            raise
        scan.keep()


def _scan(path: Path, start: int) -> "_Scan":
    """Return a scan that is at or before a frame.

    The kept scan continues where it stopped, so that reading consecutive pieces takes one pass.
    """
    stat = path.stat()
    stamp = path, stat.st_mtime_ns, stat.st_size
    kept = _KEPT.pop(stamp, None)
    if kept is not None and kept.number <= start:
        return kept
    return _Scan(stamp, open_text(path))


_KEPT: dict[tuple[Path, int, int], "_Scan"] = {}
"""The latest scan, while it is not in use, by path, modification time and size."""


class _Scan:
    """An open file, and the number of frames that were read from it."""

    def __init__(self, stamp: tuple[Path, int, int], file: IO[str]) -> None:
        self.stamp = stamp
        self.path = stamp[0]
        self.file = file
        self.number = 0
        self._packed = self.path.suffix.lower() in OPENERS
        self._lines = iter(functools.partial(file.readline, LONGEST_LINE), "")

    def __del__(self) -> None:
        self.file.close()

    def keep(self) -> None:
        """Keep the file open for the next piece, and close the one that was kept before."""
        _KEPT.clear()
        _KEPT[self.stamp] = self

    def frames(self, start: int, stop: int | None) -> Iterator[Frame]:
        """Yield frames ``start`` to ``stop`` (not included)."""
        while stop is None or self.number < stop:
            text = self._next_unpacked() if self._packed else self._next()
            if text is None:
                break
            if self.number > start:
                yield self.number - 1, text
        if not self.number and stop != 0:
            raise DataError(f"{self.path}: is empty, it holds no structure; get the file again.")

    def _next_unpacked(self) -> str | DataError | None:
        """Return the next frame of a compressed file, whose few bytes may unpack to any number."""
        place = f"{self.path}: structure {self.number}"
        try:
            with read_limits(self.stamp[2]):
                return self._next()
        except LimitExceeded as error:
            raise unreadable(place, "extxyz", error) from error

    def _next(self) -> str | DataError | None:
        """Return the text of the next frame, the error of a bad one, or None at the end."""
        head = next((line for line in self._lines if line.strip()), None)
        if head is None:
            return None
        place = f"{self.path}: structure {self.number}"
        self.number += 1
        atoms = _count(head, place)
        comment = next(self._lines, "")
        too_long = _is_cut(comment)
        if too_long:
            next((line for line in self._lines if not _is_cut(line)), None)
        lines = list(itertools.islice(self._lines, min(atoms, sys.maxsize)))
        if not comment or len(lines) < atoms or (atoms and not lines[-1].strip()):
            raise DataError(
                f"{place} cannot be read as extxyz (the file ends within its {atoms} atoms); get "
                "the file again."
            )
        if too_long:
            return DataError(
                f"{place} cannot be read as extxyz (its comment has more than {LONGEST_LINE:,} "
                "characters); mend or remove it."
            )
        text = "".join([head, comment, *lines])
        if len(text) > LONGEST_LINE and any(map(_is_cut, lines)):
            raise DataError(
                f"{place} cannot be read as extxyz (an atom has more than {LONGEST_LINE:,} "
                "characters); get the file again."
            )
        return text


def _is_cut(line: str) -> bool:
    """Check whether a line goes on beyond ``LONGEST_LINE`` characters."""
    return len(line) == LONGEST_LINE and not line.endswith("\n")


def _count(head: str, place: str) -> int:
    try:
        atoms = int(head)
    except ValueError:
        atoms = -1
    if atoms < 0:
        raise DataError(
            f"{place} cannot be read as extxyz (a number of atoms was wanted, found "
            f"{head.strip()[:40]!r}); mend or remove it."
        )
    return atoms
