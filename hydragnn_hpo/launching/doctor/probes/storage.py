"""The host's own disk, and the file system that all hosts share."""

import contextlib
import fcntl
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

from hydragnn_hpo.launching.doctor.filesystems import filesystem_of, is_shared
from hydragnn_hpo.launching.doctor.order import Order

SIZE = 64 << 20
"""Bytes that are written and read."""

RACES = 8
"""Files that hosts of the sample all try to be the first to make."""

_REPEATS = 3
_MEBI = 1 << 20


def host_id() -> str:
    """Give the name by which this host is known: virtual hosts share one."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def look_at_scratch(order: Order) -> dict[str, Any]:
    """Write and read a file on the host's own disk."""
    name = Template(order.scratch).safe_substitute(os.environ) or tempfile.gettempdir()
    place = Path(name)
    facts: dict[str, Any] = {"path": name, "problem": _problem(place)}
    if facts["problem"]:
        return facts
    status = place.stat()
    facts["ours"] = status.st_uid in (os.getuid(), 0)
    facts["free_mb"] = shutil.disk_usage(place).free // _MEBI
    facts["filesystem"] = filesystem_of(place)
    alone = order.samples(host_id()) or not is_shared(facts["filesystem"])
    if alone and facts["free_mb"] > 2 * SIZE // _MEBI:
        with _own_folder(place, order) as folder:
            facts["write"], facts["read"] = speeds(folder / "block")
    return facts


def _problem(place: Path) -> str:
    if "$" in str(place):
        return "names a variable that is not set here"
    if not place.is_dir():
        return "is no folder here"
    return "" if os.access(place, os.W_OK | os.X_OK) else "cannot be written"


@contextlib.contextmanager
def _own_folder(place: Path, order: Order) -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix=f".doctor-{order.name}-", dir=place)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def speeds(path: Path, size: int = SIZE) -> tuple[float, float]:
    """Give bytes per second of writing (to the disk) and reading (from it), medians of three."""
    block = os.urandom(_MEBI) * (size // _MEBI)
    writing, reading = [], []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        with path.open("wb") as file:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
        writing.append(time.perf_counter() - began)
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while file.read(4 * _MEBI):
                pass
        reading.append(time.perf_counter() - began)
    return size / statistics.median(writing), size / statistics.median(reading)


def look_at_shared(order: Order) -> dict[str, Any]:
    """Do in the shared folder what a run does: make, rename, sync; and lock, which it does not."""
    place = Path(order.folder)
    facts: dict[str, Any] = {"path": str(place), "problem": _problem(place)}
    if facts["problem"]:
        return facts
    facts["filesystem"] = filesystem_of(place)
    facts["free_mb"] = shutil.disk_usage(place).free // _MEBI
    if not order.samples(host_id()):
        return facts
    facts["won"] = [number for number in range(RACES) if _first(place / f"race-{number}")]
    with _own_folder(place, order) as folder:
        facts["rename"] = _renames(folder)
        facts["sync_seconds"] = _sync_seconds(folder / "small")
        facts["ahead_seconds"] = _ahead(folder / "clock")
        facts["locks"] = _locks(folder / "lock")
    return facts


def _first(path: Path) -> bool:
    """Make a file that nobody has made; exactly one host may succeed."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _renames(folder: Path) -> bool:
    """Replace a file that another descriptor reads; it must show the old or the new whole."""
    old, new = folder / "old", folder / "new"
    old.write_text("old")
    new.write_text("new")
    with old.open() as reader:
        os.replace(new, old)
        return reader.read() == "old" and old.read_text() == "new" and not new.exists()


def _sync_seconds(path: Path) -> float:
    taken = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        with path.open("wb") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _ahead(path: Path) -> float:
    """Give by how many seconds this host's clock is ahead of the file server's, at least.

    A host that stood still meanwhile, or waited for its files, is not ahead for that.
    """
    before = time.time()
    path.write_bytes(b"x")
    after = time.time()
    stamp = path.stat().st_mtime
    return max(0.0, before - stamp) + min(0.0, after - stamp)


def _locks(path: Path) -> str:
    """Say what is wrong with locks; nothing if they work."""
    with path.open("wb") as file, path.open("rb") as other:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"flock: {error.strerror}"
        try:
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return ""
        return "flock lets in two at once"
