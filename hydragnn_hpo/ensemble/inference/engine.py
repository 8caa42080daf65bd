"""Run the members of an ensemble on one batch of structures.

Shapes: R rows of a head, w components.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.ensemble.inference.batches import member_batches
from hydragnn_hpo.ensemble.inference.member import Member


class Engine(Protocol):
    """Predicts with all members; outputs equal those of the members one by one, within 1e-5."""

    def predict(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Yield each member's heads, [R, w], and variances, for one batch of graphs."""


class EagerEngine:
    """Members one after the other; those with equal cutoffs share a batch."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        """Take members whose nets are on ``device``."""
        self.members = tuple(members)
        self.device = device

    def predict(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Yield each member's heads and variances for one batch of graphs."""
        for member, batch in member_batches(self.members, graphs, indices, self.device):
            yield member, run_member(member, batch)


def run_member(member: Member, batch: Batch) -> dict[str, Tensor]:
    """Run a member; heads that are derivatives need autograd."""
    quiet = torch.no_grad if member.model.energies else torch.inference_mode
    with quiet():
        found: dict[str, Tensor] = member.model(batch)
    return found


def make_engine(
    members: Sequence[Member], device: torch.device, *, compiled: bool = False
) -> Engine:
    """Return a compiled engine if wanted, a stacked one on a GPU, else an eager one."""
    if compiled:  # tracers and compilers take a second to import: only where they are used
        from hydragnn_hpo.ensemble.compiled_engine import CompiledEngine

        return CompiledEngine(members, device)
    if device.type == "cuda":
        from hydragnn_hpo.ensemble.stacked_engine import StackedEngine

        return StackedEngine(members, device)
    return EagerEngine(members, device)
