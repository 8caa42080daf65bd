"""Cut the input into chunks, the same way on every rank.

A *source* is one large file, store or database, or a run of small files. A run of small files is
one chunk. A large source is cut every so many structures; where it ends is seen when it is read, so
nothing is counted beforehand. The number of a chunk therefore decides what is in it, whoever reads
it and whenever.
"""

import contextlib
import hashlib
import io
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from ase.io.formats import ioformats

from hydragnn_hpo.data.readers import READERS, reader_of
from hydragnn_hpo.data.readers.database import holds_lmdb
from hydragnn_hpo.data.readers.extxyz import read_stream
from hydragnn_hpo.data.readers.folder import TABLE
from hydragnn_hpo.data.readers.hydragnn_bp import is_hydragnn_bp
from hydragnn_hpo.data.readers.source import Item, Reader, Source
from hydragnn_hpo.errors import ConfigError, DataError

STDIN = Path("-")
"""Stands for standard input."""

_SMALL_BYTES = 1 << 16
"""Files of fewer bytes are taken together."""

_SMALL_FILES = 256
"""Most files of a source, and with ``_SMALL_BYTES`` what a chunk may hold."""

_SEEKABLE = ("extxyz", "database")
"""Readers that find a structure by its number; the others go through a file once."""

_COUNTED_BYTES = 1 << 26
"""Bytes up to which the frames of a text file are counted before they are read."""


class ChunkId(NamedTuple):
    """Some structures of the input."""

    source: int
    """Which source, from 0."""
    number: int
    """Which chunk of the source, from 0."""

    @property
    def name(self) -> str:
        """What its claim is called."""
        return f"{self.source}-{self.number}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the chunk of a name, whatever zeros its numbers begin with."""
        return cls(*map(int, name.split("-")))


@dataclass(frozen=True)
class InputSource:
    """What is read as one."""

    paths: tuple[Path, ...]
    """One large file, store or database, or several small files."""
    whole: bool
    """It is one chunk, however many structures it holds."""


def list_input_sources(paths: Sequence[Path]) -> list[InputSource]:
    """Divide files and folders into sources; of a folder all its files, in alphabetical order.

    Raises:
        DataError: a path does not exist, or is a device or a pipe.
    """
    sources: list[InputSource] = []
    small: list[Path] = []
    for path in _files(paths):
        if _is_small(path):
            small.append(path)
            if len(small) < _SMALL_FILES:
                continue
        if small:
            sources.append(InputSource(tuple(small), whole=True))
            small = []
        if not _is_small(path):
            sources.append(InputSource((path,), whole=False))
    return [*sources, InputSource(tuple(small), whole=True)] if small else sources


def refuse_to_replace(sources: Sequence[InputSource], out: Path) -> None:
    """Refuse an output that is one of the inputs: its labels would be gone.

    Raises:
        ConfigError: it is.
    """
    for source in sources:
        for path in source.paths:
            if path != STDIN and out.exists() and path.samefile(out):
                raise ConfigError(f"{out}: is read from; give --out another name.")


def is_store(path: Path) -> bool:
    """Check whether a folder is one of our graph stores."""
    named = path.is_dir() and (path.suffix == ".bp" or (path / "index.json").is_file())
    return named and not is_hydragnn_bp(path)


def checksum_input(sources: Sequence[InputSource]) -> str | None:
    """Return a checksum over names, sizes and times of all files; None for standard input."""
    digest = hashlib.sha256()
    for source in sources:
        for path in source.paths:
            if path == STDIN:
                return None
            inside = sorted(path.rglob("*")) if path.is_dir() else [path]
            for entry in inside:
                stat = entry.stat()
                digest.update(os.fsencode(entry.resolve()))
                digest.update(f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def shown_path(path: Path) -> Path:
    """Return what a file is called in names and errors."""
    return Path("stdin") if path == STDIN else path


@dataclass
class _OpenFile:
    """A reader that goes through a file once, and where it is."""

    path: Path
    at: int
    items: Iterator[Item]


class StructureFiles:
    """Reads runs of structures of files by their numbers; each file is gone through once."""

    def __init__(self, structure_column: str | None = None, stdin_format: str = "extxyz") -> None:
        """Open nothing yet.

        Args:
            structure_column: for CSV files, the column with a structure's text or file name.
            stdin_format: of standard input: ``extxyz``, another suffix, or ASE's name.
        """
        self._column, self._format = structure_column, stdin_format.removeprefix(".")
        self._open: _OpenFile | None = None
        self._cleanup = contextlib.ExitStack()

    def close(self) -> None:
        """Remove what was kept of standard input."""
        self._open = None
        self._cleanup.close()

    def first(self, path: Path) -> Item:
        """Return the first structure of a file, without losing it for a later read.

        Raises:
            DataError: the file cannot be read.
        """
        if self._seekable_reader(path) is not None:
            return next(self.items(path, 0, 1))
        items = self._read_from_start(path)
        first = next(items)
        self._open = _OpenFile(path, 0, itertools.chain([first], items))
        return first

    def items(self, path: Path, start: int, stop: int | None) -> Iterator[Item]:
        """Yield structures ``start`` to ``stop``, counted from 0.

        Args:
            path: the file.
            start: the first structure.
            stop: the structure behind the last; None: to the end.

        Raises:
            DataError: the file cannot be read on.
        """
        reader = self._seekable_reader(path)
        if reader is not None:
            yield from reader.read(self._source(path), start, stop)
            return
        file = self._open
        if file is None or file.path != path or file.at > start:
            file = self._open = _OpenFile(path, 0, self._read_from_start(path))
        for item in file.items:
            file.at += 1
            if file.at > start:
                yield item
            if file.at == stop:
                return

    def count(self, path: Path) -> int | None:
        """Count the structures where that is cheap."""
        if path == STDIN:
            return None
        source = self._source(path)
        reader = reader_of(source, None)
        if reader is READERS["extxyz"] and path.stat().st_size > _COUNTED_BYTES:
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

    def _seekable_reader(self, path: Path) -> Reader | None:
        """Return the reader, if it finds a structure by its number."""
        if path == STDIN:
            return None
        reader = reader_of(self._source(path), None)
        return reader if reader in [READERS[name] for name in _SEEKABLE] else None

    def _read_from_start(self, path: Path) -> Iterator[Item]:
        if path != STDIN:
            source = self._source(path)
            return reader_of(source, None).read(source, 0, None)
        if self._format in ("extxyz", "xyz"):
            text = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8")
            return read_stream(text, shown_path(path))
        folder = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory()))
        copy = folder / f"stdin.{self._format}"
        with copy.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        named = self._format if self._format in ioformats else None
        source = Source(copy, structure_column=self._column, format=named)
        return reader_of(source, None).read(source, 0, None)


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size < _SMALL_BYTES and path.suffix != ".db"


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path == STDIN:
            yield path
        elif path.is_dir() and not (is_store(path) or is_hydragnn_bp(path) or holds_lmdb(path)):
            entries = sorted(entry for entry in path.iterdir() if entry.is_file())
            yield from (e for e in entries if e.name != TABLE and not e.name.startswith("."))
        elif path.is_dir() or path.is_file():
            yield path
        elif path.exists():
            raise DataError(
                f"{path}: is a device or a pipe; give a file, or '-' to read standard input."
            )
        else:
            raise DataError(f"{path}: no such file.")
