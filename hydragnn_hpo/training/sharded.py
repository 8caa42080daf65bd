"""Sharded training: weights, gradients and optimizer state over ranks, and tensor parallelism.

``ShardedModel`` spreads parameters over the ranks of a mesh (copies x shard x tensor). In tensor
parallelism neighbouring ranks share the hidden channels of wide perceptrons: the first of two
linear maps is split by its outputs, the second by its inputs, and the activation between them acts
on each channel alone. So two maps cost one all-reduce in the forward and one in the backward pass.
All ranks of a group see the same graphs and compute everything else redundantly.

Every rank writes its part of a checkpoint in torch's distributed format. Torch pickles the index of
the parts. Law 10 forbids pickles from outside: the index is read only from a run's own directory,
which belongs to its user alone. Importing this module takes half a second.

Source: Shoeybi et al. (2019), arXiv:1909.08053, section 3.
"""

import contextlib
import logging
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from hydragnn_hpo.config import ParallelConfig
from hydragnn_hpo.errors import ConfigError, StorageError
from hydragnn_hpo.files import storage, sync
from hydragnn_hpo.model import MultiHeadGNN
from hydragnn_hpo.model.messages import ShiftedSoftplus
from hydragnn_hpo.training.ddp import Ranks, collective_timeout, keep_until_exit
from hydragnn_hpo.training.parallel import ModelParallelism, copy_into, gather_dtensor, local_part
from hydragnn_hpo.training.train_state import matching_weight

BY_CHANNEL = (nn.SiLU, ShiftedSoftplus)
"""Activations that act on each channel alone."""

OURS = ("torch.nn.", "hydragnn_hpo.")
"""Packages whose modules use the weights in an ``nn.Sequential`` only by calling it; a user's conv
may use them in other ways."""


class _CopyToGroup(Function):
    """Identity for values that all ranks of a group have; the gradient is summed over the group."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the values themselves.

        Args:
            ctx: keeps the group for ``backward``.
            values: the same on all ranks of the group, of any shape.
            group: ranks that share layers.

        Returns:
            The same on all ranks of the group.
        """
        ctx.group = group
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the values.

        Returns:
            Of the shape of ``grad``, and None for the group.
        """
        return _sum_over_group(grad, ctx.group), None


class _SumOverGroup(Function):
    """Sum values over the ranks of a group; each rank's gradient is that of the sum."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Add the values of all ranks.

        Args:
            ctx: keeps the group for ``backward``.
            values: of this rank, of any shape.
            group: ranks that share layers.

        Returns:
            The sum, the same on all ranks of the group.
        """
        ctx.group = group
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the values.

        Returns:
            Of the shape of ``grad``, and None for the group.
        """
        return _copy_to_group(grad, ctx.group), None


def _copy_to_group(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    copied: Tensor = _CopyToGroup.apply(values, group)  # type: ignore[no-untyped-call]
    return copied


def _sum_over_group(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    total: Tensor = _SumOverGroup.apply(values, group)  # type: ignore[no-untyped-call]
    return total


def _local_slice(parameter: Tensor) -> Tensor:
    """Return this rank's part of a weight that is split."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


class ColumnParallelLinear(nn.Linear):
    """The first linear map of a pair; each rank computes a part of its outputs."""

    group: dist.ProcessGroup
    """Ranks that share the map."""

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., F] to this rank's share of the hidden channels."""
        bias = None if self.bias is None else _local_slice(self.bias)
        return F.linear(_copy_to_group(input, self.group), _local_slice(self.weight), bias)


class RowParallelLinear(nn.Linear):
    """The second linear map of a pair; each rank computes the terms of a part of its inputs."""

    group: dist.ProcessGroup
    """Ranks that share the map."""

    def forward(self, input: Tensor) -> Tensor:
        """Map this rank's share of the hidden channels to [..., F], the same on all ranks."""
        total = _sum_over_group(F.linear(input, _local_slice(self.weight)), self.group)
        return total if self.bias is None else total + self.bias


def find_linear_pairs(model: nn.Module, parts: int) -> Iterator[tuple[nn.Linear, nn.Linear]]:
    """Yield pairs of linear maps whose hidden width is divisible by ``parts``.

    Only pairs in an ``nn.Sequential``, with an activation between them, are considered.
    """
    if not type(model).__module__.startswith(OURS):
        return
    if isinstance(model, nn.Sequential):
        yield from _linear_pairs(list(model), parts)
    for child in model.children():
        yield from find_linear_pairs(child, parts)


def _linear_pairs(chain: list[nn.Module], parts: int) -> Iterator[tuple[nn.Linear, nn.Linear]]:
    place = 0
    while place + 2 < len(chain):
        first, between, second = chain[place : place + 3]
        if (
            isinstance(first, nn.Linear)
            and isinstance(between, BY_CHANNEL)
            and isinstance(second, nn.Linear)
            and first.out_features % parts == 0
        ):
            yield first, second
            place += 3
        else:
            place += 1


def apply_tensor_parallel(model: nn.Module, mesh: DeviceMesh, even: int = 1) -> int:
    """Split the linear pairs of a model over the ranks of a mesh, in place; sends nothing.

    Args:
        model: model with the same weights on all ranks.
        mesh: mesh of one dimension.
        even: number of equal shards into which each rank's part must be divisible.

    Returns:
        Number of pairs that were split.
    """
    pairs = list(find_linear_pairs(model, mesh.size() * even))
    for first, second in pairs:
        _slice_linear(first, "weight", mesh, 0)
        if first.bias is not None:
            _slice_linear(first, "bias", mesh, 0)
        _slice_linear(second, "weight", mesh, 1)
        # Only the class changes: names, settings and hooks of the modules are kept.
        first.__class__, second.__class__ = ColumnParallelLinear, RowParallelLinear
        for module in (first, second):
            setattr(module, "group", mesh.get_group())  # noqa: B010 - it has just become one of ours
    return len(pairs)


def _slice_linear(module: nn.Module, name: str, mesh: DeviceMesh, dimension: int) -> None:
    whole = module.get_parameter(name)
    part = distribute_tensor(whole.detach(), mesh, [Shard(dimension)], src_data_rank=None)
    setattr(module, name, nn.Parameter(part, requires_grad=whole.requires_grad))


# Silences torch's warning at each gather of a tensor that is split over two mesh dimensions.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)

COPIES, SHARD, TENSOR = "copies", "shard", "tensor"
"""Dimensions of the mesh: replicas, ranks that share all weights, ranks that share layers."""


class ShardedModel(ModelParallelism):
    """Every rank holds a part of the weights, of the gradients and of the optimizer's state."""

    is_collective = True

    def __init__(self, model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks) -> None:
        """Shard a model; every rank calls this with the same weights.

        Args:
            model: on the device of this rank; its parameters become ``DTensor``s.
            config: how weights are shared.
            ranks: this rank among the others.

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
        """Shard the weights in groups; a group is gathered as a whole when its layers are used."""
        copies = self.mesh[COPIES].size() > 1
        mesh = self.mesh[COPIES, SHARD] if copies else self.mesh[SHARD]
        _check_parameters(self.model)
        release = self.config.shard in ("full", "hybrid")
        if release and not self.model.energies:
            for group in round_modules(self.model):
                fully_shard(group, mesh=mesh, reshard_after_forward=True)
        fully_shard(self.model, mesh=mesh, reshard_after_forward=False)
        self.model.register_forward_hook(_free_whole_weights)

    def gradient_sync(self, last: bool) -> AbstractContextManager[object]:
        """Return the context of a micro-batch: gradients are sent in the ``last`` one of a step."""
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    def gradient_norm(self) -> Tensor:
        """Return the 2-norm of the whole gradient, fp64; each part counts once."""
        squares: dict[tuple[str, ...], list[Tensor]] = defaultdict(list)
        for gradient in self.gradients():
            squares[_sharded_mesh_dims(gradient)].append(local_part(gradient))
        # Parts that all ranks of a tensor group hold are not added over that group.
        total = torch.zeros(2, device=self.ranks.device, dtype=torch.float64)
        for names, parts in squares.items():
            partial = torch.stack(torch._foreach_norm(parts)).double().square().sum()
            total[int(TENSOR in names)] += partial
        dist.all_reduce(total, group=self.mesh[SHARD].get_group())
        if self.mesh[TENSOR].size() > 1:
            dist.all_reduce(total[1], group=self.mesh[TENSOR].get_group())
        return total.sum().sqrt()

    def clip_gradients(self, norm: Tensor, limit: float) -> None:
        """Scale the gradient in place so that its ``norm`` is at most ``limit``."""
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        parts = [local_part(gradient) for gradient in self.gradients()]
        torch._foreach_mul_(parts, factor.to(parts[0].dtype))

    def full_state(self) -> dict[str, Tensor]:
        """Gather all weights and buffers on rank 0; every rank calls this.

        Returns:
            Whole tensors by name, in host memory; empty on other ranks.
        """
        gathered_tensors = {}
        for name, value in self.model.state_dict().items():
            whole = gather_dtensor(value.detach())
            if self.ranks.first:
                gathered_tensors[name] = whole.cpu().clone()
        return gathered_tensors

    def load_full_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Load whole weights and buffers that rank 0 has; every rank calls this."""
        for name, value in self.model.state_dict().items():
            whole = torch.empty(value.shape, dtype=value.dtype, device=self.ranks.device)
            if self.ranks.first:
                whole.copy_(tensors[name])
            dist.broadcast(whole, 0)
            copy_into(value, whole)


def build_mesh(config: ParallelConfig, ranks: Ranks) -> DeviceMesh:
    """Arrange the ranks as a mesh of copies x shard x tensor; every rank calls this."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.world))
    tensor = config.tensor_ranks(ranks.world)
    held = config.copy_ranks(ranks.world, local)
    shape = (ranks.world // (held * tensor), held, tensor)
    mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=(COPIES, SHARD, TENSOR))
    for group in mesh.get_all_groups():  # torch's default timeout is half an hour
        _set_pg_timeout(collective_timeout(), group)
    return mesh


def round_modules(model: MultiHeadGNN) -> Iterator[list[nn.Module]]:
    """Yield for each round of the trunk its modules with weights, in the order of their calls."""
    trunk = model.trunk
    kinds = (trunk.norms, trunk.films, trunk.convs, trunk.rounds)
    for layer in range(len(trunk.convs)):
        modules = [kind[layer] for kind in kinds if len(kind)]
        learned = [m for m in modules if next(m.parameters(), None) is not None]
        if learned:
            yield learned


def _sharded_mesh_dims(tensor: Tensor) -> tuple[str, ...]:
    """Return the names of the mesh dimensions over which a tensor is split."""
    if not isinstance(tensor, DTensor):
        return ()
    names = tensor.device_mesh.mesh_dim_names or ()
    return tuple(n for n, p in zip(names, tensor.placements, strict=True) if not p.is_replicate())


def _check_parameters(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise ConfigError(
                f"parallel: parameter '{name}' has no dimension and cannot be sharded: give it the "
                "shape [1], or leave parallel.shard and parallel.tensor out."
            )


def _free_whole_weights(model: nn.Module, batch: object, predicted: object) -> None:
    """Free gathered weights after a pass without gradients, as updates would not change them."""
    if not torch.is_grad_enabled() and isinstance(model, FSDPModule):
        model.reshard()


def copy_to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy this rank's parts of tensors into host memory.

    Returns:
        Copies by the names of ``tensors``, as ``write_sharded`` takes them.
    """
    copies: dict[str, Tensor] = FileSystemWriter("unused").stage(dict(tensors))
    return copies


def write_sharded(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> int:
    """Write this rank's parts of a checkpoint, and wait until those of all ranks are on disk.

    Args:
        folder: folder to create.
        tensors: result of ``copy_to_host``.
        group: process group of all ranks, not in use by another thread.

    Returns:
        Size of the checkpoint over all ranks, in bytes.

    Raises:
        StorageError: a rank's disk is full or the folder not writable.
    """
    with storage(folder):
        try:
            save(dict(tensors), checkpoint_id=folder, process_group=group)
        except CheckpointException as error:
            raise _first_failure(error) from error
        sync(folder)
        return sum(path.stat().st_size for path in folder.iterdir())


def read_sharded(folder: Path, weights: Mapping[str, Tensor], *, best: bool) -> dict[str, Tensor]:
    """Read this rank's parts of a checkpoint written by any number of ranks; sends nothing.

    Args:
        folder: folder that ``write_sharded`` wrote.
        weights: weights of the model on these ranks; each tensor gets the layout of its weight.
        best: whether this rank reads the weights of the best epoch, which are not sharded.

    Returns:
        Tensors by their name in the checkpoint.

    Raises:
        StorageError: a file is missing or damaged.
    """
    try:
        described = FileSystemReader(folder).read_metadata().state_dict_metadata
        tensors = {
            name: _allocate_like(name, entry, weights)
            for name, entry in described.items()
            if best or not name.startswith("best/")
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(dict(tensors), checkpoint_id=folder, no_dist=True)
    except (Exception, CheckpointException) as error:
        failure = _first_failure(error)
        reason = getattr(failure, "strerror", None) or failure
        raise StorageError(
            f"{folder}: cannot be read as a checkpoint ({reason}); remove it to start over."
        ) from error
    return tensors


def _allocate_like(name: str, entry: Any, weights: Mapping[str, Tensor]) -> Tensor:
    """Allocate a tensor of a checkpoint in the layout of its weight."""
    assert isinstance(entry, TensorStorageMetadata)
    like = matching_weight(name, entry.size, weights)
    if like is None:
        return torch.empty(entry.size, dtype=entry.properties.dtype)
    return torch.empty_like(like, dtype=entry.properties.dtype)


def _first_failure(error: BaseException) -> BaseException:
    """Return the error of the first rank that failed."""
    if isinstance(error, CheckpointException) and error.failures:
        failure: BaseException = next(iter(error.failures.values()))[0]
        return failure
    return error
