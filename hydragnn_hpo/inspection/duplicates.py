"""Find duplicate structures: by composition, and by signatures that are invariant numbers.

A signature does not change when a structure is rotated, shifted, renumbered or repeated. Every
atom has distances to its 1st, 2nd, 3rd ... nearest neighbour of each element; a distance beyond the
cutoff counts as the cutoff. For each pair of elements and each band of ranks (1st; 2nd to 4th; ...)
the signature holds quantiles and mean of these distances over the atoms of one element.

Moving every atom by less than ``d`` changes no number by more than ``2 d``, and a supercell has the
numbers of its cell. Almost all structures of one composition differ in their signatures. Mirror
images do not, nor do different orderings on one ideal lattice with the same pair distances.

Source: average minimum distances, Widdowson, Mosca, Pulido, Cooper, Kurlin (2022), MATCH
Commun. Math. Comput. Chem. 87, 529; here per pair of elements, and with quantiles as well,
because averages alone differ little between perturbed copies of one crystal.

Shapes: G graphs, N nodes, E edges, D numbers of a signature.
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
from hydragnn_hpo.data import Columns, offsets
from hydragnn_hpo.data.graph_sizes import ELEMENTS, edge_lengths

BANDS = np.array([0, 1, 4, 12, 20, 64])
"""First rank (counted from 0) of each band of neighbours, and the end. Ranks up to 64 include the
fourth shell, in which fcc and hcp metals differ."""

QUANTILES = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
"""Quantiles of distances: multiples of a power of one half, so that their ranks are exact."""

WIDTH = (len(BANDS) - 1) * (len(QUANTILES) + 1)
"""Numbers of a signature for each ordered pair of elements."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Increment of splitmix64, see ``_scatter_bits``."""


def composition_keys(
    numbers: NDArray[np.int16], num_nodes: NDArray[np.int32], *, reduced: bool = True
) -> NDArray[np.uint64]:
    """Return a hash of the composition of each graph, [G].

    Args:
        numbers: atomic numbers, [N].
        num_nodes: nodes of each graph, [G].
        reduced: divide counts by their greatest common divisor, so that a supercell has the key of
            its cell.
    """
    graph = np.repeat(np.arange(len(num_nodes)), num_nodes)
    pairs, counts = np.unique(graph * ELEMENTS + numbers, return_counts=True)
    owner = pairs // ELEMENTS
    if reduced:
        first = np.searchsorted(owner, np.arange(len(num_nodes)))
        counts = counts // np.gcd.reduceat(counts, first)[owner]
    mixed = _scatter_bits(
        (pairs % ELEMENTS).astype(np.uint64) + np.uint64(ELEMENTS) * counts.astype(np.uint64)
    )
    keys = np.zeros(len(num_nodes), dtype=np.uint64)
    np.add.at(keys, owner, mixed)
    return keys


def add_attribute_keys(
    keys: NDArray[np.uint64], attributes: dict[str, NDArray[np.float64]]
) -> NDArray[np.uint64]:
    """Return keys that also depend on attributes, so that structures of other charge differ, [G].

    Args:
        keys: hash of each composition, [G].
        attributes: values by attribute, each [G].
    """
    for place, value in enumerate(attributes.values(), start=1):
        bits = np.ascontiguousarray(value + 0.0).view(np.uint64)
        keys = keys + _scatter_bits(_scatter_bits(bits) + np.uint64(place))
    return keys


def compute_signatures(
    columns: Columns, cutoff: float
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Compute the signature of each graph.

    Args:
        columns: graphs with all edges up to the cutoff.
        cutoff: angstrom.

    Returns:
        The numbers of all signatures, concatenated, in angstrom, and their count per graph, [G]:
        ``n * n * WIDTH`` for ``n`` elements, equal for all graphs of one reduced composition.
    """
    graphs = np.arange(columns.num_graphs)
    owner = np.repeat(graphs, columns.num_nodes())
    # One entry per graph and element: ``kind`` is that of each node, ``atoms`` counts its nodes.
    entries, kind, atoms = np.unique(
        owner * ELEMENTS + columns.numbers, return_inverse=True, return_counts=True
    )
    first = np.searchsorted(entries, np.append(graphs, columns.num_graphs) * ELEMENTS)
    kinds = np.diff(first)
    pairs = offsets(kinds * kinds)
    place, lengths = _sort_nearest_edges(columns, kind - first[owner], pairs, cutoff)
    bands = len(BANDS) - 1
    counts = np.bincount(place, minlength=int(pairs[-1]) * bands)
    # Distances of each pair and band: receiving atoms times ranks. Those beyond the cutoff are
    # not among the edges and count as the cutoff.
    full = np.repeat(atoms, np.repeat(kinds, kinds))[:, None] * np.diff(BANDS)
    ranks = np.maximum(np.ceil(full.reshape(-1, 1) * QUANTILES).astype(np.int64) - 1, 0)
    within = ranks < counts[:, None]
    begin = (np.cumsum(counts) - counts)[:, None]
    quantiles = np.full(ranks.shape, cutoff)
    quantiles[within] = lengths[(begin + ranks)[within]]
    missing = np.bincount(place, weights=cutoff - lengths, minlength=len(counts))
    means = cutoff - missing / full.reshape(-1)
    numbers = np.concatenate((quantiles, means[:, None]), axis=1)
    return numbers.astype(np.float32).reshape(-1), kinds * kinds * WIDTH


def _sort_nearest_edges(
    columns: Columns, kind: NDArray[np.int64], pairs: NDArray[np.int64], cutoff: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Sort the edges to nearest neighbours, up to the last rank of ``BANDS``, by pair and band.

    Args:
        columns: graphs with all edges up to the cutoff.
        kind: position of each node's element among those of its graph, [N].
        pairs: first ordered pair of elements of each graph, and the end, [G + 1].
        cutoff: angstrom.

    Returns:
        For each of these edges one number for its pair of elements and band, ascending, and its
        length in angstrom, ascending among equal numbers.
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
    by_place = np.lexsort((lengths, place))
    return place[by_place], lengths[by_place]


def _scatter_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit numbers, so that sums of hashes of different numbers rarely agree.

    Source: splitmix64, Steele, Lea, Flood (2014), OOPSLA.
    """
    mixed = values + _ODD
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


EXACT = 1e-4
"""Signatures closer than this (angstrom) differ by no more than the rounding of text files."""

FEW = 400
"""Largest number of structures of one composition that are compared pair by pair; among more, a
k-d tree finds neighbours."""

CHUNK = 2048
"""Number of structures whose neighbours in the tree are in memory at once."""

TRAIN = SPLITS.index("train")
"""The train split in a column ``split``."""


@dataclass(frozen=True, eq=False)
class Twins:
    """Duplicate structures: a chain of signatures, each within the tolerance of the next."""

    rows: NDArray[np.int64]
    """Rows of the structures, ascending, two or more."""

    distance: NDArray[np.float64]
    """Largest difference of a number of each signature from that of the first, angstrom."""


@dataclass(frozen=True, eq=False)
class Signatures:
    """The signatures of some graphs, end to end."""

    rows: NDArray[np.int64]
    """Rows of the graphs in the store, ascending, [G]."""

    keys: NDArray[np.uint64]
    """Hash of composition and attributes, [G]; only graphs of equal keys are compared."""

    values: NDArray[np.float32]
    """All numbers, angstrom."""

    offset: NDArray[np.int64]
    """First number of each graph, and the end, [G + 1]."""

    def of(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the signatures of some graphs of one key, [len(places), D].

        Args:
            places: positions of the graphs in ``rows``.
        """
        width = int(self.offset[places[0] + 1] - self.offset[places[0]])
        numbers: NDArray[np.float32] = self.values[self.offset[places][:, None] + np.arange(width)]
        return numbers


def find_repeated(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the rows whose key occurs more than once, ascending."""
    _, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.flatnonzero(counts[place] > 1)


def find_twins(signatures: Signatures, tolerance: float) -> list[Twins]:
    """Find the sets of duplicate structures, in the order of their first rows.

    Args:
        signatures: signatures of all graphs whose key is not unique.
        tolerance: largest difference of two signatures in angstrom.
    """
    twins = []
    for places in _group_equal_keys(signatures.keys):
        points = signatures.of(places)
        for members in _cluster_points(points, tolerance):
            distance = np.abs(points[members] - points[members[0]]).max(axis=1)
            twins.append(Twins(signatures.rows[places[members]], distance.astype(np.float64)))
    return sorted(twins, key=lambda group: int(group.rows[0]))


def find_train_twins(
    signatures: Signatures, twins: Twins, split: NDArray[np.int8], tolerance: float
) -> Iterator[tuple[int, int, float]]:
    """Find the twins in other splits that have a twin in train.

    Args:
        signatures: signatures in which ``twins`` were found.
        twins: one set of twins.
        split: split of every graph of the store as an index into ``SPLITS``.
        tolerance: largest difference of two signatures in angstrom.

    Yields:
        Row, row of the nearest twin in train, and largest difference of their signatures in
        angstrom.
    """
    in_train = split[twins.rows] == TRAIN
    if in_train.all() or not in_train.any():
        return
    train, others = twins.rows[in_train], twins.rows[~in_train]
    tree = cKDTree(signatures.of(np.searchsorted(signatures.rows, train)))
    points = signatures.of(np.searchsorted(signatures.rows, others))
    distances, nearest = tree.query(points, p=np.inf)
    for row, place, distance in zip(others, nearest, distances, strict=True):
        if distance <= tolerance and split[row] >= 0:
            yield int(row), int(train[place]), float(distance)


@dataclass(frozen=True, eq=False)
class NearPairs:
    """Pairs of structures of equal composition, size and attributes, and of close geometry."""

    first: NDArray[np.int64]
    """Row of the first structure of each pair, [P]."""
    second: NDArray[np.int64]
    """Row of the second, [P]."""
    distance: NDArray[np.float64]
    """Largest difference of their signatures, angstrom, [P]."""


NEAR = 0.5
"""Structures of one composition whose signatures differ by less than this (angstrom) are close:
singlet and triplet CH2, whose angles are 102 and 132 degrees, are 0.3 apart."""


def find_near_pairs(
    signatures: Signatures, num_nodes: NDArray[np.int32], tolerance: float
) -> NearPairs:
    """Find pairs that are close in geometry and yet no twins.

    Of a composition with more than ``FEW`` structures, that many are drawn at random (seed 0).

    Args:
        signatures: signatures of all graphs whose key is not unique.
        num_nodes: nodes of every graph of the store.
        tolerance: largest difference of two signatures of twins in angstrom; that of a pair is
            ``NEAR``.
    """
    random = np.random.default_rng(0)
    parts = [np.zeros((3, 0))]
    for places in _group_equal_keys(signatures.keys):
        if len(places) > FEW:
            places = np.sort(random.choice(places, FEW, replace=False))
        distance = pdist(signatures.of(places), "chebyshev")
        first, second = np.triu_indices(len(places), 1)
        first, second = signatures.rows[places[first]], signatures.rows[places[second]]
        fits = (distance > tolerance) & (distance <= NEAR) & (num_nodes[first] == num_nodes[second])
        parts.append(np.stack([first[fits], second[fits], distance[fits]]))
    one, other, distance = np.concatenate(parts, axis=1)
    return NearPairs(one.astype(np.int64), other.astype(np.int64), distance)


def _group_equal_keys(keys: NDArray[np.uint64]) -> list[NDArray[np.int64]]:
    """Return the positions of each key that occurs at least twice."""
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    return [places for places in np.split(order, cuts) if len(places) > 1]


def _cluster_points(points: NDArray[np.float32], tolerance: float) -> list[NDArray[np.int64]]:
    """Return the members of each set of points, [points, D], linked by steps within tolerance."""
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
    """Label the linked sets of many points, without holding all pairs in memory.

    Exact copies are merged first: n of them are n * n pairs within the tolerance.
    """
    cells = np.round(points / min(EXACT, tolerance / 4))
    _, chosen, copy_of = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    kept = points[chosen].astype(np.float64)
    tree = cKDTree(kept)
    labels = np.arange(len(kept))
    for begin in range(0, len(kept), CHUNK):
        part = cKDTree(kept[begin : begin + CHUNK])
        near = part.sparse_distance_matrix(tree, tolerance, p=np.inf, output_type="ndarray")
        labels = _label_components(labels[near["i"] + begin], labels[near["j"]], len(kept))[labels]
    of_points: NDArray[np.int64] = labels[copy_of.reshape(-1)]
    return of_points


def _label_components(
    first: NDArray[np.int64], second: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Label points so that linked ones have equal labels."""
    links = coo_array((np.ones(len(first), dtype=bool), (first, second)), shape=(count, count))
    return np.asarray(connected_components(links, directed=False)[1], dtype=np.int64)
