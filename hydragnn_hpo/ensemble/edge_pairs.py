"""Edges laid out in pairs once, and shorter cutoffs cut out of a longer one.

Shapes: N nodes, E edges, P pairs (E / 2).
"""

from dataclasses import replace

import torch
from torch import Tensor

from hydragnn_hpo.data.batch import Batch


def arrange_in_pairs(batch: Batch) -> Batch:
    """Return the same graphs with their edges in pairs, unchanged where they have no pairs.

    Done once per batch, because every net would otherwise repeat the same gathers and search.
    """
    if batch.pairs is None:
        return batch
    layout, order = batch.pairs
    nodes = torch.arange(batch.positions.shape[0] + 1, device=order.device)
    return replace(
        batch,
        edge_index=batch.edge_index.index_select(1, layout),
        edge_shift=batch.edge_shift.index_select(0, layout),
        pairs=None,
        order=order,
        starts=torch.searchsorted(batch.edge_index[1].contiguous(), nodes),
    )


def squared_lengths(batch: Batch) -> Tensor:
    """Return the squared length of each pair of a batch in pairs, in angstrom squared, [P]."""
    half = batch.edge_index.shape[1] // 2
    sender, receiver = batch.edge_index[:, :half]
    ends = (batch.positions.index_select(0, end) for end in (receiver, sender))
    vectors = torch.sub(*ends) + batch.edge_shift[:half]
    return vectors.square().sum(1)


def cut_to_cutoff(batch: Batch, squared: Tensor, cutoff: float) -> Batch:
    """Cut a batch in pairs to a shorter cutoff.

    One length decides for both edges of a pair, so that pairs stay pairs. Edges on which rounding
    decides otherwise than ``make_batch`` lie at the cutoff, where every message has weight 0.

    Args:
        batch: in pairs, with all edges up to ``cutoff``.
        squared: squared lengths of its pairs, [P].
        cutoff: in angstrom.
    """
    assert batch.order is not None
    assert batch.starts is not None
    near = squared <= cutoff * cutoff
    kept = near.nonzero().squeeze(1)
    if len(kept) == len(near):
        return batch
    both = torch.cat((near, near))
    rows = torch.cat((kept, kept + len(near)))
    place = both.cumsum(0) - 1
    stays = both.index_select(0, batch.order)
    passed = torch.cat((stays.new_zeros(1, dtype=torch.int64), stays.cumsum(0)))
    return replace(
        batch,
        edge_index=batch.edge_index.index_select(1, rows),
        edge_shift=batch.edge_shift.index_select(0, rows),
        order=place.index_select(0, batch.order[stays]),
        starts=passed.index_select(0, batch.starts),
    )
