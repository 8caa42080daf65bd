"""The model of which every rank holds a part: FSDP2, tensor parallel, and both.

Ranks are numbered host by host. Their mesh is copies x shard x tensor: neighbours share layers,
groups of neighbours share weights, and beyond are copies.
"""

import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from hydragnn_hpo.config.parallel_config import ParallelConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.training.ddp import Ranks, collective_timeout, keep_until_exit
from hydragnn_hpo.training.dtensors import copy_into, gather_dtensor, local_part
from hydragnn_hpo.training.parallel import ModelParallelism
from hydragnn_hpo.training.tensor_parallel import apply_tensor_parallel

# It says in every gathering of what is cut twice that this takes two steps.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)

COPIES, SHARD, TENSOR = "copies", "shard", "tensor"


class ShardedModel(ModelParallelism):
    """Every rank holds a part of the weights, of their gradients and the optimizer's state."""

    together = True

    def __init__(self, model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks) -> None:
        """Take a model over; every rank calls this with the same weights.

        Raises:
            ConfigError: a user's conv has a parameter that cannot be sharded.
        """
        super().__init__(model, config, ranks)
        self.mesh = build_mesh(config, ranks)
        if self.mesh[TENSOR].size() > 1:
            apply_tensor_parallel(model, self.mesh[TENSOR], even=self.mesh[SHARD].size())
        self._shard()
        keep_until_exit(model)

    def _shard(self) -> None:
        """Put weights that are used together into one group, which travels as one."""
        copies = self.mesh[COPIES].size() > 1
        mesh = self.mesh[COPIES, SHARD] if copies else self.mesh[SHARD]
        _check(self.model)
        release = self.config.shard in ("full", "hybrid")
        if release and not self.model.energies:
            for group in round_modules(self.model):
                fully_shard(group, mesh=mesh, reshard_after_forward=True)
        fully_shard(self.model, mesh=mesh, reshard_after_forward=False)
        self.model.register_forward_hook(_free_whole_weights)

    def sending(self, last: bool) -> AbstractContextManager[object]:
        """Send gradients in the ``last`` micro-batch of a step, and add them up before."""
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    def norm(self) -> Tensor:
        """Give the length of the whole gradient: squares of all parts, each counted once."""
        squares: dict[tuple[str, ...], list[Tensor]] = defaultdict(list)
        for gradient in self.gradients():
            squares[_sharded_mesh_dims(gradient)].append(local_part(gradient))
        total = torch.zeros(2, device=self.ranks.device, dtype=torch.float64)
        for names, parts in squares.items():
            found = torch.stack(torch._foreach_norm(parts)).double().square().sum()
            total[int(TENSOR in names)] += found
        dist.all_reduce(total, group=self.mesh[SHARD].get_group())
        if self.mesh[TENSOR].size() > 1:
            dist.all_reduce(total[1], group=self.mesh[TENSOR].get_group())
        return total.sum().sqrt()

    def clip(self, norm: Tensor, limit: float) -> None:
        """Scale the gradient down where it is longer than ``limit``."""
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        parts = [local_part(gradient) for gradient in self.gradients()]
        torch._foreach_mul_(parts, factor.to(parts[0].dtype))

    def whole(self) -> dict[str, Tensor]:
        """Gather the weights and buffers on rank 0, in its host's memory; others get nothing."""
        found = {}
        for name, value in self.model.state_dict().items():
            gathered = gather_dtensor(value.detach())
            if self.ranks.first:
                found[name] = gathered.cpu().clone()
        return found

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what rank 0 has; every rank calls this."""
        for name, value in self.model.state_dict().items():
            given = torch.empty(value.shape, dtype=value.dtype, device=self.ranks.device)
            if self.ranks.first:
                given.copy_(tensors[name])
            dist.broadcast(given, 0)
            copy_into(value, given)


def build_mesh(config: ParallelConfig, ranks: Ranks) -> DeviceMesh:
    """Lay the ranks out as copies x shard x tensor; every rank calls this."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.world))
    tensor, held = config.tensor_ranks(ranks.world), config.copy_ranks(ranks.world, local)
    shape = (ranks.world // (held * tensor), held, tensor)
    mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=(COPIES, SHARD, TENSOR))
    for group in mesh.get_all_groups():  # they start with half an hour, whatever all ranks have
        _set_pg_timeout(collective_timeout(), group)
    return mesh


def round_modules(model: MultiHeadGNN) -> Iterator[list[nn.Module]]:
    """Give the modules of each round of the trunk that have weights, in the order of calls."""
    trunk = model.trunk
    kinds = (trunk.norms, trunk.films, trunk.convs, trunk.rounds)
    for layer in range(len(trunk.convs)):
        modules = [kind[layer] for kind in kinds if len(kind)]
        learned = [m for m in modules if next(m.parameters(), None) is not None]
        if learned:
            yield learned


def _sharded_mesh_dims(tensor: Tensor) -> tuple[str, ...]:
    """Name the dimensions of the mesh that a tensor is cut over."""
    if not isinstance(tensor, DTensor):
        return ()
    names = tensor.device_mesh.mesh_dim_names or ()
    return tuple(n for n, p in zip(names, tensor.placements, strict=True) if not p.is_replicate())


def _check(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise ConfigError(
                f"parallel: parameter '{name}' has no dimension and cannot be sharded: give it the "
                "shape [1], or leave parallel.shard and parallel.tensor out."
            )


def _free_whole_weights(model: nn.Module, batch: object, predicted: object) -> None:
    """Give whole weights back where no backward pass will: new weights would not reach them."""
    if not torch.is_grad_enabled() and isinstance(model, FSDPModule):
        model.reshard()
