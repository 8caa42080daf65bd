"""Tensors that a rank holds whole or in part, as optimizers see them.

``DTensor`` is imported where there are some: that takes half a second, and most trials have none.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def is_part(tensor: Tensor) -> bool:
    """Tell whether a tensor is spread over ranks: a ``DTensor``."""
    return hasattr(tensor, "placements")


def in_parts(tensors: Iterable[Tensor]) -> bool:
    """Tell whether any tensor is spread over ranks."""
    return any(map(is_part, tensors))


def here(tensor: Tensor) -> Tensor:
    """Give what this rank holds of a tensor: changes of the one are changes of the other."""
    part: Tensor = tensor.to_local() if is_part(tensor) else tensor  # type: ignore[attr-defined]
    return part


def gradients_here(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Give what this rank holds of the gradients of parameters that have one."""
    return [here(parameter.grad) for parameter in parameters if parameter.grad is not None]


def as_part(tensor: Tensor, like: Tensor) -> Tensor:
    """Say that what this rank holds is its part of a tensor that is spread as ``like`` is."""
    if not is_part(like):
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


def whole(tensor: Tensor) -> Tensor:
    """Gather a tensor that is spread over ranks; every rank calls this."""
    if not is_part(tensor):
        return tensor
    gathered: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return gathered


def spread_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Take this rank's part of what all ranks hold, as ``like`` is spread; nothing is sent."""
    if not is_part(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    assert isinstance(like, DTensor)
    everywhere = [Replicate()] * like.device_mesh.ndim
    held = DTensor.from_local(tensor, like.device_mesh, everywhere, run_check=False)
    return held.redistribute(placements=like.placements)


@torch.no_grad()
def copy_into(target: Tensor, source: Tensor) -> None:
    """Copy what all ranks hold, or what is spread alike, into a tensor."""
    if is_part(target) and not is_part(source):
        source = spread_like(source.to(target), target)
    target.copy_(source)
