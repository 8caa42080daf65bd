"""Read what a graph store says about itself: ``index.json``, ``windows.npy``, ``stats.json``."""

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import STORE_VERSION
from hydragnn_hpo.data.columns import PERS, Per
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.files import hash_file

RUN_BYTES = 1 << 25
"""Bytes of windows that are read in one go, roughly."""

_FILE_NAME = re.compile(r"^[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*$")
"""Names that become file names here or when a store is staged: they lead nowhere else."""

_SMALL = 1 << 26
"""Files up to this size (metadata, small parts) are compared byte for byte before opening."""


@dataclass(frozen=True)
class StoreColumn:
    """One array of a store."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Of one row."""
    per: Per
    """What a row stands for."""


@dataclass(frozen=True)
class StorePart:
    """What one host has written."""

    folder: Path
    windows: int
    """How many windows it holds."""
    files: tuple[dict[str, Any], ...]
    """``path``, ``bytes``, ``sha256`` of each file."""


@dataclass(frozen=True, eq=False)
class Index:
    """A store, known without opening a part."""

    folder: Path
    checksum: str
    """SHA-256 over the checksums of all windows and the statistics: equal content, equal sum."""
    columns: tuple[StoreColumn, ...]
    parts: tuple[StorePart, ...]
    windows: NDArray[np.int64]
    """For each window its size in graphs, nodes, edges and characters, then the CRC-32 of each
    column, [W, 4 + columns]."""

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
    def stats(self) -> dict[str, Any]:
        """The content of ``stats.json``, read and checked when it is first asked for."""
        file = self.folder / "stats.json"
        try:
            stats = json.loads(file.read_bytes())
            said = {key: value for key, value in stats.items() if key != "checksum"}
            whole = compute_store_checksum(self.windows, said) == self.checksum
        except (OSError, ValueError, AttributeError) as error:
            raise DataError(f"{file}: is damaged ({error}); build the store again.") from error
        if not whole:
            raise DataError(f"{file}: was altered; build the store again.")
        return dict(stats)


def find_runs(
    index: Index, size: int, first: int = 0, last: int | None = None
) -> list[tuple[int, int]]:
    """Cut windows ``first`` to ``last`` (not included) into runs.

    Args:
        index: of the store.
        size: bytes of a run, roughly.
        first: first window.
        last: one after the last window; all if left out.

    Returns:
        First window, and one after the last, of each run.
    """
    sizes = index.windows[first:last, : len(PERS)] @ index.row_bytes
    number = np.cumsum(sizes) // max(size, 1)
    cuts = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(sizes)]
    return [(first + a, first + b) for a, b in zip(cuts, cuts[1:], strict=False) if a < b]


def compute_store_checksum(windows: NDArray[np.int64], stats: dict[str, Any]) -> str:
    """Return the checksum of the content: what the windows hold and what is said about them."""
    said = json.dumps(stats, sort_keys=True).encode()
    table = np.ascontiguousarray(windows, dtype="<i8").tobytes()
    return hashlib.sha256(table + said).hexdigest()


def read_index(path: Path) -> Index:
    """Read what a store holds, without opening its parts.

    Raises:
        DataError: this is no store, one of another version, or its index is damaged.
    """
    file = path / "index.json"
    try:
        content = json.loads(file.read_bytes())
        found = content.get("version") if isinstance(content, dict) else None
        index = _index(path, content) if found == STORE_VERSION else None
    except (FileNotFoundError, NotADirectoryError) as error:
        if not file.is_file():
            sentence = f"{path}: is not a graph store (it has no index.json); build one first."
            raise DataError(sentence) from error
        raise DataError(f"{error.filename}: is missing; build the store {path} again.") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}).") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{file}: is damaged ({error}); build the store again.") from error
    if index is None:
        raise DataError(
            f"{file}: has version {found}, this program reads {STORE_VERSION}; "
            "build the store again."
        )
    _check_names(file, index)
    return index


def _index(path: Path, content: dict[str, Any]) -> Index:
    columns = tuple(
        StoreColumn(c["name"], np.dtype(c["dtype"]), tuple(c["shape"]), c["per"])
        for c in content["columns"]
    )
    parts = tuple(
        StorePart(path / str(p["name"]), int(p["windows"]), tuple(p["files"]))
        for p in content["parts"]
    )
    shape = (sum(part.windows for part in parts), len(PERS) + len(columns))
    table = _table(path / "windows.npy", shape)
    if hashlib.sha256(table.tobytes()).hexdigest() != content["windows_sha256"]:
        raise ValueError("windows.npy was altered")
    return Index(path, str(content["checksum"]), columns, parts, table)


def _table(file: Path, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Read an array of known shape from the end of its file, whatever the header says."""
    content = file.read_bytes()
    begin = len(content) - shape[0] * shape[1] * np.dtype(np.int64).itemsize
    if begin <= 0:
        raise ValueError(f"windows.npy is too short for {shape[0]} windows")
    return np.frombuffer(content, dtype="<i8", offset=begin).reshape(shape)


def _check_names(file: Path, index: Index) -> None:
    files = [str(entry["path"]) for part in index.parts for entry in part.files]
    columns = [column.name for column in index.columns]
    names = [index.checksum, *columns, *files, *(part.folder.name for part in index.parts)]
    if strange := [name for name in names if not _FILE_NAME.match(name)]:
        raise DataError(f"{file}: is damaged (name {strange[0]!r}); build the store again.")


def read_checked_stats(index: Index) -> dict[str, Any]:
    """Return the statistics of a store whose index is known.

    Raises:
        DataError: they are not those it was built with.
    """
    return dict(index.stats)


def check_files(store: Path, part: StorePart, *, whole: bool = False) -> None:
    """Check the files of a part before ADIOS2 opens them.

    Sizes are compared always, contents of small files too: a bit flip in metadata shows nowhere
    else. Large files hold columns, whose windows are checked as they are read.

    Args:
        store: named in errors.
        part: the part.
        whole: compare the contents of large files too.

    Raises:
        DataError: a file is missing, cut off or altered.
    """
    for entry in part.files:
        file = part.folder / entry["path"]
        found = file.stat().st_size if file.is_file() else None
        if found is None:
            gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
            raise DataError(f"{file}: is missing; build the store {store} again.") from gone
        if found != entry["bytes"]:
            raise DataError(
                f"{file}: has {found} bytes instead of {entry['bytes']}; "
                f"it was cut off or altered: build the store {store} again."
            )
        if (whole or found <= _SMALL) and hash_file(file) != entry["sha256"]:
            raise DataError(
                f"{file}: was altered (SHA-256 differs); build the store {store} again."
            )


def columns_to_json(columns: Iterable[StoreColumn]) -> list[dict[str, Any]]:
    """Describe columns for ``index.json``."""
    return [
        {"name": c.name, "dtype": c.dtype.name, "shape": list(c.shape), "per": c.per}
        for c in columns
    ]
