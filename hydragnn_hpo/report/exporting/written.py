"""Where exports go: whole or not at all, never over anything, and what was written."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_hpo.files import PART, storage, whole_file

_CHUNK = 1 << 20
_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30
"""Bytes that must be free there; ten times what 2,000 trials take."""


@dataclass(frozen=True)
class Written:
    """What an export left."""

    files: tuple[Path, ...]
    """The folder, or the files, that a person goes on with."""
    trials: int
    epochs: int
    open_with: str
    """The command, or the line of Python, that opens it."""
    note: str = ""
    """What one should know about it; empty if nothing."""

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        return {
            "files": [str(path) for path in self.files],
            "trials": self.trials,
            "epochs": self.epochs,
            "open_with": self.open_with,
            "note": self.note,
        }


@contextlib.contextmanager
def elsewhere() -> Iterator[Path]:
    """Give a folder in memory, or on a local disk, for a while.

    Databases lock their files and write them in pieces, which file systems of clusters do not
    like, and they wait for the disk several times per trial.
    """
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM
    where = _MEMORY if roomy else None
    with tempfile.TemporaryDirectory(prefix="export-", suffix=PART, dir=where) as name:
        yield Path(name)


def bring(made: Path, out: Path) -> None:
    """Copy a finished file to where it belongs, whole or not at all.

    Raises:
        StorageError: there is no room, or the folder is not writable.
    """
    with storage(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with made.open("rb") as source, whole_file(out) as target:
        shutil.copyfileobj(source, target, _CHUNK)


def folder_names(names: list[str]) -> dict[str, str]:
    """Give each trial a name that is safe as a folder's: no way out, no two alike.

    >>> folder_names(["t0001", "../t", ".._t"])
    {'t0001': 't0001', '../t': '_._t', '.._t': '_._t-2'}
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
        plain = (("_" + plain[1:]) if plain.startswith(".") else plain)[:100] or "_"
        made, number = plain, 2
        while made in taken:
            made, number = f"{plain}-{number}", number + 1
        taken.add(made)
        found[name] = made
    return found
