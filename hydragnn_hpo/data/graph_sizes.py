"""Sizes of the graphs of a data set: what pricing a trial and convs that scale by degree need.

Everything is counted in whole numbers, so that the result does not depend on how a data set is
cut into pieces.

Shapes: G graphs, N nodes, E edges, R cutoffs.
"""

import math
from typing import Any

import numpy as np
from ase.data import chemical_symbols
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns, Per, arrays_of, row_kind

SMALLEST = 3
"""Degrees are given from this cutoff on (angstrom), at every whole one."""

LARGEST_DEGREE = 1023
"""The last entry of a histogram of degrees holds nodes with this many neighbours and more."""

ELEMENTS = 128
"""Room for atomic numbers."""

BINS = 20
"""Most bins of a histogram of sizes, unless sizes are so skewed that bins double."""

_ROUNDING = 1e-9
"""A neighbour this little (angstrom) beyond a cutoff is within: shells at whole cutoffs."""

Counts = NDArray[np.int64]


class SizeTally:
    """Counts sizes, elements and degrees over pieces of a data set.

    Pieces may be added in any order, and tallies merged: the result is the same to the last bit.
    """

    def __init__(self, cutoff: float) -> None:
        """Start at nothing.

        Args:
            cutoff: how far the edges of all pieces reach, angstrom.
        """
        self.cutoff = cutoff
        self._cutoffs = cutoffs_below(cutoff)
        self._sizes = {name: _none() for name in ("nodes", "edges", "bytes")}
        self._train = {"nodes": 0, "edges": 0}
        self._atoms, self._structures = np.zeros((2, ELEMENTS), dtype=np.int64)
        self._degrees = {
            which: [np.zeros(0, dtype=np.int64) for _ in self._cutoffs]
            for which in ("train", "all")
        }
        self._reached = [0 for _ in self._cutoffs]

    def add(self, piece: Columns, degrees: NDArray[np.int32] | None = None) -> None:
        """Count some graphs; their splits are known.

        Args:
            piece: graphs whose edges reach the cutoff.
            degrees: what ``degrees_of`` gives for them, if it is known already, [N, R].
        """
        if degrees is None:
            degrees = degrees_of(piece, self.cutoff)
        train = piece.split == 0
        sizes = {"nodes": piece.num_nodes(), "edges": piece.num_edges()}
        for name, counts in sizes.items():
            self._train[name] += int(counts[train].sum())
        for name, counts in (sizes | {"bytes": bytes_per_graph(piece)}).items():
            self._sizes[name] = _merged(self._sizes[name], np.unique(counts, return_counts=True))
        self._add_elements(piece)
        in_train = np.repeat(train, sizes["nodes"])
        for place in range(len(self._cutoffs)):
            self._reached[place] += int(degrees[:, place].sum(dtype=np.int64))
            for which, column in (
                ("train", degrees[in_train, place]),
                ("all", degrees[:, place]),
            ):
                found = np.bincount(np.minimum(column, LARGEST_DEGREE)).astype(np.int64)
                self._degrees[which][place] = _summed(self._degrees[which][place], found)

    def merge(self, other: "SizeTally") -> None:
        """Take in what another tally has counted; the cutoffs are the same."""
        assert self.cutoff == other.cutoff
        for name, found in other._sizes.items():
            self._sizes[name] = _merged(self._sizes[name], found)
        for name, total in other._train.items():
            self._train[name] += total
        self._atoms += other._atoms
        self._structures += other._structures
        for which, columns in other._degrees.items():
            mine = self._degrees[which]
            self._degrees[which] = [_summed(*pair) for pair in zip(mine, columns, strict=True)]
        self._reached = [sum(pair) for pair in zip(self._reached, other._reached, strict=True)]

    def result(self) -> dict[str, Any]:
        """Return what was counted, as it stands in ``stats.json``.

        ``degree`` holds the mean number of neighbours per cutoff, ``degrees`` how many nodes
        have 0, 1, 2 ... neighbours, in train and in all; ``nodes``, ``edges`` and ``bytes`` are
        those of a graph, the last in the columns of a store.
        """
        nodes = _summary(self._sizes["nodes"])
        present = np.flatnonzero(self._atoms)
        keys = [str(float(r)) for r in self._cutoffs]
        return {
            "num_graphs": int(self._sizes["nodes"][1].sum()),
            "cutoff": self.cutoff,
            "elements": present.tolist(),
            "element_counts": {
                chemical_symbols[number]: {
                    "atoms": int(self._atoms[number]),
                    "structures": int(self._structures[number]),
                }
                for number in present
            },
            "nodes": nodes,
            "edges": _summary(self._sizes["edges"]),
            "bytes": _summary(self._sizes["bytes"]),
            "histograms": {name: histogram(*found) for name, found in self._sizes.items()},
            "degree": {
                key: reached / max(nodes["total"], 1)
                for key, reached in zip(keys, self._reached, strict=True)
            },
            "degrees": {
                key: {which: columns[place].tolist() for which, columns in self._degrees.items()}
                for place, key in enumerate(keys)
            },
            "train_nodes": self._train["nodes"],
            "train_edges": self._train["edges"],
        }

    def _add_elements(self, piece: Columns) -> None:
        self._atoms += np.bincount(piece.numbers, minlength=ELEMENTS)
        graph = np.repeat(np.arange(piece.num_graphs), piece.num_nodes())
        met = np.unique(graph * ELEMENTS + piece.numbers) % ELEMENTS
        self._structures += np.bincount(met, minlength=ELEMENTS)


def size_stats(columns: Columns, cutoff: float) -> dict[str, Any]:
    """Count graphs, elements, nodes, edges, and neighbours within several cutoffs.

    Args:
        columns: graphs whose edges reach ``cutoff``.
        cutoff: in angstrom.
    """
    tally = SizeTally(cutoff)
    tally.add(columns)
    return tally.result()


def degrees_of(columns: Columns, cutoff: float) -> NDArray[np.int32]:
    """Count the neighbours of every node within each of ``cutoffs_below(cutoff)``, [N, R]."""
    lengths = edge_lengths(columns)
    graph = np.repeat(np.arange(columns.num_graphs), columns.num_edges())
    receiver = columns.edges[:, 1] + columns.node_offset[graph]
    nodes = len(columns.numbers)
    inner = [
        np.bincount(receiver[lengths <= r + _ROUNDING], minlength=nodes)
        for r in cutoffs_below(cutoff)[:-1]
    ]
    # Every edge is within the largest cutoff, whatever rounding says.
    return np.stack([*inner, np.bincount(receiver, minlength=nodes)], axis=1).astype(np.int32)


def edge_lengths(columns: Columns) -> NDArray[np.float64]:
    """Return the length of every edge in angstrom, [E].

    Each is computed by itself, so that it is the same to the last bit in any piece.
    """
    graph = np.repeat(np.arange(columns.num_graphs), columns.num_edges())
    first = columns.node_offset[graph]
    squares = np.zeros(len(graph))
    for axis in range(3):
        along = columns.positions[:, axis]
        step = along[first + columns.edges[:, 1]] - along[first + columns.edges[:, 0]]
        for lattice in range(3):
            step += columns.edge_shift[:, lattice] * columns.cell[graph, lattice, axis]
        squares += step * step
    lengths: NDArray[np.float64] = np.sqrt(squares)
    return lengths


def bytes_per_graph(columns: Columns) -> Counts:
    """Return what each graph takes in the columns of a store, in bytes, [G]."""
    row: dict[Per, int] = {"graph": 0, "node": 0, "edge": 0, "char": 0}
    for name, array in arrays_of(columns).items():
        row[row_kind(name, columns.levels)] += array.itemsize * math.prod(array.shape[1:])
    nodes, edges = columns.num_nodes(), columns.num_edges()
    chars = np.diff(columns.ids.offset)
    total: Counts = row["graph"] + nodes * row["node"] + edges * row["edge"] + chars * row["char"]
    return total


def cutoffs_below(largest: float) -> list[float]:
    """Return the cutoffs that degrees are counted for: whole ones, and the largest, angstrom."""
    return [*(float(r) for r in range(SMALLEST, math.ceil(largest))), float(largest)]


def histogram(values: Counts, counts: Counts) -> dict[str, list[int]]:
    """Bin whole numbers: bin ``k`` holds what is >= ``edges[k]`` and < ``edges[k + 1]``.

    Bins have one round width (1, 2, 5, 10, ...), or double where few graphs are far larger than
    most.

    Args:
        values: ascending, each once.
        counts: how often each occurs.
    """
    if not len(values):
        return {"edges": [], "counts": []}
    low, high = int(values[0]), int(values[-1])
    middle = int(values[np.searchsorted(np.cumsum(counts), counts.sum() / 2)])
    if high > BINS * max(middle, 1):
        edges = [0, *(1 << power for power in range(high.bit_length() + 1))]
    else:
        width = next(w for w in _round_widths() if high // w - low // w < BINS)
        edges = list(range(low // width * width, high + width + 1, width))
        edges = edges[: next(k for k, edge in enumerate(edges) if edge > high) + 1]
    bins = np.searchsorted(edges, values, side="right") - 1
    binned = np.bincount(bins, weights=counts, minlength=len(edges) - 1)
    return {"edges": edges, "counts": binned.astype(np.int64).tolist()}


def _round_widths() -> Any:
    return (factor * 10**power for power in range(19) for factor in (1, 2, 5))


def _none() -> tuple[Counts, Counts]:
    return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)


def _merged(first: tuple[Counts, Counts], second: tuple[Counts, Counts]) -> tuple[Counts, Counts]:
    """Add up how often values occur."""
    values, place = np.unique(np.concatenate((first[0], second[0])), return_inverse=True)
    counts = np.zeros(len(values), dtype=np.int64)
    np.add.at(counts, place, np.concatenate((first[1], second[1])))
    return values, counts


def _summed(first: Counts, second: Counts) -> Counts:
    """Add histograms of different lengths."""
    total = np.zeros(max(len(first), len(second)), dtype=np.int64)
    total[: len(first)] += first
    total[: len(second)] += second
    return total


def _summary(found: tuple[Counts, Counts]) -> dict[str, Any]:
    values, counts = found
    total = int((values * counts).sum())
    return {
        "mean": total / max(int(counts.sum()), 1),
        "min": int(values[0]) if len(values) else 0,
        "max": int(values[-1]) if len(values) else 0,
        "total": total,
    }
