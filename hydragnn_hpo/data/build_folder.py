"""Hold the work folder of a build, ``.NAME.bp.work``, and list its bad structures."""

import contextlib
import errno
import fcntl
import glob
import json
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from hydragnn_hpo.errors import DataError, StorageError
from hydragnn_hpo.files import PART, storage, sweep, write_text

logger = logging.getLogger(__name__)

FEW = 2
"""A build that failed with fewer finished pieces leaves nothing: they are quickly made again."""

_LOCK = "lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""What file systems say that know no locks."""


def work_path(out: Path) -> Path:
    """Return the work folder of a store."""
    return out.with_name(f".{out.name}.work")


def record_path(work: Path, number: int) -> Path:
    """Return the file that says that a piece is finished."""
    return work / f"piece-{number:06d}.json"


def chunk_path(work: Path, number: int, chunk: int) -> Path:
    """Return the file of one window of a piece."""
    return work / f"piece-{number:06d}-{chunk:06d}.npz"


def stop_path(work: Path) -> Path:
    """Return the file by which a rank tells the others that the build has failed."""
    return work / "stop"


@contextlib.contextmanager
def hold_work_folder(out: Path) -> Iterator[Path]:
    """Hold the work folder of a store; what a killed build left half-written is swept away.

    It is removed at the end: by ``remove_work_folder`` when the store is there, here when a build
    failed that has done too little to keep.

    Raises:
        StorageError: another process builds this store, or the disk said no.
    """
    work = work_path(out)
    descriptor = _lock(work, out)
    try:
        with storage(work):
            stop_path(work).unlink(missing_ok=True)
            sweep(work)
            for left in _list_leftovers(out):
                shutil.rmtree(left, ignore_errors=True)
        yield work
    except BaseException:
        if work.is_dir() and len(list(work.glob("piece-*.json"))) < FEW:
            _remove(work)
        raise
    finally:
        os.close(descriptor)


def remove_work_folder(work: Path) -> None:
    """Remove a work folder that is held."""
    _remove(work)


def _remove(work: Path) -> None:
    """Rename the folder before it is removed: no other build finds half of it."""
    with contextlib.suppress(OSError):
        aside = tempfile.mkdtemp(prefix=f"{work.name}.", suffix=PART, dir=work.parent)
        os.rename(work, aside)
        shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)


def _list_leftovers(out: Path) -> Iterator[Path]:
    """Return the unfinished stores and the cast-off work folders of killed builds."""
    for name in (f".{out.name}", work_path(out).name):
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
            _take_lock(descriptor, out)
            if _is_same_file(work / _LOCK, descriptor):
                with storage(work):
                    os.ftruncate(descriptor, 0)
                    holder = f"process {os.getpid()} on {socket.gethostname()}"
                    os.pwrite(descriptor, holder.encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _take_lock(descriptor: int, out: Path) -> None:
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


def _is_same_file(lock: Path, descriptor: int) -> bool:
    """Check whether the locked file is still the one that others will find."""
    try:
        return os.path.samestat(lock.stat(), os.fstat(descriptor))
    except OSError:
        return False


QUARANTINE = "quarantine.jsonl"
"""The file in a store that names them; not there if there are none."""


@dataclass(frozen=True)
class BadStructure:
    """A structure that cannot be used."""

    file: str
    number: int
    """Counted from 1."""
    id: str
    reason: str
    """A sentence that names file and structure."""


def write_quarantine(path: Path, bad: Sequence[BadStructure]) -> None:
    """Write one JSON object per bad structure."""
    write_text(path, "".join(json.dumps(asdict(one)) + "\n" for one in bad))


def listing_path(out: Path) -> Path:
    """Return where the bad structures of a refused build are listed, beside the store."""
    return out.with_name(f"{out.name}.{QUARANTINE}")


def exceeds_limit(bad: int, total: int, max_bad: float) -> bool:
    """Check whether the share of bad structures is beyond the card's limit."""
    return bad > max_bad * total


def refuse_bad_structures(
    bad: Sequence[BadStructure], total: int, max_bad: float, out: Path
) -> NoReturn:
    """End a build because of its bad structures; several of them are listed in a file.

    Args:
        bad: at least one, in order.
        total: structures of the data set, bad ones included.
        max_bad: the card's limit.
        out: the store that is not built.
    """
    if len(bad) == 1:
        raise DataError(bad[0].reason)
    listing = listing_path(out)
    write_quarantine(listing, bad)
    raise DataError(
        f"{bad[0].reason.rstrip('.')} (and {len(bad) - 1} more bad ones of {total}; "
        f"the limit max_bad is {max_bad:g}: see {listing})."
    )
