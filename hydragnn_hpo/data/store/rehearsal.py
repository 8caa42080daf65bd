"""Stage a store anew on this host, look at it, and take it away again: the job ``stage``."""

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydragnn_hpo.data.mapped_store import (
    UnusablePlace,
    list_places,
    make_stage,
    open_stage_folder,
    release_stage,
)
from hydragnn_hpo.data.store_index import read_index
from hydragnn_hpo.errors import HydraError, StorageError
from hydragnn_hpo.files import write_json

_BLOCK = 2**20


def job_main(spec: dict[str, Any]) -> int:
    """Stage a store where trials would, into a folder of its own.

    Args:
        spec: ``store``; ``name``, of the folder, that nobody else uses; ``answer``, the JSON
            file to write: ``place``, ``free_bytes``, ``bytes``, ``seconds`` and ``digest``, and
            ``python``, where this process has its modules from.

    Returns:
        0, also where the answer is ``{"error": sentence}``.
    """
    answer: dict[str, Any]
    try:
        answer = {"python": sys.prefix, **rehearse(Path(spec["store"]), spec["name"])}
    except HydraError as error:
        answer = {"error": str(error)}
    write_json(Path(spec["answer"]), answer)
    return 0


def rehearse(store: Path, name: str) -> dict[str, Any]:
    """Stage a store under a name, and give what ``job_main`` answers of it.

    Raises:
        StorageError: no place would do.
        DataError: the store is damaged.
    """
    index, place = read_index(store), _first_place()
    found = os.statvfs(place)
    with _left_clean(place / name) as target:
        began = time.perf_counter()
        make_stage(target, index)
        seconds = time.perf_counter() - began
        files = sorted(file for file in target.iterdir() if file.suffix == ".npy")
        return {
            "place": str(place),
            "free_bytes": found.f_bavail * found.f_frsize,
            "bytes": sum(file.stat().st_size for file in files),
            "seconds": seconds,
            "digest": _digest(files),
        }


def _first_place() -> Path:
    """Return the best place that can be written.

    Raises:
        StorageError: there is none.
    """
    reasons = []
    for place in list_places(None):
        try:
            return open_stage_folder(place)
        except UnusablePlace as error:
            reasons.append(str(error))
    raise StorageError(" ".join(reasons))


@contextmanager
def _left_clean(target: Path) -> Iterator[Path]:
    """Leave neither the stage nor its locks: nobody else knows its name."""
    try:
        yield target
    finally:
        release_stage(target)
        shutil.rmtree(target, ignore_errors=True)
        for kind in ("lock", "used"):
            (target.parent / f"{target.name}.{kind}").unlink(missing_ok=True)


def _digest(files: list[Path]) -> str:
    """Return one checksum of names and contents."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()
