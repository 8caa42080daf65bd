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
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn_hpo.model.kernels.eager_edge_functions import (
    EAGER_FUNCTIONS,
    EdgeCall,
    EdgeLoops,
    Inputs,
    Values,
    sum_activated,
)
from hydragnn_hpo.model.kernels.passes import usable_kernels
from hydragnn_hpo.model.layers import without_autocast
from hydragnn_hpo.model.scatter import Gradients, Links


def activate_ends(
    received: Tensor, sent: Tensor, measured: Tensor, links: Links, slope: float = 0.0
) -> Tensor:
    """Activate for each edge the sum of values of both ends and of its pair, [E, F].

    Args:
        received: of the nodes, read at the receiver, [N, F].
        sent: of the nodes, read at the sender, [N, F].
        measured: of the pairs, [P, F].
        links: sender and receiver of every edge.
        slope: of the activation far below zero, 0 to 1.
    """
    activated: Tensor = _apply("bent_ends", (received, sent, measured), links, slope)
    return activated


def gated_linear_sum(
    hidden: Tensor, last: nn.Linear, gate: nn.Linear | None, weights: Tensor, links: Links
) -> Tensor:
    """Sum ``weight * sigmoid(gate(message)) * message``, where ``message = silu(last(hidden))``.

    Args:
        hidden: of the edges, [E, F].
        last: map of F to F features.
        gate: map of F features to 1; None for no gate.
        weights: of the pairs, [P, 1].
        links: sender and receiver of every edge.

    Returns:
        Sums of the receivers, [N, F].
    """
    parts = () if gate is None else (gate.weight, gate.bias)
    if usable_kernels(links.kernels, (hidden, weights, last.bias, *parts)) != "eager":
        product = F.linear(hidden, last.weight)
        total: Tensor = _apply("gated_sum", (product, weights, last.bias, *parts), links)
        return total
    return sum_activated(last(hidden), weights, parts, links)


def gated_product_sum(
    received: Tensor,
    sent: Tensor,
    measured: Tensor,
    weights: Tensor,
    links: Links,
    activation: str = "softplus",
) -> Tensor:
    """Sum ``weight * sigmoid(gate) * activation(content)``, both of both ends and the pair.

    Args:
        received: of the nodes, read at the receiver: gate, then content, [N, 2 F].
        sent: of the nodes, read at the sender, [N, 2 F].
        measured: of the pairs, [P, 2 F].
        weights: of the pairs, [P, 1].
        links: sender and receiver of every edge.
        activation: ``softplus`` or ``silu``.

    Returns:
        Sums of the receivers, [N, F].
    """
    inputs = (received, sent, measured, weights)
    total: Tensor = _apply("product_sum", inputs, links, float(activation == "softplus"))
    return total


def update_gated_edges(
    product: Tensor,
    nodes: Tensor,
    weights: Tensor,
    features: Tensor,
    norm: nn.LayerNorm | None,
    links: Links,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sum ``g_ij = weight * sigmoid(m_ij)`` and ``g_ij v_j``; add ``silu(norm(m_ij))`` to edges.

    Args:
        product: of the edges, [E, F].
        nodes: r, s and v of the nodes, [N, 3 F]: ``m_ij = product_ij + r_i + s_j``.
        weights: of the pairs, [P, 1].
        features: of the edges, [E, F].
        norm: layer norm of F features; None where no later layer reads the edges.
        links: sender and receiver of every edge.

    Returns:
        Sums of ``g v`` and of ``g`` at the receivers, [N, F] each, and the new features of the
        edges, [E, F]; None where no later layer reads them.
    """
    absent = product.new_empty(0, product.shape[1])
    rest = (absent, absent[:, 0], absent[:, 0]) if norm is None else (features, *norm.parameters())
    gated, gates, updated = _apply("gated_edges", (product, nodes, weights, *rest), links)
    return gated, gates, None if norm is None else updated


def activate_rows(values: Tensor, links: Links, activation: str = "silu") -> Tensor:
    """Activate each number.

    Args:
        values: of the pairs, [P, F], or of the edges, [E, F].
        links: sender and receiver of every edge.
        activation: ``silu``, or ``softplus``, which is taken minus ln 2.
    """
    option = float(activation == "softplus")
    activated: Tensor = _apply("active_rows", (values,), links, option)
    return activated


def _apply(name: str, inputs: Inputs, links: Links, option: float = 0.0) -> Any:
    """Return the value of a function, or its values, by loops where these can run."""
    kernels = usable_kernels(links.kernels, inputs)
    if kernels == "eager":
        return EAGER_FUNCTIONS[name](EdgeCall(inputs, links, option))
    with without_autocast(inputs[0]):
        return _Value.apply(  # type: ignore[no-untyped-call]
            name, kernels, option, *inputs, *links.arrays
        )


def _import_loops(kernels: str) -> dict[str, EdgeLoops]:
    """Return the loops by name; numba and Triton are imported at their first use."""
    if kernels == "triton":
        from hydragnn_hpo.model.kernels.triton_edge_functions import TRITON_EDGE_LOOPS

        return TRITON_EDGE_LOOPS
    from hydragnn_hpo.model.kernels.numba_edge_functions import EDGE_LOOPS

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
