"""Functions of edges with an activation: their sums over neighbours, and derivatives twice.

A message that passes through an activation is no form (``passes``), but its derivatives have one
pattern, too. A function has a gradient, its *slopes*, and the slopes times given tensors have
again a gradient, its *curvature*, which training on forces needs. Compiled loops make all three
from the inputs: an activation is made again, edge by edge, where it is needed, so that none is
written to memory. ``_Slopes`` and ``_Value`` are the autograd functions of all of them.

Torch's operations are the reference. They run where ``Links.kernels`` wants no loops, and where
loops know nothing: gradients of the slopes of parameters, and third derivatives.

Shapes: N nodes, E edges, P pairs, see ``scatter``, F features. The activation of edges is
``slope * x + (1 - slope) * silu(x)``, which is SiLU for 0.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.kernels.eager_edge_functions import (
    EAGER_FUNCTIONS,
    EdgeCall,
    EdgeLoops,
    Inputs,
    Values,
)
from hydragnn_hpo.kernels.scatter import Gradients, Links, without_autocast


def apply_edge_function(name: str, inputs: Inputs, links: Links, option: float = 0.0) -> Any:
    """Return the value of a function, or its values, by loops where these can run.

    Args:
        name: key of ``EAGER_FUNCTIONS``, where the inputs of each are explained.
        inputs: tensors that it depends on.
        links: sender and receiver of every edge.
        option: number that it depends on, see there.
    """
    kernels = links.usable_kernels(inputs)
    if kernels == "eager":
        return EAGER_FUNCTIONS[name](EdgeCall(inputs, links, option))
    with without_autocast(inputs[0]):
        return _Value.apply(  # type: ignore[no-untyped-call]
            name, kernels, option, *inputs, *links.arrays
        )


def _import_loops(kernels: str) -> dict[str, EdgeLoops]:
    """Return the loops by name; numba and Triton are imported at their first use."""
    if kernels == "triton":
        from hydragnn_hpo.kernels.triton_edge_functions import TRITON_EDGE_LOOPS

        return TRITON_EDGE_LOOPS
    from hydragnn_hpo.kernels.numba_edge_functions import EDGE_LOOPS

    return EDGE_LOOPS


def _make_call(tensors: Sequence[Any], option: float) -> EdgeCall:
    """Return the call of a function, given its inputs and then its links."""
    return EdgeCall(tensors[:-6], Links(*tensors[-6:]), option)


class _Value(Function):
    """A function of edges by compiled loops."""

    @staticmethod
    def forward(ctx: Any, name: str, kernels: str, option: float, *tensors: Tensor) -> Values:
        """Compute the function.

        Args:
            ctx: keeps the inputs for ``backward``.
            name: of the function.
            kernels: implementation, ``numba`` or ``triton``.
            option: see ``EdgeCall``.
            tensors: inputs, then the six tensors of ``Links.arrays``.

        Returns:
            The value, or all values.
        """
        ctx.save_for_backward(*tensors)
        ctx.plan = (name, kernels, option)
        return _import_loops(kernels)[name].value(_make_call(tensors, option))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (name, kernels, option), saved = ctx.plan, ctx.saved_tensors
        with without_autocast(grads[0]):
            if torch.is_grad_enabled():
                slopes = _Slopes.apply(  # type: ignore[no-untyped-call]
                    name, kernels, option, len(grads), *saved[:-6], *grads, *saved[-6:]
                )
            else:
                slopes = _import_loops(kernels)[name].slopes(_make_call(saved, option), *grads)
        return None, None, None, *_choose(slopes, ctx.needs_input_grad[3:-6]), *[None] * 6


def _choose(slopes: Sequence[Tensor | None], needed: Sequence[bool]) -> Gradients:
    """Return the slopes that are needed, and None for others."""
    return tuple(slope if need else None for slope, need in zip(slopes, needed, strict=True))


class _Slopes(Function):
    """Gradients of a function of edges by compiled loops."""

    @staticmethod
    def forward(
        ctx: Any, name: str, kernels: str, option: float, values: int, *tensors: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Compute the gradients of all inputs of a function.

        Args:
            ctx: keeps the inputs for ``backward``.
            name: of the function.
            kernels: implementation, ``numba`` or ``triton``.
            option: see ``EdgeCall``.
            values: number of its values.
            tensors: inputs, the gradient of each value, then the six tensors of ``Links.arrays``.

        Returns:
            As many tensors as there are inputs.
        """
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.plan = (name, kernels, option, values)
        inputs, grads = tensors[: -6 - values], tensors[-6 - values : -6]
        call = _make_call((*inputs, *tensors[-6:]), option)
        return tuple(_import_loops(kernels)[name].slopes(call, *grads))

    @staticmethod
    def backward(ctx: Any, *seconds: Tensor | None) -> Gradients:
        (name, kernels, option, values), saved = ctx.plan, ctx.saved_tensors
        call = _make_call((*saved[: -6 - values], *saved[-6:]), option)
        grads = saved[-6 - values : -6]
        loops = _import_loops(kernels)[name]
        known = all(each is None or k in loops.smooth for k, each in enumerate(seconds))
        slopes: Sequence[Tensor | None]
        with without_autocast(grads[0]):
            if known and not torch.is_grad_enabled():
                given = [(seconds[k], call.inputs[k]) for k in loops.smooth]
                whole = [torch.zeros_like(x) if each is None else each for each, x in given]
                slopes = loops.curvature(call, (*grads, *whole))
            else:
                slopes = differentiate_eagerly(EAGER_FUNCTIONS[name], call, grads, seconds)
        return None, None, None, None, *_choose(slopes, ctx.needs_input_grad[4:-6]), *[None] * 6


def differentiate_eagerly(
    function: Callable[[EdgeCall], Values],
    call: EdgeCall,
    grads: Inputs,
    seconds: Sequence[Tensor | None],
) -> Sequence[Tensor]:
    """Differentiate slopes by torch's operations.

    Args:
        function: by torch's operations.
        call: its inputs, links and option.
        grads: the gradient of each value.
        seconds: the gradients of the slopes; None for 0.

    Returns:
        Gradients of the inputs and of ``grads``; they can be differentiated again where gradients
        are on.
    """
    again = torch.is_grad_enabled()

    def alias(tensor: Any) -> Tensor:
        """Make an input that depends on no other one, as features of a layer do on weights."""
        same: Tensor = tensor.view_as(tensor) if again else tensor.detach()
        return same if same.requires_grad else same.requires_grad_()

    with torch.enable_grad():
        inputs, grads = [alias(each) for each in call.inputs], [alias(each) for each in grads]
        values = function(call._replace(inputs=inputs))
        first = torch.autograd.grad(
            values, inputs, grads, create_graph=True, materialize_grads=True
        )
        known = [k for k, each in enumerate(seconds) if each is not None and first[k].requires_grad]
        return torch.autograd.grad(
            [first[k] for k in known],
            (*inputs, *grads),
            [seconds[k] for k in known],
            create_graph=again,
            materialize_grads=True,
        )
