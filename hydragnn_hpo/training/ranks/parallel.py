"""One model over all ranks of a trial: who holds what, and when gradients are sent.

Nobody else asks how the ranks share the work: the trainer speaks to ``Parallel``. Here is the
model of one rank, and the one of which every rank holds a copy; ``sharded`` has the third.
"""

import contextlib
import functools
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hydragnn_hpo.config.parallel import ParallelConfig
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.training.ranks.communication import Overheard
from hydragnn_hpo.training.ranks.ddp import Ranks, keep
from hydragnn_hpo.training.watching.meter import Meter

MIB = 2**20

BUCKETS, SMALLEST_MB, LARGEST_MB = 4, 1.0, 25.0
"""A gradient is sent in about so many pieces, none smaller or larger than this, MiB: the first of
them travel while the rest is computed, and each costs a collective."""


class Parallel:
    """A model whose gradients are those of the whole step: the plain one, of a single rank."""

    together = False
    """Whether every forward pass is a collective: all ranks must take equally many."""

    def __init__(self, model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks) -> None:
        """Take a model over; every rank calls this with the same weights."""
        self.model, self.config, self.ranks = model, config, ranks
        self.wrapped: nn.Module = model

    def sending(self, last: bool) -> AbstractContextManager[object]:
        """Send gradients in the ``last`` micro-batch of a step, and add them up before."""
        return contextlib.nullcontext()

    def sent(self, meter: Meter) -> None:
        """Tell a meter what sending took, after the last backward pass of a step."""

    def norm(self) -> Tensor:
        """Give the length of the whole gradient."""
        return nn.utils.get_total_norm(self.gradients())

    def clip(self, norm: Tensor, limit: float) -> None:
        """Scale the gradient down where it is longer than ``limit``."""
        if norm.device.type == "cpu" and limit / (float(norm) + 1e-6) >= 1.0:
            return  # nothing to do; on a GPU it is quicker to do it than to ask
        nn.utils.clip_grads_with_norm_(self.learned, limit, norm)

    @functools.cached_property
    def learned(self) -> list[nn.Parameter]:
        """The weights as they are between steps; to find them takes as long as to use them."""
        return list(self.model.parameters())

    def gradients(self) -> list[Tensor]:
        """Give what there is of gradients, sharded ones as they are."""
        return [p.grad for p in self.learned if p.grad is not None]

    def whole(self) -> dict[str, Tensor]:
        """Copy the whole weights and buffers, on this rank's device; every rank calls this.

        Where they are sharded, only rank 0 gets them, in its host's memory, the others nothing.
        """
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Take whole weights and buffers over; every rank calls this with what ``whole`` gave."""
        self.model.load_state_dict(dict(tensors))


class Copied(Parallel):
    """Every rank holds the whole model; gradients are averaged while they are computed (DDP)."""

    def __init__(self, model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks) -> None:
        """Take a model over; every rank calls this with the same weights.

        ``static_graph`` is left off: a step in several pieces fails with it (torch 2.13), and no
        time was gained without them. Nor is ``find_unused_parameters`` needed: every parameter
        that learns is in every loss, with gradient 0 where no target is known.
        """
        super().__init__(model, config, ranks)
        # The gradient of a map to one number is one row, whose rows torch counts in another way.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        ddp = DistributedDataParallel(
            model,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=config.bucket_mb or bucket_mb(model),
        )
        self.wrapped, self._ddp = ddp, ddp
        self._overheard = Overheard(ranks.device)
        ddp.register_comm_hook(ranks.world, self._overheard.average)
        keep(ddp)

    def sending(self, last: bool) -> AbstractContextManager[object]:
        """Send gradients in the ``last`` micro-batch of a step, and add them up before."""
        return contextlib.nullcontext() if last else self._ddp.no_sync()

    def sent(self, meter: Meter) -> None:
        """Tell a meter what sending took, after the last backward pass of a step."""
        communication, exposed = self._overheard.take()
        meter.add("communication", communication)
        meter.add("exposed", exposed)


def bucket_mb(model: nn.Module) -> float:
    """Choose the size of the pieces in which a model's gradient is sent, MiB."""
    learned = (p for p in model.parameters() if p.requires_grad)
    size = sum(p.numel() * p.element_size() for p in learned) / MIB
    return min(max(size / BUCKETS, SMALLEST_MB), LARGEST_MB)
