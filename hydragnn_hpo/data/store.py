"""The graph store on disk: ADIOS2 BP5 parts, an index that knows every byte, statistics.

``NAME.bp/`` holds ``part-00000.bp`` (one part per writing host), ``index.json``,
``stats.json`` and ``card.toml``. It is written whole or not at all. ADIOS2 hangs on a
truncated file, so sizes and checksums are compared before it opens one.
"""

import hashlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config.data import CardConfig
from hydragnn_hpo.config.loading import dump
from hydragnn_hpo.data.columns import Columns, offsets
from hydragnn_hpo.errors import DataError, StorageError
from hydragnn_hpo.files import read_json, storage, whole_folder, write_json, write_text

VERSION = 2
"""Version of the layout; another one is refused."""

PLAIN = ("numbers", "positions", "cell", "pbc", "edges", "edge_shift", "split", "group")
"""Columns that are stored as they are."""

_FILE_NAME = re.compile(r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?$")
"""Names that become file names when a store is staged: they lead nowhere else."""

_MARGIN = 1 << 18
"""Bytes for what ADIOS2 writes around the columns of a part, generously."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""ADIOS2 colours what it says."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Index:
    """What ``index.json`` says."""

    folder: Path
    checksum: str
    """SHA-256 over all columns and the statistics."""
    parts: tuple[dict[str, Any], ...]
    """For each part its name, its files with size and SHA-256, its columns."""


def write_store(
    path: Path, parts: Sequence[Columns], stats: dict[str, Any], card: CardConfig
) -> dict[str, Any]:
    """Write a store, one part per entry, and give its statistics with the checksum.

    Raises:
        StorageError: the disk is full or ``path`` is something else; nothing is left behind.
    """
    _refuse_stranger(path)
    with whole_folder(path) as folder:
        entries = [_write_part(folder, n, columns) for n, columns in enumerate(parts)]
        known = {**stats, "checksum": _checksum(entries, stats)}
        index = {"version": VERSION, "checksum": known["checksum"], "parts": entries}
        write_json(folder / "index.json", index)
        write_json(folder / "stats.json", known)
        write_text(folder / "card.toml", dump(card))
    return known


def read_index(path: Path) -> Index:
    """Read what a store holds, without opening its parts.

    Raises:
        DataError: this is no store, or one of another version.
    """
    file = path / "index.json"
    if not file.is_file():
        raise DataError(f"{path}: is not a graph store (it has no index.json); build one first.")
    content = read_json(file)
    found = content.get("version") if isinstance(content, dict) else None
    if found != VERSION:
        raise DataError(
            f"{file}: has version {found}, this program reads {VERSION}; build the store again."
        )
    index = Index(path, str(content["checksum"]), tuple(content["parts"]))
    names = [index.checksum, *(name for part in index.parts for name in part["columns"])]
    if strange := [name for name in names if not _FILE_NAME.match(name)]:
        raise DataError(f"{file}: is damaged (name {strange[0]!r}); build the store again.")
    return index


def read_stats(path: Path) -> dict[str, Any]:
    """Give the statistics of a store."""
    read_index(path)
    stats: dict[str, Any] = read_json(path / "stats.json")
    return stats


def read_store(path: Path) -> Columns:
    """Read a store into memory; ``data.staging`` is the way for many processes.

    Raises:
        DataError: a file is missing, truncated or altered.
    """
    index = read_index(path)
    for part in index.parts:
        _check_files(path, part)
    pieces = [_read_part(path, part) for part in index.parts]
    ids = [name for piece in pieces for name in json.loads(piece.pop("ids").tobytes())]
    arrays = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return columns_from(arrays, ids, read_stats(path))


def arrays_of(columns: Columns) -> Arrays:
    """Give the columns as named arrays that concatenate: counts instead of offsets."""
    return {
        "numbers": columns.numbers,
        "positions": columns.positions,
        "cell": columns.cell,
        "pbc": columns.pbc,
        "num_nodes": columns.num_nodes(),
        "num_edges": columns.num_edges(),
        "edges": columns.edges,
        "edge_shift": columns.edge_shift,
        "split": columns.split,
        "group": columns.group,
        **{f"target.{name}": value for name, value in columns.targets.items()},
        **{f"mask.{name}": value for name, value in columns.masks.items()},
    }


def columns_from(arrays: Arrays, ids: Sequence[str], stats: dict[str, Any]) -> Columns:
    """Put named arrays back together."""
    return Columns(
        **{name: arrays[name] for name in PLAIN},
        node_offset=offsets(arrays["num_nodes"]),
        edge_offset=offsets(arrays["num_edges"]),
        targets={name: arrays[f"target.{name}"] for name in stats["targets"]},
        masks={name: arrays[f"mask.{name}"] for name in stats["targets"]},
        ids=tuple(ids),
        stats=stats,
    )


def _write_part(folder: Path, number: int, columns: Columns) -> dict[str, Any]:
    """Write one part and describe it for the index."""
    import adios2

    part = folder / f"part-{number:05d}.bp"
    ids = np.frombuffer(json.dumps(list(columns.ids)).encode(), dtype=np.uint8)
    arrays = {**arrays_of(columns), "ids": ids}
    _see_room(part, sum(array.nbytes for array in arrays.values()) + _MARGIN)
    try:
        with adios2.Stream(str(part), "w") as stream:
            for name, array in arrays.items():
                if array.size:
                    plain = np.require(_storable(array), requirements=["C", "W"])
                    stream.write(name, plain, plain.shape, [0] * plain.ndim, plain.shape)
    except RuntimeError as error:
        reason = " ".join(_COLOUR.sub("", str(error)).split())
        raise StorageError(
            f"{part}: cannot be written ({reason}); make room or choose another place."
        ) from error
    (part / "profiling.json").unlink(missing_ok=True)
    files = [
        {"path": file.name, "bytes": file.stat().st_size, "sha256": sha256_of(file)}
        for file in sorted(part.iterdir())
    ]
    described = {name: _describe(array) for name, array in arrays.items()}
    return {"name": part.name, "graphs": columns.num_graphs, "files": files, "columns": described}


def _see_room(part: Path, size: int) -> None:
    """Reserve the bytes of a part once: ADIOS2 aborts the process where a disk is full."""
    with storage(part), tempfile.TemporaryFile(dir=part.parent) as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _describe(array: NDArray[Any]) -> dict[str, Any]:
    content = _bytes_of(array)
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "crc32": zlib.crc32(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _bytes_of(array: NDArray[Any]) -> memoryview:
    """Give the bytes of an array without a copy where it is contiguous."""
    if not array.size:
        return memoryview(b"")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _storable(array: NDArray[Any]) -> NDArray[Any]:
    """Give an array in a type that ADIOS2 has."""
    return array.view(np.uint8) if array.dtype == np.bool_ else array


def _checksum(entries: list[dict[str, Any]], stats: dict[str, Any]) -> str:
    """Sum up the content: what the columns hold and what is said about them."""
    content = [[entry["columns"] for entry in entries], stats]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sha256_of(file: Path) -> str:
    """Give the SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_files(path: Path, part: dict[str, Any]) -> None:
    """Compare sizes and checksums before ADIOS2 may see the files."""
    for entry in part["files"]:
        file = path / part["name"] / entry["path"]
        found = file.stat().st_size if file.is_file() else None
        if found is None:
            raise DataError(f"{file}: is missing; build the store {path} again.")
        if found != entry["bytes"]:
            raise DataError(
                f"{file}: has {found} bytes instead of {entry['bytes']}; "
                f"it was cut off or altered: build the store {path} again."
            )
        if sha256_of(file) != entry["sha256"]:
            raise DataError(f"{file}: was altered (SHA-256 differs); build the store {path} again.")


def _read_part(path: Path, part: dict[str, Any]) -> Arrays:
    """Read the columns of one part and check each against the index."""
    import adios2

    arrays: Arrays = {}
    with adios2.FileReader(str(path / part["name"])) as reader:
        for name, said in part["columns"].items():
            dtype, shape = np.dtype(said["dtype"]), tuple(said["shape"])
            array = np.zeros(shape, dtype=dtype)
            if array.size:
                array = np.asarray(reader.read(name)).reshape(shape)
                array = array.view(np.bool_) if dtype == np.bool_ else array
            if array.dtype != dtype or zlib.crc32(_bytes_of(array)) != said["crc32"]:
                raise DataError(
                    f"{path / part['name']}: column '{name}' was altered; build the store again."
                )
            arrays[name] = array
    # ADIOS2 2.12 leaves this there whatever its "Profile" parameter and TMPDIR say.
    Path(f"/tmp/{part['name']}_{os.getpid():x}_profiling.json").unlink(missing_ok=True)
    return arrays


def _refuse_stranger(path: Path) -> None:
    """Refuse to replace what is not a store: renaming over it would remove it."""
    with storage(path):
        ours = path.is_dir() and ((path / "index.json").is_file() or not any(path.iterdir()))
        if path.exists() and not ours:
            raise StorageError(f"{path}: exists and is not a graph store; choose another place.")
