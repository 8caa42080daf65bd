"""How much of a target the elements alone explain: one number per element, on train only.

Shapes: G graphs, N nodes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config.data import TargetConfig
from hydragnn_hpo.data.columns import Columns

MAX_ELEMENT = 118
RIDGE = 0.1
"""Pull towards 0, in structures (or atoms) of the pure element; rare elements stay small."""

SMALLEST = 1e-3
"""The spread that is left is at least this share of the target's own."""

Array = NDArray[np.float64]


def element_baseline(
    columns: Columns, name: str, target: TargetConfig, mean: float
) -> dict[str, Any] | None:
    """Fit ``target - mean`` by one number per element, by ridge regression.

    Graph targets are regressed on the composition (fractions; counts for total energies),
    node targets on the node's own element.

    Returns:
        ``by_number`` (in the target's unit, [119]; 0 for elements not in train), ``mean``, what
        to add to them, and ``std``, the spread that is left on train; None for vectors.
    """
    if target.width != 1:
        return None
    fit = _by_own_element if target.level == "node" else _by_composition
    numbers, before, after = fit(columns, name, target, mean)
    spread = max(float(np.std(after)), SMALLEST * float(np.std(before)))
    constant = mean + float(np.mean(after))
    return {"by_number": [float(value) for value in numbers], "mean": constant, "std": spread}


def _by_own_element(
    columns: Columns, name: str, target: TargetConfig, mean: float
) -> tuple[Array, Array, Array]:
    """Fit nodes; gives the numbers, and the target before and after."""
    in_train = np.repeat(columns.split == 0, columns.num_nodes())
    rows = in_train & columns.masks[name]
    values, kinds = columns.targets[name][rows, 0] - mean, columns.numbers[rows]
    sums = np.bincount(kinds, weights=values, minlength=MAX_ELEMENT + 1)
    numbers = sums / (np.bincount(kinds, minlength=MAX_ELEMENT + 1) + RIDGE)
    return numbers, values, values - numbers[kinds]


def _by_composition(
    columns: Columns, name: str, target: TargetConfig, mean: float
) -> tuple[Array, Array, Array]:
    """Fit graphs; gives the numbers, and the target before and after.

    Counts are fitted around their mean: a structure of mean size has the mean energy, one of
    no atoms has not. Fractions sum to 1, they need no such care.
    """
    graph_of_node = np.repeat(np.arange(columns.num_graphs), columns.num_nodes())
    counts = np.zeros((columns.num_graphs, MAX_ELEMENT + 1))
    np.add.at(counts, (graph_of_node, columns.numbers), 1.0)
    if target.energy != "total":
        counts /= np.maximum(columns.num_nodes(), 1)[:, None]
    rows = (columns.split == 0) & columns.masks[name]
    design, values = counts[rows], columns.targets[name][rows, 0] - mean
    around = design - design.mean(axis=0) if target.energy == "total" else design
    gram = around.T @ around + RIDGE * np.eye(MAX_ELEMENT + 1)
    numbers = np.linalg.solve(gram, around.T @ values)
    return numbers, values, values - design @ numbers
