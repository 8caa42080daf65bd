"""Functions of ``edge_functions`` as loops that numba compiles, for CPUs.

Shapes: N nodes, E edges, P pairs, see ``scatter``, F features.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hydragnn_hpo.kernels import numba_passes
from hydragnn_hpo.kernels.eager_edge_functions import EdgeCall, EdgeLoops, Inputs
from hydragnn_hpo.kernels.numba_passes import empty_like

BLOCK = 16
"""Edges of a block: the gates of so many are computed at once, in vector registers."""


def _zeros_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return contiguous zeros, to which loops add."""
    return [torch.zeros_like(each, memory_format=torch.contiguous_format) for each in tensors]


def _given_ends(call: EdgeCall) -> tuple[Tensor | tuple[Tensor, ...], ...]:
    """Return terms, slope and ends, the first arguments of the loops of ``bent_ends``."""
    slope = call.inputs[0].new_tensor([call.option])
    return tuple(call.inputs), slope, (call.links.sender, call.links.receiver)


def bent_ends(call: EdgeCall) -> Tensor:
    """Activate the sum of both ends and the pair, see ``edge_functions.activate_ends``."""
    received = call.inputs[0]
    out = received.new_empty(call.links.sender.shape[0], received.shape[1])
    numba_passes.run_loop("bent_ends", *_given_ends(call), out)
    return out


def bent_ends_slopes(call: EdgeCall, grad: Tensor) -> list[Tensor]:
    """Differentiate ``bent_ends`` by both ends and the pair, given the gradient, [E, F]."""
    slopes = [*_zeros_like(call.inputs[:2]), empty_like(call.inputs[2])]
    rows = grad.new_empty(2, grad.shape[1])
    numba_passes.run_loop("bent_ends_slopes", *_given_ends(call), grad, tuple(slopes), rows)
    return slopes


def bent_ends_curvature(call: EdgeCall, grads: Inputs) -> list[Tensor]:
    """Differentiate ``bent_ends_slopes``, given its gradient and those of all its results."""
    (grad, *seconds) = grads
    slopes = _zeros_like(call.inputs)
    to_grad = empty_like(grad)
    rows = grad.new_empty(2, grad.shape[1])
    given = (*_given_ends(call), grad, tuple(seconds))
    numba_passes.run_loop("bent_ends_curvature", *given, tuple(slopes), to_grad, rows)
    return [*slopes, to_grad]


def _flatten(parameters: Inputs) -> tuple[Tensor, ...]:
    """Return bias, weights of the gate and its bias as vectors, zeros and none where no gate is."""
    bias, *gate = (each.view(-1) for each in parameters)
    return (bias, *gate) if gate else (bias, torch.zeros_like(bias), bias[:0])


def _new_block(like: Tensor) -> tuple[Tensor, Tensor]:
    """Return space for rows and sums of a block of edges that stays in the first cache."""
    return like.new_empty(BLOCK, like.shape[1]), like.new_empty(3, BLOCK)


def gated_sum(call: EdgeCall) -> Tensor:
    """Sum gated messages, see ``edge_functions.gated_linear_sum``."""
    product, weights, *parameters = call.inputs
    nodes = call.links.num_nodes
    width = product.shape[1]
    out = product.new_zeros(nodes, width)
    given = (product, _flatten(parameters), weights, call.links.receiver)
    numba_passes.run_loop("gated_sum", *given, out, *_new_block(product))
    return out


def gated_sum_slopes(call: EdgeCall, grad: Tensor) -> list[Tensor]:
    """Differentiate ``gated_sum`` by all inputs, given the gradient, [N, F]."""
    product, weights, *parameters = call.inputs
    to_product = empty_like(product)
    to_weights, *to_parameters = _zeros_like(call.inputs[1:])
    given = ((product, weights, grad), _flatten(parameters), call.links.receiver)
    results = ((to_product, to_weights), _flatten(to_parameters))
    numba_passes.run_loop("gated_sum_slopes", *given, *results, *_new_block(grad))
    return [to_product, to_weights, *to_parameters]


def gated_sum_curvature(call: EdgeCall, grads: Inputs) -> list[Tensor]:
    """Differentiate ``gated_sum_slopes``, given its gradient and those of its first results."""
    (product, weights, *parameters) = call.inputs
    (grad, *seconds) = grads
    to_product = empty_like(product)
    rows = grad.new_empty(4, grad.shape[1])
    to_weights, *to_parameters, to_grad = _zeros_like((*call.inputs[1:], grad))
    given = ((product, weights, grad), _flatten(parameters), call.links.receiver, tuple(seconds))
    results = ((to_product, to_weights, to_grad), _flatten(to_parameters))
    numba_passes.run_loop("gated_sum_curvature", *given, *results, rows)
    return [to_product, to_weights, *to_parameters, to_grad]


def _halve(terms: Inputs) -> tuple[Tensor, ...]:
    """View terms of gates and contents, [N, 2 F], as [N, 2, F]."""
    return tuple(each.reshape(each.shape[0], 2, each.shape[1] // 2) for each in terms)


def _given_products(call: EdgeCall) -> tuple[Tensor | tuple[Tensor, ...], ...]:
    """Return terms, weights, flag and ends, the first arguments of the loops of products."""
    *terms, weights = call.inputs
    flag = weights.new_empty(int(call.option))
    ends = (call.links.sender, call.links.receiver)
    return _halve(terms), weights, flag, ends


def product_sum(call: EdgeCall) -> Tensor:
    """Sum products of gates and contents, see ``edge_functions.gated_product_sum``."""
    nodes, double = call.inputs[0].shape
    out = call.inputs[0].new_zeros(nodes, double // 2)
    numba_passes.run_loop("product_sum", *_given_products(call), out, _six_rows(out))
    return out


def _six_rows(like: Tensor) -> tuple[Tensor, ...]:
    """Return space for gate, content and their derivatives, [F] each."""
    return like.new_empty(6, like.shape[1]).unbind()


def product_sum_slopes(call: EdgeCall, grad: Tensor) -> list[Tensor]:
    """Differentiate ``product_sum`` by all inputs, given the gradient, [N, F]."""
    *to_terms, to_weights = slopes = _zeros_like(call.inputs)
    results = (_halve(to_terms), to_weights, _six_rows(grad))
    numba_passes.run_loop("product_sum_slopes", *_given_products(call), grad, *results)
    return slopes


def product_sum_curvature(call: EdgeCall, grads: Inputs) -> list[Tensor]:
    """Differentiate ``product_sum_slopes``, given its gradient and those of all its results."""
    grad, *seconds, second_weights = grads
    *to_terms, to_weights, to_grad = slopes = _zeros_like((*call.inputs, grad))
    given = (*_given_products(call), grad, _halve(seconds), second_weights)
    results = (_halve(to_terms), to_weights, to_grad, _six_rows(grad))
    numba_passes.run_loop("product_sum_curvature", *given, *results)
    return slopes


def active_rows(call: EdgeCall) -> Tensor:
    """Activate rows, see ``edge_functions.activate_rows``; SiLU's own loops would gain nothing."""
    if not call.option:
        return F.silu(call.inputs[0])
    out = empty_like(call.inputs[0])
    numba_passes.run_loop("soft_rows", *call.inputs, out)
    return out


def active_rows_slopes(call: EdgeCall, grad: Tensor) -> list[Tensor]:
    """Differentiate ``active_rows``, given the gradient, of the shape of the values."""
    if not call.option:
        return [torch.ops.aten.silu_backward(grad, call.inputs[0])]
    slope = empty_like(grad)
    numba_passes.run_loop("soft_rows_slopes", *call.inputs, grad, slope)
    return [slope]


def active_rows_curvature(call: EdgeCall, grads: Inputs) -> list[Tensor]:
    """Differentiate ``active_rows_slopes``, given its gradient and that of its result."""
    slopes = [empty_like(each) for each in (*call.inputs, grads[0])]
    loop = "soft_rows_curvature" if call.option else "silu_rows_curvature"
    numba_passes.run_loop(loop, *call.inputs, *grads, *slopes)
    return slopes


def _given_gates(
    call: EdgeCall,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return product, nodes, weights, ends and norm, the first arguments of the loops of gates."""
    product, nodes, weights, _, *norm = call.inputs
    ends = (call.links.sender, call.links.receiver)
    return product, _in_thirds(nodes), weights, ends, tuple(norm)


def _in_thirds(nodes: Tensor) -> Tensor:
    """View what nodes receive by, send by, and send, [N, 3 F], as [N, 3, F]."""
    return nodes.reshape(nodes.shape[0], 3, nodes.shape[1] // 3)


def gated_edges(call: EdgeCall) -> tuple[Tensor, ...]:
    """Sum gated values and gates, and update edges, see ``edge_functions.update_gated_edges``.

    Returns:
        Both sums, [N, F] each, and the new features of the edges.
    """
    product, nodes, _, features, *_ = call.inputs
    sums = product.new_zeros(2, nodes.shape[0], product.shape[1]).unbind()
    updated = empty_like(features)
    rows = product.new_empty(2, product.shape[1])
    numba_passes.run_loop("gated_edges", *_given_gates(call), features, sums, updated, rows)
    return *sums, updated


def gated_edges_slopes(call: EdgeCall, *grads: Tensor) -> list[Tensor | None]:
    """Differentiate ``gated_edges`` by all inputs, given the gradients of both sums and edges."""
    product, nodes, weights, _, *norm = call.inputs
    to_product = empty_like(product)
    rows = product.new_empty(4, product.shape[1])
    to_nodes, to_weights, *to_norm = _zeros_like((nodes, weights, *norm))
    results = (to_product, _in_thirds(to_nodes), to_weights, tuple(to_norm))
    numba_passes.run_loop("gated_edges_slopes", *_given_gates(call), grads, *results, rows)
    return [to_product, to_nodes, to_weights, grads[2], *to_norm]


def gated_edges_curvature(call: EdgeCall, grads: Inputs) -> list[Tensor | None]:
    """Differentiate ``gated_edges_slopes``, given its gradients and those of its first results."""
    product, values, weights, ends, norm = _given_gates(call)
    second_product, second_nodes, *seconds = grads[3:]
    to_product = empty_like(product)
    rows = product.new_empty(10, product.shape[1])
    to_nodes, to_weights, *rest = _zeros_like((call.inputs[1], weights, *norm, *grads[:2]))
    to_norm = tuple(rest[:2])
    to_grads = (*rest[2:], empty_like(grads[2]))
    given = ((values, _in_thirds(second_nodes)), weights, ends, norm, tuple(grads[:3]))
    results = ((to_product, to_weights), _in_thirds(to_nodes), to_norm, to_grads)
    second_edges = (second_product, *seconds)
    numba_passes.run_loop("gated_edges_curvature", product, *given, second_edges, *results, rows)
    return [to_product, to_nodes, to_weights, None, *to_norm, *to_grads]


EDGE_LOOPS: dict[str, EdgeLoops] = {
    "gated_edges": EdgeLoops(gated_edges, gated_edges_slopes, gated_edges_curvature, (0, 1, 2, 3)),
    "bent_ends": EdgeLoops(bent_ends, bent_ends_slopes, bent_ends_curvature, (0, 1, 2)),
    "gated_sum": EdgeLoops(gated_sum, gated_sum_slopes, gated_sum_curvature, (0, 1)),
    "product_sum": EdgeLoops(product_sum, product_sum_slopes, product_sum_curvature, (0, 1, 2, 3)),
    "active_rows": EdgeLoops(active_rows, active_rows_slopes, active_rows_curvature, (0,)),
}
"""Implementation of each function."""
