"""Open a store the best way there is: staged as mapped files, in windows, or distributed."""

import contextlib
import errno
import fcntl
import logging
import math
import os
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import Access
from hydragnn_hpo.data.columns import (
    COUNTS,
    OFFSETS,
    PERS,
    Arrays,
    Columns,
    GraphSet,
    Per,
    columns_from,
    compute_translations,
    offsets,
)
from hydragnn_hpo.data.store_index import (
    RUN_BYTES,
    Index,
    find_runs,
    read_checked_stats,
    read_index,
)
from hydragnn_hpo.data.store_parts import WindowReader
from hydragnn_hpo.errors import HydraError, StorageError
from hydragnn_hpo.files import PART, read_json, storage, whole_folder, write_json
from hydragnn_hpo.host_info import create_private, private_folder

SCRATCH = "HYDRAGNN_HPO_SCRATCH"
"""The environment variable that names places, the best one first, with ``:`` between them."""

logger = logging.getLogger(__name__)

_used: dict[Path, int] = {}
"""Descriptors of the locks on stages that this process reads; closed when it ends."""


class UnusablePlace(StorageError):
    """A place cannot be written; the next one may do."""


def list_places(scratch: Path | None) -> list[Path]:
    """Return where to stage, best first: as asked, by ``SCRATCH``, or the temporary folder."""
    if scratch is not None:
        return [scratch]
    named = [Path(name) for name in os.environ.get(SCRATCH, "").split(":") if name]
    return named or [Path(tempfile.gettempdir())]


def open_stage_folder(place: Path) -> Path:
    """Return a folder that only we can enter; on a shared place a stranger may have made it.

    Raises:
        UnusablePlace: the place cannot be written.
        StorageError: the folder there is not ours alone.
    """
    folder = private_folder(place)
    try:
        private = create_private(folder)
    except OSError as error:
        raise UnusablePlace(f"{folder}: cannot be written ({error.strerror}).") from error
    if not private:
        raise StorageError(
            f"{folder}: is not a folder that only you can enter; "
            f"remove it, or set {SCRATCH} to another place."
        )
    with contextlib.suppress(OSError):
        (folder / "stage").mkdir(exist_ok=True)
    if not (folder / "stage").is_dir():
        raise UnusablePlace(f"{folder}: cannot be written.")
    return folder / "stage"


@contextlib.contextmanager
def lock_for_writing(target: Path) -> Iterator[None]:
    """Be the only one on this host who makes or removes a stage; wait for who does so."""
    with storage(target):
        descriptor = _open(_lock(target))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def hold_stage(target: Path) -> None:
    """Hold a stage for the life of this process, so that no other process removes it."""
    file = _use(target)
    if file in _used:
        return
    try:
        descriptor = _open(file)
    except OSError:
        return  # Where no lock can be made, no stage can be removed either.
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    with contextlib.suppress(OSError):
        os.utime(descriptor)
    _used[file] = descriptor


def release_stage(target: Path) -> None:
    """Release a stage that turned out not to be whole."""
    descriptor = _used.pop(_use(target), None)
    if descriptor is not None:
        os.close(descriptor)


def remove_unfinished(target: Path) -> None:
    """Remove what killed processes left half made; whoever still works holds a lock.

    Args:
        target: the stage whose lock we hold ourselves.
    """
    for left in target.parent.glob(f".*{PART}"):
        owner = _stage_of_part(left)
        with contextlib.nullcontext(True) if owner == target else _try_lock(_lock(owner)) as alone:
            if alone:
                shutil.rmtree(left, ignore_errors=True)


def evict_stage(target: Path) -> bool:
    """Remove the stage that was opened longest ago and that no process reads.

    Args:
        target: the stage that room is made for, whose lock we hold ourselves.

    Returns:
        Whether there was one.
    """
    found = [path for path in target.parent.iterdir() if path.is_dir() and path.name[0] != "."]
    for other in sorted(found, key=_last_opened):
        with _try_lock(_lock(other)) as unmade, _try_lock(_use(other)) as unused:
            if unmade and unused:
                aside = other.with_name(f".{other.name}.{secrets.token_hex(4)}{PART}")
                with storage(other):
                    os.rename(other, aside)  # on a full place no folder could be made
                shutil.rmtree(aside, ignore_errors=True)
                logger.info("%s: removed to make room; it was not in use.", other)
                return True
    return False


def _last_opened(target: Path) -> float:
    with contextlib.suppress(OSError):
        return _use(target).stat().st_mtime
    return 0.0


def _lock(target: Path) -> Path:
    return target.parent / f"{target.name}.lock"


def _use(target: Path) -> Path:
    return target.parent / f"{target.name}.used"


def _stage_of_part(left: Path) -> Path:
    """Return the stage that something half made was to become: ``.NAME.RANDOM.part``."""
    return left.parent / left.name[1:].split(".", maxsplit=1)[0]


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def _try_lock(file: Path) -> Iterator[bool]:
    """Hold a lock if it is free; return whether it was."""
    try:
        descriptor = _open(file)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


LAYOUT = 2
"""Of a stage; one of another layout is made again."""

_OFFSETS: dict[str, tuple[str, Per]] = {COUNTS[per]: (name, per) for per, name in OFFSETS.items()}
"""Counts in a store, and the offsets that stand for them in a stage."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def map_stage(target: Path, index: Index) -> Columns | None:
    """Map a stage into memory, if it is there and whole; pages are shared by all who do so."""
    if not target.is_dir():
        return None
    hold_stage(target)
    if _is_whole(target):
        with contextlib.suppress(OSError, ValueError):
            return _map_arrays(target, index)
    release_stage(target)
    return None


def make_stage(target: Path, index: Index) -> Columns:
    """Make a stage, unless another process does it first, and map it.

    Stages that no process uses are removed when there is no room.

    Raises:
        DataError: the store is damaged.
        StorageError: there is no room, or the place cannot be written; nothing is left behind.
    """
    with lock_for_writing(target):
        columns = map_stage(target, index)
        if columns is None:
            remove_unfinished(target)
            _write_with_room(target, index)
            columns = map_stage(target, index)
    if columns is None:
        raise StorageError(f"{target}: lost what was written; choose another place.")
    return columns


def _write_with_room(target: Path, index: Index) -> None:
    while True:
        try:
            return _write_stage(target, index)
        except StorageError as error:
            full = isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_ROOM
            if not full or not evict_stage(target):
                raise


def _write_stage(target: Path, index: Index) -> None:
    """Read a store and lay its columns out; called by the one who makes the stage."""
    with whole_folder(target) as folder:
        with contextlib.ExitStack() as stack, WindowReader(index) as reader:
            files = {
                name: stack.enter_context(_open_reserved(folder / f"{name}.npy", dtype, shape))
                for name, (dtype, shape) in _shapes(index).items()
            }
            for name, _ in _OFFSETS.values():
                files[name].write(bytes(8))
            places = _row_places(index, files)
            runs = find_runs(index, RUN_BYTES)
            turn = zlib.crc32(os.uname().nodename.encode()) % max(len(runs), 1)
            for first, last in runs[turn:] + runs[:turn]:  # hosts begin at different parts
                start = index.starts[first]
                _put(files, places(start), _convert_window(reader.read(first, last), start), folder)
        sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
        said = {"layout": LAYOUT, "store": str(index.folder), "files": sizes}
        write_json(folder / "manifest.json", said)


def _shapes(index: Index) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return the type and shape of every array of a stage."""
    rows = dict(zip(PERS, index.starts[-1].tolist(), strict=True))
    shapes = {
        c.name: (c.dtype, (rows[c.per], *c.shape)) for c in index.columns if c.name not in _OFFSETS
    }
    for name, _ in _OFFSETS.values():
        shapes[name] = (np.dtype(np.int64), (rows["graph"] + 1,))
    shapes["edge_translation"] = (np.dtype(np.float32), (rows["edge"], 3))
    return shapes


@contextlib.contextmanager
def _open_reserved(file: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[BinaryIO]:
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


def _convert_window(arrays: Arrays, start: NDArray[np.int64]) -> Arrays:
    """Turn a run of windows into what a stage holds.

    Args:
        arrays: of the run.
        start: graphs, nodes, edges and characters before it, [4].
    """
    staged = {name: array for name, array in arrays.items() if name not in _OFFSETS}
    for counts, (name, per) in _OFFSETS.items():
        staged[name] = offsets(arrays[counts])[1:] + start[PERS.index(per)]
    staged["edge_translation"] = compute_translations(arrays)
    return staged


def _row_places(
    index: Index, files: dict[str, BinaryIO]
) -> Callable[[NDArray[np.int64]], dict[str, int]]:
    """Return what tells, from the rows before a run, where in each file the run begins.

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
    """Check whether a stage still holds every byte it was renamed with."""
    try:
        said = read_json(target / "manifest.json")
        sizes = {name: (target / name).stat().st_size for name in said["files"]}
    except (HydraError, OSError, KeyError, TypeError, ValueError):
        return False
    return bool(said.get("layout") == LAYOUT and sizes == said["files"])


def _map_arrays(target: Path, index: Index) -> Columns:
    """Map the arrays of a stage; raises ValueError where one is not what it should be."""
    arrays: Arrays = {"windows": index.starts[:, 0]}
    for name, (dtype, shape) in _shapes(index).items():
        array = np.load(target / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(name)
        # A plain view is sliced several times faster than the memmap itself.
        arrays[name] = array.view(np.ndarray)
    return columns_from(arrays, read_checked_stats(index))


def open_store(
    path: Path,
    scratch: Path | None = None,
    access: Access = "auto",
    shuffled: int | None = None,
) -> GraphSet:
    """Return the graphs of a store; the first caller on a host stages it for all.

    Args:
        path: the store, ``NAME.bp``.
        scratch: where to stage; the places that ``HYDRAGNN_HPO_SCRATCH`` lists, else the
            system's temporary folder, if left out.
        access: how. ``auto`` stages a store once per host, and reads it in windows where there
            is no room; ``distributed`` is collective over all ranks of MPI.
        shuffled: training graphs that are shuffled at once; a warning says so where windows
            are kept for fewer.

    Raises:
        DataError: the store is damaged.
        StorageError: a scratch folder is not ours, or ``stage`` was asked for and has no room.
    """
    if access == "distributed":
        from hydragnn_hpo.data.distributed_store import DistributedStore

        return DistributedStore(path)
    index = read_index(path)
    read_checked_stats(index)  # whatever is wrong with it is reported before anything is staged
    if access == "windows":
        return _open_windows(index, shuffled)
    staged, reasons = _map_staged(index, scratch)
    if staged is not None:
        return staged
    if access == "stage":
        raise StorageError(f"{path}: cannot be staged: {' '.join(reasons)}")
    graphs = _open_windows(index, shuffled)
    logger.warning("%s: is read in windows, which is slower: %s", path, " ".join(reasons))
    return graphs


def _open_windows(index: Index, shuffled: int | None) -> GraphSet:
    from hydragnn_hpo.data.window_cache import MEMORY, WindowCache

    graphs = WindowCache(index)
    if shuffled is not None and (needed := graphs.memory_for(shuffled)) > graphs.memory:
        logger.warning(
            "%s: %d bytes of windows are kept, shuffling takes %d, so windows will be read many "
            "times: set %s, or lower training.shuffle_buffer.",
            index.folder, graphs.memory, needed, MEMORY,
        )  # fmt: skip
    return graphs


def _map_staged(index: Index, scratch: Path | None) -> tuple[Columns | None, list[str]]:
    """Return the staged columns, or why no place would do."""
    stages, reasons = [], []
    for place in list_places(scratch):
        try:
            stages.append(open_stage_folder(place))
        except UnusablePlace as error:
            reasons.append(str(error))
    for stage in stages:
        if (columns := map_stage(stage / index.checksum, index)) is not None:
            return columns, []
    for stage in stages:
        try:
            return make_stage(stage / index.checksum, index), []
        except StorageError as error:
            reasons.append(str(error))
    return None, reasons
