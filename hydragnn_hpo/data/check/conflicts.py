"""Twins whose targets differ: labels that contradict each other, or a property not told apart.

Shapes: G graphs, N nodes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.check.duplicates import Twins
from hydragnn_hpo.data.check.outliers import Spread
from hydragnn_hpo.data.check.scan import Scan

CONFLICT = 0.5
"""Twins contradict each other if a target differs by more than this share of its usual spread."""


def conflict_of(scan: Scan, name: str, spread: Spread, twins: Twins) -> dict[str, Any] | None:
    """Compare a target among twins.

    Total energies are compared per atom, node values in ascending order for each element;
    both only among twins of one size, unless a supercell does not matter for the target.

    Returns:
        ``target``, ``rows`` of lowest and highest (or most different), ``difference``,
        ``allowed``; None where there is no contradiction.
    """
    target, sizes = scan.stats["targets"][name], scan.num_nodes[twins.rows]
    alike = [twins.rows[sizes == size] for size in np.unique(sizes)]
    if target["level"] == "node":
        every = [_of_nodes(scan, scan.scores[name], spread, rows) for rows in alike]
    else:
        groups = alike if target["energy"] is None else [twins.rows]
        every = [_of_graphs(scan, name, spread, rows) for rows in groups]
    known = [found for found in every if found is not None]
    if not known:
        return None
    low, high, difference, allowed = max(known, key=lambda found: found[2])
    if difference <= allowed:
        return None
    return {"target": name, "rows": [low, high], "difference": difference, "allowed": allowed}


def _of_graphs(
    scan: Scan, name: str, spread: Spread, rows: NDArray[np.int64]
) -> tuple[int, int, float, float] | None:
    energy = scan.stats["targets"][name]["energy"]
    values = scan.scores[name]
    rows = rows[np.isfinite(values[rows])]
    if len(rows) < 2:
        return None
    found = values[rows] / scan.num_nodes[rows] if energy == "total" else values[rows]
    low, high = rows[found.argmin()], rows[found.argmax()]
    difference = float(found.max() - found.min())
    return int(low), int(high), difference, CONFLICT * spread.usual


def _of_nodes(
    scan: Scan, values: NDArray[np.float64], spread: Spread, rows: NDArray[np.int64]
) -> tuple[int, int, float, float] | None:
    """Compare each twin with the first, atom by atom in the order of element and value."""
    allowed = CONFLICT * spread.usual
    first = _in_order(scan, values, int(rows[0]))
    worst, partner = 0.0, 0
    for row in rows[1:].tolist():
        difference = np.abs(_in_order(scan, values, row) - first)
        largest = float(np.max(difference, where=np.isfinite(difference), initial=0.0))
        if largest > worst:
            worst, partner = largest, row
    return (int(rows[0]), partner, worst, allowed) if worst else None


def _in_order(scan: Scan, values: NDArray[np.float64], row: int) -> NDArray[np.float64]:
    """Give the values of a graph's atoms by element, then value."""
    nodes = np.arange(scan.node_offset[row], scan.node_offset[row + 1])
    return values[nodes[np.lexsort((values[nodes], scan.numbers[nodes]))]]
