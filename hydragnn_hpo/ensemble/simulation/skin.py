"""A neighbour list that is kept while atoms move little: for dynamics and relaxations.

Shapes: N nodes, E edges.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.data.laplacian import encodings_of
from hydragnn_hpo.data.neighbors import edge_vectors
from hydragnn_hpo.data.structure import Place, Rules, attributes_of
from hydragnn_hpo.ensemble.structure_batches import graph_of_atoms


@dataclass(eq=False)
class SkinList:
    """Gives the graph of a structure, searching for neighbours only now and then.

    A search finds all edges up to cutoff + skin. No distance shrinks by more than twice the
    farthest that an atom has moved, so until one has moved half the skin these hold every edge
    within the cutoff, and cutting them there gives what a new search would, in the same order.
    """

    rules: Rules
    """How structures become graphs."""
    skin: float = 0.5
    """How far the kept list reaches beyond the cutoff, in angstrom; 0 searches at every move."""
    searches: int = 0
    """Searches for neighbours so far."""
    _wide: Graph | None = None

    def columns(self, atoms: Atoms) -> Columns:
        """Give the structure's graph as columns of one row.

        Raises:
            DataError: it cannot become a graph.
        """
        graph = self._moved(atoms)
        if graph is None:
            wide = replace(self.rules, cutoff=self.rules.cutoff + self.skin)
            self._wide = graph_of_atoms(atoms.copy(), 1, wide)  # type: ignore[no-untyped-call]
            self.searches += 1
            graph = self._moved(atoms)
            assert graph is not None, "a new list does not hold"
        return columns_of(
            [graph], {}, {"cutoff": self.rules.cutoff}, attributes=self.rules.attributes
        )

    def _moved(self, atoms: Atoms) -> Graph | None:
        """Give the graph by the list that is kept, or nothing where it does not hold."""
        wide = self._wide
        if wide is None or not still_holds(wide, atoms, self.skin):
            return None
        positions = np.array(atoms.positions, dtype=np.float64)
        vectors = edge_vectors(positions, wide.cell, wide.edges, wide.edge_shift)
        lengths = np.linalg.norm(vectors, axis=1)
        if lengths.min(initial=np.inf) < self.rules.min_distance:
            return None
        near = lengths <= self.rules.cutoff
        edges: NDArray[np.int32] = wide.edges[near]
        codes = self.rules.laplacian
        return replace(
            wide,
            positions=positions,
            edges=edges,
            edge_shift=wide.edge_shift[near],
            attributes=attributes_of(atoms, Place(Path("atoms"), 1, "1"), self.rules),
            laplacian=encodings_of(len(positions), edges, codes) if codes else None,
        )


def still_holds(kept: Graph, atoms: Atoms, skin: float) -> bool:
    """Tell whether a list with a skin still holds every edge: the same atoms, hardly moved."""
    if len(kept.numbers) != len(atoms) or not np.array_equal(kept.numbers, atoms.numbers):
        return False
    if not (np.array_equal(kept.cell, atoms.cell.array) and np.array_equal(kept.pbc, atoms.pbc)):
        return False
    moved = np.linalg.norm(atoms.positions - kept.positions, axis=1).max(initial=0.0)
    return bool(moved < 0.5 * skin) or bool(moved == 0.0)
