"""One neighbour list for all members: graphs are cut into batches, and each member gets its own.

Shapes: G graphs, N nodes, E edges.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.data.batch import Batch, make_batch
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.ensemble.edge_pairs import arrange_in_pairs, cut_to_cutoff, squared_lengths
from hydragnn_hpo.ensemble.inference.member import Member

EDGES_PER_BATCH = 40_000
"""Structures are predicted in batches of about this many edges and nodes."""

Key = tuple[float, torch.dtype, int | None]
"""What a member's batch depends on: its cutoff, type and cap on neighbours."""


def pieces(columns: GraphSet, indices: np.ndarray, limit: int) -> Iterator[np.ndarray]:
    """Cut graphs into batches of about ``limit`` edges and nodes, order kept."""
    size = np.cumsum(columns.num_edges()[indices] + columns.num_nodes()[indices])
    group = (size - 1) // limit
    yield from np.split(indices, np.flatnonzero(np.diff(group)) + 1) if len(indices) else ()


def key_of(member: Member) -> Key:
    """Say what a member's batch depends on; members with equal keys share it."""
    return member.cutoff, member.dtype, member.max_neighbors


def member_batches(
    members: Iterable[Member], columns: GraphSet, indices: np.ndarray, device: torch.device
) -> Iterator[tuple[Member, Batch]]:
    """Pair members with batches of some graphs, each masked to the member's own cutoff."""
    several = tuple(members)
    made = batches_by_key(list(map(key_of, several)), columns, indices, device)
    for member in several:
        yield member, made[key_of(member)]


def batches_by_key(
    keys: Sequence[Key], graphs: GraphSet, indices: np.ndarray, device: torch.device
) -> dict[Key, Batch]:
    """Gather some graphs once per type, at the longest cutoff, and cut the others out of that.

    A cap on neighbours depends on the cutoff; such batches are gathered one by one.
    """
    made: dict[Key, Batch] = {}
    whole: dict[torch.dtype, tuple[Batch, Tensor]] = {}
    for cutoff, dtype, cap in sorted(dict.fromkeys(keys), key=lambda key: -key[0]):
        key = (cutoff, dtype, cap)
        if cap is None and dtype in whole:
            made[key] = cut_to_cutoff(*whole[dtype], cutoff)
            continue
        batch = make_batch(
            graphs, indices, cutoff=cutoff, dtype=dtype, max_neighbors=cap, pairs=True
        )
        made[key] = arrange_in_pairs(batch.to(device))
        if cap is None and made[key].order is not None:
            whole[dtype] = made[key], squared_lengths(made[key])
    return made
