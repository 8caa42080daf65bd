"""Tensor parallel: neighbouring ranks share the hidden channels of wide perceptrons.

The first of two linear maps is cut by its outputs, the second by its inputs; what lies between
them is done channel by channel. So two maps cost one all-reduce forward and one backward. All
ranks of a group see the same graphs, and everything else they compute alike.

Source: Shoeybi et al. (2019), arXiv:1909.08053, section 3.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from hydragnn_hpo.model.layers import ShiftedSoftplus

BY_CHANNEL = (nn.SiLU, ShiftedSoftplus)
"""Non-linearities that look at one channel alone."""

OURS = ("torch.nn.", "hydragnn_hpo.")
"""Modules whose weights are only used by calling them, where they stand in a chain; what a user's
conv does with its own is not known."""


class _CopyToGroup(Function):
    """Give all ranks of a group the same; the gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum_over_group(grad, ctx.group), None


class _SumOverGroup(Function):
    """Add up what the ranks of a group have; the gradient goes to all of them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _copy_to_group(grad, ctx.group), None


def _copy_to_group(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    found: Tensor = _CopyToGroup.apply(values, group)  # type: ignore[no-untyped-call]
    return found


def _sum_over_group(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    found: Tensor = _SumOverGroup.apply(values, group)  # type: ignore[no-untyped-call]
    return found


def _local_slice(parameter: Tensor) -> Tensor:
    """Give this rank's part of a weight that is cut."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


class ColumnParallelLinear(nn.Linear):
    """The first map of a pair: this rank's outputs of it."""

    group: dist.ProcessGroup

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., F] to this rank's share of the hidden channels."""
        bias = None if self.bias is None else _local_slice(self.bias)
        return F.linear(_copy_to_group(input, self.group), _local_slice(self.weight), bias)


class RowParallelLinear(nn.Linear):
    """The second map of a pair: the sum over all ranks' inputs of it."""

    group: dist.ProcessGroup

    def forward(self, input: Tensor) -> Tensor:
        """Map this rank's share of the hidden channels to [..., F], the same on all ranks."""
        total = _sum_over_group(F.linear(input, _local_slice(self.weight)), self.group)
        return total if self.bias is None else total + self.bias


def find_linear_pairs(model: nn.Module, parts: int) -> Iterator[tuple[nn.Linear, nn.Linear]]:
    """Find pairs of linear maps whose hidden width goes into so many equal parts.

    Only chains are looked at: ``nn.Sequential`` of linear maps with non-linearities between them.
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
    """Cut the pairs of a model over the ranks of a mesh; no rank speaks.

    Args:
        model: has the same weights on all ranks.
        mesh: of one dimension.
        even: into how many equal parts a rank's part must still go, to be sharded.

    Returns:
        How many pairs were cut.
    """
    found = list(find_linear_pairs(model, mesh.size() * even))
    for first, second in found:
        _slice_linear(first, "weight", mesh, 0)
        if first.bias is not None:
            _slice_linear(first, "bias", mesh, 0)
        _slice_linear(second, "weight", mesh, 1)
        # Names, settings and hooks stay; only the way of calling changes.
        first.__class__, second.__class__ = ColumnParallelLinear, RowParallelLinear
        for module in (first, second):
            setattr(module, "group", mesh.get_group())  # noqa: B010 - it has just become one of ours
    return len(found)


def _slice_linear(module: nn.Module, name: str, mesh: DeviceMesh, dimension: int) -> None:
    whole = module.get_parameter(name)
    part = distribute_tensor(whole.detach(), mesh, [Shard(dimension)], src_data_rank=None)
    setattr(module, name, nn.Parameter(part, requires_grad=whole.requires_grad))
