"""Structures to be predicted, good ones and bad ones; ``streaming`` reads them from files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from ase import Atoms

from hydragnn_hpo.config.data import AttributeConfig, GraphConfig
from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.data.store.staging import open_store
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, pieces
from hydragnn_hpo.ensemble.input_chunks import InputSource, StructureFiles, is_store, shown_path
from hydragnn_hpo.ensemble.output_parts import ChunkId
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.text import shown


@dataclass(frozen=True)
class Structures:
    """What was read from files."""

    columns: Columns
    """Graphs of the structures that can be predicted, in order."""
    ids: tuple[str, ...]
    """Names of all structures, also of those that cannot, in order."""
    errors: dict[int, str]
    """By position in ``ids``: why a structure cannot be predicted, one sentence."""
    kept: tuple[dict[str, Any], ...] = ()
    """What else of each was asked for, by key, in the order of ``ids``; or nothing at all."""


def rules_for(
    cutoff: float, attributes: Mapping[str, AttributeConfig] | None = None, laplacian: int = 0
) -> Rules:
    """Say how structures become graphs for prediction.

    Args:
        cutoff: longest edge of the graphs, in angstrom.
        attributes: known properties that members are told, by name.
        laplacian: Laplacian encodings that members read.
    """
    return Rules(
        cutoff=cutoff,
        min_distance=GraphConfig().min_distance,
        targets={},
        attributes=attributes or {},
        laplacian=laplacian,
    )


def columns_of_atoms(structures: Sequence[Atoms], rules: Rules) -> Columns:
    """Turn structures into columns, a row each.

    Raises:
        DataError: one of them cannot become a graph.
    """
    graphs = [
        graph_of_atoms(atoms, number, rules) for number, atoms in enumerate(structures, start=1)
    ]
    return columns_of(graphs, {}, {"cutoff": rules.cutoff}, attributes=rules.attributes)


def graph_of_atoms(atoms: Atoms, number: int, rules: Rules) -> Graph:
    """Give a structure's graph; its formula, slower than the graph, is for an error alone.

    Raises:
        DataError: it cannot become a graph.
    """
    try:
        return graph_of(atoms, Place(Path("atoms"), number, str(number)), rules)
    except DataError:
        formula = atoms.symbols.formula.format("hill")
        return graph_of(atoms, Place(Path("atoms"), number, formula), rules)


OWN = ("name", "id")
"""Keys of ``atoms.info`` under which a structure may bring its own name."""

_MOST = 300
"""Letters of a name that are shown."""

REASON = 1000
"""Letters of a sentence that are shown: it ends with what to do."""


def structure_name(atoms: Atoms, otherwise: str) -> str:
    """Give a structure's own name, if it has one that is more than blanks.

    Args:
        atoms: the structure.
        otherwise: file and number.
    """
    for key in OWN:
        own = atoms.info.get(key)
        if isinstance(own, (str, int, np.integer)) and str(own).strip():
            return to_one_line(str(own))
    return to_one_line(otherwise)


def to_one_line(text: str, most: int = _MOST) -> str:
    """Give a text from a file as one line that a terminal can take.

    Args:
        text: whatever a file holds.
        most: letters; what is longer ends in three dots.
    """
    line = shown(text).replace("\n", r"\n").replace("\t", r"\t")
    return line if len(line) <= most else line[: most - 3] + "..."


def select_info(atoms: Atoms, keys: tuple[str, ...]) -> dict[str, Any]:
    """Give the values of some keys as text and numbers; those it does not have are left out.

    Args:
        atoms: the structure; what ASE takes for results of a calculator counts, too.
        keys: of ``atoms.info``.
    """
    results = atoms.calc.results if atoms.calc is not None else {}
    found = {key: atoms.info.get(key, results.get(key)) for key in keys}
    return {key: to_plain_value(value) for key, value in found.items() if value is not None}


def to_plain_value(value: Any) -> str | int | float:
    """Give a value as a number or as text that can be shown."""
    if hasattr(value, "item") and getattr(value, "size", 0) == 1:
        value = value.item()
    return value if isinstance(value, (int, float)) else to_one_line(str(value), most=10_000)


class StoreReader:
    """Reads runs of a store's graphs; their edges are made anew where they are too short."""

    def __init__(self, path: Path, rules: Rules, keep: tuple[str, ...]) -> None:
        """Open the store; nothing is copied.

        Args:
            path: the store.
            rules: what graphs must hold.
            keep: graph-level targets or attributes that are taken along.

        Raises:
            DataError: it is damaged, or lacks an attribute that members are told.
        """
        self._graphs = open_store(path, access="windows")
        self._path, self._rules, self._keep = path, rules, keep
        known = self._graphs.stats.get("attributes", {})
        lacking = sorted(set(rules.attributes) - set(known))
        if lacking:
            raise DataError(
                f"{path}: has no attribute '{lacking[0]}', which the ensemble is told; build the "
                "store with it, or predict from the files it was built from."
            )
        cutoff = float(self._graphs.stats["cutoff"])
        self._anew = cutoff < rules.cutoff or (rules.laplacian > 0 and cutoff != rules.cutoff)

    @property
    def count(self) -> int:
        """Number of graphs, G."""
        return self._graphs.num_graphs

    def batches(self, number: int, step: int, limit: int) -> Iterator[tuple[Structures, bool]]:
        """Give ``step`` graphs from ``number * step`` on, and with the last whether all is read.

        Args:
            number: of the piece, from 0.
            step: graphs of a piece.
            limit: edges and nodes that are held at once.
        """
        rows = np.arange(min(number * step, self.count), min((number + 1) * step, self.count))
        ended = (number + 1) * step >= self.count
        for some in pieces(self._graphs, rows, limit):
            yield self._structures(some), False
        yield self._structures(rows[:0]), ended

    def _structures(self, rows: np.ndarray) -> Structures:
        columns = self._graphs.take(rows)
        ids = tuple(to_one_line(name) for name in columns.ids)
        kept = tuple(_kept(columns, row, self._keep) for row in range(len(rows)))
        if not self._anew:
            bare = replace(columns, targets={}, masks={}, levels={})
            return Structures(bare, ids, {}, kept)
        graphs: list[Graph] = []
        errors = {}
        for row, name in enumerate(ids):
            try:
                graphs.append(self._made(columns, row, Place(self._path, int(rows[row]) + 1, name)))
            except DataError as error:
                errors[row] = to_one_line(str(error), most=REASON)
        stats = {**columns.stats, "cutoff": self._rules.cutoff}
        anew = columns_of(graphs, {}, stats, attributes=self._rules.attributes)
        return Structures(anew, ids, errors, kept)

    def _made(self, columns: Columns, row: int, place: Place) -> Graph:
        """Make a graph with edges as long as they must be."""
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


def _kept(columns: Columns, row: int, keep: tuple[str, ...]) -> dict[str, Any]:
    """Give graph-level numbers of a structure by their names."""
    found: dict[str, Any] = {}
    for key in keep:
        if key in columns.attributes:
            found[key] = to_plain_value(columns.attributes[key][row])
        elif columns.levels.get(key) == "graph" and columns.masks[key][row]:
            values = columns.targets[key][row]
            found[key] = to_plain_value(values if len(values) == 1 else values.tolist())
    return found


GATHERED = 4 * EDGES_PER_BATCH
"""Edges and nodes that are held as graphs at once: the engine makes batches of its own size."""

PIECE_ATOMS = 20_000
"""Atoms of a piece, about, judged by the first structure of its lot."""

FEWEST, MOST = 16, 1000
"""Structures of a piece."""


@dataclass(frozen=True)
class _RawStructure:
    """A structure of a file."""

    name: str
    place: Path
    number: int
    content: Atoms | DataError
    ends: bool = False
    """The file cannot be read on."""


class ChunkReader:
    """Reads pieces, each file once if they come in order; use it in a ``with``."""

    def __init__(
        self,
        lots: Sequence[InputSource],
        rules: Rules,
        files: StructureFiles,
        keep: Sequence[str] = (),
    ) -> None:
        """Take the input.

        Args:
            lots: see ``lots_of``.
            rules: how structures become graphs.
            files: opens them.
            keep: keys of ``atoms.info`` that are taken along.
        """
        self.lots, self.rules, self.keep = lots, rules, tuple(keep)
        self._files = files
        self._stores: dict[int, StoreReader] = {}
        self._steps: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def batches(self, piece: ChunkId) -> Iterator[tuple[Structures, bool]]:
        """Give a piece's structures, and with the last of them whether its lot ends there.

        At least one batch comes; it is empty where the lot ended before.
        """
        lot = self.lots[piece.lot]
        if is_store(lot.paths[0]):
            yield from self._store(piece).batches(piece.number, MOST, GATHERED)
            return
        gather, count, ended = _BatchBuilder(self.rules, self.keep), 0, lot.whole
        for found in self._whole(lot) if lot.whole else self._run(lot, piece):
            count += 1
            ended = ended or found.ends
            gather.add(found)
            if gather.size >= GATHERED:
                yield gather.taken(), False
        yield gather.taken(), ended or count < self._steps[piece.lot]

    def count(self) -> int | None:
        """Count the structures where that is cheap."""
        counts = [
            sum(map(self._files.count_small, lot.paths)) if lot.whole
            else self._store(ChunkId(number, 0)).count if is_store(lot.paths[0])
            else self._files.count(lot.paths[0])
            for number, lot in enumerate(self.lots)
        ]  # fmt: skip
        return None if None in counts else sum(c for c in counts if c is not None)

    def _store(self, piece: ChunkId) -> StoreReader:
        if piece.lot not in self._stores:
            path = self.lots[piece.lot].paths[0]
            self._stores[piece.lot] = StoreReader(path, self.rules, self.keep)
        return self._stores[piece.lot]

    def _whole(self, lot: InputSource) -> Iterator[_RawStructure]:
        """Give all structures of small files; one that cannot be read does not stop the next."""
        for path in lot.paths:
            number = 0
            try:
                for number, (name, content) in enumerate(self._files.items(path, 0, None), 1):
                    yield _RawStructure(name, path, number, content)
            except DataError as error:
                yield _RawStructure(f"{path.name}:{number + 1}", path, number + 1, error)

    def _run(self, lot: InputSource, piece: ChunkId) -> Iterator[_RawStructure]:
        """Give the structures of one piece of a large file."""
        path = lot.paths[0]
        place = shown_path(path)
        number = 0
        try:
            step = self._step(piece.lot, path)
            number = step * piece.number
            for name, content in self._files.items(path, number, number + step):
                number += 1
                yield _RawStructure(name, place, number, content)
        except DataError as error:
            yield _RawStructure(f"{place.name}:{number + 1}", place, number + 1, error, ends=True)

    def _step(self, lot: int, path: Path) -> int:
        """Give the structures of a piece, as many as its first one lets expect."""
        if lot not in self._steps:
            self._steps[lot] = MOST
            _, first = self._files.first(path)
            atoms = len(first) if isinstance(first, Atoms) else 1
            self._steps[lot] = min(max(PIECE_ATOMS // max(atoms, 1), FEWEST), MOST)
        return self._steps[lot]


def read_structures(reading: ChunkReader) -> Iterator[Structures]:
    """Give everything there is to read, in order, a bounded number of structures at a time."""
    for number, _ in enumerate(reading.lots):
        ended, piece = False, 0
        while not ended:
            for batch, ended in reading.batches(ChunkId(number, piece)):  # noqa: B007
                if batch.ids:
                    yield batch
            piece += 1


class _BatchBuilder:
    """Structures on their way to a batch."""

    def __init__(self, rules: Rules, keep: tuple[str, ...]) -> None:
        self._rules, self._keep = rules, keep
        self._clear()

    def _clear(self) -> None:
        self.size = 0
        self._graphs: list[Graph] = []
        self._ids: list[str] = []
        self._errors: dict[int, str] = {}
        self._kept: list[dict[str, Any]] = []

    def add(self, found: _RawStructure) -> None:
        """Make a structure a graph, or note why it is none."""
        content, name = found.content, to_one_line(found.name)
        if isinstance(content, Atoms):
            name = structure_name(content, found.name)
            self._kept.append(select_info(content, self._keep))
            try:
                graph = graph_of(content, Place(found.place, found.number, name), self._rules)
                self._graphs.append(graph)
                self.size += len(graph.numbers) + len(graph.edges)
            except DataError as error:
                content = error
        else:
            self._kept.append({})
        if isinstance(content, DataError):
            self._errors[len(self._ids)] = to_one_line(str(content), most=REASON)
        self._ids.append(name)

    def taken(self) -> Structures:
        """Give what was gathered, and begin anew."""
        rules = self._rules
        known = {"cutoff": rules.cutoff}
        columns = columns_of(self._graphs, rules.targets, known, attributes=rules.attributes)
        batch = Structures(columns, tuple(self._ids), self._errors, tuple(self._kept))
        self._clear()
        return batch
