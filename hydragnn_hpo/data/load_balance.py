"""Balance the graphs of a step over ranks by what they cost.

Shapes: G graphs.
"""

import heapq

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hydragnn_hpo.config import ModelConfig, angle_cutoff, forward_flops
from hydragnn_hpo.data.graph_set import GraphSet


def predict_graph_costs(graphs: GraphSet, model: ModelConfig) -> NDArray[np.float64]:
    """Predict what each graph costs, [G], by the conv's own count of operations.

    It is linear in nodes and edges, and in triplets for convs that see angles. Moving an edge's
    numbers costs as much as some arithmetic on them, whatever the conv: ``MOVED`` operations
    per feature.
    """
    moved = MOVED * model.layers * model.features
    once = forward_flops(model, 0.0, 0.0)  # of a step, whatever is in it
    per_node = forward_flops(model, 1.0, 0.0) - once + moved
    per_edge = forward_flops(model, 0.0, 1.0) - once + moved
    nodes, edges = graphs.num_nodes(), graphs.num_edges()
    cost: NDArray[np.float64] = per_node * nodes + per_edge * edges
    angle = angle_cutoff(model)
    if angle is not None:
        reach = min(angle / float(graphs.stats.get("cutoff", angle)), 1.0)
        degree = edges / np.maximum(nodes, 1) * reach**3
        triplets = nodes * degree * np.maximum(degree - 1.0, 0.0)
        cost += (forward_flops(model, 0.0, 0.0, 1.0) - once + moved) * triplets
    return cost


MOVED = 64.0
"""Operations that a CPU does in the time it takes to gather and scatter one number."""


def balance_load(costs: ArrayLike, world: int) -> list[NDArray[np.int64]]:
    """Share the graphs of a step among ranks so that the costs balance.

    The costliest graph goes first, each to the rank with the least so far; the first rank
    wins a tie. Shares may be empty.

    Args:
        costs: cost of each graph of the step, [G].
        world: number of ranks.

    Returns:
        For each rank its positions in the step, ascending.

    Source: Graham (1969), SIAM J. Appl. Math. 17, 416: longest processing time first.
    """
    weights = np.asarray(costs, dtype=np.float64)
    ranks = [(0.0, rank) for rank in range(world)]
    owned: list[list[int]] = [[] for _ in range(world)]
    for position in np.argsort(-weights, kind="stable").tolist():
        load, rank = ranks[0]
        owned[rank].append(position)
        heapq.heapreplace(ranks, (load + weights[position], rank))
    return [np.array(sorted(mine), dtype=np.int64) for mine in owned]
