"""Places on a host where stores are staged, and who works or reads there.

Below ``PLACE/hydragnn-hpo-UID/stage``, each stage ``CHECKSUM`` has two locks beside it. Who makes
or removes it holds ``CHECKSUM.lock`` alone; all who read it share ``CHECKSUM.used`` until they
end, so that a stage that nobody reads can be told. The operating system lets go of what a dead
process held, and a forked child holds what its parent held. Locks stay when stages go: whoever
removed one could not know who was waiting for it.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import PART, storage
from hydragnn_hpo.host_info import create_private, private_folder

SCRATCH = "HYDRAGNN_HPO_SCRATCH"
"""The environment variable that names places, the best one first, with ``:`` between them."""

logger = logging.getLogger(__name__)

_used: dict[Path, int] = {}
"""Descriptors of the locks on stages that this process reads; never closed, see above."""


class Unusable(StorageError):
    """A place cannot be written; the next one may do."""


def places(scratch: Path | None) -> list[Path]:
    """Give where to stage, best first: as asked, by ``SCRATCH``, or the temporary folder."""
    if scratch is not None:
        return [scratch]
    named = [Path(name) for name in os.environ.get(SCRATCH, "").split(":") if name]
    return named or [Path(tempfile.gettempdir())]


def stage_folder(place: Path) -> Path:
    """Give a folder that only we can enter; on a shared place a stranger may have made it.

    Raises:
        Unusable: the place cannot be written.
        StorageError: the folder there is not ours alone.
    """
    folder = private_folder(place)
    try:
        private = create_private(folder)
    except OSError as error:
        raise Unusable(f"{folder}: cannot be written ({error.strerror}).") from error
    if not private:
        raise StorageError(
            f"{folder}: is not a folder that only you can enter; "
            f"remove it, or set {SCRATCH} to another place."
        )
    with contextlib.suppress(OSError):
        (folder / "stage").mkdir(exist_ok=True)
    if not (folder / "stage").is_dir():
        raise Unusable(f"{folder}: cannot be written.")
    return folder / "stage"


@contextlib.contextmanager
def making(target: Path) -> Iterator[None]:
    """Be the only one on this host who makes or removes a stage; wait for who does so."""
    with storage(target):
        descriptor = _open(_lock(target))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def use(target: Path) -> None:
    """Hold a stage for the life of this process, so that nobody removes it."""
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


def leave(target: Path) -> None:
    """Let go of a stage that turned out not to be whole."""
    descriptor = _used.pop(_use(target), None)
    if descriptor is not None:
        os.close(descriptor)


def clean(target: Path) -> None:
    """Remove what killed processes left half made; whoever still works holds a lock.

    Args:
        target: the stage whose lock we hold ourselves.
    """
    for left in target.parent.glob(f".*{PART}"):
        owner = _owner(left)
        with contextlib.nullcontext(True) if owner == target else _alone(_lock(owner)) as alone:
            if alone:
                shutil.rmtree(left, ignore_errors=True)


def evict(target: Path) -> bool:
    """Remove the stage that was opened longest ago and that nobody reads.

    Args:
        target: the stage that room is made for, whose lock we hold ourselves.

    Returns:
        Whether there was one.
    """
    found = [path for path in target.parent.iterdir() if path.is_dir() and path.name[0] != "."]
    for other in sorted(found, key=_last_opened):
        with _alone(_lock(other)) as unmade, _alone(_use(other)) as unused:
            if unmade and unused:
                aside = other.with_name(f".{other.name}.{secrets.token_hex(4)}{PART}")
                with storage(other):
                    os.rename(other, aside)  # on a full place no folder could be made
                shutil.rmtree(aside, ignore_errors=True)
                logger.info("%s: removed to make room; nobody used it.", other)
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


def _owner(left: Path) -> Path:
    """Give the stage that something half made was to become: ``.NAME.RANDOM.part``."""
    return left.parent / left.name[1:].split(".", maxsplit=1)[0]


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[bool]:
    """Hold a lock if it is free; tells whether it was."""
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
