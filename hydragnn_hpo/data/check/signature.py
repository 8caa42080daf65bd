"""Numbers that stay as they are when a structure is turned, moved, renumbered or repeated.

Every atom has its distances to the 1st, 2nd, 3rd ... nearest atom of each element, the cutoff
standing for those beyond it. Over the atoms of one element and a band of ranks, their quantiles
and their mean are taken. Moving every atom by less than ``d`` changes no number by more than
``2 d``, and a supercell has the same numbers as its cell. Such numbers tell almost all structures
of one composition apart, but mirror images are one structure to them, and so are different
orderings on one ideal lattice that agree in all pair distances.

Source: average minimum distances, Widdowson, Mosca, Pulido, Cooper, Kurlin (2022), MATCH
Commun. Math. Comput. Chem. 87, 529; here per pair of elements, and with
quantiles: averages of shaken copies of one crystal hardly differ.

Shapes: G graphs, N nodes, E edges, D numbers of a structure.
"""

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns, offsets
from hydragnn_hpo.data.statistics import ELEMENTS, edge_lengths

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
    """Give a number per graph that is equal where the compositions are equal, [G].

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
    mixed = _mixed((met % ELEMENTS).astype(np.uint64) + np.uint64(ELEMENTS) * _unsigned(counts))
    keys = np.zeros(len(num_nodes), dtype=np.uint64)
    np.add.at(keys, owner, mixed)
    return keys


def with_attributes(
    keys: NDArray[np.uint64], attributes: dict[str, NDArray[np.float64]]
) -> NDArray[np.uint64]:
    """Let structures of different charge or spin be different, [G]."""
    for place, value in enumerate(attributes.values(), start=1):
        bits = np.ascontiguousarray(value + 0.0).view(np.uint64)
        keys = keys + _mixed(_mixed(bits) + np.uint64(place))
    return keys


def signatures_of(columns: Columns, cutoff: float) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Give the numbers of each graph end to end, and how many each has.

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
    place, lengths = _nearest(columns, kind - first[owner], pairs, cutoff)
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


def _nearest(
    columns: Columns, kind: NDArray[np.int64], pairs: NDArray[np.int64], cutoff: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Give the edges near enough to count, sorted: pair of elements and band, and length.

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


def _unsigned(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    return values.astype(np.uint64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter numbers over 64 bits.

    Source: splitmix64, Steele, Lea, Flood (2014), OOPSLA.
    """
    mixed = values + _ODD
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)
