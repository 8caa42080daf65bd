"""The work folder of a build: ``.NAME.bp.work`` beside the store, gone when the store is there.

A build that is killed at any moment leaves finished pieces in it; the same command goes on from
there. Ranks of several hosts share it: it lies on a file system that all of them see.
"""

import contextlib
import errno
import fcntl
import glob
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import PART, storage, sweep

logger = logging.getLogger(__name__)

FEW = 2
"""A build that failed with fewer finished pieces leaves nothing: they are quickly made again."""

_LOCK = "lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""What file systems say that know no locks."""


def work_of(out: Path) -> Path:
    """Give the work folder of a store."""
    return out.with_name(f".{out.name}.work")


def record_file(work: Path, number: int) -> Path:
    """Give the file that says that a piece is finished."""
    return work / f"piece-{number:06d}.json"


def chunk_file(work: Path, number: int, chunk: int) -> Path:
    """Give the file of one window of a piece."""
    return work / f"piece-{number:06d}-{chunk:06d}.npz"


def stop_file(work: Path) -> Path:
    """Give the file by which a rank tells the others that the build has failed."""
    return work / "stop"


@contextlib.contextmanager
def work_folder(out: Path) -> Iterator[Path]:
    """Hold the work folder of a store; what a killed build left half-written is swept away.

    It is removed at the end: by ``finish_work`` when the store is there, here when a build
    failed that has done too little to keep.

    Raises:
        StorageError: another process builds this store, or the disk said no.
    """
    work = work_of(out)
    descriptor = _lock(work, out)
    try:
        with storage(work):
            stop_file(work).unlink(missing_ok=True)
            sweep(work)
            for left in _left_behind(out):
                shutil.rmtree(left, ignore_errors=True)
        yield work
    except BaseException:
        if work.is_dir() and len(list(work.glob("piece-*.json"))) < FEW:
            _remove(work)
        raise
    finally:
        os.close(descriptor)


def finish_work(work: Path) -> None:
    """Remove a work folder that is held."""
    _remove(work)


def _remove(work: Path) -> None:
    """Let the folder lose its name at once: nobody may find half of it."""
    with contextlib.suppress(OSError):
        aside = tempfile.mkdtemp(prefix=f"{work.name}.", suffix=PART, dir=work.parent)
        os.rename(work, aside)
        shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)


def _left_behind(out: Path) -> Iterator[Path]:
    """Give the unfinished stores and the cast-off work folders of killed builds."""
    for name in (f".{out.name}", work_of(out).name):
        yield from out.parent.glob(f"{glob.escape(name)}.{'?' * 8}{PART}")


def _lock(work: Path, out: Path) -> int:
    """Make the folder and lock it; the lock of a dead process is free."""
    while True:
        with storage(work):
            work.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(work / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # its last holder has just removed the folder
                continue
        try:
            _take(descriptor, out)
            if _is_there(work / _LOCK, descriptor):
                with storage(work):
                    os.ftruncate(descriptor, 0)
                    holder = f"process {os.getpid()} on {socket.gethostname()}"
                    os.pwrite(descriptor, holder.encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _take(descriptor: int, out: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        raise StorageError(
            f"{out}: is being built by {holder}; wait for it, or choose another place."
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s: no locks here; see that nobody else builds this store.", out.parent)


def _is_there(lock: Path, descriptor: int) -> bool:
    """Tell whether the locked file is still the one that others will find."""
    try:
        return os.path.samestat(lock.stat(), os.fstat(descriptor))
    except OSError:
        return False
