"""Batches of graphs by index arithmetic over columns.

Shapes: G graphs, N nodes, E edges of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hydragnn_hpo.data.columns import Columns, offsets, ragged_rows


@dataclass(frozen=True, eq=False)
class Batch:
    """Disjoint graphs as one; edges point from ``edge_index[0]`` to ``edge_index[1]``."""

    numbers: Tensor
    """Atomic numbers, long, [N]."""

    positions: Tensor
    """Positions in angstrom, [N, 3]."""

    edge_index: Tensor
    """Sender and receiver, long, [2, E]."""

    edge_shift: Tensor
    """What to add to the receiver's position to reach its image, in angstrom, [E, 3]."""

    graph_of_node: Tensor
    """Graph of each node, long, [N]."""

    num_graphs: int
    """Number of graphs, G; they may have no nodes only when G is 0."""

    targets: dict[str, Tensor]
    """Properties by name, [G, width] or [N, width]; 0 where missing."""

    masks: dict[str, Tensor]
    """Where a property is known, bool, [G] or [N]."""

    graph_index: Tensor
    """Rows of the graphs in the columns, long, [G]."""

    def to(self, device: torch.device | str) -> "Batch":
        """Give the same batch on another device."""
        return Batch(
            numbers=self.numbers.to(device),
            positions=self.positions.to(device),
            edge_index=self.edge_index.to(device),
            edge_shift=self.edge_shift.to(device),
            graph_of_node=self.graph_of_node.to(device),
            num_graphs=self.num_graphs,
            targets={name: value.to(device) for name, value in self.targets.items()},
            masks={name: value.to(device) for name, value in self.masks.items()},
            graph_index=self.graph_index.to(device),
        )


def make_batch(
    columns: Columns,
    indices: ArrayLike,
    *,
    cutoff: float | None,
    dtype: torch.dtype = torch.float32,
    targets: Sequence[str] = (),
) -> Batch:
    """Gather graphs into one batch; no loop over graphs, no objects in between.

    Args:
        columns: the graphs, in memory or memory-mapped.
        indices: rows of the graphs, in the order they shall have; may be empty.
        cutoff: longest edge kept, in angstrom; ``None`` keeps them all.
        dtype: of positions, shifts and targets.
        targets: names of the properties to carry.
    """
    rows = np.asarray(indices, dtype=np.int64).reshape(-1)
    node_rows, node_counts = ragged_rows(columns.node_offset, rows)
    positions = columns.positions[node_rows]
    edges, shift = _edges(columns, rows, positions, node_counts, cutoff)
    values, masks = _targets(columns, targets, rows, node_rows)
    batch = Batch(
        numbers=torch.from_numpy(columns.numbers[node_rows].astype(np.int64)),
        positions=torch.from_numpy(positions).to(dtype),
        edge_index=torch.from_numpy(np.ascontiguousarray(edges.T)),
        edge_shift=torch.from_numpy(shift).to(dtype),
        graph_of_node=torch.from_numpy(np.repeat(np.arange(len(rows)), node_counts)),
        num_graphs=len(rows),
        targets={name: torch.from_numpy(value).to(dtype) for name, value in values.items()},
        masks={name: torch.from_numpy(mask) for name, mask in masks.items()},
        graph_index=torch.from_numpy(rows.copy()),
    )
    _check(batch)
    return batch


def _edges(
    columns: Columns,
    rows: NDArray[np.int64],
    positions: NDArray[np.float64],
    node_counts: NDArray[np.int64],
    cutoff: float | None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Give the edges of the chosen graphs, [E, 2], and their shifts in angstrom, [E, 3]."""
    edge_rows, edge_counts = ragged_rows(columns.edge_offset, rows)
    graph_of_edge = np.repeat(np.arange(len(rows)), edge_counts)
    edges = columns.edges[edge_rows] + offsets(node_counts)[graph_of_edge, None]
    shift = _cartesian(columns.edge_shift[edge_rows], columns.cell[rows], graph_of_edge)
    if cutoff is None:
        return edges, shift
    vectors = positions[edges[:, 1]] + shift - positions[edges[:, 0]]
    near = np.einsum("ec,ec->e", vectors, vectors) <= cutoff * cutoff
    return edges[near], shift[near]


def _cartesian(
    shift: NDArray[np.int16], cell: NDArray[np.float64], graph_of_edge: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Turn shifts in lattice vectors into angstrom; most of them are zero."""
    result = np.zeros(shift.shape, dtype=np.float64)
    moved = np.flatnonzero(shift.any(axis=1))
    result[moved] = np.einsum("ek,ekc->ec", shift[moved], cell[graph_of_edge[moved]])
    return result


def _targets(
    columns: Columns, names: Sequence[str], rows: NDArray[np.int64], node_rows: NDArray[np.int64]
) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.bool_]]]:
    """Gather properties with zeros for the missing ones."""
    values, masks = {}, {}
    for name in names:
        node_level = columns.levels[name] == "node"
        chosen = node_rows if node_level else rows
        masks[name] = columns.masks[name][chosen]
        values[name] = np.where(masks[name][:, None], columns.targets[name][chosen], 0.0)
    return values, masks


def _check(batch: Batch) -> None:
    """Check shapes, once for everything downstream."""
    num_nodes, num_edges = len(batch.numbers), batch.edge_index.shape[1]
    assert batch.positions.shape == (num_nodes, 3)
    assert batch.edge_index.shape == (2, num_edges)
    assert batch.edge_shift.shape == (num_edges, 3)
    assert batch.graph_of_node.shape == (num_nodes,)
    for name, value in batch.targets.items():
        assert len(value) in (batch.num_graphs, num_nodes), name
        assert value.dim() == 2, name
        assert batch.masks[name].shape == value.shape[:1], name
