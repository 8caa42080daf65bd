"""Count sizes, elements and degrees, for cost estimates and for convs that scale by degree.

All counts are whole numbers, so that the result does not depend on how a data set is cut into
pieces.

Shapes: G graphs, N nodes, E edges, R cutoffs, V distinct values.
"""

import math
from collections.abc import Iterator

import numpy as np
from ase.data import chemical_symbols
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns, Per, arrays_of, row_kind
from hydragnn_hpo.file_records import Histogram, SizeStats, SizeSummary

SMALLEST = 3
"""Smallest cutoff in angstrom at which degrees are counted; see ``cutoffs_below``."""

LARGEST_DEGREE = 1023
"""Last bin of a histogram of degrees: nodes with this many neighbours or more."""

ELEMENTS = 128
"""Length of arrays that are indexed by atomic number."""

BINS = 20
"""Largest number of bins of a histogram of sizes, unless the widths of bins double."""

_ROUNDING = 1e-9
"""Neighbours up to this far (angstrom) beyond a cutoff count as within it, so that rounding does
not split a shell whose radius is the cutoff."""

Counts = NDArray[np.int64]

Occurrences = tuple[Counts, Counts]
"""Distinct values, ascending, and how often each occurs, both [V]."""


class SizeTally:
    """Running counts of sizes, elements and degrees over pieces of a data set.

    Pieces may be added in any order, and tallies merged: the result is the same to the last bit.
    """

    def __init__(self, cutoff: float) -> None:
        """Begin with no graphs.

        Args:
            cutoff: largest edge length in angstrom, the same in all pieces.
        """
        self.cutoff = cutoff
        self._cutoffs = cutoffs_below(cutoff)
        self._sizes = {name: _no_occurrences() for name in ("nodes", "edges", "bytes")}
        self._train = {"nodes": 0, "edges": 0}
        self._atoms, self._structures = np.zeros((2, ELEMENTS), dtype=np.int64)
        self._degrees = {
            which: [np.zeros(0, dtype=np.int64) for _ in self._cutoffs]
            for which in ("train", "all")
        }
        self._reached = [0 for _ in self._cutoffs]

    def add(self, piece: Columns, degrees: NDArray[np.int32] | None = None) -> None:
        """Add the counts of some graphs.

        Args:
            piece: graphs with all edges up to the cutoff, and with their splits.
            degrees: their degrees, [N, R]; None computes them by ``degrees_of``.
        """
        if degrees is None:
            degrees = degrees_of(piece, self.cutoff)
        train = piece.split == 0
        sizes = {"nodes": piece.num_nodes(), "edges": piece.num_edges()}
        for name, counts in sizes.items():
            self._train[name] += int(counts[train].sum())
        for name, counts in (sizes | {"bytes": bytes_per_graph(piece)}).items():
            occurrences = np.unique(counts, return_counts=True)
            self._sizes[name] = _add_occurrences(self._sizes[name], occurrences)
        self._add_elements(piece)
        in_train = np.repeat(train, sizes["nodes"])
        for place in range(len(self._cutoffs)):
            self._reached[place] += int(degrees[:, place].sum(dtype=np.int64))
            for which, column in (
                ("train", degrees[in_train, place]),
                ("all", degrees[:, place]),
            ):
                counted = np.bincount(np.minimum(column, LARGEST_DEGREE)).astype(np.int64)
                self._degrees[which][place] = _add_histograms(self._degrees[which][place], counted)

    def merge(self, other: "SizeTally") -> None:
        """Add the counts of another tally with the same cutoff."""
        assert self.cutoff == other.cutoff
        for name, occurrences in other._sizes.items():
            self._sizes[name] = _add_occurrences(self._sizes[name], occurrences)
        for name, total in other._train.items():
            self._train[name] += total
        self._atoms += other._atoms
        self._structures += other._structures
        for which, columns in other._degrees.items():
            pairs = zip(self._degrees[which], columns, strict=True)
            self._degrees[which] = [_add_histograms(*pair) for pair in pairs]
        self._reached = [sum(pair) for pair in zip(self._reached, other._reached, strict=True)]

    def result(self) -> SizeStats:
        """Return the counts in the form of ``stats.json``."""
        nodes = _summarize(self._sizes["nodes"])
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
            "edges": _summarize(self._sizes["edges"]),
            "bytes": _summarize(self._sizes["bytes"]),
            "histograms": {name: histogram(*counted) for name, counted in self._sizes.items()},
            "degree": {
                key: reached / max(nodes["total"], 1)
                for key, reached in zip(keys, self._reached, strict=True)
            },
            "degrees": {
                key: {
                    "train": self._degrees["train"][place].tolist(),
                    "all": self._degrees["all"][place].tolist(),
                }
                for place, key in enumerate(keys)
            },
            "train_nodes": self._train["nodes"],
            "train_edges": self._train["edges"],
        }

    def _add_elements(self, piece: Columns) -> None:
        self._atoms += np.bincount(piece.numbers, minlength=ELEMENTS)
        graph = np.repeat(np.arange(piece.num_graphs), piece.num_nodes())
        in_structures = np.unique(graph * ELEMENTS + piece.numbers) % ELEMENTS
        self._structures += np.bincount(in_structures, minlength=ELEMENTS)


def size_stats(columns: Columns, cutoff: float) -> SizeStats:
    """Count graphs, elements, nodes, edges, and neighbours within several cutoffs.

    Args:
        columns: graphs whose edges reach ``cutoff``.
        cutoff: in angstrom.
    """
    tally = SizeTally(cutoff)
    tally.add(columns)
    return tally.result()


def degrees_of(columns: Columns, cutoff: float) -> NDArray[np.int32]:
    """Count the neighbours of every node within each of ``cutoffs_below(cutoff)``, [N, R].

    Args:
        columns: graphs with all edges up to the cutoff.
        cutoff: angstrom.
    """
    lengths = edge_lengths(columns)
    graph = np.repeat(np.arange(columns.num_graphs), columns.num_edges())
    receiver = columns.edges[:, 1] + columns.node_offset[graph]
    nodes = len(columns.numbers)
    inner = [
        np.bincount(receiver[lengths <= r + _ROUNDING], minlength=nodes)
        for r in cutoffs_below(cutoff)[:-1]
    ]
    # Every edge counts as within the largest cutoff, even where rounding makes it longer.
    return np.stack([*inner, np.bincount(receiver, minlength=nodes)], axis=1).astype(np.int32)


def edge_lengths(columns: Columns) -> NDArray[np.float64]:
    """Return the length of every edge in angstrom, [E].

    Sums are written out, because the rounding of matrix products depends on their size, and lengths
    must be the same to the last bit however a data set is cut into pieces.
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
    """Return the bytes that each graph takes in the columns of a store, [G]."""
    row: dict[Per, int] = {"graph": 0, "node": 0, "edge": 0, "char": 0}
    for name, array in arrays_of(columns).items():
        row[row_kind(name, columns.levels)] += array.itemsize * math.prod(array.shape[1:])
    nodes = columns.num_nodes()
    edges = columns.num_edges()
    chars = np.diff(columns.ids.offset)
    total: Counts = row["graph"] + nodes * row["node"] + edges * row["edge"] + chars * row["char"]
    return total


def cutoffs_below(largest: float) -> list[float]:
    """Return the cutoffs at which degrees are counted, angstrom, ascending.

    They are the whole numbers from ``SMALLEST`` up to ``largest``, and ``largest`` itself.
    """
    return [*(float(r) for r in range(SMALLEST, math.ceil(largest))), float(largest)]


def histogram(values: Counts, counts: Counts) -> Histogram:
    """Bin whole numbers into at most ``BINS`` bins of one round width (1, 2, 5, 10, ...).

    Where the largest value is more than ``BINS`` times the median, each bin is twice as wide as
    the one before.

    Args:
        values: distinct values, ascending, [V].
        counts: how often each occurs, [V].

    Returns:
        Edges and counts of the bins, both empty where there are no values.
    """
    if not len(values):
        return {"edges": [], "counts": []}
    low = int(values[0])
    high = int(values[-1])
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


def _round_widths() -> Iterator[int]:
    return (factor * 10**power for power in range(19) for factor in (1, 2, 5))


def _no_occurrences() -> Occurrences:
    return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)


def _add_occurrences(first: Occurrences, second: Occurrences) -> Occurrences:
    """Add up how often values occur in two pieces."""
    values, place = np.unique(np.concatenate((first[0], second[0])), return_inverse=True)
    counts = np.zeros(len(values), dtype=np.int64)
    np.add.at(counts, place, np.concatenate((first[1], second[1])))
    return values, counts


def _add_histograms(first: Counts, second: Counts) -> Counts:
    """Add two histograms, which may differ in length."""
    total = np.zeros(max(len(first), len(second)), dtype=np.int64)
    total[: len(first)] += first
    total[: len(second)] += second
    return total


def _summarize(occurrences: Occurrences) -> SizeSummary:
    values, counts = occurrences
    total = int((values * counts).sum())
    return {
        "mean": total / max(int(counts.sum()), 1),
        "min": int(values[0]) if len(values) else 0,
        "max": int(values[-1]) if len(values) else 0,
        "total": total,
    }
