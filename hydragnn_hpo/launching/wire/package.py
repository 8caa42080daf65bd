"""The code of this package: whether two hosts have the same, and what to carry if not."""

import functools
import hashlib
from pathlib import Path

import hydragnn_hpo

TOP = Path(hydragnn_hpo.__file__).parent


def sources() -> list[Path]:
    """Give all files of the package but for what Python makes of them."""
    found = (path for path in TOP.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in found if "__pycache__" not in path.parts)


@functools.cache
def digest() -> str:
    """Give a checksum of the package's modules as they were when it was first asked for."""
    known = hashlib.sha256()
    for path in sources():
        if path.suffix == ".py":
            known.update(f"{path.relative_to(TOP)}\0{path.stat().st_size}\0".encode())
            known.update(path.read_bytes())
    return known.hexdigest()
