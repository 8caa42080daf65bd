"""One stage: the columns of a store as files that are mapped into memory.

Besides the columns it holds what is derived from them, offsets and edge shifts in angstrom, so
that a rank that opens it computes nothing. It is written window by window in the memory of one
run of windows, into files whose room is reserved first.
"""

import contextlib
import errno
import math
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns, offsets
from hydragnn_hpo.data.store.arrays import (
    COUNTS,
    OFFSETS,
    PERS,
    Arrays,
    Per,
    columns_from,
    translations_of,
)
from hydragnn_hpo.data.store.index import RUN_BYTES, Index, runs_of, stats_of
from hydragnn_hpo.data.store.parts import WindowReader
from hydragnn_hpo.data.store.scratch import clean, evict, leave, making, use
from hydragnn_hpo.errors import HydraError, StorageError
from hydragnn_hpo.files import read_json, storage, whole_folder, write_json

LAYOUT = 2
"""Of a stage; one of another layout is made anew."""

_OFFSETS: dict[str, tuple[str, Per]] = {COUNTS[per]: (name, per) for per, name in OFFSETS.items()}
"""Counts in a store, and the offsets that stand for them in a stage."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def adopt(target: Path, index: Index) -> Columns | None:
    """Map a stage into memory, if it is there and whole; pages are shared by all who do so."""
    if not target.is_dir():
        return None
    use(target)
    if _is_whole(target):
        with contextlib.suppress(OSError, ValueError):
            return _mapped(target, index)
    leave(target)
    return None


def make(target: Path, index: Index) -> Columns:
    """Make a stage, unless another process does it first, and map it.

    Stages that nobody uses are removed when room lacks.

    Raises:
        DataError: the store is damaged.
        StorageError: there is no room, or the place cannot be written; nothing is left behind.
    """
    with making(target):
        columns = adopt(target, index)
        if columns is None:
            clean(target)
            _write_with_room(target, index)
            columns = adopt(target, index)
    if columns is None:
        raise StorageError(f"{target}: lost what was written; choose another place.")
    return columns


def _write_with_room(target: Path, index: Index) -> None:
    while True:
        try:
            return _write(target, index)
        except StorageError as error:
            full = isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_ROOM
            if not full or not evict(target):
                raise


def _write(target: Path, index: Index) -> None:
    """Read a store and lay its columns out; called by the one who makes the stage."""
    with whole_folder(target) as folder:
        with contextlib.ExitStack() as stack, WindowReader(index) as reader:
            files = {
                name: stack.enter_context(_reserved(folder / f"{name}.npy", dtype, shape))
                for name, (dtype, shape) in _shapes(index).items()
            }
            for name, _ in _OFFSETS.values():
                files[name].write(bytes(8))
            places = _row_places(index, files)
            runs = runs_of(index, RUN_BYTES)
            turn = zlib.crc32(os.uname().nodename.encode()) % max(len(runs), 1)
            for first, last in runs[turn:] + runs[:turn]:  # hosts begin at different parts
                start = index.starts[first]
                _put(files, places(start), _as_staged(reader.read(first, last), start), folder)
        sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
        said = {"layout": LAYOUT, "store": str(index.folder), "files": sizes}
        write_json(folder / "manifest.json", said)


def _shapes(index: Index) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Give the type and shape of every array of a stage."""
    rows = dict(zip(PERS, index.starts[-1].tolist(), strict=True))
    shapes = {
        c.name: (c.dtype, (rows[c.per], *c.shape)) for c in index.columns if c.name not in _OFFSETS
    }
    for name, _ in _OFFSETS.values():
        shapes[name] = (np.dtype(np.int64), (rows["graph"] + 1,))
    shapes["edge_translation"] = (np.dtype(np.float32), (rows["edge"], 3))
    return shapes


@contextlib.contextmanager
def _reserved(file: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[BinaryIO]:
    """Open an array file whose header is written and whose room is reserved."""
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    with storage(file), file.open("wb") as stream:
        np.lib.format.write_array_header_2_0(stream, header)
        stream.flush()
        os.posix_fallocate(stream.fileno(), 0, stream.tell() + dtype.itemsize * math.prod(shape))
        yield stream


def _as_staged(arrays: Arrays, start: NDArray[np.int64]) -> Arrays:
    """Turn a run of windows into what a stage holds.

    Args:
        arrays: of the run.
        start: graphs, nodes, edges and characters before it, [4].
    """
    staged = {name: array for name, array in arrays.items() if name not in _OFFSETS}
    for counts, (name, per) in _OFFSETS.items():
        staged[name] = offsets(arrays[counts])[1:] + start[PERS.index(per)]
    staged["edge_translation"] = translations_of(arrays)
    return staged


def _row_places(
    index: Index, files: dict[str, BinaryIO]
) -> Callable[[NDArray[np.int64]], dict[str, int]]:
    """Give what tells, from the rows before a run, where in each file the run begins.

    Args:
        index: of the store.
        files: each at its first row, offsets after the zero that they begin with.
    """
    shapes = _shapes(index)
    pers: dict[str, Per] = {c.name: c.per for c in index.columns if c.name not in _OFFSETS}
    pers |= dict.fromkeys([name for name, _ in _OFFSETS.values()], PERS[0])
    pers["edge_translation"] = "edge"
    begins = {name: stream.tell() for name, stream in files.items()}
    row = {n: dtype.itemsize * math.prod(shape[1:]) for n, (dtype, shape) in shapes.items()}

    def places(start: NDArray[np.int64]) -> dict[str, int]:
        return {n: begins[n] + row[n] * int(start[PERS.index(pers[n])]) for n in files}

    return places


def _put(files: dict[str, BinaryIO], places: dict[str, int], arrays: Arrays, folder: Path) -> None:
    with storage(folder):
        for name, stream in files.items():
            stream.seek(places[name])
            stream.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)


def _is_whole(target: Path) -> bool:
    """Tell whether a stage still holds every byte it was renamed with."""
    try:
        said = read_json(target / "manifest.json")
        sizes = {name: (target / name).stat().st_size for name in said["files"]}
    except (HydraError, OSError, KeyError, TypeError, ValueError):
        return False
    return bool(said.get("layout") == LAYOUT and sizes == said["files"])


def _mapped(target: Path, index: Index) -> Columns:
    """Map the arrays of a stage; raises ValueError where one is not what it should be."""
    arrays: Arrays = {"windows": index.starts[:, 0]}
    for name, (dtype, shape) in _shapes(index).items():
        array = np.load(target / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(name)
        # A plain view is sliced several times faster than the memmap itself.
        arrays[name] = array.view(np.ndarray)
    return columns_from(arrays, stats_of(index))
