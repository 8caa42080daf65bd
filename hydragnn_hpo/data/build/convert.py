"""Convert a piece: its graphs go to chunk files in the work folder, its outcome to a record.

A chunk is a window of graphs as an uncompressed ``.npz``. The record is written last and names
every chunk with its size and CRC-32, so that a piece is finished or not, whoever was killed when.

Shapes: G graphs, N nodes, R cutoffs.
"""

import hashlib
import io
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config.data import CardConfig
from hydragnn_hpo.data.build.plan import Piece, Plan
from hydragnn_hpo.data.build.quarantine import Bad
from hydragnn_hpo.data.build.read import graphs_of_piece
from hydragnn_hpo.data.build.work import chunk_file, record_file
from hydragnn_hpo.data.columns import Names, columns_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.data.statistics import degrees_of
from hydragnn_hpo.data.store.arrays import Arrays, arrays_of
from hydragnn_hpo.errors import DataError, StorageError
from hydragnn_hpo.files import write_bytes, write_json

Tell = Callable[[int], None]
"""Told how many structures have been looked at since the last time."""


@dataclass(frozen=True)
class Chunk:
    """A window of graphs in the work folder."""

    name: str
    bytes: int
    crc: int


@dataclass(frozen=True)
class Record:
    """What became of a piece."""

    stamp: str
    read: int
    """Structures looked at, bad ones included."""
    bad: tuple[Bad, ...]
    chunks: tuple[Chunk, ...]


def finish_piece(plan: Plan, number: int, work: Path, tell: Tell) -> tuple[Record, bool]:
    """Convert a piece unless a build before has done so.

    Returns:
        What became of it, and whether it was converted now.

    Raises:
        DataError: its file cannot be read on.
        StorageError: the disk is full.
    """
    piece = plan.pieces[number]
    record = record_of(piece, work)
    if record is not None and all(_is_whole(work / chunk.name, chunk) for chunk in record.chunks):
        tell(record.read)
        return record, False
    return convert_piece(plan, piece, work, tell), True


def convert_piece(plan: Plan, piece: Piece, work: Path, tell: Tell) -> Record:
    """Read, check and convert the structures of a piece, window by window."""
    graphs: list[Graph] = []
    numbers: list[int] = []
    bad: list[Bad] = []
    chunks: list[Chunk] = []
    read = 0

    def flush() -> None:
        if graphs:
            arrays = chunk_arrays(graphs, numbers, plan.card)
            chunks.append(_write_chunk(chunk_file(work, piece.number, len(chunks)), arrays))
            graphs.clear()
            numbers.clear()

    for place, graph in graphs_of_piece(plan.card, piece):
        read += 1
        if isinstance(graph, DataError):
            bad.append(Bad(str(place.file), place.number, place.id, str(graph)))
        else:
            graphs.append(graph)
            numbers.append(place.number)
        tell(1)
        if len(graphs) == plan.window:
            flush()
    flush()
    record = Record(piece.stamp, read, tuple(bad), tuple(chunks))
    content = asdict(record)
    write_json(record_file(work, piece.number), {"sum": _sum(content), "record": content})
    return record


def record_of(piece: Piece, work: Path) -> Record | None:
    """Give the record of a piece, if it is whole and the piece is still the same."""
    try:
        found = json.loads(record_file(work, piece.number).read_bytes())
        content = found["record"]
        if found["sum"] != _sum(content) or content["stamp"] != piece.stamp:
            return None
        return Record(
            stamp=content["stamp"],
            read=content["read"],
            bad=tuple(Bad(**one) for one in content["bad"]),
            chunks=tuple(Chunk(**one) for one in content["chunks"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def chunk_arrays(graphs: Sequence[Graph], numbers: Sequence[int], card: CardConfig) -> Arrays:
    """Give a window of graphs as the arrays of a store, and what is needed to finish it.

    Groups are numbered within the chunk. Added are ``at.number``, the structure's number in its
    file, ``at.published``, its published split (-1: none), ``at.id_hash``, all [G], ``at.degrees``
    [N, R], and the names of groups and published splits.
    """
    columns = columns_of(graphs, card.targets, attributes=card.attributes)
    groups = Names.of(sorted({graph.group for graph in graphs}))
    splits = sorted({graph.published for graph in graphs if graph.published is not None})
    place = {None: -1} | {name: number for number, name in enumerate(splits)}
    hashes = [_hash(graph.id) for graph in graphs]
    return arrays_of(columns) | {
        "at.number": np.array(numbers, dtype=np.int64),
        "at.published": np.array([place[graph.published] for graph in graphs], dtype=np.int32),
        "at.id_hash": np.array(hashes, dtype=np.uint64),
        "at.degrees": degrees_of(columns, card.graphs.cutoff),
        **_named("group", groups),
        **_named("split", Names.of(splits)),
    }


def read_chunk(file: Path, names: Sequence[str] | None = None) -> Arrays:
    """Read arrays of a chunk, all of them if no names are given.

    Raises:
        StorageError: the file is missing or was altered since it was written.
    """
    try:
        with np.load(file, allow_pickle=False) as found:
            return {name: found[name] for name in (found.files if names is None else names)}
    except Exception as error:  # zipfile and numpy raise whatever a damaged file makes them
        raise StorageError(
            f"{file}: cannot be read ({error}); start the build again, it makes the file anew."
        ) from error


def names_in(arrays: Arrays, kind: str) -> list[str]:
    """Give the names of groups (``group``) or published splits (``split``) of a chunk."""
    return list(Names(arrays[f"at.{kind}_text"], arrays[f"at.{kind}_offset"]))


def _named(kind: str, names: Names) -> Arrays:
    return {f"at.{kind}_text": names.text, f"at.{kind}_offset": names.offset}


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def _write_chunk(file: Path, arrays: dict[str, NDArray[Any]]) -> Chunk:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    content = buffer.getvalue()
    write_bytes(file, content)
    return Chunk(file.name, len(content), zlib.crc32(content))


def _is_whole(file: Path, chunk: Chunk) -> bool:
    try:
        if file.stat().st_size != chunk.bytes:
            return False
        return zlib.crc32(file.read_bytes()) == chunk.crc
    except OSError:
        return False


def _sum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
