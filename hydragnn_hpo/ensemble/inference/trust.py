"""Say which predictions should not be believed, and why.

Shapes: G graphs, R rows of a head.
"""

from collections.abc import Mapping

import numpy as np
from ase.data import chemical_symbols

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.ensemble.inference.prediction import HeadPrediction
from hydragnn_hpo.ensemble.inference.rows import graph_of_row, largest_per_graph
from hydragnn_hpo.ensemble.manifest import Manifest


def flags(
    manifest: Manifest,
    columns: Columns,
    indices: np.ndarray,
    heads: Mapping[str, HeadPrediction],
) -> tuple[str, ...]:
    """Give ``ok`` or the reasons against each structure's predictions, [G]."""
    reasons: list[list[str]] = [[] for _ in indices]
    here = columns.take(indices)
    graph_of_node = np.repeat(np.arange(len(indices)), here.num_nodes())
    unseen = ~np.isin(here.numbers, manifest.elements)
    for row, number in _pairs(graph_of_node[unseen], here.numbers[unseen]):
        reasons[row].append(f"unseen element {chemical_symbols[number]}")
    if manifest.coordination is not None:
        outside = manifest.coordination.outside(here)
        for row, number in _pairs(graph_of_node[outside], here.numbers[outside]):
            reasons[row].append(f"unseen coordination of {chemical_symbols[number]}")
    for name, head in heads.items():
        limit = manifest.heads[name].calibration.spread99 * (1 + 1e-9)
        node = manifest.heads[name].level == "node"
        graph = graph_of_row(columns, node=node, indices=indices)
        largest = largest_per_graph(head.std_epistemic[:, 0], graph, len(indices))
        broken = ~np.isfinite(head.mean).all(axis=1)
        for row in np.unique(graph[broken]).tolist():
            reasons[row].append(f"{name} is not finite")
        for row in np.flatnonzero(largest > limit).tolist():
            reasons[row].append(f"large spread of {name}")
    return tuple("; ".join(reason) or "ok" for reason in reasons)


def _pairs(graph: np.ndarray, number: np.ndarray) -> list[list[int]]:
    """Give graph and atomic number of some atoms, each pair once, in order."""
    pairs: list[list[int]] = np.unique(np.stack((graph, number), axis=1), axis=0).tolist()
    return pairs
