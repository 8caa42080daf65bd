"""Write a graph store whole or not at all, and read its BP5 parts window by window.

Every column is one global array of its part, written in blocks of one window each, so that
memory holds one window and any run of rows can be read.
"""

import hashlib
import io
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import STORE_VERSION, CardConfig, dump_config
from hydragnn_hpo.data.columns import PERS, Arrays, count_rows, row_kind
from hydragnn_hpo.data.store_index import (
    FileEntry,
    Index,
    PartEntry,
    StoreColumn,
    check_files,
    compute_store_checksum,
)
from hydragnn_hpo.errors import DataError, StorageError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.files import hash_file, storage, write_bytes, write_json, write_text
from hydragnn_hpo.optional_packages import explain_missing

_MARGIN = 1 << 18
"""Generous estimate of the bytes that ADIOS2 writes per part in addition to its columns."""

_PER_WINDOW = 1 << 13
"""Generous estimate of the bytes that ADIOS2 writes per window in addition to its columns."""

_MOST_OPEN = 64
"""Largest number of parts that are open at once; each uses a file descriptor."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""Escape codes of colours, which ADIOS2 puts into its error messages."""


def write_part(
    folder: Path,
    number: int,
    windows: Iterable[Arrays],
    columns: Sequence[StoreColumn],
    sizes: NDArray[np.int64],
) -> tuple[PartEntry, NDArray[np.int64]]:
    """Write one part of a store, a window at a time.

    Args:
        folder: folder of the store that is being written.
        number: number of the part, counted from 0.
        windows: arrays of each window, in order; consumed one by one.
        columns: all columns of the store.
        sizes: graphs, nodes, edges and characters of each window, [W, 4].

    Returns:
        The part's entry in ``index.json``, and its rows of ``windows.npy``, [W, 4 + columns].

    Raises:
        StorageError: the disk is full.
    """
    part = folder / f"part-{number:05d}.bp"
    rows = dict(zip(PERS, sizes.sum(axis=0).tolist(), strict=True))
    needed = sum(rows[c.per] * c.dtype.itemsize * int(np.prod(c.shape)) for c in columns)
    reserve_disk(part, needed + _MARGIN + _PER_WINDOW * len(sizes))
    try:
        checksums = _write(part, windows, columns, sizes)
    except RuntimeError as error:
        reason = " ".join(_COLOUR.sub("", str(error)).split())
        raise StorageError(
            f"{part}: cannot be written ({reason}); make room or choose another place."
        ) from error
    (part / "profiling.json").unlink(missing_ok=True)
    files: list[FileEntry] = [
        {"path": file.name, "bytes": file.stat().st_size, "sha256": hash_file(file)}
        for file in sorted(part.iterdir())
    ]
    entry: PartEntry = {"name": part.name, "windows": len(sizes), "files": files}
    return entry, np.hstack((sizes, checksums))


def _write(
    part: Path, windows: Iterable[Arrays], columns: Sequence[StoreColumn], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Write the blocks and return their checksums, [W, columns]."""
    with explain_missing():
        import adios2
        from adios2.bindings import Mode

    totals = dict(zip(PERS, sizes.sum(axis=0).tolist(), strict=True))
    checksums = np.zeros((len(sizes), len(columns)), dtype=np.int64)
    done = dict.fromkeys(PERS, 0)
    with adios2.Stream(str(part), "w") as stream:
        stream.begin_step()
        variables = {}
        for column in columns:
            shape = [totals[column.per], *column.shape]
            kind = np.zeros(1, dtype=_adios_type(column.dtype))
            variables[column.name] = stream.io.define_variable(
                column.name, kind, shape, [0] * len(shape), shape
            )
        for row, arrays in enumerate(windows):
            assert np.array_equal(count_rows(arrays), sizes[row])
            for place, column in enumerate(columns):
                block = _block(arrays[column.name], column)
                checksums[row, place] = zlib.crc32(view_bytes(block))
                if block.size:
                    start = [done[column.per], *[0] * len(column.shape)]
                    variables[column.name].set_selection([start, list(block.shape)])
                    stream.engine.put(variables[column.name], block, Mode.Sync)
            stream.engine.perform_data_write()
            for kind_of_row, count in zip(PERS, sizes[row].tolist(), strict=True):
                done[kind_of_row] += count
        stream.end_step()
    return checksums


def _block(array: NDArray[Any], column: StoreColumn) -> NDArray[Any]:
    """Return one window of a column as ADIOS2 accepts it: contiguous and without booleans."""
    assert array.dtype == column.dtype, column.name
    assert array.shape[1:] == column.shape, column.name
    plain = np.require(array, requirements=["C", "W"])
    return plain.view(_adios_type(column.dtype))


def _adios_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that ADIOS2 stores a column as: bytes for booleans, which it lacks."""
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype


def view_bytes(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array without a copy where it is contiguous."""
    if not array.size:
        return memoryview(b"")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def reserve_disk(part: Path, size: int) -> None:
    """Check that the disk has ``size`` bytes for a part: on a full disk ADIOS2 aborts the process.

    Raises:
        StorageError: fewer bytes are free.
    """
    with storage(part), tempfile.TemporaryFile(dir=part.parent) as file:
        os.posix_fallocate(file.fileno(), 0, size)


def remove_profile(part: Path) -> None:
    """Remove the profile that an ADIOS2 2.12 reader leaves, even with Profile off or TMPDIR set."""
    Path(f"/tmp/{part.name}_{os.getpid():x}_profiling.json").unlink(missing_ok=True)


class WindowReader:
    """A reader of runs of windows that compares every window with its checksum."""

    def __init__(self, index: Index) -> None:
        """Keep the index; a part is checked and opened when one of its windows is first read."""
        self.index = index
        ends = np.cumsum([part.windows for part in index.parts])
        # First window of each part, and the end.
        self._first = np.concatenate(([0], ends)).astype(np.int64)
        self._open: dict[int, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the parts."""
        for number in list(self._open):
            self._close(number)

    def _close(self, number: int) -> None:
        self._open.pop(number).close()
        remove_profile(self.index.parts[number].folder)

    def read(self, first: int, last: int, names: Iterable[str] | None = None) -> Arrays:
        """Read windows ``first`` to ``last`` (not included) end to end.

        Args:
            first: first window.
            last: one after the last window.
            names: columns to read; None means all.

        Returns:
            Arrays by column, [rows, ...], in the order of ``Index.columns``.

        Raises:
            DataError: a part is missing, cut off or altered.
        """
        wanted = None if names is None else set(names)
        columns = [c for c in self.index.columns if wanted is None or c.name in wanted]
        starts = self.index.starts
        arrays: Arrays = {}
        for column in columns:
            count = int(np.subtract(*starts[[last, first], PERS.index(column.per)]))
            arrays[column.name] = np.zeros((count, *column.shape), column.dtype)
        for number in self._parts(first, last):
            begin = max(first, int(self._first[number]))
            end = min(last, int(self._first[number + 1]))
            for column in columns:
                begins = starts[:, PERS.index(column.per)]
                rows = slice(*(begins[[begin, end]] - begins[first]))
                if rows.stop > rows.start:
                    offset = int(begins[begin] - begins[self._first[number]])
                    count = int(rows.stop - rows.start)
                    arrays[column.name][rows] = self._rows(number, column, offset, count)
        for column in columns:
            self._check(column, arrays[column.name], first, last)
        return arrays

    def _parts(self, first: int, last: int) -> range:
        """Return the numbers of the parts that hold windows ``first`` to ``last``."""
        if first >= last:
            return range(0)
        begin = int(np.searchsorted(self._first, first, side="right")) - 1
        return range(begin, int(np.searchsorted(self._first, last, side="left")))

    def _rows(self, number: int, column: StoreColumn, offset: int, count: int) -> NDArray[Any]:
        """Read rows ``offset`` to ``offset + count`` of one part."""
        start = [offset, *[0] * len(column.shape)]
        try:
            rows = self._part(number).read(column.name, start=start, count=[count, *column.shape])
        except (RuntimeError, ValueError, IndexError, KeyError) as error:
            raise self._altered(number, column) from error
        array = np.asarray(rows)
        if array.dtype != _adios_type(column.dtype) or array.size != count * int(
            np.prod(column.shape)
        ):
            raise self._altered(number, column)
        return array.reshape(count, *column.shape).view(column.dtype)

    def _part(self, number: int) -> Any:
        """Return an open part; close the least recently used one where too many are open."""
        if number not in self._open:
            with explain_missing():
                import adios2

            while len(self._open) >= _MOST_OPEN:
                self._close(next(iter(self._open)))
            part = self.index.parts[number]
            check_files(self.index.folder, part)
            self._open[number] = adios2.FileReader(str(part.folder))
        self._open[number] = self._open.pop(number)  # most recently used last
        return self._open[number]

    def _check(self, column: StoreColumn, rows: NDArray[Any], first: int, last: int) -> None:
        """Compare each window with its checksum."""
        starts = self.index.starts[first : last + 1, PERS.index(column.per)]
        place = len(PERS) + self.index.columns.index(column)
        for window, (begin, end) in enumerate(zip(starts, starts[1:], strict=False), start=first):
            piece = rows[begin - starts[0] : end - starts[0]]
            if zlib.crc32(view_bytes(piece)) != self.index.windows[window, place]:
                number = int(np.searchsorted(self._first, window, side="right")) - 1
                raise self._altered(number, column)

    def _altered(self, number: int, column: StoreColumn) -> DataError:
        part = self.index.parts[number].folder
        return DataError(f"{part}: column '{column.name}' was altered; build the store again.")


WINDOW = 1024
"""Largest number of graphs of a window; a window holds graphs of one data file only."""


def describe_columns(arrays: Arrays, levels: Mapping[str, str]) -> tuple[StoreColumn, ...]:
    """Describe the columns of a store by the arrays of one window.

    Args:
        arrays: arrays of the window, see ``columns.arrays_of``.
        levels: ``graph`` or ``node`` by target.

    Returns:
        One description per array, in the same order.
    """
    return tuple(
        StoreColumn(name, array.dtype, array.shape[1:], row_kind(name, levels))
        for name, array in arrays.items()
    )


def write_index(
    folder: Path,
    columns: Sequence[StoreColumn],
    entries: Sequence[PartEntry],
    windows: NDArray[np.int64],
    stats: StoreStats,
    card: CardConfig,
) -> StoreStats:
    """Write index, table of windows, statistics and card of a store, next to its parts.

    Args:
        folder: folder of the store that is being written; its parts are inside.
        columns: all columns.
        entries: entry of each part, from ``write_part``, in order.
        windows: table of the windows of all parts, from ``write_part``, [W, 4 + columns].
        stats: statistics of the data set, without the checksum.
        card: card that the store is built from.

    Returns:
        The statistics with the store's ``checksum``, as in ``stats.json``.
    """
    checksum = compute_store_checksum(windows, stats)
    with_checksum: StoreStats = {**stats, "checksum": checksum}
    write_bytes(folder / "windows.npy", _npy(windows))
    index = {
        "version": STORE_VERSION,
        "checksum": checksum,
        "windows_sha256": hashlib.sha256(windows.tobytes()).hexdigest(),
        "columns": [{**asdict(column), "dtype": column.dtype.name} for column in columns],
        "parts": list(entries),
    }
    write_json(folder / "stats.json", with_checksum)
    write_text(folder / "card.toml", dump_config(card))
    write_json(folder / "index.json", index)
    return with_checksum


def _npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def refuse_foreign_folder(path: Path) -> None:
    """Refuse to replace a folder that is not a store: renaming a store over it would remove it.

    Raises:
        StorageError: ``path`` exists, and is neither a store nor an empty folder.
    """
    with storage(path):
        replaceable = path.is_dir() and ((path / "index.json").is_file() or not any(path.iterdir()))
        if path.exists() and not replaceable:
            raise StorageError(f"{path}: exists and is not a graph store; choose another place.")
