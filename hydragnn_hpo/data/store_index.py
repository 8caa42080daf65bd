"""Read the description of a graph store: ``index.json``, ``windows.npy``, ``stats.json``."""

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import STORE_VERSION
from hydragnn_hpo.config.data_config import check_stored_targets
from hydragnn_hpo.data.columns import PERS, Per
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.files import hash_file

RUN_BYTES = 1 << 25
"""Approximate size in bytes of the windows that are read in one call."""

_FILE_NAME = re.compile(r"^[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*$")
"""Names that are safe as file names, in a store or a stage: no ``/``, no leading dot."""

_SMALL = 1 << 26
"""Files up to this many bytes (metadata, small parts) are hashed whole before ADIOS2 opens them."""


class FileEntry(TypedDict):
    """Entry of ``index.json`` for one file of a part."""

    path: str
    """Name within the part's folder."""
    bytes: int
    """Size of the file."""
    sha256: str
    """Checksum of the content, hexadecimal."""


class PartEntry(TypedDict):
    """Entry of ``index.json`` for one part."""

    name: str
    """Name of its folder within the store."""
    windows: int
    """Number of windows it holds."""
    files: list[FileEntry]
    """All files of the part, sorted by name."""


@dataclass(frozen=True)
class StoreColumn:
    """One array of a store, and its entry in ``index.json``, with numpy's name of the type."""

    name: str
    """Name of the array, see ``columns.arrays_of``."""
    dtype: np.dtype[Any]
    """Type of its numbers."""
    shape: tuple[int, ...]
    """Shape of one row; empty where a row is one number."""
    per: Per
    """What a row stands for."""


@dataclass(frozen=True)
class StorePart:
    """Part of a store that one host has written."""

    folder: Path
    """Path of the part, a BP5 folder."""
    windows: int
    """Number of windows it holds."""
    files: tuple[FileEntry, ...]
    """Name, size and checksum of each of its files."""


@dataclass(frozen=True, eq=False)
class Index:
    """Content of a store, known without opening a part. W windows."""

    folder: Path
    """Path of the store."""
    checksum: str
    """SHA-256 over the table of windows and the statistics, hexadecimal: stores of equal content
    have equal checksums."""
    columns: tuple[StoreColumn, ...]
    """All columns, in the order of the checksums in ``windows``."""
    parts: tuple[StorePart, ...]
    """All parts, in the order of their graphs."""
    windows: NDArray[np.int64]
    """For each window its number of graphs, nodes, edges and characters of names, then the CRC-32
    of each column, [W, 4 + columns]."""

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First graph, node, edge and character of each window, and the ends, [W + 1, 4]."""
        sums = np.cumsum(self.windows[:, : len(PERS)], axis=0)
        return np.vstack((np.zeros((1, len(PERS)), dtype=np.int64), sums))

    @property
    def num_graphs(self) -> int:
        """Graphs of the whole store."""
        return int(self.starts[-1, 0])

    @property
    def row_bytes(self) -> NDArray[np.int64]:
        """Bytes of one graph, node, edge and character, over all columns, [4]."""
        return np.array(
            [
                sum(c.dtype.itemsize * math.prod(c.shape) for c in self.columns if c.per == per)
                for per in PERS
            ]
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return int(self.starts[-1] @ self.row_bytes)

    @cached_property
    def stats(self) -> StoreStats:
        """The content of ``stats.json``, read and checked on the first access.

        Raises:
            DataError: the file is missing, damaged, or not the one the store was built with.
        """
        file = self.folder / "stats.json"
        try:
            stats = json.loads(file.read_bytes())
            hashed = {key: value for key, value in stats.items() if key != "checksum"}
            unaltered = compute_store_checksum(self.windows, hashed) == self.checksum
        except (OSError, ValueError, AttributeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{file}: is damaged ({reason}); build the store again.") from error
        if not unaltered:
            raise DataError(f"{file}: was altered; build the store again.")
        check_stored_targets(stats.get("targets", {}), file)
        return cast(StoreStats, stats)


def find_runs(
    index: Index, size: int, first: int = 0, last: int | None = None
) -> list[tuple[int, int]]:
    """Cut windows ``first`` to ``last`` (not included) into runs to read together.

    Args:
        index: index of the store.
        size: bytes of columns per run. A run is longer or shorter by up to one window, and never
            empty.
        first: first window.
        last: one after the last window; None means the end of the store.

    Returns:
        First window, and one after the last, of each run, ascending.
    """
    sizes = index.windows[first:last, : len(PERS)] @ index.row_bytes
    run = np.cumsum(sizes) // max(size, 1)
    cuts = [0, *(np.flatnonzero(np.diff(run)) + 1).tolist(), len(sizes)]
    return [(first + a, first + b) for a, b in zip(cuts, cuts[1:], strict=False) if a < b]


def compute_store_checksum(windows: NDArray[np.int64], stats: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a store's content, hexadecimal.

    Args:
        windows: table of windows, [W, 4 + columns], see ``Index.windows``.
        stats: statistics of the store, without their ``checksum``.
    """
    text = json.dumps(stats, sort_keys=True).encode()
    table = np.ascontiguousarray(windows, dtype="<i8").tobytes()
    return hashlib.sha256(table + text).hexdigest()


def read_index(path: Path) -> Index:
    """Read the index of a store, without opening its parts.

    Raises:
        DataError: ``path`` is not a store, has another version, or its index is damaged.
    """
    file = path / "index.json"
    try:
        content = json.loads(file.read_bytes())
        version = content.get("version") if isinstance(content, dict) else None
        index = _parse_index(path, content) if version == STORE_VERSION else None
    except (FileNotFoundError, NotADirectoryError) as error:
        if not file.is_file():
            sentence = f"{path}: is not a graph store (it has no index.json); build one first."
            raise DataError(sentence) from error
        raise DataError(f"{error.filename}: is missing; build the store {path} again.") from error
    except OSError as error:
        raise DataError(
            f"{file}: cannot be read ({error.strerror}); correct its permissions."
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{file}: is damaged ({reason}); build the store again.") from error
    if index is None:
        raise DataError(
            f"{file}: has version {version}, this program reads {STORE_VERSION}; "
            "build the store again."
        )
    _check_names(file, index)
    return index


def _parse_index(path: Path, content: Any) -> Index:
    """Parse ``index.json`` and read ``windows.npy``; raise ValueError if its checksum differs."""
    columns = tuple(
        StoreColumn(c["name"], np.dtype(c["dtype"]), tuple(c["shape"]), c["per"])
        for c in content["columns"]
    )
    parts = tuple(
        StorePart(path / str(p["name"]), int(p["windows"]), tuple(p["files"]))
        for p in content["parts"]
    )
    shape = (sum(part.windows for part in parts), len(PERS) + len(columns))
    table = _read_table(path / "windows.npy", shape)
    if hashlib.sha256(table.tobytes()).hexdigest() != content["windows_sha256"]:
        raise ValueError("windows.npy was altered")
    return Index(path, str(content["checksum"]), columns, parts, table)


def _read_table(file: Path, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Read an array of known shape from the end of its file.

    The header of the file is not parsed, so that a damaged one cannot cause a huge allocation.
    """
    content = file.read_bytes()
    begin = len(content) - shape[0] * shape[1] * np.dtype(np.int64).itemsize
    if begin <= 0:
        raise ValueError(f"windows.npy is too short for {shape[0]} windows")
    return np.frombuffer(content, dtype="<i8", offset=begin).reshape(shape)


def _check_names(file: Path, index: Index) -> None:
    """Refuse an index with names that would lead out of the store as paths."""
    files = [str(entry["path"]) for part in index.parts for entry in part.files]
    columns = [column.name for column in index.columns]
    names = [index.checksum, *columns, *files, *(part.folder.name for part in index.parts)]
    if unsafe := [name for name in names if not _FILE_NAME.match(name)]:
        raise DataError(f"{file}: is damaged (name {unsafe[0]!r}); build the store again.")


def read_checked_stats(index: Index) -> StoreStats:
    """Return a copy of ``Index.stats``, the content of ``stats.json``.

    Raises:
        DataError: the file is missing, damaged, or not the one the store was built with.
    """
    return index.stats.copy()


def check_files(store: Path, part: StorePart, *, whole: bool = False) -> None:
    """Check the files of a part before ADIOS2 opens them.

    Sizes are always compared, and so are the checksums of small files: a flipped bit in metadata
    is detected nowhere else. Large files hold columns, whose windows are checked as they are read.

    Args:
        store: path of the store, for errors.
        part: the part to check.
        whole: whether to compare the checksums of large files too.

    Raises:
        DataError: a file is missing, cut off or altered.
    """
    for entry in part.files:
        file = part.folder / entry["path"]
        size = file.stat().st_size if file.is_file() else None
        if size is None:
            missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
            raise DataError(f"{file}: is missing; build the store {store} again.") from missing
        if size != entry["bytes"]:
            raise DataError(
                f"{file}: has {size} bytes instead of {entry['bytes']}; "
                f"it was cut off or altered: build the store {store} again."
            )
        if (whole or size <= _SMALL) and hash_file(file) != entry["sha256"]:
            raise DataError(
                f"{file}: was altered (SHA-256 differs); build the store {store} again."
            )
