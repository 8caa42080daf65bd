"""Find duplicate structures: by composition, and by signatures that are invariant numbers.

A signature stays as it is when a structure is turned, moved, renumbered or repeated. Every
atom has its distances to the 1st, 2nd, 3rd ... nearest atom of each element, the cutoff standing
for those beyond it. Over the atoms of one element and a band of ranks, their quantiles and their
mean are taken. Moving every atom by less than ``d`` changes no number by more than
``2 d``, and a supercell has the same numbers as its cell. Such numbers tell almost all structures
of one composition apart, but mirror images are one structure to them, and so are different
orderings on one ideal lattice that agree in all pair distances.

Source: average minimum distances, Widdowson, Mosca, Pulido, Cooper, Kurlin (2022), MATCH
Commun. Math. Comput. Chem. 87, 529; here per pair of elements, and with
quantiles: averages of shaken copies of one crystal hardly differ.

Shapes: G graphs, N nodes, E edges, D numbers of a structure.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist

from hydragnn_hpo.config import SPLITS
from hydragnn_hpo.data.columns import Columns, offsets
from hydragnn_hpo.data.graph_sizes import ELEMENTS, edge_lengths

BANDS = np.array([0, 1, 4, 12, 20, 64])
"""First rank (counted from 0) of each band of neighbours, and the end. The fourth shell of fcc
and hcp metals, where they differ, lies within."""

QUANTILES = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
"""Powers of one half: their places in a supercell are found without rounding."""

WIDTH = (len(BANDS) - 1) * (len(QUANTILES) + 1)
"""Numbers for each ordered pair of elements."""

_ODD = np.uint64(0x9E3779B97F4A7C15)


def composition_keys(
    numbers: NDArray[np.int16], num_nodes: NDArray[np.int32], *, reduced: bool = True
) -> NDArray[np.uint64]:
    """Return a number per graph that is equal where the compositions are equal, [G].

    Args:
        numbers: atomic numbers, [N].
        num_nodes: of each graph, [G].
        reduced: divide by the greatest common divisor, as supercells ask for.
    """
    graph = np.repeat(np.arange(len(num_nodes)), num_nodes)
    met, counts = np.unique(graph * ELEMENTS + numbers, return_counts=True)
    owner = met // ELEMENTS
    if reduced:
        first = np.searchsorted(owner, np.arange(len(num_nodes)))
        counts = counts // np.gcd.reduceat(counts, first)[owner]
    mixed = _scatter_bits(
        (met % ELEMENTS).astype(np.uint64) + np.uint64(ELEMENTS) * _to_unsigned(counts)
    )
    keys = np.zeros(len(num_nodes), dtype=np.uint64)
    np.add.at(keys, owner, mixed)
    return keys


def add_attribute_keys(
    keys: NDArray[np.uint64], attributes: dict[str, NDArray[np.float64]]
) -> NDArray[np.uint64]:
    """Add known properties to keys: structures of different charge or spin differ, [G]."""
    for place, value in enumerate(attributes.values(), start=1):
        bits = np.ascontiguousarray(value + 0.0).view(np.uint64)
        keys = keys + _scatter_bits(_scatter_bits(bits) + np.uint64(place))
    return keys


def compute_signatures(
    columns: Columns, cutoff: float
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the numbers of each graph end to end, and how many each has.

    A graph with ``n`` elements has ``n * n * WIDTH`` numbers in angstrom, so that those of
    graphs of one reduced composition can be compared.

    Args:
        columns: graphs whose edges reach the cutoff.
        cutoff: in angstrom.
    """
    count, graphs = ELEMENTS, np.arange(columns.num_graphs)
    owner = np.repeat(graphs, columns.num_nodes())
    met, kind, atoms = np.unique(
        owner * count + columns.numbers, return_inverse=True, return_counts=True
    )
    first = np.searchsorted(met, np.append(graphs, columns.num_graphs) * count)
    kinds = np.diff(first)
    pairs = offsets(kinds * kinds)
    place, lengths = _sort_nearest_edges(columns, kind - first[owner], pairs, cutoff)
    bands = len(BANDS) - 1
    counts = np.bincount(place, minlength=int(pairs[-1]) * bands)
    # As many as there would be without a cutoff: receiving atoms times ranks of the band.
    full = np.repeat(atoms, np.repeat(kinds, kinds))[:, None] * np.diff(BANDS)
    wanted = np.maximum(np.ceil(full.reshape(-1, 1) * QUANTILES).astype(np.int64) - 1, 0)
    there = wanted < counts[:, None]
    begin = (np.cumsum(counts) - counts)[:, None]
    quantiles = np.full(wanted.shape, cutoff)
    quantiles[there] = lengths[(begin + wanted)[there]]
    missing = np.bincount(place, weights=cutoff - lengths, minlength=len(counts))
    means = cutoff - missing / full.reshape(-1)
    numbers = np.concatenate((quantiles, means[:, None]), axis=1)
    return numbers.astype(np.float32).reshape(-1), kinds * kinds * WIDTH


def _sort_nearest_edges(
    columns: Columns, kind: NDArray[np.int64], pairs: NDArray[np.int64], cutoff: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the edges near enough to count, sorted: pair of elements and band, and length.

    Args:
        columns: graphs.
        kind: place of each node's element among those of its graph, [N].
        pairs: first pair of elements of each graph, and the end, [G + 1].
        cutoff: in angstrom.
    """
    graph = np.repeat(np.arange(columns.num_graphs), columns.num_edges())
    ends = columns.edges + columns.node_offset[graph, None]
    lengths = np.minimum(edge_lengths(columns), cutoff)
    group = ends[:, 1].astype(np.int64) * ELEMENTS + kind[ends[:, 0]]
    order = np.lexsort((lengths, group))
    group = group[order]
    start = np.flatnonzero(np.diff(group, prepend=-1))
    rank = np.arange(len(group)) - np.repeat(start, np.diff(np.append(start, len(group))))
    near = rank < BANDS[-1]
    order, rank = order[near], rank[near]
    width = np.sqrt(np.diff(pairs)).round().astype(np.int64)[graph[order]]
    slot = pairs[graph[order]] + kind[ends[order, 1]] * width + kind[ends[order, 0]]
    place = slot * (len(BANDS) - 1) + np.searchsorted(BANDS, rank, side="right") - 1
    lengths = lengths[order]
    again = np.lexsort((lengths, place))
    return place[again], lengths[again]


def _to_unsigned(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    return values.astype(np.uint64)


def _scatter_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter numbers over 64 bits.

    Source: splitmix64, Steele, Lea, Flood (2014), OOPSLA.
    """
    mixed = values + _ODD
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


EXACT = 1e-4
"""Signatures this near (angstrom) differ by the rounding of text files only."""

FEW = 400
"""Up to this many structures of one composition are compared each with each."""

CHUNK = 2048
"""More are looked up in a tree, so many at a time."""

TRAIN = SPLITS.index("train")


@dataclass(frozen=True, eq=False)
class Twins:
    """Structures that are the same within the tolerance, each with the next."""

    rows: NDArray[np.int64]
    """Ascending, two or more."""

    distance: NDArray[np.float64]
    """Largest difference between each one's numbers and those of the first, angstrom."""


@dataclass(frozen=True, eq=False)
class Signatures:
    """The signatures of some graphs, end to end."""

    rows: NDArray[np.int64]
    """The graphs, ascending."""

    keys: NDArray[np.uint64]
    """Composition and attributes of each; only those of one key are compared."""

    values: NDArray[np.float32]
    """All numbers."""

    offset: NDArray[np.int64]
    """First number of each graph, and the end."""

    def of(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the numbers of some graphs of one key, [len(places), D]."""
        width = int(self.offset[places[0] + 1] - self.offset[places[0]])
        found: NDArray[np.float32] = self.values[self.offset[places][:, None] + np.arange(width)]
        return found


def find_repeated(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the rows whose key another row has, too, ascending."""
    _, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.flatnonzero(counts[place] > 1)


def find_twins(signatures: Signatures, tolerance: float) -> list[Twins]:
    """Find the structures that are the same, in the order of their first rows.

    Args:
        signatures: of all graphs that might be.
        tolerance: largest difference in angstrom.
    """
    found = []
    for places in _group_equal_keys(signatures.keys):
        points = signatures.of(places)
        for members in _cluster_points(points, tolerance):
            distance = np.abs(points[members] - points[members[0]]).max(axis=1)
            found.append(Twins(signatures.rows[places[members]], distance.astype(np.float64)))
    return sorted(found, key=lambda twins: int(twins.rows[0]))


def find_train_twins(
    signatures: Signatures, twins: Twins, split: NDArray[np.int8], tolerance: float
) -> Iterator[tuple[int, int, float]]:
    """Return each twin outside of train that has a twin in train: row, row in train, distance."""
    in_train = split[twins.rows] == TRAIN
    if in_train.all() or not in_train.any():
        return
    inside, outside = twins.rows[in_train], twins.rows[~in_train]
    tree = cKDTree(signatures.of(np.searchsorted(signatures.rows, inside)))
    points = signatures.of(np.searchsorted(signatures.rows, outside))
    distances, nearest = tree.query(points, p=np.inf)
    for row, place, distance in zip(outside, nearest, distances, strict=True):
        if distance <= tolerance and split[row] >= 0:
            yield int(row), int(inside[place]), float(distance)


def _group_equal_keys(keys: NDArray[np.uint64]) -> list[NDArray[np.int64]]:
    """Return the places of each key that stands twice or more."""
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    return [places for places in np.split(order, cuts) if len(places) > 1]


def _cluster_points(points: NDArray[np.float32], tolerance: float) -> list[NDArray[np.int64]]:
    """Return the members of each set of points linked by steps within the tolerance, [n, D] in."""
    if len(points) <= FEW:
        first, second = np.triu_indices(len(points), 1)
        near = pdist(points, "chebyshev") <= tolerance
        labels = _label_components(first[near], second[near], len(points))
    else:
        labels = _label_many_points(points, tolerance)
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    return [members for members in np.split(order, cuts) if len(members) > 1]


def _label_many_points(points: NDArray[np.float32], tolerance: float) -> NDArray[np.int64]:
    """Label points without holding all pairs; exact copies count once, or pairs would explode."""
    cells = np.round(points / min(EXACT, tolerance / 4))
    _, chosen, copy_of = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    kept = points[chosen].astype(np.float64)
    tree, labels = cKDTree(kept), np.arange(len(kept))
    for begin in range(0, len(kept), CHUNK):
        part = cKDTree(kept[begin : begin + CHUNK])
        near = part.sparse_distance_matrix(tree, tolerance, p=np.inf, output_type="ndarray")
        labels = _label_components(labels[near["i"] + begin], labels[near["j"]], len(kept))[labels]
    found: NDArray[np.int64] = labels[copy_of.reshape(-1)]
    return found


def _label_components(
    first: NDArray[np.int64], second: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Label points so that linked ones have equal labels."""
    links = coo_array((np.ones(len(first), dtype=bool), (first, second)), shape=(count, count))
    return np.asarray(connected_components(links, directed=False)[1], dtype=np.int64)
