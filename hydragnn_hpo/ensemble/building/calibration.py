"""Calibrate a chosen mix, on the calibration split and on nothing else (Law 6).

Shapes: M members, R rows of a head.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hydragnn_hpo.config.model import ModelConfig
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.ensemble import target_rows
from hydragnn_hpo.ensemble.building.bench import Bench
from hydragnn_hpo.ensemble.building.members import Said, mixed
from hydragnn_hpo.ensemble.uncertainty.calibrate import Calibration, calibrate
from hydragnn_hpo.ensemble.uncertainty.coordination import coordination_of
from hydragnn_hpo.ensemble.uncertainty.strata import Strata, size_strata

_PIECE = 1024
"""Training structures whose neighbours are counted together."""


def calibrate_heads(
    bench: Bench, said: Said, weights: Mapping[str, np.ndarray]
) -> dict[str, Calibration]:
    """Fit each head's map from spread to sigma, and its intervals.

    Args:
        bench: what the steps share.
        said: what the members say about ``cal``: with the very weights that will be packed.
        weights: by head the members' shares, [M].
    """
    indices, strata, out = bench.graphs.indices_of("cal"), strata_for(bench), {}
    for name in bench.targets:
        truth, mask = bench.truth(name, "cal")
        node = target_rows.is_node(bench.graphs, name)
        graph = target_rows.graph_of_row(bench.graphs, node=node, indices=indices)
        moments = mixed(said, name, weights[name], np.ones(len(truth), dtype=bool))
        out[name] = calibrate(
            (truth - moments.mean)[mask],
            moments.spread[mask],
            group=bench.graphs.group[indices][graph][mask],
            largest=target_rows.largest_per_graph(moments.spread[:, 0], graph, len(indices)),
            scale=bench.scale(name),
            noise=moments.noise[mask],
            stratum=target_rows.stratum_of_row(bench.graphs, strata, node=node, indices=indices)[
                mask
            ],
        )
    return out


def strata_for(bench: Bench) -> Strata:
    """Say which kinds of structures may have intervals of their own; looks at no target."""
    by = bench.campaign.ensemble.intervals
    if by == "size":
        return size_strata(bench.graphs.num_nodes()[bench.graphs.indices_of("cal")])
    return Strata(by)


def watched(bench: Bench, models: Sequence[ModelConfig]) -> dict[str, Any]:
    """Give what the manifest says of kinds of structures and of coordination in training.

    Neighbours are counted within the shortest cutoff of the members, so that any of them can
    do without the others.
    """
    cutoff = min(model.cutoff for model in models)
    found = coordination_of(_training(bench.graphs), cutoff)
    return {"strata": strata_for(bench), "coordination": found}


def _training(graphs: GraphSet) -> Iterator[Columns]:
    indices = graphs.indices_of("train")
    for first in range(0, len(indices), _PIECE):
        yield graphs.take(indices[first : first + _PIECE])
