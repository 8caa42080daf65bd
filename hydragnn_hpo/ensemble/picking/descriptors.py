"""What the members themselves see of a structure: their trunks' features, pooled.

Shapes: M structures, F features of a member, D all of them together.
"""

from collections.abc import Sequence

import numpy as np
import torch

from hydragnn_hpo.data.columns import columns_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, member_batches, pieces
from hydragnn_hpo.ensemble.inference import Ensemble, as_array
from hydragnn_hpo.ensemble.picking.diversity import standardised
from hydragnn_hpo.model.pooling import pool_mean


@torch.no_grad()
def descriptors(ensemble: Ensemble, graphs: Sequence[Graph]) -> np.ndarray:
    """Give a point for each structure, [M, D]: near ones look alike to the members.

    The mean over a structure's atoms of every member's last features, each member's
    standardised over these structures and as heavy as any other's. They do not change when a
    structure is turned, shifted, or repeated.
    """
    rules = ensemble.rules
    columns = columns_of(graphs, {}, {"cutoff": rules.cutoff}, attributes=rules.attributes)
    found: dict[str, list[np.ndarray]] = {member.trial: [] for member in ensemble.members}
    for piece in pieces(columns, np.arange(len(graphs)), EDGES_PER_BATCH):
        for member, batch in member_batches(ensemble.members, columns, piece, ensemble.device):
            pooled = pool_mean(member.model.trunk(batch).scalars, batch)
            found[member.trial].append(as_array(pooled))
    each = [standardised(np.concatenate(parts)) for parts in found.values() if parts]
    if not each:
        return np.zeros((0, 1))
    points: np.ndarray = np.concatenate(each, axis=1) / np.sqrt(len(each))
    return points
