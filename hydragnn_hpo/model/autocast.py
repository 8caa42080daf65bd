"""Where types meet when products run in bf16: under ``torch.autocast``.

Linear maps then give bf16, and everything that touches the scalars of the nodes, geometry or
sums over whole graphs stays in the weights' own type. Nothing here does anything without autocast.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn


def to_float32(values: Tensor) -> Tensor:
    """Give bf16 numbers 24 bits again, before many of them are added up."""
    return values.float() if values.dtype is torch.bfloat16 else values


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Switch autocast off, where it is on for a tensor."""
    kind = like.device.type
    if not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def apply_without_autocast(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Apply a function as if there were no autocast."""
    with without_autocast(inputs[0]):
        return function(*map(to_float32, inputs))


def apply_with_float32_output(chain: nn.Sequential, values: Tensor) -> Tensor:
    """Apply a chain of maps; the last one gives as many bits as its weights have.

    What a head says is of the order of 1 and rounded to 8 bits in bf16: too few for an error.
    """
    if not torch.is_autocast_enabled(values.device.type):
        result: Tensor = chain(values)
        return result
    *first, last = chain
    for layer in first:
        values = layer(values)
    return apply_without_autocast(last, values)


def unify_dtypes(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Give tensors that meet in one kernel one type: bf16 where one of them has it.

    torch's kernels that sum over neighbours add bf16 in fp32, and round once.
    """
    if torch.bfloat16 not in [tensor.dtype for tensor in tensors]:
        return tensors
    return [t.bfloat16() if t.dtype is torch.float32 else t for t in tensors]
