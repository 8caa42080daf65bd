"""From lots to graphs, a bounded number at a time; what is bad keeps its place and has a reason."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ase import Atoms

from hydragnn_hpo.data.columns import columns_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.ensemble.inference.batches import EDGES_PER_BATCH
from hydragnn_hpo.ensemble.inference.structures import Structures
from hydragnn_hpo.ensemble.streaming.files import Files, shown_path
from hydragnn_hpo.ensemble.streaming.lots import Lot, is_store
from hydragnn_hpo.ensemble.streaming.names import REASON, kept, line_of, name_of
from hydragnn_hpo.ensemble.streaming.parts import Piece
from hydragnn_hpo.ensemble.streaming.stores import StoreReading
from hydragnn_hpo.errors import DataError

GATHERED = 4 * EDGES_PER_BATCH
"""Edges and nodes that are held as graphs at once: the engine makes batches of its own size."""

PIECE_ATOMS = 20_000
"""Atoms of a piece, about, judged by the first structure of its lot."""

FEWEST, MOST = 16, 1000
"""Structures of a piece."""


@dataclass(frozen=True)
class _Found:
    """A structure of a file."""

    name: str
    place: Path
    number: int
    content: Atoms | DataError
    ends: bool = False
    """The file cannot be read on."""


class Reading:
    """Reads pieces, each file once if they come in order; use it in a ``with``."""

    def __init__(
        self, lots: Sequence[Lot], rules: Rules, files: Files, keep: Sequence[str] = ()
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
        self._stores: dict[int, StoreReading] = {}
        self._steps: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def batches(self, piece: Piece) -> Iterator[tuple[Structures, bool]]:
        """Give a piece's structures, and with the last of them whether its lot ends there.

        At least one batch comes; it is empty where the lot ended before.
        """
        lot = self.lots[piece.lot]
        if is_store(lot.paths[0]):
            yield from self._store(piece).batches(piece.number, MOST, GATHERED)
            return
        gather, count, ended = _Gather(self.rules, self.keep), 0, lot.whole
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
            else self._store(Piece(number, 0)).count if is_store(lot.paths[0])
            else self._files.count(lot.paths[0])
            for number, lot in enumerate(self.lots)
        ]  # fmt: skip
        return None if None in counts else sum(c for c in counts if c is not None)

    def _store(self, piece: Piece) -> StoreReading:
        if piece.lot not in self._stores:
            path = self.lots[piece.lot].paths[0]
            self._stores[piece.lot] = StoreReading(path, self.rules, self.keep)
        return self._stores[piece.lot]

    def _whole(self, lot: Lot) -> Iterator[_Found]:
        """Give all structures of small files; one that cannot be read does not stop the next."""
        for path in lot.paths:
            number = 0
            try:
                for number, (name, content) in enumerate(self._files.items(path, 0, None), 1):
                    yield _Found(name, path, number, content)
            except DataError as error:
                yield _Found(f"{path.name}:{number + 1}", path, number + 1, error)

    def _run(self, lot: Lot, piece: Piece) -> Iterator[_Found]:
        """Give the structures of one piece of a large file."""
        path = lot.paths[0]
        place = shown_path(path)
        number = 0
        try:
            step = self._step(piece.lot, path)
            number = step * piece.number
            for name, content in self._files.items(path, number, number + step):
                number += 1
                yield _Found(name, place, number, content)
        except DataError as error:
            yield _Found(f"{place.name}:{number + 1}", place, number + 1, error, ends=True)

    def _step(self, lot: int, path: Path) -> int:
        """Give the structures of a piece, as many as its first one lets expect."""
        if lot not in self._steps:
            self._steps[lot] = MOST
            _, first = self._files.first(path)
            atoms = len(first) if isinstance(first, Atoms) else 1
            self._steps[lot] = min(max(PIECE_ATOMS // max(atoms, 1), FEWEST), MOST)
        return self._steps[lot]


def stream(reading: Reading) -> Iterator[Structures]:
    """Give everything there is to read, in order, a bounded number of structures at a time."""
    for number, _ in enumerate(reading.lots):
        ended, piece = False, 0
        while not ended:
            for batch, ended in reading.batches(Piece(number, piece)):  # noqa: B007
                if batch.ids:
                    yield batch
            piece += 1


class _Gather:
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

    def add(self, found: _Found) -> None:
        """Make a structure a graph, or note why it is none."""
        content, name = found.content, line_of(found.name)
        if isinstance(content, Atoms):
            name = name_of(content, found.name)
            self._kept.append(kept(content, self._keep))
            try:
                graph = graph_of(content, Place(found.place, found.number, name), self._rules)
                self._graphs.append(graph)
                self.size += len(graph.numbers) + len(graph.edges)
            except DataError as error:
                content = error
        else:
            self._kept.append({})
        if isinstance(content, DataError):
            self._errors[len(self._ids)] = line_of(str(content), most=REASON)
        self._ids.append(name)

    def taken(self) -> Structures:
        """Give what was gathered, and begin anew."""
        rules = self._rules
        known = {"cutoff": rules.cutoff}
        columns = columns_of(self._graphs, rules.targets, known, attributes=rules.attributes)
        batch = Structures(columns, tuple(self._ids), self._errors, tuple(self._kept))
        self._clear()
        return batch
