"""Cut the input into lots, and lots into pieces, the same way on every rank.

A *lot* is one large file, store or database, or a run of small files. Of small files a lot is
one piece. A large one is cut every so many structures; where it ends is seen when it is read,
so nothing is counted beforehand. A piece's number therefore decides what is in it, whoever
reads it and whenever.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.data.readers.database import holds_lmdb
from hydragnn_hpo.data.readers.folder import TABLE
from hydragnn_hpo.data.readers.hydragnn_bp import is_hydragnn_bp
from hydragnn_hpo.errors import ConfigError, DataError

STDIN = Path("-")
"""Stands for standard input."""

_SMALL = 1 << 16
"""Files of fewer bytes are taken together."""

_TOGETHER = 256
"""Most files of a lot, and with ``_SMALL`` what a piece may hold."""


@dataclass(frozen=True)
class Lot:
    """What is read as one."""

    paths: tuple[Path, ...]
    """One large file, store or database, or several small files."""
    whole: bool
    """It is one piece, however many structures it holds."""


def lots_of(paths: Sequence[Path]) -> list[Lot]:
    """Cut files and folders into lots; of a folder all its files, in alphabetical order.

    Raises:
        DataError: a path does not exist, or is a device or a pipe.
    """
    lots: list[Lot] = []
    small: list[Path] = []
    for path in _files(paths):
        if _is_small(path):
            small.append(path)
            if len(small) < _TOGETHER:
                continue
        if small:
            lots.append(Lot(tuple(small), whole=True))
            small = []
        if not _is_small(path):
            lots.append(Lot((path,), whole=False))
    return [*lots, Lot(tuple(small), whole=True)] if small else lots


def refuse_to_replace(lots: Sequence[Lot], out: Path) -> None:
    """Refuse an output that is one of the inputs: its labels would be gone.

    Raises:
        ConfigError: it is.
    """
    for lot in lots:
        for path in lot.paths:
            if path != STDIN and out.exists() and path.samefile(out):
                raise ConfigError(f"{out}: is read from; give --out another name.")


def is_store(path: Path) -> bool:
    """Tell whether a folder is a graph store of ours."""
    named = path.is_dir() and (path.suffix == ".bp" or (path / "index.json").is_file())
    return named and not is_hydragnn_bp(path)


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size < _SMALL and path.suffix != ".db"


def identity(lots: Sequence[Lot]) -> str | None:
    """Give a checksum over names, sizes and times of all files; None for standard input."""
    digest = hashlib.sha256()
    for lot in lots:
        for path in lot.paths:
            if path == STDIN:
                return None
            inside = sorted(path.rglob("*")) if path.is_dir() else [path]
            for entry in inside:
                stat = entry.stat()
                digest.update(os.fsencode(entry.resolve()))
                digest.update(f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()


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
