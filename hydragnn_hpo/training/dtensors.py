"""Tensors that a rank holds whole or in part, as optimizers see them.

``DTensor`` is imported where there are some: that takes half a second, and most trials have none.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Tell whether a tensor is spread over ranks: a ``DTensor``."""
    return hasattr(tensor, "placements")


def has_dtensors(tensors: Iterable[Tensor]) -> bool:
    """Tell whether any tensor is spread over ranks."""
    return any(map(is_dtensor, tensors))


def local_part(tensor: Tensor) -> Tensor:
    """Give what this rank holds of a tensor: changes of the one are changes of the other."""
    part: Tensor = tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return part


def local_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Give what this rank holds of the gradients of parameters that have one."""
    return [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]


def as_dtensor(tensor: Tensor, like: Tensor) -> Tensor:
    """Say that what this rank holds is its part of a tensor that is spread as ``like`` is."""
    if not is_dtensor(like):
        return tensor
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    return DTensor.from_local(
        tensor,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def gather_dtensor(tensor: Tensor) -> Tensor:
    """Gather a tensor that is spread over ranks; every rank calls this."""
    if not is_dtensor(tensor):
        return tensor
    gathered: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return gathered


def distribute_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Take this rank's part of what all ranks hold, as ``like`` is spread; nothing is sent."""
    if not is_dtensor(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    assert isinstance(like, DTensor)
    everywhere = [Replicate()] * like.device_mesh.ndim
    held = DTensor.from_local(tensor, like.device_mesh, everywhere, run_check=False)
    return held.redistribute(placements=like.placements)


@torch.no_grad()
def copy_into(target: Tensor, source: Tensor) -> None:
    """Copy what all ranks hold, or what is spread alike, into a tensor."""
    if is_dtensor(target) and not is_dtensor(source):
        source = distribute_like(source.to(target), target)
    target.copy_(source)
