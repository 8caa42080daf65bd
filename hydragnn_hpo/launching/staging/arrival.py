"""A packed environment arrives on a host: received, checked, unpacked once, and used.

    python -S -P -m hydragnn_hpo.launching.staging.arrival ready --checksum SHA256 --place FOLDER
        [--broadcast FILE] [--shared FILE]
    python -S -P -m hydragnn_hpo.launching.staging.arrival start ... -- ARGUMENT...

One process per host runs this by a Python that may lie on a shared file system, so it imports
little: the standard library, and four small modules of ours. ``ready`` tells what came of it as
one line of JSON; ``start`` does the same in silence and becomes the environment's Python.

Below ``FOLDER/hydragnn-hpo-UID/software`` lies ``CHECKSUM/env``, and ``CHECKSUM/base`` where the
interpreter came along. Who makes or removes it holds ``CHECKSUM.lock`` alone, who runs from it
shares ``CHECKSUM.used``. Nothing is fsynced: what a crash tears is seen by its size.
"""

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template

from hydragnn_hpo.host_info import create_private, private_folder
from hydragnn_hpo.launching.staging.unpack import (
    ENV,
    ArchiveRefused,
    checksum_of,
    is_whole,
    open_plain,
    unpack,
)

SHORT = 16
"""Digits of a checksum that name a folder."""

_SAFE = re.compile(r"[A-Za-z0-9_./+@=,:-]+")
"""What a folder may be called whose scripts must find each other."""

_LONGEST = 500
"""Letters of an error that is told: ``srun --label`` cuts lines of more than 1,024 (22.05)."""

_PYTHONS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE")
"""Variables by which a Python finds more than its own environment."""


# -- places ------------------------------------------------------------------------------


def software_folder(place: str, environment: Mapping[str, str]) -> Path:
    """Give our own folder below a place, which only we can enter.

    Args:
        place: may name variables, such as ``/mnt/bb/$USER``.
        environment: of this host.
    """
    try:
        named = Template(place).substitute(environment)
    except (KeyError, ValueError) as error:
        raise ArchiveRefused(f"{place}: names {error}, which this host does not have.") from None
    if not _SAFE.fullmatch(named) or not named.startswith("/"):
        raise ArchiveRefused(f"{named!r}: scripts cannot lie there; choose another scratch folder.")
    ours = private_folder(Path(named))
    try:
        if not create_private(ours):
            raise ArchiveRefused(f"{ours}: is not a folder that only you can enter; remove it.")
        (ours / "software").mkdir(exist_ok=True)
    except OSError as error:
        raise ArchiveRefused(f"{ours}: cannot be written ({error.strerror}).") from None
    return ours / "software"


@contextlib.contextmanager
def _held(file: Path, kind: int) -> Iterator[int]:
    """Hold a lock; BlockingIOError if it is taken and ``kind`` does not wait."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind)
        yield descriptor
    finally:
        os.close(descriptor)


def _beside(target: Path, suffix: str) -> Path:
    return target.parent / f"{target.name}{suffix}"


def _remove_others(target: Path) -> None:
    """Remove environments of ours that nobody uses, and what killed processes left."""
    for other in target.parent.iterdir():
        name = other.name.lstrip(".").partition(".")[0]
        if not other.is_dir() or (name == target.name and other.name[0] != "."):
            continue
        alone = fcntl.LOCK_EX | fcntl.LOCK_NB
        owner = target.parent / name
        with contextlib.suppress(BlockingIOError), contextlib.ExitStack() as stack:
            if name != target.name:  # its lock is ours already
                stack.enter_context(_held(_beside(owner, ".lock"), alone))
                stack.enter_context(_held(_beside(owner, ".used"), alone))
            shutil.rmtree(other, ignore_errors=True)


# -- receiving ---------------------------------------------------------------------------


def _received(path: Path, checksum: str) -> str:
    """Say what is wrong with a broadcast file, which is removed then; nothing if it is whole."""
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if checksum_of(file) == checksum:
                return ""
            said = f"{path}: is not what was sent ({size} bytes came)"
    except OSError as error:
        said = f"{path}: did not come ({error.strerror})"
    with contextlib.suppress(OSError):
        path.unlink()
    return said


def _fetch(shared: Path, local: Path, checksum: str) -> None:
    """Copy an archive from a file system that all hosts see."""
    try:
        with open_plain(shared) as source, local.open("wb") as file:
            shutil.copyfileobj(source, file, 4 << 20)
    except OSError as error:
        local.unlink(missing_ok=True)
        raise ArchiveRefused(
            f"{shared}: cannot be copied to {local.parent} ({error.strerror})."
        ) from None
    if wrong := _received(local, checksum):
        raise ArchiveRefused(f"{wrong}; pack it again.")


def _archive(folder: Path, checksum: str, broadcast: str, shared: str) -> Path:
    """Give the archive as a whole local file."""
    wrong = "nothing was sent to this host"
    if broadcast:
        path = Path(Template(broadcast).safe_substitute(os.environ))
        if not (wrong := _received(path, checksum)):
            return path
    if not shared:
        raise ArchiveRefused(f"{wrong}.")
    local = folder / f".{checksum[:SHORT]}.archive"
    _fetch(Path(shared), local, checksum)
    return local


# -- the program -------------------------------------------------------------------------


def ready(place: str, checksum: str, broadcast: str = "", shared: str = "") -> Path:
    """Give the folder of an environment on this host, which is made if it is not there.

    Args:
        place: a local folder, see ``software_folder``.
        checksum: SHA-256 of the archive.
        broadcast: where it was sent to on this host; removed when it is unpacked.
        shared: where it can be copied from.

    Raises:
        Refused: no whole archive came, or it will not do.
    """
    folder = software_folder(place, os.environ)
    target = folder / checksum[:SHORT]
    with _held(_beside(target, ".lock"), fcntl.LOCK_EX):
        if not is_whole(target):
            _remove_others(target)
            archive = _archive(folder, checksum, broadcast, shared)
            try:
                unpack(archive, target, checksum)
            finally:
                archive.unlink(missing_ok=True)
        elif broadcast:
            Path(Template(broadcast).safe_substitute(os.environ)).unlink(missing_ok=True)
    return target


def settled_environment(target: Path, old_prefix: str, ours: Mapping[str, str]) -> dict[str, str]:
    """Give an environment in which Python finds nothing but what was unpacked."""
    path = [p for p in ours.get("PATH", "").split(":") if p and p != f"{old_prefix}/bin"]
    kept = {name: value for name, value in ours.items() if name not in _PYTHONS}
    return kept | {
        "PATH": ":".join([str(target / ENV / "bin"), *path]),
        "VIRTUAL_ENV": str(target / ENV),
        "PYTHONNOUSERSITE": "1",
    }


def _start(target: Path, old_prefix: str, argv: list[str]) -> None:
    """Become the environment's Python, and hold it for as long as it lives."""
    used = os.open(_beside(target, ".used"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(used, fcntl.LOCK_SH)
    os.set_inheritable(used, True)
    python = str(target / ENV / "bin" / "python")
    os.execve(python, [python, *argv], settled_environment(target, old_prefix, os.environ))


def main(argv: list[str]) -> int:
    """Do as asked; gives the exit code."""
    parser = argparse.ArgumentParser("hydragnn_hpo.launching.staging.arrival")
    parser.add_argument("what", choices=("ready", "start"))
    parser.add_argument("--checksum", required=True)
    parser.add_argument("--place", required=True)
    parser.add_argument("--broadcast", default="")
    parser.add_argument("--shared", default="")
    parser.add_argument("--old-prefix", default="")
    parser.add_argument("--host-of", default="SLURMD_NODENAME")
    ours = argv.index("--") if "--" in argv else len(argv)
    asked = parser.parse_args(argv[:ours])
    began, error, target = time.monotonic(), "", Path()
    try:
        target = ready(asked.place, asked.checksum, asked.broadcast, asked.shared)
    except (ArchiveRefused, OSError) as reason:
        error = str(reason)
    if asked.what == "start" and not error:
        _start(target, asked.old_prefix, argv[ours + 1 :])
    if asked.what == "start":
        sys.stderr.write(f"error: {error}\n")
        return 1
    seconds = round(time.monotonic() - began, 2)
    told = {"host": os.environ.get(asked.host_of, ""), "error": error[:_LONGEST]}
    sys.stdout.write(json.dumps(told | {"seconds": seconds}) + "\n")
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
