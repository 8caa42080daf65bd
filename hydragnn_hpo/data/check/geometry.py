"""Atoms too near to each other, and atoms without a neighbour.

Shapes: G graphs, N nodes, E edges.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from ase.data import chemical_symbols, covalent_radii
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.statistics import edge_lengths

CLOSE = 0.6
"""Nearer than this share of the sum of covalent radii is suspicious. The shortest bond of the
G2 molecules stands at 0.8 or above; radii from Cordero et al. (2008), Dalton Trans. 2832."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """What one window shows."""

    shortest: NDArray[np.float64]
    """Shortest edge of each graph in angstrom, [G]; infinite where there is none."""

    isolated: NDArray[np.int64]
    """Atoms without an edge in each graph, [G]."""

    close: list[dict[str, Any]]
    """Graphs with atoms too near: ``row``, ``atoms`` (from 1), ``elements``, ``distance``,
    ``ratio`` to the sum of covalent radii."""


def geometry_of(columns: Columns, first: int) -> Geometry:
    """Look at the edges of some graphs.

    Args:
        columns: one window.
        first: row of its first graph in the store.
    """
    graph = np.repeat(np.arange(columns.num_graphs), columns.num_edges())
    ends = columns.edges + columns.node_offset[graph, None]
    lengths = edge_lengths(columns)
    radii = covalent_radii[columns.numbers]
    ratio = lengths / radii[ends].sum(axis=1)
    shortest = np.full(columns.num_graphs, np.inf)
    np.minimum.at(shortest, graph, lengths)
    degree = np.bincount(ends[:, 1], minlength=len(columns.numbers))
    lone = np.concatenate(([0], np.cumsum(degree == 0)))
    isolated = lone[columns.node_offset[1:]] - lone[columns.node_offset[:-1]]
    near = np.flatnonzero(ratio < CLOSE)
    near = near[np.lexsort((ratio[near], graph[near]))]
    _, tightest = np.unique(graph[near], return_index=True)
    close = [_close(columns, first, e, lengths[e], ratio[e]) for e in near[tightest].tolist()]
    return Geometry(shortest, isolated.astype(np.int64), close)


def _close(
    columns: Columns, first: int, edge: int, distance: float, ratio: float
) -> dict[str, Any]:
    graph = int(np.searchsorted(columns.edge_offset, edge, side="right")) - 1
    atoms = sorted(columns.edges[edge].tolist())
    numbers = columns.numbers[columns.node_offset[graph] + np.array(atoms)]
    return {
        "row": first + graph,
        "atoms": [atom + 1 for atom in atoms],
        "elements": [chemical_symbols[number] for number in numbers],
        "distance": float(distance),
        "ratio": float(ratio),
    }
