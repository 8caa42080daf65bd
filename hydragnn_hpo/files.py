"""Files that are written whole or not at all (Law 3)."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from hydragnn_hpo.errors import HydraError, StorageError

PART = ".part"
"""Suffix of the names of incomplete files and folders."""


TRANSIENT_ERRORS = frozenset(
    (
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENOTCONN),
        *(errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EBUSY),
    )
)
"""Error numbers of a file system whose server is away: a later attempt may succeed."""

_NOT_PERMITTED = "ask its owner for access or choose another place"

ADVICE = {
    errno.ENOSPC: "make room or choose another place",
    errno.EDQUOT: "your quota is used up: remove files or choose another place",
    errno.EFBIG: "raise the limit of 'ulimit -f' or choose a file system for larger files",
    errno.EROFS: "it is mounted read-only: choose another place",
    errno.EACCES: _NOT_PERMITTED,
    errno.EPERM: _NOT_PERMITTED,
    errno.ESTALE: "its network mount was lost: run the command again once it is back",
    errno.EMFILE: "raise the limit of open files of a process: ulimit -n",
    errno.ENFILE: "this computer has too many open files: close other programs",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "remove the circular symbolic links",
    errno.EIO: "check the disk or the network mount",
}
"""What the user can do about an error of the operating system, by error number."""


def is_transient(error: BaseException) -> bool:
    """Check whether an error may go away by itself; a full disk does not: the user must act."""
    cause = error.__cause__ if isinstance(error, HydraError) else error
    return isinstance(cause, OSError) and cause.errno in TRANSIENT_ERRORS


def remove_partial_files(folder: Path) -> None:
    """Remove the incomplete files and folders of killed processes below a folder.

    No process may be writing to the folder.
    """
    for path in list(folder.rglob(f".*{PART}")):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file or a folder if it exists; what cannot be removed from a folder stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush the content of a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError that says what to do about it.

    Raises:
        StorageError: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        advice = ADVICE.get(error.errno or 0, "choose another place")
        raise StorageError(f"{path}: cannot be written ({reason}); {advice}.") from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, fsync it, and rename it into place.

    Raises:
        StorageError: the disk is full or the folder not writable; nothing is left behind.
    """
    write_pieces(path, (content,))


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file like ``write_bytes``, from pieces that need not be contiguous in memory.

    Raises:
        StorageError: the disk is full or the folder not writable; nothing is left behind.
    """
    with whole_file(path) as file:
        file.writelines(pieces)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Fill a file under a temporary name; it takes its name only when all went well.

    Raises:
        StorageError: see ``write_bytes``; nothing is left behind. Or a device or the like stands
            there, which the renaming would remove.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise StorageError(f"{path}: is no ordinary file; choose another place.")
    with storage(path):
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PART, dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        sync(path.parent)


def write_text(path: Path, content: str) -> None:
    """Write text whole or not at all, UTF-8.

    Raises:
        StorageError: see ``write_bytes``; or it holds a file's name that is no UTF-8.
    """
    try:
        encoded = content.encode()
    except UnicodeEncodeError as error:
        wrong = content[max(error.start - 40, 0) : error.end]
        raise StorageError(
            f"{path}: cannot hold {wrong!r}, which is no UTF-8; choose another name."
        ) from None
    write_bytes(path, encoded)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file that we wrote.

    Raises:
        StorageError: it is missing, unreadable or not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path}: is damaged ({error}); remove it and run again.") from error


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Fill a folder under a temporary name; it takes its name only when all went well.

    An existing ``target`` is replaced. On an error nothing is left behind.
    """
    with storage(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=PART, dir=target.parent))
        try:
            yield work
            for path in work.rglob("*"):
                sync(path)
            sync(work)
            if target.exists():
                aside = Path(
                    tempfile.mkdtemp(prefix=f".{target.name}.", suffix=PART, dir=target.parent)
                )
                os.rename(target, aside / "old")
                os.rename(work, target)
                shutil.rmtree(aside)
            else:
                os.rename(work, target)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        sync(target.parent)


def hash_file(file: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise StorageError(f"{file}: cannot be read ({error.strerror}).") from error
