"""One model over all ranks of a trial: who holds what, and when gradients are sent.

Nobody else asks how the ranks share the work: the trainer speaks to ``Parallel``.
"""

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hydragnn_hpo.config.parallel import ParallelConfig
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.training.ddp import Ranks, keep


class Parallel:
    """A model whose gradients are those of the whole step, on however many ranks."""

    def __init__(self, model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks) -> None:
        """Spread the model over the ranks; every rank calls this with the same weights."""
        self.model, self.config, self.ranks = model, config, ranks
        self.wrapped: nn.Module = model
        if ranks.world > 1:
            self.wrapped = DistributedDataParallel(
                model, forward_sync_buffers=False, gradient_as_bucket_view=True
            )
            keep(self.wrapped)

    def sending(self, last: bool) -> AbstractContextManager[None]:
        """Send gradients in the ``last`` micro-batch of a step, and add them up before."""
        if last or not isinstance(self.wrapped, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.wrapped.no_sync()

    def norm(self) -> Tensor:
        """Give the length of the whole gradient."""
        return nn.utils.get_total_norm(self._gradients())

    def clip(self, norm: Tensor, limit: float) -> None:
        """Scale the gradient down where it is longer than ``limit``."""
        nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, norm)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def whole(self) -> dict[str, Tensor]:
        """Copy the whole weights and buffers, on this rank's device; every rank calls this.

        Where they are sharded, only rank 0 gets them, and the others nothing.
        """
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Take whole weights and buffers over; every rank calls this with what ``whole`` gave."""
        self.model.load_state_dict(dict(tensors))
