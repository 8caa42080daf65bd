"""Write files and folders completely or not at all (Law 3): temporary name, fsync, rename.

Others may read what is written as far as the umask lets them, and may never write it. What is
``private``, such as keys, leases and checkpoints, this user alone may read.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from hydragnn_hpo.errors import ConfigError, HydraError, StorageError

PART = ".part"
"""Suffix of the names of incomplete files and folders."""

FILE_MODE, FOLDER_MODE = 0o644, 0o755
"""Modes of results before the umask, which may take more away."""

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""Modes of what this user alone may read."""


def limit_umask() -> None:
    """Take from group and others the right to write what this process and its children create."""
    os.umask(os.umask(0o022) | 0o022)


TRANSIENT_ERRORS = frozenset(
    (
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENOTCONN),
        *(errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EBUSY),
    )
)
"""Error numbers of a file system whose server cannot be reached: a later attempt may succeed."""

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
"""Advice for the user by error number of the operating system."""


def is_transient(error: BaseException) -> bool:
    """Check whether an error may go away without user action, unlike a full disk."""
    cause = error.__cause__ if isinstance(error, HydraError) else error
    return isinstance(cause, OSError) and cause.errno in TRANSIENT_ERRORS


def remove_partial_files(folder: Path) -> None:
    """Remove the incomplete files and folders of killed processes below a folder.

    No process may be writing to the folder.
    """
    for path in list(folder.rglob(f".*{PART}")):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file or a folder if it exists; ignore what cannot be removed from a folder."""
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


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file under a temporary name, fsync it, and rename it into place.

    Args:
        path: the file; an existing one is replaced.
        content: all of it.
        private: whether this user alone may read it.

    Raises:
        StorageError: the disk is full or the folder not writable; no partial file is left.
    """
    write_pieces(path, (content,), private=private)


def write_pieces(
    path: Path, pieces: Iterable[bytes | memoryview], *, private: bool = False
) -> None:
    """Write a file like ``write_bytes``, from pieces that need not be contiguous in memory.

    Args:
        path: the file.
        pieces: its content.
        private: whether this user alone may read it.

    Raises:
        StorageError: the disk is full or the folder not writable; no partial file is left.
    """
    with whole_file(path, private=private) as file:
        file.writelines(pieces)


@contextlib.contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing; fsync it and rename it to ``path`` if the block succeeds.

    Raises:
        StorageError: see ``write_bytes``; or ``path`` is a special file such as a device, which the
            renaming would replace.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise StorageError(f"{path}: is no ordinary file; choose another place.")
    with storage(path):
        name = _temporary_name(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(name, flags, PRIVATE_FILE if private else FILE_MODE)
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


def _temporary_name(path: Path) -> Path:
    """Return a new name beside a path, which tells that what bears it is incomplete."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}")


def write_text(path: Path, content: str, *, private: bool = False) -> None:
    """Write a UTF-8 text file completely or not at all.

    Args:
        path: the file.
        content: its text.
        private: whether this user alone may read it.

    Raises:
        StorageError: see ``write_bytes``; or the text contains a file name that is not UTF-8.
    """
    try:
        encoded = content.encode()
    except UnicodeEncodeError as error:
        wrong = content[max(error.start - 40, 0) : error.end]
        raise StorageError(
            f"{path}: cannot hold {wrong!r}, which is no UTF-8; choose another name."
        ) from None
    write_bytes(path, encoded, private=private)


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    """Write a JSON file completely or not at all.

    Args:
        path: the file.
        value: its content.
        private: whether this user alone may read it.

    Raises:
        ValueError: a number is not finite.
        StorageError: see ``write_bytes``.
    """
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n", private=private)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file that this package wrote.

    Raises:
        StorageError: the file is missing, unreadable or not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be read ({error.strerror}); correct the path or its permissions."
        ) from error
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"{path}: is damaged ({reason}); remove it and run again.") from error


@contextlib.contextmanager
def whole_folder(target: Path, *, private: bool = False) -> Iterator[Path]:
    """Create a temporary folder; rename it to ``target`` if the block succeeds.

    An existing ``target`` is replaced. After an error the temporary folder is removed.

    Args:
        target: the folder.
        private: whether this user alone may enter it.
    """
    with storage(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        work = _temporary_name(target)
        work.mkdir(mode=PRIVATE_FOLDER if private else FOLDER_MODE)
        try:
            yield work
            # Flush the content first: a crash after the renaming must not leave empty files.
            for path in work.rglob("*"):
                sync(path)
            sync(work)
            if target.exists():
                aside = _temporary_name(target)
                aside.mkdir(mode=PRIVATE_FOLDER)
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
    """Return the SHA-256 of a file, in hexadecimal.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise StorageError(
            f"{file}: cannot be read ({error.strerror}); correct the path or its permissions."
        ) from error


def refuse_repeated(paths: Sequence[Path]) -> None:
    """Refuse a file that is given twice, also by another name or through a link.

    Paths at which there is no file are compared by name.

    Raises:
        ConfigError: two paths lead to one file.
    """
    known: dict[tuple[int, int] | Path, Path] = {}
    for path in paths:
        key: tuple[int, int] | Path = path
        with contextlib.suppress(OSError):
            stat = path.stat()
            key = stat.st_dev, stat.st_ino
        if (first := known.setdefault(key, path)) is not path:
            raise ConfigError(f"{path}: is the same file as {first}; give it once.")


def cache_folder(kind: str) -> Path:
    """Return the user's folder of one kind of caches: below ``XDG_CACHE_HOME``, or ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "hydragnn-hpo" / kind


def make_private(place: Path) -> bool:
    """Create a folder that no other user can write to.

    Returns:
        Whether that succeeded; False also if the folder belongs to another user.
    """
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_own(place):  # on a read-only file system no mode can be changed
            place.chmod(0o700)
    except OSError:
        return False
    return is_own(place)


def is_own(path: Path) -> bool:
    """Check whether a file or folder belongs to this user, and no other user can write to it."""
    try:
        status = path.lstat()  # status of a link itself, not of its target
    except OSError:
        return False
    plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return plain and status.st_uid == os.geteuid() and not status.st_mode & 0o022
