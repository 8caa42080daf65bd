"""How the ranks of one trial share its work. Read by ``training.parallel``."""

import math
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from hydragnn_hpo.config.schema import Config

Shard = Literal["none", "gradients", "full", "hybrid"]


class ParallelConfig(Config):
    """How the ranks of one trial share its work; never changes the mathematics (Law 1).

    What does not go into a trial's width is left out: a trial on one rank shards nothing.
    """

    shard: Shard = "none"
    """What the ranks keep whole. ``none``: everything (DDP). ``gradients``: gradients and the
    optimizer's state are sharded, weights only between steps. ``full``: weights are also let go
    between forward and backward pass. ``hybrid``: ``full`` within ``shard_ranks``, copies beyond
    (FSDP2). With heads that are derivatives, which go through the weights twice, these stay
    between the passes whatever is said. Source: Rajbhandari et al. (2020), arXiv:1910.02054; Zhao
    et al. (2023), arXiv:2304.11277."""

    shard_ranks: PositiveInt | None = None
    """Neighbouring ranks that hold one copy with ``hybrid``; those of one host if left out."""

    tensor: PositiveInt = 1
    """Neighbouring ranks that share every wide MLP among them and see the same graphs; beyond them
    ``none`` means ``gradients``. Source: Shoeybi et al. (2019), arXiv:1909.08053; with ``hybrid``
    it is the layout of Wang et al. (2024), arXiv:2404.14712."""

    recompute: bool = False
    """Forget what the rounds of the trunk computed, and compute it again in the backward pass: the
    memory of one round, for about half as much time again. Not worth it with heads that are
    derivatives, which need it all twice."""

    bucket_mb: PositiveFloat | None = None
    """Size of the pieces in which DDP sends gradients, MiB; chosen from the model if left out."""

    def is_sharded(self, world: int) -> bool:
        """Check whether some of ``world`` ranks hold only a part of the weights."""
        return world > 1 and (self.shard != "none" or self.tensor_ranks(world) > 1)

    def tensor_ranks(self, world: int) -> int:
        """Return how many of ``world`` ranks share a layer: ``tensor``, as far as it divides."""
        return math.gcd(self.tensor, world)

    def copy_ranks(self, world: int, local: int) -> int:
        """Return how many of ``world`` ranks hold one sharded copy; ``local`` share a host."""
        data = world // self.tensor_ranks(world)
        if self.shard != "hybrid":
            return data
        wanted = self.shard_ranks or max(local // self.tensor_ranks(world), 1)
        return math.gcd(wanted, data)
