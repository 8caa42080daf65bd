"""Turn files and stores into graphs that an ensemble can predict, a bounded number at a time.

The input is cut into chunks, in the same way on every rank. A *source* is one large file, store or
database, or a run of small files. A run of small files is one chunk. A large source is cut after a
fixed number of structures; its end is found only when it is read. Thus the source and number of a
chunk determine its structures, on any rank and at any time.

Structures come as ``ase.Atoms`` from files, or as graphs from a store. One that cannot be used
keeps its position, with a reason in place of a graph.

Shapes: G graphs.
"""

import contextlib
import hashlib
import io
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from ase import Atoms
from ase.io.formats import ioformats

from hydragnn_hpo.config import AttributeConfig, TrunkSpec
from hydragnn_hpo.config.data_config import GraphConfig
from hydragnn_hpo.data import Columns, Graph, Place, Rules, columns_of, graph_of, open_store
from hydragnn_hpo.data.readers import READERS, is_single_structure, reader_of
from hydragnn_hpo.data.readers.arrays import find_systems
from hydragnn_hpo.data.readers.database import holds_lmdb
from hydragnn_hpo.data.readers.extxyz import estimate_unread, read_stream
from hydragnn_hpo.data.readers.folder import TABLE, find_table
from hydragnn_hpo.data.readers.hydragnn_bp import is_hydragnn_bp
from hydragnn_hpo.data.readers.selection import Selection, find_selection, strip_index
from hydragnn_hpo.data.readers.source import ENCODING, Item, Reader, Source
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, pieces
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.files import refuse_repeated
from hydragnn_hpo.sanitize import escape_controls, shorten_words

STDIN = Path("-")
"""The path that means standard input."""

KeptValues = dict[str, str | int | float]
"""Values of one structure that are copied from the input to the output, by key."""

_SMALL_BYTES = 1 << 16
"""Size in bytes below which files are grouped into one source."""

_SMALL_FILES = 256
"""Maximum number of small files in a source."""

_SEEKABLE = ("extxyz", "database")
"""Readers that can start at any structure; others read a file from its beginning."""

_COUNTED_BYTES = 1 << 26
"""Maximum size in bytes of a text file whose frames are counted to show progress."""

BATCH_SIZE = 4 * EDGES_PER_BATCH
"""Approximate number of edges plus nodes held as graphs at once; engines cut them into batches."""

CHUNK_ATOMS = 20_000
"""Approximate number of atoms of a chunk, if all structures are as large as the source's first."""

MIN_STRUCTURES, MAX_STRUCTURES = 16, 1000
"""Minimum and maximum number of structures of a chunk."""

_NAME_KEYS = ("name", "id")
"""Keys of ``atoms.info`` that may hold a structure's name; the first one present counts."""

_NAME_LENGTH = 300
"""Maximum length of a name in characters."""

_REASON_LENGTH = 1000
"""Maximum length of a reason in characters; long enough to include the advice at its end."""


class ChunkId(NamedTuple):
    """The position of a chunk in the input."""

    source: int
    """Position of the source, from 0."""
    number: int
    """Position of the chunk in its source, from 0."""

    @property
    def name(self) -> str:
        """Name of the chunk's claim, ``SOURCE-NUMBER``."""
        return f"{self.source}-{self.number}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the chunk with a name; the numbers in it may have leading zeros."""
        return cls(*map(int, name.split("-")))


@dataclass(frozen=True)
class InputSource:
    """A unit of the input: one large file, store or database, or several small files."""

    paths: tuple[Path, ...]
    """Paths in the order of reading."""
    whole: bool
    """True for a run of small files, which is one chunk whatever its number of structures."""


def list_input_sources(paths: Sequence[Path]) -> list[InputSource]:
    """Divide files and folders into sources; of a folder all its files, in alphabetical order.

    Raises:
        ConfigError: a path is given twice.
        DataError: a path does not exist, or is a device or a pipe.
    """
    sources: list[InputSource] = []
    refuse_repeated(paths)
    for small, some in itertools.groupby(_files(paths), _is_small):
        if small:
            while run := tuple(itertools.islice(some, _SMALL_FILES)):
                sources.append(InputSource(run, whole=True))
        else:
            sources += [InputSource((path,), whole=False) for path in some]
    return sources


def refuse_to_replace(sources: Sequence[InputSource], ensemble: Path | None, out: Path) -> None:
    """Refuse an output that is one of the inputs, which would be lost.

    Args:
        sources: the structures.
        ensemble: file of the ensemble; None without one.
        out: file to write.

    Raises:
        ConfigError: the output is one of the inputs.
    """
    own = [] if ensemble is None else [ensemble]
    for path in (*own, *(path for source in sources for path in source.paths)):
        if path != STDIN and out.exists() and strip_index(path).samefile(out):
            raise ConfigError(f"{out}: is read from; give --out another name.")


def is_store(path: Path) -> bool:
    """Check whether a path is a graph store of this package."""
    named = path.is_dir() and (path.suffix == ".bp" or (path / "index.json").is_file())
    return named and not is_hydragnn_bp(path)


def checksum_input(sources: Sequence[InputSource]) -> str | None:
    """Return a checksum over names, sizes and times of all files; None for standard input."""
    digest = hashlib.sha256()
    for source in sources:
        for path in source.paths:
            if path == STDIN:
                return None
            if (selection := find_selection(path)) is not None:
                digest.update(f"@{selection.index}\0".encode())
            path = strip_index(path)
            entries = sorted(path.rglob("*")) if path.is_dir() else [path]
            for entry in entries:
                stat = entry.stat()
                digest.update(os.fsencode(entry.resolve()))
                digest.update(f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def shown_path(path: Path) -> Path:
    """Return the path that names and errors show for a file."""
    return Path("stdin") if path == STDIN else path


@dataclass
class _OpenFile:
    """A file that is read from its beginning."""

    path: Path
    position: int
    """Number of structures read so far."""
    items: Iterator[Item]
    """The remaining structures."""


class StructureFiles:
    """Reads ranges of structures of files by their numbers.

    One file is kept open, so that consecutive ranges read it only once.
    """

    def __init__(self, structure_column: str | None = None, stdin_format: str = "extxyz") -> None:
        """Store how to read files; nothing is opened yet.

        Args:
            structure_column: for CSV files, the column with a structure's text or file name.
            stdin_format: format of standard input: ``extxyz``, another suffix, or ASE's name.
        """
        self._column = structure_column
        self._format = stdin_format.removeprefix(".")
        self._open: _OpenFile | None = None
        self._numbers: dict[Path, tuple[Selection, range] | None] = {}
        """Structures that ``FILE@INDEX`` selects, by path; None for a whole file."""
        self._cleanup = contextlib.ExitStack()

    def close(self) -> None:
        """Close the file, and remove the copy of standard input."""
        self._open = None
        self._cleanup.close()

    def first(self, path: Path) -> Item:
        """Return the first structure of a file; a later read returns it again.

        Raises:
            DataError: the file cannot be read.
        """
        if self._selected(path) is not None or self._seekable_reader(path) is not None:
            return next(self.items(path, 0, 1))
        items = self._read_from_start(path)
        first = next(items)
        # standard input cannot be read twice: the structure is put back
        self._open = _OpenFile(path, 0, itertools.chain([first], items))
        return first

    def items(self, path: Path, start: int, stop: int | None) -> Iterator[Item]:
        """Yield structures ``start`` to ``stop`` of a file, counted from 0.

        Args:
            path: the file, FILE@INDEX, of whose selected structures these are, or ``STDIN``.
            start: number of the first structure.
            stop: number after the last structure; None for the end of the file.

        Raises:
            DataError: the rest of the file cannot be read.
        """
        if (selected := self._selected(path)) is not None:
            yield from self._items_at(*selected, start, stop)
            return
        reader = self._seekable_reader(path)
        if reader is not None:
            yield from reader.read(self._source(path), start, stop)
            return
        file = self._open
        if file is None or file.path != path or file.position > start:
            file = self._open = _OpenFile(path, 0, self._read_from_start(path))
        for item in file.items:
            file.position += 1
            if file.position > start:
                yield item
            if file.position == stop:
                return

    def locate(self, path: Path, number: int) -> tuple[Path, int]:
        """Return where a structure lies, for errors.

        Args:
            path: the file or FILE@INDEX.
            number: number among the selected structures, from 0.

        Returns:
            Its file, and its number in that file, from 0.
        """
        selected = self._selected(path)
        return (path, number) if selected is None else (selected[0].file, selected[1][number])

    def _selected(self, path: Path) -> tuple[Selection, range] | None:
        if path not in self._numbers:
            selection = find_selection(path)
            chosen = None
            if selection is not None:
                chosen = selection, selection.resolve(partial(self._length, selection))
            self._numbers[path] = chosen
        return self._numbers[path]

    def _length(self, selection: Selection) -> int:
        """Count the structures of a file, if need be by reading it."""
        known = self.count(selection.file)
        return sum(1 for _ in self.items(selection.file, 0, None)) if known is None else known

    def _items_at(
        self, selection: Selection, numbers: range, start: int, stop: int | None
    ) -> Iterator[Item]:
        """Yield some of the selected structures.

        Args:
            selection: the file.
            numbers: numbers of all selected structures.
            start: first one to yield, counted among the selected ones.
            stop: one after the last one to yield; None for the last one.

        Raises:
            DataError: all of them lie beyond the end of the file, or it cannot be read.
        """
        part = numbers[start:stop]
        if not part:
            return
        low, high = (part.start, part.stop) if part.step > 0 else (part[-1], part[0] + 1)
        items = self.items(selection.file, low, high)
        if part.step < 0:
            items = reversed(list(items))
        empty = True
        for item in itertools.islice(items, 0, None, abs(part.step)):
            empty = False
            yield item
        if empty and not start:
            raise selection.beyond_end(self._length(selection))

    def count(self, path: Path) -> int | None:
        """Count the structures of a file; None if that would take long."""
        if path == STDIN:
            return None
        if find_selection(path) is not None:
            return self._count_selected(path)
        source = self._source(path)
        reader = reader_of(source, None)
        if reader is READERS["extxyz"] and path.stat().st_size > _COUNTED_BYTES:
            return None
        try:
            return reader.count(source)
        except DataError:
            return None

    def _count_selected(self, path: Path) -> int | None:
        try:
            selected = self._selected(path)
        except DataError:  # the reader says it in the place of the structure
            return None
        assert selected is not None, "asked for FILE@INDEX only"
        numbers = selected[1]
        total = self.count(selected[0].file)
        if total is None or numbers.step < 0:  # a range that goes down begins within the file
            return total and len(numbers)
        return len(range(numbers.start, min(numbers.stop, total), numbers.step))

    def count_small(self, path: Path) -> int:
        """Count the frames of a small text file; any other file counts as one structure."""
        counts = path.suffix in (".xyz", ".extxyz")
        return (self.count(path) or 1) if counts else 1

    def holds_one(self, path: Path) -> bool:
        """Check whether a file holds at most one structure, also where it cannot be read.

        FILE@INDEX counts as one: how many structures it selects is not known before.
        """
        if find_selection(path) is not None:
            return True
        return path != STDIN and is_single_structure(self._source(path), None)

    def estimate_unread(self, path: Path, number: int) -> int | None:
        """Estimate the number of structures after those that could be read; None if unknown.

        Args:
            path: the file.
            number: number of structures that were read.
        """
        if path == STDIN or find_selection(path) is not None:
            return None
        if reader_of(self._source(path), None) is not READERS["extxyz"]:
            return None
        return estimate_unread(path, number)

    def _source(self, path: Path) -> Source:
        return Source(path, structure_column=self._column)

    def _seekable_reader(self, path: Path) -> Reader | None:
        """Return the reader of a file if it finds a structure by its number, else None."""
        if path == STDIN:
            return None
        reader = reader_of(self._source(path), None)
        return reader if reader in [READERS[name] for name in _SEEKABLE] else None

    def _read_from_start(self, path: Path) -> Iterator[Item]:
        if path != STDIN:
            source = self._source(path)
            return reader_of(source, None).read(source, 0, None)
        if self._format in ("extxyz", "xyz"):
            text = io.TextIOWrapper(sys.stdin.buffer, encoding=ENCODING)
            return read_stream(text, shown_path(path))
        folder = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory()))
        copy = folder / f"stdin.{self._format}"
        with copy.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        named = self._format if self._format in ioformats else None
        source = Source(copy, structure_column=self._column, format=named)
        return reader_of(source, None).read(source, 0, None)


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size < _SMALL_BYTES and path.suffix != ".db"


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path == STDIN:
            yield path
        elif path.is_dir() and not (is_store(path) or is_hydragnn_bp(path) or holds_lmdb(path)):
            systems = find_systems(path)
            table = find_table(path)
            shown = (e for e in path.iterdir() if e.name[0] != "." and e.name != TABLE)
            files = [] if path in systems else sorted(e for e in shown if e.is_file())
            files = [file for file in files if file != table]
            if table and not files:  # it names files of folders below
                files = [path]
            yield from (*systems, *files)
        elif path.is_dir() or path.is_file() or find_selection(path) is not None:
            yield path
        elif path.exists():
            raise DataError(
                f"{path}: is a device or a pipe; give a file, or '-' to read standard input."
            )
        else:
            raise DataError(f"{path}: no such file; correct the path.")


@dataclass(frozen=True)
class Structures:
    """Some structures of the input."""

    columns: Columns
    """The G graphs of the structures that can be predicted, in order."""
    ids: tuple[str, ...]
    """Names of all structures, also of those that cannot be predicted, in order."""
    errors: dict[int, str]
    """Reason why a structure cannot be predicted, one sentence, by position in ``ids``."""
    kept: tuple[KeptValues, ...] = ()
    """Values to copy into the output, in the order of ``ids``; empty if nothing is copied."""
    incomplete: tuple[str, ...] = ()
    """A sentence for each file that could be read only in part."""


def rules_for(
    cutoff: float,
    attributes: Mapping[str, AttributeConfig] | None = None,
    laplacian: int = 0,
    trunks: Sequence[TrunkSpec] = (),
) -> Rules:
    """Return the rules that turn structures into graphs for prediction.

    Args:
        cutoff: longest edge of the graphs, in angstrom.
        attributes: known properties that members read, by name.
        laplacian: number of Laplacian encodings that members read; 0 for none.
        trunks: the foundation models whose features members read.
    """
    return Rules(
        cutoff=cutoff,
        min_distance=GraphConfig().min_distance,
        targets={},
        attributes=attributes or {},
        laplacian=laplacian,
        trunks=tuple(trunks),
    )


def columns_of_atoms(structures: Sequence[Atoms], rules: Rules) -> Columns:
    """Turn structures into graphs, one per structure.

    Raises:
        DataError: a structure cannot become a graph.
    """
    graphs = [graph_of_atoms(atoms, number, rules) for number, atoms in enumerate(structures)]
    return columns_of(graphs, {}, {"cutoff": rules.cutoff}, attributes=rules.attributes)


def graph_of_atoms(atoms: Atoms, number: int, rules: Rules) -> Graph:
    """Turn a structure into a graph; an error names it by its formula.

    Making the formula takes longer than making the graph, so it is made only for an error.

    Args:
        atoms: the structure.
        number: number of the structure, from 0, for errors.
        rules: rules by which it becomes a graph.

    Raises:
        DataError: the structure cannot become a graph.
    """
    try:
        return graph_of(atoms, Place(Path("atoms"), number, str(number)), rules)
    except DataError:
        formula = atoms.symbols.formula.format("hill")
        return graph_of(atoms, Place(Path("atoms"), number, formula), rules)


class ChunkReader:
    """Reads chunks; consecutive chunks read each file only once. Use it in a ``with``."""

    def __init__(
        self,
        sources: Sequence[InputSource],
        rules: Rules,
        files: StructureFiles,
        keep: Sequence[str] = (),
    ) -> None:
        """Store the input; nothing is opened yet.

        Args:
            sources: sources of the input, see ``list_input_sources``.
            rules: rules by which structures become graphs.
            files: reader of the files; closed at the end of the ``with``.
            keep: keys of ``atoms.info`` to copy into the output.
        """
        self.sources = sources
        self.rules = rules
        self.keep = tuple(keep)
        self._files = files
        self._stores: dict[int, _StoreReader] = {}
        """Reader of each store, by source."""
        self._steps: dict[int, int] = {}
        """Structures per chunk, by source; set once the first structure of the source is read."""
        paths = (source.paths[0] for source in sources if not source.whole)
        self._sizes = {path: path.stat().st_size for path in paths if path.is_file()}
        """Bytes of large files when the input was opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def batches(self, chunk: ChunkId) -> Iterator[tuple[Structures, bool]]:
        """Read a chunk, batch after batch.

        Yields:
            Structures, and whether the source ends with this chunk, which is certain at the last
            batch only. There is at least one batch, empty if the source ends before the chunk.
        """
        source = self.sources[chunk.source]
        if is_store(source.paths[0]):
            yield from self._store(chunk.source).batches(chunk.number)
            return
        batch = _Batch()
        count = 0
        ended = source.whole
        for raw in self._read_all(source) if source.whole else self._read_run(source, chunk):
            count += 1
            ended = ended or raw.ends
            batch.add(raw, self.rules, self.keep)
            if batch.size >= BATCH_SIZE:
                structures, batch = batch.to_structures(self.rules), _Batch()
                yield structures, False
                del structures  # otherwise two batches are in memory while the next one is read
        # a chunk that is not full is the last one; ``_read_run`` has set the step
        yield batch.to_structures(self.rules), ended or count < self._steps[chunk.source]

    def count(self) -> int | None:
        """Count the structures of the input; None if that would take long."""
        counts = [self._count(number, source) for number, source in enumerate(self.sources)]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def _count(self, number: int, source: InputSource) -> int | None:
        if source.whole:
            return sum(map(self._files.count_small, source.paths))
        if is_store(source.paths[0]):
            return self._store(number).num_graphs
        return self._files.count(source.paths[0])

    def _store(self, source: int) -> "_StoreReader":
        if source not in self._stores:
            path = self.sources[source].paths[0]
            self._stores[source] = _StoreReader(path, self.rules, self.keep)
        return self._stores[source]

    def _read_all(self, source: InputSource) -> Iterator["_RawStructure"]:
        """Read all structures of small files; a file that cannot be read does not stop the next."""
        for path in source.paths:
            number = 0
            try:
                for name, content in self._files.items(path, 0, None):
                    yield _RawStructure(name, path, number, content)
                    number += 1
            except DataError as error:
                yield self._unread(path, number, error)

    def _read_run(self, source: InputSource, chunk: ChunkId) -> Iterator["_RawStructure"]:
        """Read the structures of one chunk of a large file."""
        path = source.paths[0]
        number = 0
        try:
            step = self._chunk_size(chunk.source, path)
            number = step * chunk.number
            end = number + step
            for name, content in self._files.items(path, number, end):
                file, index = self._files.locate(path, number)
                yield _RawStructure(name, shown_path(file), index, content)
                number += 1
            if number < end and path in self._sizes and path.stat().st_size < self._sizes[path]:
                raise DataError(f"{path}: was cut while it was read; get the file again.")
        except DataError as error:
            yield self._unread(path, number, error)

    def _unread(self, path: Path, number: int, error: DataError) -> "_RawStructure":
        """Return what stands for the rest of a file that cannot be read on.

        Args:
            path: the file.
            number: number of structures that were read.
            error: why no more are read.
        """
        place = shown_path(path)
        missing = None
        if number or not self._files.holds_one(path):
            more = self._files.estimate_unread(path, number)
            rest = "how many are missing is not known"
            if more is not None:
                rest = f"by its size about {more:,} more are missing"
            read = f"only its first {number:,} structures could be read"
            missing = f"{place}: {read}; {rest}; get the file again."
            if not number:
                missing = (
                    f"{place}: none of its structures could be read; give a file of structures."
                )
        name = place.name if find_selection(path) else f"{place.name}@{number}"
        return _RawStructure(name, place, number, error, True, missing)

    def _chunk_size(self, source: int, path: Path) -> int:
        """Return the number of structures per chunk, from the size of the source's first one."""
        if source not in self._steps:
            self._steps[source] = MAX_STRUCTURES  # kept if the first structure cannot be read
            _, first = self._files.first(path)
            atoms = len(first) if isinstance(first, Atoms) else 1
            expected = CHUNK_ATOMS // max(atoms, 1)
            self._steps[source] = min(max(expected, MIN_STRUCTURES), MAX_STRUCTURES)
        return self._steps[source]


def read_structures(reader: ChunkReader) -> Iterator[Structures]:
    """Read all of the input in order, a bounded number of structures at a time."""
    for source, _ in enumerate(reader.sources):
        ended, number = False, 0
        while not ended:
            for batch, ended in reader.batches(ChunkId(source, number)):  # noqa: B007
                if batch.ids:
                    yield batch
            number += 1


@dataclass(frozen=True)
class _RawStructure:
    """A structure of a file, not yet a graph."""

    name: str
    """Name by file and number."""
    place: Path
    """The file, for errors."""
    number: int
    """Number in the file, from 0, for errors."""
    content: Atoms | DataError
    """The structure, or the reason why it cannot be read."""
    ends: bool = False
    """True if the rest of the file cannot be read."""
    missing: str | None = None
    """What is missing of a file that was read only in part."""


class _Batch:
    """Collects structures as graphs."""

    def __init__(self) -> None:
        self.size = 0
        """Edges and nodes of the graphs."""
        self.graphs: list[Graph] = []
        self.ids: list[str] = []
        self.errors: dict[int, str] = {}
        self.kept: list[KeptValues] = []
        self.incomplete: list[str] = []

    def add(self, raw: _RawStructure, rules: Rules, keep: tuple[str, ...]) -> None:
        """Turn a structure into a graph, or record the reason why it cannot become one.

        Args:
            raw: the structure.
            rules: rules by which structures become graphs.
            keep: keys of ``atoms.info`` to copy.
        """
        content = raw.content
        name = _one_line(raw.name)
        if raw.missing is not None:
            self.incomplete.append(_one_line(raw.missing, most=_REASON_LENGTH))
        kept: KeptValues = {}
        if isinstance(content, Atoms):
            name = _structure_name(content, raw.name)
            kept = _select_info(content, keep)
            try:
                graph = graph_of(content, Place(raw.place, raw.number, name), rules)
                self.graphs.append(graph)
                self.size += len(graph.numbers) + len(graph.edges)
            except DataError as error:
                content = error
        if isinstance(content, DataError):
            self.errors[len(self.ids)] = shorten_words(_one_line(str(content), most=_REASON_LENGTH))
        self.ids.append(name)
        self.kept.append(kept)

    def to_structures(self, rules: Rules) -> Structures:
        """Return the structures that were added."""
        stats = {"cutoff": rules.cutoff}
        columns = columns_of(self.graphs, rules.targets, stats, attributes=rules.attributes)
        incomplete = tuple(self.incomplete)
        return Structures(columns, tuple(self.ids), self.errors, tuple(self.kept), incomplete)


class _StoreReader:
    """Reads ranges of a store's graphs; searches neighbours again if its cutoff is too short."""

    def __init__(self, path: Path, rules: Rules, keep: tuple[str, ...]) -> None:
        """Open the store without copying it to a faster disk, since it is read only once.

        Args:
            path: the store.
            rules: rules by which structures become graphs.
            keep: graph-level targets or attributes to copy.

        Raises:
            DataError: the store is damaged, or lacks an attribute that members read.
        """
        self._graphs = open_store(path, access="windows")
        self._path, self._rules, self._keep = path, rules, keep
        lacking = sorted(set(rules.attributes) - set(self._graphs.stats.get("attributes", {})))
        if lacking:
            raise DataError(
                f"{path}: has no attribute '{lacking[0]}', which the ensemble is told; build the "
                "store with it, or predict from the files it was built from."
            )
        cutoff = float(self._graphs.stats["cutoff"])
        self._rebuild = cutoff < rules.cutoff or (rules.laplacian > 0 and cutoff != rules.cutoff)

    @property
    def num_graphs(self) -> int:
        """Number of graphs, G."""
        return self._graphs.num_graphs

    def batches(self, number: int) -> Iterator[tuple[Structures, bool]]:
        """Read a chunk, see ``ChunkReader.batches``."""
        first, end = number * MAX_STRUCTURES, (number + 1) * MAX_STRUCTURES
        rows = np.arange(min(first, self.num_graphs), min(end, self.num_graphs))
        for some in pieces(self._graphs, rows, BATCH_SIZE):
            yield self._structures(some), False
        yield self._structures(rows[:0]), end >= self.num_graphs

    def _structures(self, rows: np.ndarray) -> Structures:
        columns = self._graphs.take(rows)
        ids = tuple(_one_line(name) for name in columns.ids)
        kept = tuple(_select_values(columns, row, self._keep) for row in range(len(rows)))
        if not self._rebuild:
            bare = replace(columns, targets={}, masks={}, levels={})
            return Structures(bare, ids, {}, kept)
        graphs: list[Graph] = []
        errors = {}
        for row, name in enumerate(ids):
            try:
                place = Place(self._path, int(rows[row]), name)
                graphs.append(self._rebuild_graph(columns, row, place))
            except DataError as error:
                errors[row] = shorten_words(_one_line(str(error), most=_REASON_LENGTH))
        stats = {**columns.stats, "cutoff": self._rules.cutoff}
        rebuilt = columns_of(graphs, {}, stats, attributes=self._rules.attributes)
        return Structures(rebuilt, ids, errors, kept)

    def _rebuild_graph(self, columns: Columns, row: int, place: Place) -> Graph:
        """Make a graph with edges up to the cutoff of the rules.

        Args:
            columns: graphs of the store.
            row: index of the graph.
            place: origin of the graph, for errors.

        Raises:
            DataError: the structure cannot become a graph.
        """
        nodes = slice(columns.node_offset[row], columns.node_offset[row + 1])
        atoms = Atoms(
            numbers=columns.numbers[nodes],
            positions=columns.positions[nodes],
            cell=columns.cell[row],
            pbc=columns.pbc[row],
        )
        graph = graph_of(atoms, place, replace(self._rules, attributes={}))
        values = {name: float(columns.attributes[name][row]) for name in self._rules.attributes}
        return replace(graph, attributes=values)


def _structure_name(atoms: Atoms, otherwise: str) -> str:
    """Return a structure's own name if it has one that is not blank, else ``otherwise``."""
    for key in _NAME_KEYS:
        own = atoms.info.get(key)
        if isinstance(own, (str, int, np.integer)) and str(own).strip():
            return _one_line(str(own))
    return _one_line(otherwise)


def _one_line(text: str, most: int = _NAME_LENGTH) -> str:
    """Return a text from a file as one line that is safe on a terminal.

    Control characters are escaped, and a longer text is cut to ``most`` characters.
    """
    line = text
    if not text.isprintable():  # most names are printable, and escaping takes longer
        line = escape_controls(text).replace("\n", r"\n").replace("\t", r"\t")
    return line if len(line) <= most else line[: most - 3] + "..."


def _select_info(atoms: Atoms, keys: tuple[str, ...]) -> KeptValues:
    """Return a structure's values of some keys of ``atoms.info``, as far as it has them.

    ASE reads some keys, such as ``energy``, as calculator results; these are included.
    """
    results = atoms.calc.results if atoms.calc is not None else {}
    values = {key: atoms.info.get(key, results.get(key)) for key in keys}
    return {key: _to_plain_value(value) for key, value in values.items() if value is not None}


def _select_values(columns: Columns, row: int, keep: tuple[str, ...]) -> KeptValues:
    """Return the attributes and graph-level targets of one graph that ``keep`` names."""
    selected: KeptValues = {}
    for key in keep:
        if key in columns.attributes:
            selected[key] = _to_plain_value(columns.attributes[key][row])
        elif columns.levels.get(key) == "graph" and columns.masks[key][row]:
            values = columns.targets[key][row]
            selected[key] = _to_plain_value(values if len(values) == 1 else values.tolist())
    return selected


def _to_plain_value(value: object) -> str | int | float:
    """Return a value as a number, or as text without control characters."""
    if isinstance(value, (np.ndarray, np.generic)) and value.size == 1:
        value = value.item()
    return value if isinstance(value, (int, float)) else _one_line(str(value), most=10_000)
