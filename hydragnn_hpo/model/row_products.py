"""Products of many rows with one small matrix, by oneDNN where it is quicker than torch's own.

Shapes: R rows (mostly edges), I and O inputs and outputs of a linear map.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

BLOCKS = (8192, 2048)
"""Rows that oneDNN multiplies at a time; torch multiplies the rest.

For each shape that it has not seen, oneDNN compiles a function (0.25 ms), of which it keeps 1,024
at up to half a megabyte each. Batches have ever new numbers of rows.
"""

LEAST_WORK = 2**25
"""Multiplications from which blocks pay."""


@functools.cache
def _is_quicker() -> bool:
    """Check whether this processor multiplies faster by oneDNN than by MKL.

    On one core of Zen 5 a product of 10,490 rows with a matrix of 64 x 64 has 104 GFlop/s with MKL
    and 210 with oneDNN; other AMD processors with vectors of 512 bits have not been measured.
    """
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    if not wide or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        processor = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return "AuthenticAMD" in processor and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _is_plain(rows: Tensor, weight: Tensor) -> bool:
    """Check for plain tensors in fp32 on a CPU, which torch neither traces nor transforms."""
    return (
        not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
        and type(rows) is Tensor
        and type(weight) in (Tensor, nn.Parameter)
        and rows.dtype is torch.float32 is weight.dtype
        and rows.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
    )


def _is_much(rows: Tensor, weight: Tensor) -> bool:
    """Check for matrices whose product pays; a tracer would note that it depends on their size."""
    return (
        rows.dim() == 2
        and rows.shape[0] >= BLOCKS[-1]
        and rows.shape[0] * weight.numel() >= LEAST_WORK
    )


def _is_for_blocks(rows: Tensor, weight: Tensor) -> bool:
    """Check whether rows are multiplied block by block."""
    compiles = torch.compiler.is_compiling()
    return not compiles and _is_quicker() and _is_plain(rows, weight) and _is_much(rows, weight)


def _blocks(count: int) -> Iterator[slice]:
    """Yield the blocks of ``count`` rows."""
    start = 0
    for size in BLOCKS:
        for _ in range((count - start) // size):
            yield slice(start, start + size)
            start += size


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``rows @ weight.T + bias`` by oneDNN."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product


class _RowProduct(Function):
    """``rows @ weight.T + bias``, derivatives of every order from products of the same kind."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply block by block; what oneDNN gives is small enough to stay in a cache.

        Args:
            ctx: keeps rows and weight.
            rows: [R, I].
            weight: [O, I].
            bias: [O], or None.
        """
        ctx.save_for_backward(rows, weight)
        product, done = rows.new_empty(len(rows), len(weight)), 0
        for block in _blocks(len(rows)):
            product[block] = _multiply(rows[block], weight, bias)
            done = block.stop
        if done < len(rows):
            product[done:] = F.linear(rows[done:], weight, bias)
        return product

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Differentiate.

        Returns:
            Gradients of rows, weight and bias; None for those that are not wanted.
        """
        rows, weight = ctx.saved_tensors
        to_rows, to_weight, to_bias = ctx.needs_input_grad
        return (
            multiply_rows(grad, weight.t()) if to_rows else None,
            grad.t() @ rows if to_weight else None,
            grad.sum(0) if to_bias else None,
        )


def multiply_rows(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear map to rows, as ``torch.nn.functional.linear`` does.

    Args:
        rows: [R, I].
        weight: [O, I].
        bias: [O], or None.

    Returns:
        [R, O].
    """
    if _is_for_blocks(rows, weight):
        product: Tensor = _RowProduct.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
        return product
    return F.linear(rows, weight, bias)


class RowLinear(nn.Linear):
    """A linear map that is applied to many rows."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map rows, [R, I], to [R, O]."""
        return multiply_rows(input, self.weight, self.bias)
