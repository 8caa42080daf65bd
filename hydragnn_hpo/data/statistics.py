"""Sizes of the graphs of a data set: what pricing a trial needs.

Shapes: G graphs, E edges.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns

SMALLEST = 3
"""Mean degrees are given from this cutoff on (angstrom), at every whole one."""


def size_stats(columns: Columns, cutoff: float) -> dict[str, Any]:
    """Count graphs, elements, nodes, edges, and neighbours within several cutoffs.

    Args:
        columns: graphs whose edges reach ``cutoff``.
        cutoff: in angstrom.
    """
    train = columns.split == 0
    nodes, edges = columns.num_nodes(), columns.num_edges()
    lengths = edge_lengths(columns)
    num_nodes = int(nodes.sum())
    return {
        "num_graphs": columns.num_graphs,
        "cutoff": cutoff,
        "elements": np.unique(columns.numbers).tolist(),
        "nodes": _summary(nodes),
        "edges": _summary(edges),
        "degree": {str(r): float((lengths <= r).sum() / num_nodes) for r in _cutoffs(cutoff)},
        "train_nodes": int(nodes[train].sum()),
        "train_edges": int(edges[train].sum()),
    }


def edge_lengths(columns: Columns) -> NDArray[np.float64]:
    """Give the length of every edge in angstrom, [E]."""
    graph = np.repeat(np.arange(columns.num_graphs), columns.num_edges())
    ends = columns.edges + columns.node_offset[graph, None]
    shift = np.einsum("ek,ekc->ec", columns.edge_shift, columns.cell[graph])
    vectors = columns.positions[ends[:, 1]] + shift - columns.positions[ends[:, 0]]
    lengths: NDArray[np.float64] = np.linalg.norm(vectors, axis=1)
    return lengths


def _cutoffs(largest: float) -> list[float]:
    return [*(float(r) for r in range(SMALLEST, math.ceil(largest))), float(largest)]


def _summary(counts: NDArray[np.int64]) -> dict[str, Any]:
    return {
        "mean": float(counts.mean()),
        "min": int(counts.min()),
        "max": int(counts.max()),
        "total": int(counts.sum()),
    }
