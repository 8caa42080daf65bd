"""Many graphs as columns of ragged arrays: what is stored, staged, and batched from.

Shapes: G graphs, N nodes, E edges (of all graphs together).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config.data import SPLITS, TargetConfig
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.errors import DataError, unknown


@dataclass(frozen=True, eq=False)
class Columns:
    """Graphs end to end; graph ``g`` owns nodes ``node_offset[g]`` to ``node_offset[g + 1]``."""

    numbers: NDArray[np.int16]
    """Atomic numbers, [N]."""

    positions: NDArray[np.float64]
    """Positions in angstrom, [N, 3]."""

    cell: NDArray[np.float64]
    """Lattice vectors as rows in angstrom, [G, 3, 3]."""

    pbc: NDArray[np.bool_]
    """Periodic directions, [G, 3]."""

    node_offset: NDArray[np.int64]
    """First node of each graph, and the end, [G + 1]."""

    edge_offset: NDArray[np.int64]
    """First edge of each graph, and the end, [G + 1]."""

    edges: NDArray[np.int32]
    """Sender and receiver, counted from the graph's first node, [E, 2]."""

    edge_shift: NDArray[np.int16]
    """Shifts in lattice vectors, [E, 3]; see ``data.graph``."""

    targets: dict[str, NDArray[np.float64]]
    """Properties by name, [G, width] or [N, width]; NaN where missing."""

    masks: dict[str, NDArray[np.bool_]]
    """Where a property is known, [G] or [N]."""

    split: NDArray[np.int8]
    """Index into ``config.data.SPLITS``, [G]; -1 outside of all splits."""

    group: NDArray[np.int32]
    """Number of each structure's group, [G]; those of one group are not independent."""

    ids: tuple[str, ...]
    """Names of the structures."""

    stats: dict[str, Any] = field(default_factory=dict)
    """The content of ``stats.json``."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs, G."""
        return len(self.node_offset) - 1

    def indices_of(self, split: str) -> NDArray[np.int64]:
        """Give the rows of a split, ascending."""
        if split not in SPLITS:
            raise DataError(unknown("split", split, SPLITS))
        return np.flatnonzero(self.split == SPLITS.index(split))

    def num_nodes(self) -> NDArray[np.int64]:
        """Nodes of each graph, [G]."""
        return np.diff(self.node_offset)

    def num_edges(self) -> NDArray[np.int64]:
        """Edges of each graph, [G]."""
        return np.diff(self.edge_offset)


def columns_of(
    graphs: Sequence[Graph],
    targets: Mapping[str, TargetConfig],
    stats: Mapping[str, Any] | None = None,
) -> Columns:
    """Lay graphs end to end; splits are left open (-1).

    Args:
        graphs: in the order of the rows.
        targets: the properties to carry; may be empty, for structures to be predicted.
        stats: what is known about the whole data set.
    """
    nodes = np.array([len(graph.numbers) for graph in graphs], dtype=np.int64)
    values = {name: _target(graphs, name, target) for name, target in targets.items()}
    return Columns(
        numbers=_end_to_end([graph.numbers for graph in graphs], (), np.int16),
        positions=_end_to_end([graph.positions for graph in graphs], (3,), np.float64),
        cell=_end_to_end([graph.cell[None] for graph in graphs], (3, 3), np.float64),
        pbc=_end_to_end([graph.pbc[None] for graph in graphs], (3,), np.bool_),
        node_offset=offsets(nodes),
        edge_offset=offsets(np.array([len(graph.edges) for graph in graphs], dtype=np.int64)),
        edges=_end_to_end([graph.edges for graph in graphs], (2,), np.int32),
        edge_shift=_end_to_end([graph.edge_shift for graph in graphs], (3,), np.int16),
        targets=values,
        masks={name: np.all(np.isfinite(value), axis=1) for name, value in values.items()},
        split=np.full(len(graphs), -1, dtype=np.int8),
        group=np.unique([g.group for g in graphs], return_inverse=True)[1].astype(np.int32),
        ids=tuple(graph.id for graph in graphs),
        stats=dict(stats or {}),
    )


def offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the first row of each ragged piece, and the end."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _target(graphs: Sequence[Graph], name: str, target: TargetConfig) -> NDArray[np.float64]:
    """Collect one property, NaN where a structure lacks it."""
    pieces = []
    for graph in graphs:
        rows = 1 if target.level == "graph" else len(graph.numbers)
        value = graph.targets.get(name, np.nan)
        pieces.append(np.broadcast_to(value, (rows, target.width)))
    return _end_to_end(pieces, (target.width,), np.float64)


def _end_to_end(pieces: Sequence[NDArray[Any]], shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    if not pieces:
        return np.zeros((0, *shape), dtype=dtype)
    return np.concatenate(pieces).astype(dtype, copy=False)
