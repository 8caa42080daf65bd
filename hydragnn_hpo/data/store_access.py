"""Open a store: staged on a disk of the host, read in windows, or distributed over hosts.

A *stage* is a copy of a store on a disk of this host, as one ``.npy`` file per column, which all
processes map into memory. The first process makes it; file locks keep other processes from making
the same stage at the same time, and from removing one that is in use.
"""

import contextlib
import errno
import fcntl
import logging
import math
import os
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config.data_config import Access
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
"""Environment variable with folders for stages, separated by ``:``, the preferred one first."""

logger = logging.getLogger(__name__)

_used: dict[Path, int] = {}
"""Descriptors of the locks on stages that this process reads, by lock file."""


class UnusablePlace(StorageError):
    """A folder for stages cannot be written; another folder may still work."""


def list_places(scratch: Path | None) -> list[Path]:
    """Return the folders for stages, the preferred one first.

    They are ``scratch``, or those that ``HYDRAGNN_HPO_SCRATCH`` lists, or the temporary folder.
    """
    if scratch is not None:
        return [scratch]
    named = [Path(name) for name in os.environ.get(SCRATCH, "").split(":") if name]
    return named or [Path(tempfile.gettempdir())]


def open_stage_folder(place: Path) -> Path:
    """Return this user's private folder for stages in a place that other users may share.

    Raises:
        UnusablePlace: the place cannot be written.
        StorageError: the folder exists, and others can enter it, or it belongs to another user.
    """
    folder = private_folder(place)
    try:
        private = create_private(folder)
    except OSError as error:
        raise UnusablePlace(
            f"{folder}: cannot be written ({error.strerror}); choose another."
        ) from error
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
    """Lock a stage for making or removing it; wait while another process holds the lock."""
    with storage(target):
        descriptor = _open(_lock(target))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def hold_stage(target: Path) -> None:
    """Lock a stage against removal until this process ends."""
    file = _use(target)
    if file in _used:
        return
    try:
        descriptor = _open(file)
    except OSError:
        return  # where no lock can be created, no stage can be removed either
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    # ``evict_stage`` reads from the lock file's time when the stage was last opened.
    with contextlib.suppress(OSError):
        os.utime(descriptor)
    _used[file] = descriptor


def release_stage(target: Path) -> None:
    """Release the lock of ``hold_stage``."""
    descriptor = _used.pop(_use(target), None)
    if descriptor is not None:
        os.close(descriptor)


def remove_unfinished(target: Path) -> None:
    """Remove unfinished stages whose lock is free: their processes were killed.

    Args:
        target: stage whose lock this process holds.
    """
    for unfinished in target.parent.glob(f".*{PART}"):
        stage = _stage_of_part(unfinished)
        with contextlib.nullcontext(True) if stage == target else _try_lock(_lock(stage)) as free:
            if free:
                shutil.rmtree(unfinished, ignore_errors=True)


def evict_stage(target: Path) -> bool:
    """Remove the stage that was opened longest ago, of those that no process reads.

    Args:
        target: stage that needs the room; this process holds its lock.

    Returns:
        Whether a stage was removed.
    """
    return any(map(remove_stage, sorted(_list_stages(target.parent), key=_last_opened)))


def remove_stage(stage: Path) -> bool:
    """Remove a stage, and return True, unless a process makes, reads or removes it."""
    with _try_lock(_lock(stage)) as unlocked, _try_lock(_use(stage)) as unused:
        if not (unlocked and unused and stage.is_dir()):
            return False
        # Rename before removal, so that no process maps half a stage; to a name in the same
        # folder, because a full disk may refuse a new folder.
        aside = stage.with_name(f".{stage.name}.{secrets.token_hex(4)}{PART}")
        with storage(stage):
            os.rename(stage, aside)
        shutil.rmtree(aside, ignore_errors=True)
        logger.info("%s: removed; it was not in use.", stage)
        return True


def remove_stale(folder: Path, now: float) -> None:
    """Remove unused stages that were not opened for ``STALE_SECONDS``, or whose store is gone.

    Args:
        folder: folder with stages.
        now: seconds since the epoch.
    """
    for stage in _list_stages(folder):
        if now - _last_opened(stage) > STALE_SECONDS or not _has_store(stage):
            remove_stage(stage)


def remove_stages(store: Path | None = None) -> list[Path]:
    """Remove the stages of this user on this host that no process reads.

    Args:
        store: the store whose stage this process reads no more; None for the stages of all stores.

    Returns:
        The folders that were removed.

    Raises:
        StorageError: a folder for stages can be entered by others.
    """
    removed = []
    for place in list_places(None):
        try:
            folder = open_stage_folder(place)
        except UnusablePlace:
            continue
        stages = _list_stages(folder) if store is None else [folder / read_index(store).checksum]
        for stage in stages:
            release_stage(stage)
            removed += [stage] if remove_stage(stage) else []
    return removed


def _list_stages(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")


def _has_store(stage: Path) -> bool:
    """Check whether the store that a stage was copied from is still there."""
    try:
        return Path(read_json(stage / "manifest.json")["store"]).exists()
    except (HydraError, KeyError, TypeError):
        return False


def _last_opened(target: Path) -> float:
    """Return when a stage was last opened, in seconds since the epoch; 0 if that is unknown."""
    with contextlib.suppress(OSError):
        return _use(target).stat().st_mtime
    return 0.0


def _lock(target: Path) -> Path:
    """Return the file that is locked by the process that makes or removes a stage."""
    return target.parent / f"{target.name}.lock"


def _use(target: Path) -> Path:
    """Return the file on which all processes that read a stage hold a shared lock."""
    return target.parent / f"{target.name}.used"


def _stage_of_part(unfinished: Path) -> Path:
    """Return the final path of an unfinished stage, ``.NAME.RANDOM.part``."""
    return unfinished.parent / unfinished.name[1:].split(".", maxsplit=1)[0]


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def _try_lock(file: Path) -> Iterator[bool]:
    """Hold a lock during the ``with`` block if it is free; yield whether it is held."""
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


STALE_SECONDS = 7 * 86_400.0
"""Time since a stage was last opened after which the next process that makes one removes it."""

LAYOUT = 2
"""Version of the layout of stages; a stage of another version is made again."""

_OFFSETS: dict[str, tuple[str, Per]] = {COUNTS[per]: (name, per) for per, name in OFFSETS.items()}
"""Name and kind of the offsets of a stage, by the counts that a store has instead."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
"""Error numbers of a full disk or an exhausted quota."""


def map_stage(target: Path, index: Index) -> Columns | None:
    """Map a stage into shared memory; return None where it is missing or damaged."""
    if not target.is_dir():
        return None
    hold_stage(target)  # before the check, so that no process removes the stage after it
    if _is_whole(target):
        with contextlib.suppress(OSError, ValueError):
            return _map_arrays(target, index)
    release_stage(target)
    return None


def make_stage(target: Path, index: Index) -> Columns:
    """Make a stage, unless another process does so first, and map it.

    Where there is no room, stages that no process reads are removed.

    Args:
        target: folder of the stage, named after the checksum of the store.
        index: index of the store.

    Raises:
        DataError: the store is damaged.
        StorageError: there is no room, or the place cannot be written; no partial stage is left.
    """
    with lock_for_writing(target):
        # Another process may have made the stage while this one waited for the lock.
        columns = map_stage(target, index)
        if columns is None:
            remove_unfinished(target)
            remove_stale(target.parent, time.time())
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
    """Read a store and write its columns; the caller holds the stage's lock."""
    with whole_folder(target, private=True) as folder:
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
            # Hosts begin at different windows, so that not all read the same file at once.
            for first, last in runs[turn:] + runs[:turn]:
                start = index.starts[first]
                _put(files, places(start), _convert_window(reader.read(first, last), start), folder)
        sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
        manifest = {"layout": LAYOUT, "store": str(index.folder.resolve()), "files": sizes}
        write_json(folder / "manifest.json", manifest)  # after all other files


def _shapes(index: Index) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return the type and shape of every array of a stage, by name."""
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
    """Create a ``.npy`` file, write its header, and reserve disk space for its rows."""
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
    """Convert the arrays of a run of windows to those of a stage.

    Args:
        arrays: arrays of the run.
        start: graphs, nodes, edges and characters before the run, [4].
    """
    staged = {name: array for name, array in arrays.items() if name not in _OFFSETS}
    for counts, (name, per) in _OFFSETS.items():
        staged[name] = offsets(arrays[counts])[1:] + start[PERS.index(per)]
    staged["edge_translation"] = compute_translations(arrays)
    return staged


def _row_places(
    index: Index, files: dict[str, BinaryIO]
) -> Callable[[NDArray[np.int64]], dict[str, int]]:
    """Return a function that computes the byte of each file at which a run of windows begins.

    Args:
        index: index of the store.
        files: open files by array, each positioned at its first row; those of offsets are
            positioned after their leading 0.

    Returns:
        Function of the graphs, nodes, edges and characters before the run, [4], that returns bytes
        from the beginning of each file, by array.
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
    """Check whether a stage has this layout, and all files have the sizes of its manifest."""
    try:
        manifest = read_json(target / "manifest.json")
        sizes = {name: (target / name).stat().st_size for name in manifest["files"]}
    except (HydraError, OSError, KeyError, TypeError, ValueError):
        return False
    return bool(manifest.get("layout") == LAYOUT and sizes == manifest["files"])


def _map_arrays(target: Path, index: Index) -> Columns:
    """Map the arrays of a stage.

    Raises:
        ValueError: an array has another type or shape than in the store.
    """
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
    """Open the graphs of a store; the first process on a host stages it for all others.

    Args:
        path: path of the store, ``NAME.bp``.
        scratch: folder for stages; None means those that ``HYDRAGNN_HPO_SCRATCH`` lists, or the
            system's temporary folder.
        access: ``stage``, ``windows``, ``distributed`` (collective over all ranks of MPI), or
            ``auto``, which stages the store, and reads it in windows where there is no room.
        shuffled: number of training graphs that are shuffled together. A warning is logged where
            the windows kept in memory hold fewer; None disables it.

    Raises:
        DataError: the store is damaged.
        StorageError: a folder for stages can be entered by others, or access is ``stage`` and
            there is no room.
    """
    if access == "distributed":
        from hydragnn_hpo.data.distributed_store import DistributedStore

        return DistributedStore(path)
    index = read_index(path)
    read_checked_stats(index)  # damage is reported before anything is staged
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
    """Map a stage of the store; make one where there is none.

    Returns:
        Columns of the store and an empty list, or None and a reason for each place that failed.
    """
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
