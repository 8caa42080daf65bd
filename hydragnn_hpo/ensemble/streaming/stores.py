"""Graphs of a store, a bounded number at a time.

Shapes: G graphs.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.data.open_store import open_store
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.ensemble.inference.batches import pieces
from hydragnn_hpo.ensemble.inference.structures import Structures
from hydragnn_hpo.ensemble.streaming.names import REASON, line_of, plain
from hydragnn_hpo.errors import DataError


class StoreReading:
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
        ids = tuple(line_of(name) for name in columns.ids)
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
                errors[row] = line_of(str(error), most=REASON)
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
            found[key] = plain(columns.attributes[key][row])
        elif columns.levels.get(key) == "graph" and columns.masks[key][row]:
            values = columns.targets[key][row]
            found[key] = plain(values if len(values) == 1 else values.tolist())
    return found
