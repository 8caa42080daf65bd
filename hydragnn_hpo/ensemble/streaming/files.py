"""Structures of files by their numbers: opened once, gone through once, standard input included."""

import contextlib
import io
import itertools
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ase.io.formats import ioformats

from hydragnn_hpo.data.readers import READERS, reader_of
from hydragnn_hpo.data.readers.extxyz import read_stream
from hydragnn_hpo.data.readers.source import Item, Reader, Source
from hydragnn_hpo.ensemble.streaming.lots import STDIN
from hydragnn_hpo.errors import DataError

_SOUGHT = ("extxyz", "database")
"""Readers that find a structure by its number; the others go through a file once."""

_COUNTED = 1 << 26
"""Bytes up to which the frames of a text file are counted before they are read."""


def shown_path(path: Path) -> Path:
    """Give what a file is called in names and errors."""
    return Path("stdin") if path == STDIN else path


@dataclass
class _Going:
    """A reader that goes through a file once, and where it is."""

    path: Path
    at: int
    items: Iterator[Item]


class Files:
    """Gives runs of structures of files."""

    def __init__(self, structure_column: str | None = None, stdin_format: str = "extxyz") -> None:
        """Open nothing yet.

        Args:
            structure_column: for CSV files, the column with a structure's text or file name.
            stdin_format: of standard input: ``extxyz``, another suffix, or ASE's name.
        """
        self._column, self._format = structure_column, stdin_format.removeprefix(".")
        self._going: _Going | None = None
        self._left_behind = contextlib.ExitStack()

    def close(self) -> None:
        """Remove what was kept of standard input."""
        self._going = None
        self._left_behind.close()

    def first(self, path: Path) -> Item:
        """Give the first structure of a file, without losing it for those who read on.

        Raises:
            DataError: the file cannot be read.
        """
        if self._reader(path) is not None:
            return next(self.items(path, 0, 1))
        items = self._begun(path)
        first = next(items)
        self._going = _Going(path, 0, itertools.chain([first], items))
        return first

    def items(self, path: Path, start: int, stop: int | None) -> Iterator[Item]:
        """Give structures ``start`` to ``stop``, counted from 0; None: to the end.

        Raises:
            DataError: the file cannot be read on.
        """
        reader = self._reader(path)
        if reader is not None:
            yield from reader.read(self._source(path), start, stop)
            return
        going = self._going
        if going is None or going.path != path or going.at > start:
            going = self._going = _Going(path, 0, self._begun(path))
        for item in going.items:
            going.at += 1
            if going.at > start:
                yield item
            if going.at == stop:
                return

    def count(self, path: Path) -> int | None:
        """Count the structures where that is cheap."""
        if path == STDIN:
            return None
        source = self._source(path)
        reader = reader_of(source, None)
        if reader is READERS["extxyz"] and path.stat().st_size > _COUNTED:
            return None
        try:
            return reader.count(source)
        except DataError:
            return None

    def count_small(self, path: Path) -> int:
        """Count the frames of a small text file; any other is taken for one structure."""
        counts = path.suffix in (".xyz", ".extxyz")
        return (self.count(path) or 1) if counts else 1

    def _source(self, path: Path) -> Source:
        return Source(path, structure_column=self._column)

    def _reader(self, path: Path) -> Reader | None:
        """Give the reader, if it finds a structure by its number."""
        if path == STDIN:
            return None
        reader = reader_of(self._source(path), None)
        return reader if reader in [READERS[name] for name in _SOUGHT] else None

    def _begun(self, path: Path) -> Iterator[Item]:
        """Begin to read a file from its beginning."""
        if path != STDIN:
            source = self._source(path)
            return reader_of(source, None).read(source, 0, None)
        if self._format in ("extxyz", "xyz"):
            text = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8")
            return read_stream(text, shown_path(path))
        folder = Path(self._left_behind.enter_context(tempfile.TemporaryDirectory()))
        copy = folder / f"stdin.{self._format}"
        with copy.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        named = self._format if self._format in ioformats else None
        source = Source(copy, structure_column=self._column, format=named)
        return reader_of(source, None).read(source, 0, None)
