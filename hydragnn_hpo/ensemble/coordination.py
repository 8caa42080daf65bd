"""Numbers of neighbours by element in training, and atoms that have more or fewer.

Shapes: G graphs, N nodes, E edges.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from ase.data import atomic_numbers, chemical_symbols

from hydragnn_hpo.data import Columns


@dataclass(frozen=True)
class Coordination:
    """Numbers of neighbours by element, as the training structures have them."""

    cutoff: float
    """Neighbours are within this distance, in angstrom."""
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By symbol of the element: fewest and most neighbours."""

    def outside(self, columns: Columns) -> np.ndarray:
        """Check which atoms have fewer or more neighbours than any of their element had, [N].

        Atoms of an element that was never seen are not outside: they have a flag of their own.

        Args:
            columns: graphs with all edges up to the cutoff.
        """
        lowest, highest = np.zeros(128, np.int64), np.full(128, np.iinfo(np.int64).max)
        for symbol, (low, high) in self.ranges.items():
            lowest[atomic_numbers[symbol]], highest[atomic_numbers[symbol]] = low, high
        counts = neighbor_counts(columns, self.cutoff)
        out: np.ndarray = (counts < lowest[columns.numbers]) | (counts > highest[columns.numbers])
        return out


def measure_coordination(pieces: Iterable[Columns], cutoff: float) -> Coordination:
    """Gather the ranges over the structures of a training split.

    Args:
        pieces: its graphs, some at a time, with all edges up to the cutoff.
        cutoff: neighbours are within this distance, in angstrom.
    """
    lowest, highest = np.full(128, np.iinfo(np.int64).max), np.full(128, -1)
    for columns in pieces:
        counts = neighbor_counts(columns, cutoff)
        np.minimum.at(lowest, columns.numbers, counts)
        np.maximum.at(highest, columns.numbers, counts)
    seen = np.flatnonzero(highest >= 0).tolist()
    return Coordination(
        cutoff, {chemical_symbols[z]: (int(lowest[z]), int(highest[z])) for z in seen}
    )


def neighbor_counts(columns: Columns, cutoff: float) -> np.ndarray:
    """Count each atom's neighbours, periodic images included, [N]."""
    edges_of, first = np.diff(columns.edge_offset), columns.node_offset[:-1]
    graph = np.repeat(np.arange(columns.num_graphs), edges_of)
    sender, receiver = (columns.edges + first[graph][:, None]).T
    shift = np.einsum("ek,ekx->ex", columns.edge_shift, columns.cell[graph])
    vectors = columns.positions[receiver] + shift - columns.positions[sender]
    near = np.einsum("ex,ex->e", vectors, vectors) <= cutoff**2
    counts: np.ndarray = np.bincount(receiver[near], minlength=len(columns.numbers))
    return counts
