"""One neighbour list for all members: graphs are cut into batches, and each member gets its own.

Shapes: G graphs, N nodes, E edges.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.data.batch import Batch, make_batch
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.ensemble.engines.layout import laid_out, narrowed, squared_lengths
from hydragnn_hpo.ensemble.member import Member

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
            made[key] = narrowed(*whole[dtype], cutoff)
            continue
        batch = make_batch(
            graphs, indices, cutoff=cutoff, dtype=dtype, max_neighbors=cap, pairs=True
        )
        made[key] = laid_out(batch.to(device))
        if cap is None and made[key].order is not None:
            whole[dtype] = made[key], squared_lengths(made[key])
    return made


class Engine(Protocol):
    """Gives what each member says; how is its own business.

    The answers are those of the members one by one, within 1e-5 relative.
    """

    def said(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Give each member's heads, [R, w], and variances, for one batch of graphs."""


class Eager:
    """Members one after the other; those with equal cutoffs share a batch."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        """Take members whose nets are on ``device``."""
        self.members = tuple(members)
        self.device = device

    def said(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Give each member's heads and variances for one batch of graphs."""
        for member, batch in member_batches(self.members, graphs, indices, self.device):
            yield member, asked(member, batch)


def asked(member: Member, batch: Batch) -> dict[str, Tensor]:
    """Ask a member; heads that are derivatives need torch to follow what it computes."""
    quiet = torch.no_grad if member.model.energies else torch.inference_mode
    with quiet():
        found: dict[str, Tensor] = member.model(batch)
    return found
