"""Linear maps with activations, by one compiled loop where that is quicker than torch.

Shapes: R rows (nodes, pairs or edges), I inputs, H hidden channels, O outputs.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn_hpo.model.activations import ShiftedSoftplus, silu_gradient
from hydragnn_hpo.model.row_products import (
    LANES,
    RowLinear,
    is_plain,
    pays,
    run_product,
    slopes_of_product,
)

Slopes = tuple[Tensor | None, ...]
"""Gradients of the inputs of a function, in their order; None for those that are not needed."""

_KINDS: dict[type[nn.Module], Tensor] = {
    nn.SiLU: torch.zeros(0),
    ShiftedSoftplus: torch.zeros(1),
}
"""Activations that loops know, as they take them, see ``kernels.perceptron_loops``."""


class Perceptron(nn.Sequential):
    """Linear maps with activations in between; two of them are one loop where nothing is trained.

    For training it does not pay: a loop saves a fifth of the time without gradients, a twentieth
    with them, and second derivatives take longer.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map rows, [..., I], to [..., O]."""
        if not self.is_one_loop(input):
            chained: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
            return chained
        first, between, last = self._modules.values()
        assert isinstance(first, RowLinear)
        assert isinstance(last, RowLinear)
        outputs = input.new_empty(input.shape[0], last.out_features)
        empty = input.new_empty(0)
        biases = tuple(empty if x.bias is None else x.bias for x in (first, last))
        weights = (first.weight, last.weight)
        run_product("map_twice", input, weights, biases, _KINDS[type(between)], outputs)
        return outputs

    def is_one_loop(self, rows: Tensor) -> bool:
        """Check whether a loop maps rows, [..., I], to outputs without a gradient."""
        if torch.is_grad_enabled() or len(self._modules) != 3:
            return False
        first, between, last = self._modules.values()
        return (
            type(between) in _KINDS
            and type(first) is RowLinear is type(last)
            and last.out_features % LANES == 0
            and _joins(first, rows)
        )


def _joins(linear: RowLinear, rows: Tensor) -> bool:
    """Check whether a loop for a linear map and more pays."""
    width = linear.out_features
    return width % LANES == 0 and linear.kernels != "eager" and pays(rows, linear.weight, width)


def _takes_one_loop(grad: Tensor, rows: Tensor, weight: Tensor) -> bool:
    """Check whether one loop finds all gradients, of which no further ones are taken."""
    fits = rows.shape[1] % LANES == 0 and is_plain(grad, weight)
    return fits and not torch.is_grad_enabled()


def activate_sum(maps: tuple[RowLinear, RowLinear], rows: tuple[Tensor, Tensor]) -> Tensor:
    """Return SiLU of the sum of two linear maps, by one loop where that pays.

    Args:
        maps: the first without a bias.
        rows: of each map, [R, I].

    Returns:
        [R, H].
    """
    if not all(map(_joins, maps, rows)):
        return F.silu(_add_map(maps[0], rows[0], maps[1](rows[1])))
    given = (rows[0], maps[0].weight, rows[1], maps[1].weight, maps[1].bias)
    if not torch.is_grad_enabled():
        return _activate(*given, keep=False)[0]
    activated: Tensor = _ActivatedSum.apply(*given)[0]  # type: ignore[no-untyped-call]
    return activated


def _add_map(linear: RowLinear, rows: Tensor, sums: Tensor) -> Tensor:
    """Add a linear map without a bias to ``sums``, [R, H], by one operation where that is known."""
    if type(linear.weight) is nn.Parameter and rows.dim() == 2:  # neither sharded nor transformed
        return torch.addmm(sums, rows, linear.weight.t())
    added: Tensor = sums + linear(rows)
    return added


def _activate(*factors: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """Run the loop of ``activate_sum``.

    Args:
        factors: rows and weight of each map, and the bias.
        keep: whether the sums are wanted, too.

    Returns:
        Activations and sums, [R, H]; sums without rows if they are not wanted.
    """
    *maps, bias = factors
    rows, width = maps[0], bias.shape[0]
    outputs = rows.new_empty(rows.shape[0], width)
    sums = rows.new_empty(rows.shape[0] if keep else 0, width)
    run_product("activate_sum", tuple(maps), bias, sums, outputs)
    return outputs, sums


class _ActivatedSum(Function):
    """``activate_sum``; also returns the sums."""

    @staticmethod
    def forward(ctx: Any, *factors: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply, sum and activate.

        Args:
            ctx: keeps the sums and all factors.
            factors: rows, [R, I], and weight, [H, I], of each map, and the bias, [H].

        Returns:
            Activations and sums, [R, H].
        """
        outputs, sums = _activate(*factors, keep=True)
        ctx.save_for_backward(sums, *factors[:4])
        ctx.set_materialize_grads(False)
        return outputs, sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, to_sums: Tensor | None) -> Slopes:
        """Differentiate.

        Args:
            ctx: holds what ``forward`` kept.
            grad: gradient of the activations, or None.
            to_sums: gradient of the sums, or None.

        Returns:
            Gradients of each factor; None for those that are not needed.
        """
        (sums, *maps), needed = ctx.saved_tensors, ctx.needs_input_grad
        to_all = grad is not None and to_sums is None and needed[1] and needed[3]
        if (
            grad is not None
            and to_all
            and _takes_one_loop(grad, maps[0], maps[1])
            and _takes_one_loop(grad, maps[2], maps[3])
        ):
            return _sum_slopes(grad, sums, maps, needed)
        if grad is not None:
            slope = silu_gradient(grad, sums)
            to_sums = slope if to_sums is None else slope + to_sums
        if to_sums is None:
            return (None,) * len(needed)
        first = slopes_of_product(to_sums, maps[0], maps[1], (*needed[:2], False))
        return *first[:2], *slopes_of_product(to_sums, maps[2], maps[3], needed[2:])


def _sum_slopes(
    grad: Tensor, sums: Tensor, maps: Sequence[Tensor], needed: Sequence[bool]
) -> Slopes:
    """Differentiate ``activate_sum`` by one loop.

    Args:
        grad: gradient of the activations, [R, H].
        sums: [R, H].
        maps: rows and weight of each map.
        needed: whether the gradients of these and of the bias are.

    Returns:
        Gradients of rows, weights and bias; None for those that are not needed.
    """
    slopes = tuple(
        grad.new_empty(each.shape if need else (0, each.shape[1]))
        for each, need in zip(maps, needed[:4], strict=True)
    )
    to_bias = grad.new_empty(grad.shape[1] if needed[4] else 0)
    run_product("sum_slopes", grad, sums, tuple(maps), slopes, to_bias)
    all_slopes = zip((*slopes, to_bias), needed, strict=True)
    return tuple(slope if need else None for slope, need in all_slopes)
