"""Pick the rows of a target that belong to some graphs of a store.

Shapes: G graphs, R rows: graphs for a graph-level target, all their nodes for a node-level one.
"""

import numpy as np

from hydragnn_hpo.data import GraphSet
from hydragnn_hpo.ensemble.strata import Strata

_PIECE = 1024
"""Graphs that are looked at together: their edges come along."""


def is_node(columns: GraphSet, target: str) -> bool:
    """Check whether a target has one value per node."""
    return bool(columns.stats["targets"][target]["level"] == "node")


def graph_of_row(columns: GraphSet, *, node: bool, indices: np.ndarray) -> np.ndarray:
    """Return the position of the graph of each row of a node- or graph-level head, [R]."""
    positions = np.arange(len(indices))
    return np.repeat(positions, columns.num_nodes()[indices]) if node else positions


def stratum_of_row(
    graphs: GraphSet, strata: Strata, *, node: bool, indices: np.ndarray
) -> np.ndarray:
    """Return the kind of structure of each row of a node- or graph-level head, [R]."""
    names = [
        strata.names(graphs.take(indices[first : first + _PIECE]))
        for first in range(0, max(len(indices), 1), _PIECE)
    ]
    whole = np.concatenate(names)
    return np.repeat(whole, graphs.num_nodes()[indices]) if node else whole


def truth(graphs: GraphSet, target: str, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a target's values, [R, w] in fp64, and which rows have one, [R]."""
    values, masks = [], []
    for first in range(0, max(len(indices), 1), _PIECE):
        columns = graphs.take(indices[first : first + _PIECE])
        values.append(columns.targets[target])
        masks.append(columns.masks[target])
    return np.concatenate(values), np.concatenate(masks)


def largest_per_graph(values: np.ndarray, graph: np.ndarray, graphs: int) -> np.ndarray:
    """Return each graph's largest value, [G]; -inf for a graph without rows.

    Args:
        values: one number per row, [R].
        graph: position of each row's graph, [R].
        graphs: how many graphs there are.
    """
    largest = np.full(graphs, -np.inf)
    np.maximum.at(largest, graph, values)
    return largest
