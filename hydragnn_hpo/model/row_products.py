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

from hydragnn_hpo.model.activations import silu_gradient

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
    have not been measured. On Intel's, MKL uses such vectors itself.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        processor = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
        importlib.import_module("hydragnn_hpo.model.kernels.product_loops")
    except (OSError, ImportError):
        return False
    return "AuthenticAMD" in processor


def _is_plain(rows: Tensor, weight: Tensor) -> bool:
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


def _pays(left: Tensor, right: Tensor, width: int) -> bool:
    """Check for matrices whose product pays; a tracer would note that it depends on their size.

    Args:
        left: [R, K].
        right: the other matrix.
        width: number of multiplications with each number of ``left``.
    """
    if torch.compiler.is_compiling() or not _is_quicker() or not _is_plain(left, right):
        return False
    return left.dim() == 2 and left.numel() * width >= LEAST_WORK


def _run(loop: str, *arrays: Tensor | tuple[Tensor, ...]) -> None:
    """Run a loop of ``product_loops`` on arrays in fp32 and tuples of them."""
    given = [
        tuple(map(_as_array, each)) if isinstance(each, tuple) else _as_array(each)
        for each in arrays
    ]
    _compile(loop)(*given)


@functools.cache
def _compile(loop: str) -> Callable[..., None]:
    from hydragnn_hpo.model.kernels.product_loops import PRODUCTS

    return PRODUCTS.compile(loop, "float32")


def _as_array(tensor: Tensor) -> Any:
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous().numpy()


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``rows @ weight.T + bias``."""
    if weight.shape[0] < LANES:
        return F.linear(rows, weight, bias)
    bias, out = rows.new_empty(0) if bias is None else bias, rows.new_empty(len(rows), len(weight))
    if weight.is_contiguous():
        _run("map_rows", rows, weight, bias, out)
    else:
        _run("multiply_rows", rows, weight.t(), bias, out)
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
        rows.new_empty(len(weight) if to_bias else 0),
    )
    _run("differentiate_map", grad, rows, weight, *slopes)
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
        return _slopes_of_product(grad, rows, weight, ctx.needs_input_grad)


def _slopes_of_product(
    grad: Tensor, rows: Tensor, weight: Tensor, needed: Sequence[bool]
) -> Slopes:
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
    by_one = to_weight and rows.shape[1] % LANES == 0 and _is_plain(grad, weight)
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
        _run("multiply_transposed", first, second, product)
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
    if not _pays(left, right, right.shape[1]):
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
    if not _pays(rows, weight, weight.shape[0]):
        return F.linear(rows, weight, bias)
    product: Tensor = _RowProduct.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return product


class RowLinear(nn.Linear):
    """A linear map that is applied to many rows."""

    kernels = "auto"
    """``model.kernels``; ``eager`` leaves products to torch."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map rows, [..., I], to [..., O]."""
        if self.kernels == "eager" or torch.compiler.is_compiling():
            return F.linear(input, self.weight, self.bias)
        if input.dim() > 2:
            product = multiply_rows(input.flatten(0, -2), self.weight, self.bias)
            return product.view(*input.shape[:-1], self.out_features)
        return multiply_rows(input, self.weight, self.bias)


class Perceptron(nn.Sequential):
    """Linear maps with activations in between; a map and its SiLU are one loop where that pays."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map rows, [..., I], to [..., O]."""
        layers = [*self._modules.values(), None]
        values, skip = input, False
        for layer, following in zip(layers, layers[1:], strict=False):
            if skip:
                skip = False
            elif isinstance(layer, RowLinear) and isinstance(following, nn.SiLU):
                values, skip = activate_sum((layer, values)), True
            else:
                assert layer is not None
                values = layer(values)
        return values


def activate_sum(*terms: tuple[RowLinear, Tensor]) -> Tensor:
    """Return SiLU of the sum of linear maps, each of its own rows: [R, I] to [R, O].

    One or two maps, of which one may have a bias, are one loop where that pays.
    """
    biases: list[Tensor] = []
    factors: list[Tensor] = []
    for linear, rows in terms:
        if not _joins(linear, rows):
            return _activate_by_torch(terms)
        factors += (rows, linear.weight)
        if linear.bias is not None:
            biases.append(linear.bias)
    if len(biases) > 1 or len(terms) > 2:
        return _activate_by_torch(terms)
    bias = biases[0] if biases else None
    if not torch.is_grad_enabled():
        return _activate(bias, factors, keep=False)[0]
    activated: Tensor = _ActivatedSum.apply(bias, *factors)[0]  # type: ignore[no-untyped-call]
    return activated


def _joins(linear: RowLinear, rows: Tensor) -> bool:
    """Check whether a loop for a linear map and an activation pays."""
    width = linear.out_features
    return width % LANES == 0 and linear.kernels != "eager" and _pays(rows, linear.weight, width)


def _activate_by_torch(terms: Sequence[tuple[RowLinear, Tensor]]) -> Tensor:
    first, *more = (linear(rows) for linear, rows in terms)
    for each in more:
        first = first + each
    return F.silu(first)


def _activate(
    bias: Tensor | None, factors: Sequence[Tensor], *, keep: bool
) -> tuple[Tensor, Tensor]:
    """Run the loop of ``activate_sum``.

    Args:
        bias: [O], or None.
        factors: rows and weight of each map.
        keep: whether the sums are wanted, too.

    Returns:
        Activations and sums, [R, O]; sums without rows if they are not wanted.
    """
    rows, width = factors[0], factors[1].shape[0]
    outputs = rows.new_empty(rows.shape[0], width)
    sums = rows.new_empty(rows.shape[0] if keep else 0, width)
    bias = rows.new_empty(0) if bias is None else bias
    name = "activate_map" if len(factors) == 2 else "activate_maps"
    _run(name, tuple(factors), bias, sums, outputs)
    return outputs, sums


class _ActivatedSum(Function):
    """``activate_sum``; also returns the sums, through which it is differentiated again."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor | None, *factors: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply, sum and activate.

        Args:
            ctx: keeps the sums and all factors.
            bias: [O], or None.
            factors: rows, [R, I], and weight, [O, I], of each map.

        Returns:
            Activations and sums, [R, O].
        """
        outputs, sums = _activate(bias, factors, keep=True)
        ctx.save_for_backward(sums, *factors)
        ctx.set_materialize_grads(False)
        return outputs, sums

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, to_sums: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Differentiate.

        Returns:
            Gradients of the bias and of each factor; None for those that are not needed.
        """
        (sums, *factors), needed = ctx.saved_tensors, ctx.needs_input_grad
        if grad is not None and to_sums is None and _takes_one_loop(grad, factors, needed):
            return _differentiate_activated(grad, sums, factors, needed)
        if grad is not None:
            slope = silu_gradient(grad, sums)
            to_sums = slope if to_sums is None else slope + to_sums
        if to_sums is None:
            return (None,) * len(needed)
        found: list[Tensor | None] = [to_sums.sum(0) if needed[0] else None]
        for place in range(0, len(factors), 2):
            rows, weight = factors[place : place + 2]
            wanted = (*needed[1 + place : 3 + place], False)
            found += _slopes_of_product(to_sums, rows, weight, wanted)[:2]
        return tuple(found)


def _takes_one_loop(grad: Tensor, factors: Sequence[Tensor], needed: Sequence[bool]) -> bool:
    """Check whether one loop finds all gradients: those of weights are needed, no further ones."""
    return (
        not torch.is_grad_enabled()
        and all(needed[2::2])
        and all(rows.shape[1] % LANES == 0 for rows in factors[::2])
        and _is_plain(grad, factors[1])
    )


def _differentiate_activated(
    grad: Tensor, sums: Tensor, factors: Sequence[Tensor], needed: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Differentiate ``_activate`` by one loop.

    Args:
        grad: gradient of the activations, [R, O].
        sums: [R, O].
        factors: rows and weight of each map.
        needed: whether the gradients of the bias and of each factor are.

    Returns:
        Gradients of the bias and of each factor; None for those that are not needed.
    """
    slopes = tuple(
        grad.new_empty(each.shape if need else (0, each.shape[1]))
        for each, need in zip(factors, needed[1:], strict=True)
    )
    to_bias = grad.new_empty(grad.shape[1] if needed[0] else 0)
    name = "differentiate_activated" if len(factors) == 2 else "differentiate_activated_sum"
    _run(name, grad, sums, tuple(factors), slopes, to_bias)
    found = zip((to_bias, *slopes), needed, strict=True)
    return tuple(slope if need else None for slope, need in found)


def use_kernels(model: nn.Module, kernels: str) -> None:
    """Make all linear maps of a model follow ``model.kernels``."""
    for module in model.modules():
        if isinstance(module, RowLinear):
            module.kernels = kernels
