"""Extended XYZ, compressed or not: any run of structures, and a bad one does not stop the others.

Each frame is cut out of the file by its count of atoms and read from its own text.
"""

import contextlib
import io
import itertools
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hydragnn_hpo.data.readers.ase_file import single, structures_in
from hydragnn_hpo.data.readers.comment import parse_comment
from hydragnn_hpo.data.readers.source import OPENERS, Item, Source
from hydragnn_hpo.errors import DataError


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
    with _said(path):
        for number, text in _Scan((path, 0, 0), file).frames(0, None):
            yield _item(path, number, text)


def _item(path: Path, number: int, text: str) -> Item:
    """Return a frame's name, and its structure or why it is bad."""
    place, name = f"{path}: structure {number}", f"{path.name}:{number}"
    try:
        frames = structures_in(io.StringIO(text), "extxyz", place, properties_parser=parse_comment)
        return name, single(frames, path)
    except DataError as error:
        return name, DataError(str(error).replace(f"{place}: structure 1 ", f"{place} "))


def _frames(source: Source, start: int, stop: int | None) -> Iterator[tuple[int, str]]:
    """Return number, counted from 1, and text of some frames."""
    with _said(source.path):
        scan = _scan(source.path, start)
        try:
            yield from scan.frames(start, stop)
        except BaseException:
            scan.file.close()
            raise
        scan.rest()


@contextlib.contextmanager
def _said(path: Path) -> Iterator[None]:
    """Turn what can go wrong with a file of text into our own sentence."""
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
"""The scan that was used last, while nobody uses it."""


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
