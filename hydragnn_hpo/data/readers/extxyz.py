"""Extended XYZ, compressed or not: any run of structures, and a bad one does not stop the others.

Each frame is cut out of the file by its count of atoms and read from its own text. ASE goes through
the second line letter by letter, which is most of the time that a small frame takes. Lines that are
nothing but ``key=value`` and ``key="value"`` with plain numbers and words are cut here by one
expression, six times as fast; whatever else comes up is left to ASE, so that both always agree.
"""

import contextlib
import io
import itertools
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from ase.io.extxyz import SPECIAL_3_3_KEYS, UNPROCESSED_KEYS, key_val_str_to_dict, read_xyz

from hydragnn_hpo.data.readers.ase_file import unreadable
from hydragnn_hpo.data.readers.source import OPENERS, Item, Source
from hydragnn_hpo.errors import DataError

_PAIR = re.compile(r'([A-Za-z_][\w.\-]*)=(?:"([^"\\,]+)"|([^\s"\'{}\[\]\\=,]+))(?:\s+|$)', re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_REAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_WORD = re.compile(r"(?!nan|inf)[A-Za-z]\S*", re.ASCII | re.IGNORECASE)
_FLAGS = {
    **dict.fromkeys(("T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("F", "false", "False", "FALSE"), False),
}


def parse_comment(line: str) -> dict[str, Any]:
    """Return keys and values, as ``ase.io.extxyz.key_val_str_to_dict`` does."""
    line = line.strip()
    found: dict[str, Any] = {}
    at = 0
    for match in _PAIR.finditer(line):
        if match.start() != at:
            break
        at = match.end()
        key, quoted, bare = match.groups()
        value = _value(key, quoted or bare)
        if value is None:
            break
        found[key] = value
    else:
        if found and at == len(line) and line.isascii():
            return found
    known: dict[str, Any] = key_val_str_to_dict(line)  # type: ignore[no-untyped-call]
    return known


def _value(key: str, text: str) -> Any:
    """Return a value as ASE would, or None where it takes ASE to tell."""
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
    """Return a value that is one word."""
    if _INTEGER.fullmatch(word):
        return np.int64(word)
    if _REAL.fullmatch(word):
        return np.float64(word)
    if word in _FLAGS:
        return _FLAGS[word]
    return text if text[:5] != "_JSON" and _WORD.fullmatch(word) else None


def count_extxyz(source: Source) -> int | None:
    """Count the frames; None where the file is torn, which ``read_extxyz`` will say."""
    try:
        return sum(1 for _ in _frames(source, 0, None))
    except DataError:
        return None


def read_extxyz(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read frames ``start`` to ``stop``.

    Raises:
        DataError: the file is unreadable, empty, or no longer in frames.
    """
    for number, text in _frames(source, start, stop):
        yield _item(source.path, number, text)


def read_stream(file: IO[str], path: Path) -> Iterator[Item]:
    """Read frames from an open file, such as standard input, to its end.

    Args:
        file: where the next line begins a frame.
        path: what it is called in names and errors.

    Raises:
        DataError: it is unreadable, empty, or no longer in frames.
    """
    with _text_errors(path):
        for number, text in _Scan((path, 0, 0), file).frames(0, None):
            yield _item(path, number, text)


def _item(path: Path, number: int, text: str) -> Item:
    """Return a frame's name, and its structure or why it is bad."""
    name = f"{path.name}:{number}"
    try:
        return name, next(read_xyz(io.StringIO(text), 0, parse_comment))
    except MemoryError:
        raise
    except Exception as error:  # ASE's parsers raise whatever comes to pass
        return name, unreadable(f"{path}: structure {number}", "extxyz", error)


def _frames(source: Source, start: int, stop: int | None) -> Iterator[tuple[int, str]]:
    """Return number, counted from 1, and text of some frames."""
    with _text_errors(source.path):
        scan = _scan(source.path, start)
        try:
            yield from scan.frames(start, stop)
        except BaseException:
            scan.file.close()
            raise
        scan.rest()


@contextlib.contextmanager
def _text_errors(path: Path) -> Iterator[None]:
    """Raise what can go wrong with a file of text as ``DataError``."""
    try:
        yield
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{path}: cannot be read ({reason}); get the file again.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not a text file ({error.reason}).") from error


def _scan(path: Path, start: int) -> "_Scan":
    """Return a scan at or before a frame: who reads piece after piece goes through a file once."""
    stat = path.stat()
    stamp = path, stat.st_mtime_ns, stat.st_size
    resting = _RESTING.pop(stamp, None)
    if resting is not None and resting.number <= start:
        return resting
    opener = OPENERS.get(path.suffix.lower(), open)
    return _Scan(stamp, opener(path, "rt", encoding="utf-8"))


_RESTING: dict[tuple[Path, int, int], "_Scan"] = {}
"""The scan that was used last, between two uses."""


class _Scan:
    """A file that is open at some frame."""

    def __init__(self, stamp: tuple[Path, int, int], file: IO[str]) -> None:
        self.stamp, self.path, self.file = stamp, stamp[0], file
        self.number = 0

    def __del__(self) -> None:
        self.file.close()

    def rest(self) -> None:
        """Wait for the next piece."""
        _RESTING.clear()
        _RESTING[self.stamp] = self

    def frames(self, start: int, stop: int | None) -> Iterator[tuple[int, str]]:
        """Return number, counted from 1, and text of some frames from here on."""
        while stop is None or self.number < stop:
            found = self._next()
            if found is None:
                break
            if self.number > start:
                yield self.number, found
        if not self.number and stop != 0:
            raise DataError(f"{self.path}: is empty, it holds no structure; get the file again.")

    def _next(self) -> str | None:
        """Return the text of the next frame, or None at the end."""
        head = next((line for line in self.file if line.strip()), None)
        if head is None:
            return None
        self.number += 1
        atoms = _count(head, f"{self.path}: structure {self.number}")
        lines = list(itertools.islice(self.file, atoms + 1))
        if len(lines) <= atoms or (atoms and not lines[-1].strip()):
            raise DataError(
                f"{self.path}: structure {self.number} cannot be read as extxyz (the file ends "
                f"within its {atoms} atoms); get the file again."
            )
        return "".join([head, *lines])


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
