"""Structures that are the same but for order, place, orientation and choice of the cell.

Shapes: G graphs, D numbers of a structure.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist

from hydragnn_hpo.config.data import SPLITS

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
        """Give the numbers of some graphs of one key, [len(places), D]."""
        width = int(self.offset[places[0] + 1] - self.offset[places[0]])
        found: NDArray[np.float32] = self.values[self.offset[places][:, None] + np.arange(width)]
        return found


def repeated(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Give the rows whose key another row has, too, ascending."""
    _, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.flatnonzero(counts[place] > 1)


def twins_in(signatures: Signatures, tolerance: float) -> list[Twins]:
    """Find the structures that are the same, in the order of their first rows.

    Args:
        signatures: of all graphs that might be.
        tolerance: largest difference in angstrom.
    """
    found = []
    for places in _alike(signatures.keys):
        points = signatures.of(places)
        for members in _clusters(points, tolerance):
            distance = np.abs(points[members] - points[members[0]]).max(axis=1)
            found.append(Twins(signatures.rows[places[members]], distance.astype(np.float64)))
    return sorted(found, key=lambda twins: int(twins.rows[0]))


def nearest_in_train(
    signatures: Signatures, twins: Twins, split: NDArray[np.int8], tolerance: float
) -> Iterator[tuple[int, int, float]]:
    """Give each twin outside of train that has a twin in train: row, row in train, distance."""
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


def _alike(keys: NDArray[np.uint64]) -> list[NDArray[np.int64]]:
    """Give the places of each key that stands twice or more."""
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    return [places for places in np.split(order, cuts) if len(places) > 1]


def _clusters(points: NDArray[np.float32], tolerance: float) -> list[NDArray[np.int64]]:
    """Give the members of each set of points linked by steps within the tolerance, [n, D] in."""
    if len(points) <= FEW:
        first, second = np.triu_indices(len(points), 1)
        near = pdist(points, "chebyshev") <= tolerance
        labels = _linked(first[near], second[near], len(points))
    else:
        labels = _clusters_of_many(points, tolerance)
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    return [members for members in np.split(order, cuts) if len(members) > 1]


def _clusters_of_many(points: NDArray[np.float32], tolerance: float) -> NDArray[np.int64]:
    """Label points without holding all pairs; exact copies count once, or pairs would explode."""
    cells = np.round(points / min(EXACT, tolerance / 4))
    _, chosen, copy_of = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    kept = points[chosen].astype(np.float64)
    tree, labels = cKDTree(kept), np.arange(len(kept))
    for begin in range(0, len(kept), CHUNK):
        part = cKDTree(kept[begin : begin + CHUNK])
        near = part.sparse_distance_matrix(tree, tolerance, p=np.inf, output_type="ndarray")
        labels = _linked(labels[near["i"] + begin], labels[near["j"]], len(kept))[labels]
    found: NDArray[np.int64] = labels[copy_of.reshape(-1)]
    return found


def _linked(first: NDArray[np.int64], second: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Give equal labels to what is linked."""
    links = coo_array((np.ones(len(first), dtype=bool), (first, second)), shape=(count, count))
    return np.asarray(connected_components(links, directed=False)[1], dtype=np.int64)
