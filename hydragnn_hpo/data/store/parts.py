"""Write and read the BP5 parts of a store, window by window.

Every column is one global array of its part, written in blocks of one window each, so that
memory holds one window and any run of rows can be read.
"""

import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store.arrays import PERS, Arrays, columns_from, sizes_of, translations_of
from hydragnn_hpo.data.store.index import (
    Column,
    Index,
    check_files,
    read_index,
    sha256_of,
    stats_of,
)
from hydragnn_hpo.errors import DataError, StorageError
from hydragnn_hpo.files import storage

_MARGIN = 1 << 18
"""Bytes for what ADIOS2 writes around the columns of a part, generously."""

_PER_WINDOW = 1 << 13
"""The same for each window."""

_MOST_OPEN = 64
"""Parts that are open at once; each takes a descriptor of the process."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""ADIOS2 colours what it says."""


def write_part(
    folder: Path,
    number: int,
    windows: Iterable[Arrays],
    columns: Sequence[Column],
    sizes: NDArray[np.int64],
) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """Write one part.

    Args:
        folder: of the store that is being written.
        number: of the part.
        windows: their arrays, in order.
        columns: all columns of the store.
        sizes: graphs, nodes, edges and characters of each window, [W, 4].

    Returns:
        The part's entry in ``index.json``, and its rows of ``windows.npy``.

    Raises:
        StorageError: the disk is full.
    """
    part = folder / f"part-{number:05d}.bp"
    rows = dict(zip(PERS, sizes.sum(axis=0).tolist(), strict=True))
    needed = sum(rows[c.per] * c.dtype.itemsize * int(np.prod(c.shape)) for c in columns)
    see_room(part, needed + _MARGIN + _PER_WINDOW * len(sizes))
    try:
        checksums = _write(part, windows, columns, sizes)
    except RuntimeError as error:
        reason = " ".join(_COLOUR.sub("", str(error)).split())
        raise StorageError(
            f"{part}: cannot be written ({reason}); make room or choose another place."
        ) from error
    (part / "profiling.json").unlink(missing_ok=True)
    files = [
        {"path": file.name, "bytes": file.stat().st_size, "sha256": sha256_of(file)}
        for file in sorted(part.iterdir())
    ]
    entry = {"name": part.name, "windows": len(sizes), "files": files}
    return entry, np.hstack((sizes, checksums))


def _write(
    part: Path, windows: Iterable[Arrays], columns: Sequence[Column], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Write the blocks and give their checksums, [W, columns]."""
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
            kind = np.zeros(1, dtype=_stored(column.dtype))
            variables[column.name] = stream.io.define_variable(
                column.name, kind, shape, [0] * len(shape), shape
            )
        for row, arrays in enumerate(windows):
            assert np.array_equal(sizes_of(arrays), sizes[row])
            for place, column in enumerate(columns):
                block = _block(arrays[column.name], column)
                checksums[row, place] = zlib.crc32(bytes_of(block))
                if block.size:
                    start = [done[column.per], *[0] * len(column.shape)]
                    variables[column.name].set_selection([start, list(block.shape)])
                    stream.engine.put(variables[column.name], block, Mode.Sync)
            stream.engine.perform_data_write()
            for kind_of_row, count in zip(PERS, sizes[row].tolist(), strict=True):
                done[kind_of_row] += count
        stream.end_step()
    return checksums


def _block(array: NDArray[Any], column: Column) -> NDArray[Any]:
    """Give one window of a column as ADIOS2 can take it."""
    assert array.dtype == column.dtype, column.name
    assert array.shape[1:] == column.shape, column.name
    plain = np.require(array, requirements=["C", "W"])
    return plain.view(_stored(column.dtype))


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give the type that ADIOS2 has instead: it knows no booleans."""
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Give the bytes of an array without a copy where it is contiguous."""
    if not array.size:
        return memoryview(b"")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def see_room(part: Path, size: int) -> None:
    """Reserve the bytes of a part once: ADIOS2 aborts the process where a disk is full."""
    with storage(part), tempfile.TemporaryFile(dir=part.parent) as file:
        os.posix_fallocate(file.fileno(), 0, size)


def remove_profile(part: Path) -> None:
    """Remove what ADIOS2 2.12 leaves of a reader, whatever "Profile" and TMPDIR say."""
    Path(f"/tmp/{part.name}_{os.getpid():x}_profiling.json").unlink(missing_ok=True)


class WindowReader:
    """Reads runs of windows; every window is compared with its checksum."""

    def __init__(self, index: Index) -> None:
        """Open nothing yet: a part is looked at and opened when it is first needed."""
        self.index = index
        ends = np.cumsum([part.windows for part in index.parts])
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
        """Read windows ``first`` to ``last`` (not included).

        Args:
            first: first window.
            last: one after the last window.
            names: only these columns; all if left out.

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
                    found = self._rows(number, column, offset, int(rows.stop - rows.start))
                    arrays[column.name][rows] = found
        for column in columns:
            self._check(column, arrays[column.name], first, last)
        return arrays

    def _parts(self, first: int, last: int) -> range:
        """Give the parts that windows ``first`` to ``last`` lie in."""
        if first >= last:
            return range(0)
        begin = int(np.searchsorted(self._first, first, side="right")) - 1
        return range(begin, int(np.searchsorted(self._first, last, side="left")))

    def _rows(self, number: int, column: Column, offset: int, count: int) -> NDArray[Any]:
        """Read a run of rows of one part."""
        start = [offset, *[0] * len(column.shape)]
        try:
            found = self._part(number).read(column.name, start=start, count=[count, *column.shape])
        except (RuntimeError, ValueError, IndexError, KeyError) as error:
            raise self._altered(number, column) from error
        array = np.asarray(found)
        if array.dtype != _stored(column.dtype) or array.size != count * int(np.prod(column.shape)):
            raise self._altered(number, column)
        return array.reshape(count, *column.shape).view(column.dtype)

    def _part(self, number: int) -> Any:
        if number not in self._open:
            import adios2

            while len(self._open) >= _MOST_OPEN:
                self._close(next(iter(self._open)))
            part = self.index.parts[number]
            check_files(self.index.folder, part)
            self._open[number] = adios2.FileReader(str(part.folder))
        self._open[number] = self._open.pop(number)  # the latest comes last
        return self._open[number]

    def _check(self, column: Column, rows: NDArray[Any], first: int, last: int) -> None:
        """Compare each window with its checksum."""
        starts = self.index.starts[first : last + 1, PERS.index(column.per)]
        place = len(PERS) + self.index.columns.index(column)
        for window, (begin, end) in enumerate(zip(starts, starts[1:], strict=False), start=first):
            piece = rows[begin - starts[0] : end - starts[0]]
            if zlib.crc32(bytes_of(piece)) != self.index.windows[window, place]:
                number = int(np.searchsorted(self._first, window, side="right")) - 1
                raise self._altered(number, column)

    def _altered(self, number: int, column: Column) -> DataError:
        part = self.index.parts[number].folder
        return DataError(f"{part}: column '{column.name}' was altered; build the store again.")


def read_store(path: Path) -> Columns:
    """Read a whole store into memory; ``store.staging`` is the way for many processes.

    Raises:
        DataError: a file is missing, truncated or altered.
    """
    index = read_index(path)
    with WindowReader(index) as reader:
        arrays = reader.read(0, len(index.windows)) | {"windows": index.starts[:, 0]}
        arrays["edge_translation"] = translations_of(arrays)
        return columns_from(arrays, stats_of(index))
