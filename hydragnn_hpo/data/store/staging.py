"""Bring a store once to every host as memory-mapped columns that all its ranks share.

The columns lie under ``SCRATCH/hydragnn-hpo-UID/stage/CHECKSUM``: that folder appears by a
rename, so if it is there it is whole. A lock keeps two processes from doing the work twice;
the operating system lets go of it when its holder dies.
"""

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store.arrays import arrays_of, columns_from, offsets_of
from hydragnn_hpo.data.store.index import Index, read_index
from hydragnn_hpo.data.store.parts import read_store
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import read_json, storage, whole_folder, write_json


def open_store(path: Path, scratch: Path | None = None) -> Columns:
    """Give the columns of a store, memory-mapped; the first caller on a host stages them.

    Args:
        path: the store, ``NAME.bp``.
        scratch: fast local folder; ``HYDRAGNN_HPO_SCRATCH``, else the system's temporary
            folder, if left out.

    Raises:
        DataError: the store is damaged.
        StorageError: the scratch folder is full or not ours.
    """
    index = read_index(path)
    stage = _private_folder(scratch or _default_scratch()) / "stage"
    with storage(stage):
        stage.mkdir(exist_ok=True)
    target = stage / index.checksum
    if not _is_whole(target):
        with _locked(stage / f"{index.checksum}.lock"):
            if not _is_whole(target):
                _stage(index, target)
    return _mapped(target)


def _default_scratch() -> Path:
    return Path(os.environ.get("HYDRAGNN_HPO_SCRATCH") or tempfile.gettempdir())


def _private_folder(scratch: Path) -> Path:
    """Give a folder that only we can enter; on a shared scratch a stranger may have made it."""
    folder = scratch / f"hydragnn-hpo-{os.getuid()}"
    with storage(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    if not private or found.st_uid != os.getuid():
        raise StorageError(
            f"{folder}: is not a folder that only you can enter; "
            "remove it, or set HYDRAGNN_HPO_SCRATCH to another place."
        )
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock on this host; a dead holder's lock is free."""
    with storage(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_whole(target: Path) -> bool:
    """Tell whether a staged folder still holds every byte it was renamed with."""
    manifest = target / "manifest.json"
    if not manifest.is_file():
        return False
    files = read_json(manifest)["files"]
    return all(_size(target / name) == size for name, size in files.items())


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() else None


def _stage(index: Index, target: Path) -> None:
    """Read a store and lay its columns out; called under the lock."""
    for left in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(left, ignore_errors=True)
    columns = read_store(index.folder)
    with whole_folder(target) as folder:
        for name, array in arrays_of(columns).items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
        assert columns.windows is not None
        np.save(folder / "windows.npy", columns.windows, allow_pickle=False)
        for name, offset in offsets_of(columns).items():
            np.save(folder / f"{name}.npy", offset, allow_pickle=False)
        (folder / "stats.json").write_text(json.dumps(columns.stats), encoding="utf-8")
        sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
        write_json(folder / "manifest.json", {"store": str(index.folder), "files": sizes})


def _mapped(target: Path) -> Columns:
    """Map the staged columns into memory; pages are shared by all who do so."""
    stats: dict[str, Any] = read_json(target / "stats.json")
    files = [file for file in target.iterdir() if file.suffix == ".npy"]
    arrays = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files}
    return columns_from(arrays, stats)
