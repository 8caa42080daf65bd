"""Convert pieces of files to chunks of graphs in the work folder, and set bad structures aside."""

import hashlib
import io
import json
import os
import queue
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import msgspec
import numpy as np
from ase import Atoms

from hydragnn_hpo.config import CardConfig
from hydragnn_hpo.data.build_plan import BadStructure, BuildPlan, Piece, make_source, read_plan
from hydragnn_hpo.data.columns import Arrays, Graph, Names, arrays_of, columns_of
from hydragnn_hpo.data.graph_sizes import degrees_of
from hydragnn_hpo.data.readers import is_single_structure, reader_of
from hydragnn_hpo.data.readers.source import Item, Source
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.errors import DataError, HydraError, StorageError
from hydragnn_hpo.files import write_bytes, write_json


def read_piece(card: CardConfig, piece: Piece) -> Iterator[tuple[Place, Graph | DataError]]:
    """Read, check and convert every structure of a piece.

    A file of one structure that cannot be read is a bad structure.

    Yields:
        Origin of each structure, and its graph, or the error for which it is set aside.

    Raises:
        DataError: the file cannot be read further, or has changed since it was counted.
    """
    entry = card.files[piece.entry]
    source = make_source(card, piece.entry, piece.path)
    rules = Rules(
        cutoff=card.graphs.cutoff,
        min_distance=card.graphs.min_distance,
        targets=card.targets,
        group=card.split.group,
        published=None if entry.published else card.split.published,
        attributes=card.attributes,
        laplacian=card.graphs.laplacian,
    )
    end = piece.start
    items = _read_items(source, entry.reader, piece)
    for number, (name, atoms) in enumerate(items, start=piece.start):
        end = number + 1
        place = Place(piece.path, number, piece.prefix + name)
        if isinstance(atoms, DataError):
            yield place, atoms
            continue
        place, graph = _convert_structure(atoms, place, rules, source, card.id_key)
        if isinstance(graph, Graph) and entry.published:
            graph = replace(graph, published=entry.published)
        yield place, graph
    if piece.stop is not None and end != piece.stop:
        raise DataError(
            f"{piece.path}: ends after {end} structures, {piece.stop} were counted before; "
            "leave it alone while it is read and start again."
        )


def _read_items(source: Source, reader: str | None, piece: Piece) -> Iterator[Item]:
    """Yield the structures of a piece; an error in place of the only one of an unreadable file.

    Args:
        source: the file.
        reader: name of its reader, if the card has one.
        piece: the piece.
    """
    begun = piece.start > 0
    try:
        for item in reader_of(source, reader).read(source, piece.start, piece.stop):
            begun = True
            yield item
    except DataError as error:
        if begun or not is_single_structure(source, reader):
            raise
        yield f"{source.path.name}@0", error


def _convert_structure(
    atoms: Atoms, place: Place, rules: Rules, source: Source, id_key: str | None
) -> tuple[Place, Graph | DataError]:
    """Convert a structure, and name it by the card's ``id_key``, if there is one."""
    try:
        if id_key is not None:
            if id_key not in atoms.info:
                raise place.error(f"has no '{id_key}', the card's id_key", "add it to the file")
            place = replace(place, id=str(atoms.info[id_key]))
        return place, graph_of(_add_cell(atoms, place, source), place, rules)
    except DataError as error:
        return place, error


def _add_cell(atoms: Atoms, place: Place, source: Source) -> Atoms:
    """Set cell and periodic directions to those of the card, if it has any; ``atoms`` changes.

    Raises:
        DataError: the structure has a lattice that differs from the card's.
    """
    if source.cell is not None:
        if atoms.cell.any() and not np.allclose(atoms.cell[:], source.cell):
            raise place.error("has a lattice of its own", "drop cell from the card's [[files]]")
        atoms.cell = source.cell
        atoms.pbc = True
    if source.pbc is not None:
        atoms.pbc = source.pbc
    return atoms


Progress = Callable[[int], None]
"""Called with the number of structures that were read since the last call."""


@dataclass(frozen=True)
class Chunk:
    """A file in the work folder with one window of graphs."""

    name: str
    """Name of the file."""
    bytes: int
    """Size of the file."""
    crc: int
    """CRC-32 of its content."""


@dataclass(frozen=True)
class Record:
    """Outcome of a piece."""

    stamp: str
    """See ``Piece.stamp``."""
    read: int
    """Number of structures that were read, bad ones included."""
    bad: tuple[BadStructure, ...]
    """Structures that cannot be used, in order."""
    chunks: tuple[Chunk, ...]
    """Chunks with the graphs of all other structures, in order."""


def finish_piece(plan: BuildPlan, number: int, work: Path, progress: Progress) -> Record:
    """Convert a piece, unless an earlier build has done so, and return its outcome.

    Args:
        plan: plan of the build.
        number: number of the piece.
        work: work folder of the build.
        progress: called while structures are read, or once if an earlier build has read them.

    Raises:
        DataError: its file cannot be read further.
        StorageError: the disk is full.
    """
    piece = plan.pieces[number]
    record = read_record(piece, work)
    if record is not None and all(_is_whole(work / chunk.name, chunk) for chunk in record.chunks):
        progress(record.read)
        return record
    return convert_piece(plan, piece, work, progress)


def convert_piece(plan: BuildPlan, piece: Piece, work: Path, progress: Progress) -> Record:
    """Convert the structures of a piece, and write chunks and outcome to the work folder.

    It raises the errors of ``finish_piece``.

    Args:
        plan: plan of the build.
        piece: piece to convert.
        work: work folder of the build.
        progress: called after every structure.
    """
    graphs: list[Graph] = []
    numbers: list[int] = []
    bad: list[BadStructure] = []
    chunks: list[Chunk] = []
    read = 0

    def flush() -> None:
        if graphs:
            arrays = make_chunk(graphs, numbers, plan.card)
            name = f"piece-{piece.number:06d}-{len(chunks):06d}.npz"
            chunks.append(_write_chunk(work / name, arrays))
            graphs.clear()
            numbers.clear()

    for place, graph in read_piece(plan.card, piece):
        read += 1
        if isinstance(graph, DataError):
            bad.append(BadStructure(str(place.file), place.number, place.id, str(graph)))
        else:
            graphs.append(graph)
            numbers.append(place.number)
        progress(1)
        if len(graphs) == plan.window:
            flush()
    flush()
    record = Record(piece.stamp, read, tuple(bad), tuple(chunks))
    content = asdict(record)
    write_json(_record_path(work, piece), {"sum": _sum_file(content), "record": content})
    return record


def _record_path(work: Path, piece: Piece) -> Path:
    return work / f"piece-{piece.number:06d}.json"


def read_record(piece: Piece, work: Path) -> Record | None:
    """Read the outcome of a piece; None where it is missing or damaged, or of another stamp."""
    try:
        signed = json.loads(_record_path(work, piece).read_bytes())
        content = signed["record"]
        if signed["sum"] != _sum_file(content) or content["stamp"] != piece.stamp:
            return None
        return msgspec.convert(content, Record)
    except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError):
        return None


def make_chunk(graphs: Sequence[Graph], numbers: Sequence[int], card: CardConfig) -> Arrays:
    """Convert a window of graphs to the arrays of a chunk.

    Args:
        graphs: graphs of the window, [G].
        numbers: position of each structure in its file, counted from 0, [G].
        card: card of the data set.

    Returns:
        The arrays of a store, see ``columns.arrays_of``; splits are not assigned yet, and groups
        are numbered within the chunk. Further arrays, which only the merge reads, begin with
        ``at.``: ``number`` (the argument ``numbers``), ``published`` (number of the published
        split; -1: none) and ``id_hash``, all [G], ``degrees``, see ``degrees_of``, [N, R], and the
        names of groups and published splits.
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
        **_encode_names("group", groups),
        **_encode_names("split", Names.of(splits)),
    }


def read_chunk(file: Path, names: Sequence[str] | None = None) -> Arrays:
    """Read arrays of a chunk.

    Args:
        file: file of the chunk.
        names: arrays to read; None means all.

    Raises:
        StorageError: the file is missing or was altered since it was written.
    """
    try:
        with np.load(file, allow_pickle=False) as chunk:
            return {name: chunk[name] for name in (chunk.files if names is None else names)}
    except Exception as error:  # zipfile and numpy raise many types for a damaged file
        raise StorageError(
            f"{file}: cannot be read ({error}); start the build again, it makes the file anew."
        ) from error


def read_names(arrays: Arrays, kind: str) -> list[str]:
    """Return the names of groups or published splits of a chunk, in the order of their numbers.

    Args:
        arrays: arrays of the chunk.
        kind: ``group`` or ``split``.
    """
    return list(Names(arrays[f"at.{kind}_text"], arrays[f"at.{kind}_offset"]))


def _encode_names(kind: str, names: Names) -> Arrays:
    return {f"at.{kind}_text": names.text, f"at.{kind}_offset": names.offset}


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def _write_chunk(file: Path, arrays: Arrays) -> Chunk:
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


def _sum_file(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


_PROGRESS_EVERY = 32
"""Structures between two messages of progress from a worker."""

_PROGRESS_SECONDS = 1.0
"""Seconds after which a worker sends its progress, however few structures it has read."""


class PieceProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Message of a worker: it has read structures."""

    structures: int
    """Number of structures read since the previous message."""


class PieceDone(msgspec.Struct, frozen=True, tag="done"):
    """Message of a worker: a piece is finished, and its record written."""

    piece: int
    """Number of the piece."""
    structures: int
    """Number of structures read since the previous message."""


class PieceFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Message of a worker: a piece cannot be converted."""

    error: str
    """Name of the class in ``hydragnn_hpo.errors``."""
    sentence: str
    """Text of the error."""


class WorkerBug(msgspec.Struct, frozen=True, tag="bug"):
    """Message of a worker: an error of this program."""

    traceback: str
    """Formatted traceback."""


WorkerMessage = PieceProgress | PieceDone | PieceFailed | WorkerBug


def parse_message(line: str) -> WorkerMessage:
    """Parse one line of the output of a worker."""
    message: WorkerMessage = msgspec.convert(json.loads(line), WorkerMessage)
    return message


def main() -> None:
    """Convert pieces as a worker process.

    Its argument is the file of the plan in the work folder. Numbers of pieces come on stdin, one
    per line; a ``WorkerMessage`` per line goes to stdout as JSON.
    """
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to stderr, not between the messages
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_read_numbers, args=(numbers,), daemon=True).start()
    file = Path(sys.argv[1])
    plan = read_plan(file)
    while True:
        _send(messages, _finish_and_report(plan, numbers.get(), file.parent, messages))


def _finish_and_report(
    plan: BuildPlan, number: int, work: Path, messages: TextIO
) -> PieceDone | PieceFailed | WorkerBug:
    """Finish a piece, send its progress, and return the message of how it ended."""
    unsent = 0
    sent_at = time.monotonic()

    def progress(more: int) -> None:
        nonlocal unsent, sent_at
        unsent += more
        if unsent >= _PROGRESS_EVERY or time.monotonic() - sent_at > _PROGRESS_SECONDS:
            _send(messages, PieceProgress(unsent))
            unsent = 0
            sent_at = time.monotonic()

    try:
        finish_piece(plan, number, work, progress)
    except HydraError as error:
        return PieceFailed(type(error).__name__, str(error))
    except Exception:  # a bug: the parent shows it and ends
        return WorkerBug(traceback.format_exc())
    return PieceDone(number, unsent)


def _send(messages: TextIO, message: WorkerMessage) -> None:
    try:
        # json, because msgspec refuses the lone surrogates of file names that are not UTF-8.
        messages.write(json.dumps(msgspec.to_builtins(message)) + "\n")
        messages.flush()
    except BrokenPipeError:  # the parent is gone, and `_read_numbers` has not seen it yet
        os._exit(0)


def _read_numbers(numbers: "queue.SimpleQueue[int]") -> None:
    """Queue the numbers of pieces; end the process when the parent closes stdin."""
    for line in sys.stdin:
        numbers.put(int(line))
    os._exit(0)


if __name__ == "__main__":
    main()
