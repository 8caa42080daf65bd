"""Products of many rows with small matrices, by compiled loops where they are quicker than torch.

Shapes: R rows (nodes, pairs or edges), I and O inputs and outputs of a linear map.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

LEAST_WORK = 2**19
"""Multiplications from which a call of a loop pays."""

LANES = 16
"""Columns that loops multiply at a time, see ``kernels.product_loops``."""


Slopes = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Gradients of rows, weight and bias; None for those that are not needed."""


@functools.cache
def _is_quicker() -> bool:
    """Check whether loops multiply faster on this processor than MKL, and numba can be imported.

    On one core of Zen 5 they do so 2.3 to 2.5 times; other AMD processors with vectors of 512 bits
    have not been measured. On Intel's, MKL uses such vectors itself: on Emerald Rapids, training
    steps take 2 to 14 % longer with the loops.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        processor = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
        importlib.import_module("hydragnn_hpo.model.kernels.product_loops")
    except (OSError, ImportError):
        return False
    return "AuthenticAMD" in processor


def is_plain(rows: Tensor, weight: Tensor) -> bool:
    """Check for plain tensors in fp32 on a CPU, which torch neither traces nor transforms."""
    return (
        not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
        and type(rows) is Tensor
        and not torch._C._functorch.is_legacy_batchedtensor(rows)
        and type(weight) in (Tensor, nn.Parameter)
        and rows.dtype is torch.float32 is weight.dtype
        and rows.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
    )


def pays(left: Tensor, right: Tensor, width: int) -> bool:
    """Check for matrices whose product pays; a tracer would note that it depends on their size.

    Args:
        left: [R, K].
        right: the other matrix.
        width: number of multiplications with each number of ``left``.
    """
    if torch.compiler.is_compiling() or not _is_quicker() or not is_plain(left, right):
        return False
    return left.dim() == 2 and left.numel() * width >= LEAST_WORK


def run_product(loop: str, *arrays: Tensor | tuple[Tensor, ...]) -> None:
    """Run a loop of ``product_loops`` or ``perceptron_loops`` on arrays in fp32, and tuples."""
    given = (
        tuple(map(_as_array, each)) if isinstance(each, tuple) else _as_array(each)
        for each in arrays
    )
    _compile(loop)(*given)


@functools.cache
def _compile(loop: str) -> Callable[..., None]:
    from hydragnn_hpo.model.kernels.perceptron_loops import PERCEPTRONS
    from hydragnn_hpo.model.kernels.product_loops import PRODUCTS

    kind = PRODUCTS if loop in PRODUCTS.loops else PERCEPTRONS
    return kind.compile(loop, "float32")


def _as_array(tensor: Tensor) -> Any:
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous().numpy()


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``rows @ weight.T + bias``."""
    if weight.shape[0] < LANES:
        return F.linear(rows, weight, bias)
    out = rows.new_empty(rows.shape[0], weight.shape[0])
    bias = rows.new_empty(0) if bias is None else bias
    if weight.is_contiguous():
        run_product("map_rows", rows, weight, bias, out)
    else:
        run_product("multiply_rows", rows, weight.t(), bias, out)
    return out


def _differentiate(
    grad: Tensor, rows: Tensor, weight: Tensor, *, to_rows: bool, to_bias: bool
) -> Slopes:
    """Differentiate ``_multiply`` by one loop.

    Args:
        grad: gradient of its result, [R, O].
        rows: [R, I].
        weight: [O, I].
        to_rows: whether the gradient of the rows is wanted.
        to_bias: whether that of the bias is.

    Returns:
        Gradients of rows, weight and bias; None for those that are not wanted.
    """
    slopes = (
        rows.new_empty(rows.shape if to_rows else (0, rows.shape[1])),
        rows.new_empty(weight.shape),
        rows.new_empty(weight.shape[0] if to_bias else 0),
    )
    run_product("differentiate_map", grad, rows, weight, *slopes)
    return slopes[0] if to_rows else None, slopes[1], slopes[2] if to_bias else None


class _RowProduct(Function):
    """``rows @ weight.T + bias``, derivatives of every order from products of the same kind."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply.

        Args:
            ctx: keeps rows and weight.
            rows: [R, I].
            weight: [O, I].
            bias: [O], or None.
        """
        ctx.save_for_backward(rows, weight)
        return _multiply(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Slopes:
        rows, weight = ctx.saved_tensors
        return slopes_of_product(grad, rows, weight, ctx.needs_input_grad)


def slopes_of_product(grad: Tensor, rows: Tensor, weight: Tensor, needed: Sequence[bool]) -> Slopes:
    """Differentiate ``rows @ weight.T + bias``, in a way that can be differentiated again.

    Args:
        grad: gradient of the product, [R, O].
        rows: [R, I].
        weight: [O, I].
        needed: whether the gradients of rows, weight and bias are.

    Returns:
        Gradients of rows, weight and bias; None for those that are not needed.
    """
    to_rows, to_weight, to_bias = needed
    by_one = to_weight and rows.shape[1] % LANES == 0 and is_plain(grad, weight)
    if by_one and not torch.is_grad_enabled():
        return _differentiate(grad, rows, weight, to_rows=to_rows, to_bias=to_bias)
    return (
        multiply_rows(grad, weight.t()) if to_rows else None,
        sum_outer_products(grad, rows) if to_weight else None,
        grad.sum(0) if to_bias else None,
    )


class _OuterProductSum(Function):
    """``sum_outer_products``."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        """Multiply.

        Args:
            ctx: keeps the inputs.
            left: [R, O].
            right: [R, I].
        """
        ctx.save_for_backward(left, right)
        turned = right.shape[1] % LANES > 0
        first, second = (right, left) if turned else (left, right)
        if second.shape[1] % LANES:
            return left.t() @ right
        product = left.new_empty(first.shape[1], second.shape[1])
        run_product("multiply_transposed", first, second, product)
        return product.t() if turned else product

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Differentiate.

        Returns:
            Gradients of both inputs; None for one that is not wanted.
        """
        left, right = ctx.saved_tensors
        to_left, to_right = ctx.needs_input_grad
        return (
            multiply_rows(right, grad) if to_left else None,
            multiply_rows(left, grad.t()) if to_right else None,
        )


def sum_outer_products(left: Tensor, right: Tensor) -> Tensor:
    """Sum the outer products of rows, ``left.T @ right``: [R, O] and [R, I] to [O, I]."""
    if not pays(left, right, right.shape[1]):
        return left.t() @ right
    product: Tensor = _OuterProductSum.apply(left, right)  # type: ignore[no-untyped-call]
    return product


def multiply_rows(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear map to rows, as ``torch.nn.functional.linear`` does.

    Args:
        rows: [R, I].
        weight: [O, I].
        bias: [O], or None.

    Returns:
        [R, O].
    """
    if not pays(rows, weight, weight.shape[0]):
        return F.linear(rows, weight, bias)
    product: Tensor = _RowProduct.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return product


class RowLinear(nn.Linear):
    """A linear map that is applied to many rows."""

    kernels = "auto"
    """``model.kernels``; ``eager`` leaves products to torch."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map rows, [..., I], to [..., O]."""
        if self.kernels == "eager" or torch.compiler.is_compiling() or not _is_quicker():
            return F.linear(input, self.weight, self.bias)
        if input.dim() > 2:
            product = multiply_rows(input.flatten(0, -2), self.weight, self.bias)
            return product.view(*input.shape[:-1], self.out_features)
        return multiply_rows(input, self.weight, self.bias)


def use_kernels(model: nn.Module, kernels: str) -> None:
    """Make all linear maps of a model follow ``model.kernels``."""
    for module in model.modules():
        if isinstance(module, RowLinear):
            module.kernels = kernels
