"""Functions of ``edge_functions`` as loops that Triton compiles, for CUDA and ROCm devices.

Inputs may be of several types: loops compute in one, see ``triton_passes``, and a gradient has the
type of its input.

Shapes: N nodes, E edges, P pairs, see ``scatter``, F features.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from hydragnn_hpo.kernels import triton_passes
from hydragnn_hpo.kernels.eager_edge_functions import EdgeCall, EdgeLoops, Inputs
from hydragnn_hpo.kernels.scatter import expand_pairs, sum_pairs
from hydragnn_hpo.kernels.triton_passes import Constants, choose_constants, empty_like


def _joint_type(tensors: Sequence[Tensor]) -> torch.dtype:
    """Return the type of a result of several tensors."""
    return functools.reduce(torch.promote_types, [each.dtype for each in tensors])


def _new_sums(call: EdgeCall, rows: int, width: int) -> Tensor:
    return call.inputs[0].new_empty(rows, width, dtype=_joint_type(call.inputs))


def _sizes(call: EdgeCall, pairs: int) -> tuple[list[int], int]:
    """Return numbers of pairs and edges, and the edges of a pair."""
    edges = call.links.sender.shape[0]
    return [pairs, edges], triton_passes.count_ways(edges, pairs)


def _constants_of_ends(call: EdgeCall) -> Constants:
    received = call.inputs[0]
    return choose_constants(call.inputs, received.shape[1]) | {"LOW": call.option}


def bent_ends(call: EdgeCall) -> Tensor:
    """Activate the sum of both ends and the pair, see ``edge_functions.activate_ends``."""
    return _bend_by_edge(call, call.inputs, curved=False)


def _bend_by_edge(call: EdgeCall, seconds: Inputs, *, curved: bool) -> Tensor:
    """Return the value, or the gradient of its gradient if ``curved``, [E, F]."""
    sizes, _ = _sizes(call, call.inputs[2].shape[0])
    out = _new_sums(call, sizes[1], call.inputs[0].shape[1])
    arrays = (*call.inputs, *seconds, call.links.sender, call.links.receiver, out)
    constants = _constants_of_ends(call)
    triton_passes.run_loop("bent_by_edge", arrays, sizes, sizes[1], **constants, CURVED=curved)
    return out


def bent_ends_slopes(call: EdgeCall, grad: Tensor) -> list[Tensor]:
    """Differentiate ``bent_ends`` by both ends and the pair, given the gradient, [E, F]."""
    return _bend_slopes(call, call.inputs, grad, curved=False)


def _bend_slopes(call: EdgeCall, seconds: Inputs, grad: Tensor, *, curved: bool) -> list[Tensor]:
    """Return gradients of the terms, or those of their gradients if ``curved``."""
    constants = _constants_of_ends(call) | {"CURVED": curved}
    return _slopes_by_ends("bent", call, (*call.inputs, *seconds, grad), constants)


def _slopes_by_ends(kind: str, call: EdgeCall, given: Inputs, constants: Constants) -> list[Tensor]:
    """Run the loops of slopes: one for each end, by node, and one for what belongs to pairs.

    Args:
        kind: how names of the loops begin.
        call: terms of receivers, senders and pairs, and what else belongs to pairs.
        given: arguments of the loops before edges and results.
        constants: of the loops.
    """
    slopes = [empty_like(each) for each in call.inputs]
    nodes, pairs = (call.inputs[slot].shape[0] for slot in (0, 2))
    sizes, ways = _sizes(call, pairs)
    s, r, by_r, r_starts, by_s, s_starts = call.links.arrays
    for slot, edges in ((0, (s, by_r, r_starts)), (1, (r, by_s, s_starts))):
        arrays = (*given, *edges, slopes[slot])
        own = constants | {"RECEIVES": slot == 0}
        triton_passes.run_loop(f"{kind}_slopes_by_node", arrays, [pairs], nodes, **own)
    arrays = (*given, s, r, *slopes[2:])
    triton_passes.run_loop(f"{kind}_slopes_by_pair", arrays, sizes, pairs, **constants, WAYS=ways)
    return slopes


def bent_ends_curvature(call: EdgeCall, grads: Inputs) -> list[Tensor]:
    """Differentiate ``bent_ends_slopes``, given its gradient and those of all its results."""
    grad, *seconds = grads
    slopes = _bend_slopes(call, seconds, grad, curved=True)
    return [*slopes, _bend_by_edge(call, seconds, curved=True).to(grad.dtype)]


class _GatedMessages:
    """The messages of a gated sum: numbers of their edges, and loops that read these."""

    def __init__(self, call: EdgeCall, grad: Tensor, second: Tensor | None = None) -> None:
        """Sum what each edge has over its features.

        Args:
            call: product, [E, F], weights, [P, 1], bias, and weights and bias of a gate, or none.
            grad: gradient of the sums, [N, F].
            second: gradient of what the slopes give to the product; None for slopes.
        """
        self.product, weights, bias, *gate = call.inputs
        self.gated = bool(gate)
        self.call = call
        self.grad = grad
        self.vectors = (bias, gate[0].view(-1) if gate else torch.zeros_like(bias))
        self.second = self.product if second is None else second
        constants = choose_constants((*call.inputs, grad), self.product.shape[1])
        self.constants = constants | {"CURVED": second is not None}
        edges = self.product.shape[0]
        self.dtype = triton_passes.compute_type(constants)
        numbers = self.new_numbers()
        arrays = (self.product, *self.vectors, self.second, grad, call.links.receiver, numbers)
        triton_passes.run_loop("gate_numbers", arrays, [edges], edges, **self.constants)
        argument, self.along, self.tilt, self.moved = numbers.unbind(1)
        self.weight = expand_pairs(weights, edges).view(-1).to(self.dtype)
        self.share = torch.ones_like(argument)
        self.steep = self.bent = torch.zeros_like(argument)
        if gate:
            self.share = (argument + gate[1].to(self.dtype)).sigmoid()
            self.steep = self.share * (1.0 - self.share)
            self.bent = self.steep * (1.0 - 2.0 * self.share)

    def new_numbers(self) -> Tensor:
        """Return zeros in the type in which loops compute, [E, 4]."""
        return self.product.new_zeros(self.product.shape[0], 4, dtype=self.dtype)

    def sum_at_nodes(self, of_value: Tensor, of_change: Tensor | None = None) -> Tensor:
        """Sum messages times a number of each edge, and their changes times another, [N, F]."""
        numbers = self.new_numbers()
        links = self.call.links
        numbers[:, 0] = of_value
        if of_change is not None:
            numbers[:, 1] = of_change
        nodes = links.num_nodes
        width = self.product.shape[1]
        out = numbers.new_empty(nodes, width)
        edges = (links.by_receiver, links.receiver_starts)
        arrays = (self.product, self.vectors[0], self.second, numbers, *edges, out)
        own = self.constants | {"CURVED": of_change is not None}
        triton_passes.run_loop("gated_by_node", arrays, [], nodes, **own)
        return out

    def differentiate(self, *numbers: Tensor) -> Tensor:
        """Return the gradient of the product, given numbers as ``_gated_by_edge`` has them."""
        out = empty_like(self.product)
        edges = self.product.shape[0]
        four = self.new_numbers()
        four[:, : len(numbers)] = torch.stack(numbers, dim=1)
        given = (self.product, *self.vectors, self.second, self.grad, self.call.links.receiver)
        arrays = (*given, four, out)
        triton_passes.run_loop("gated_by_edge", arrays, [edges], edges, **self.constants)
        return out

    def to_inputs(self, to_product: Tensor, to_weight: Tensor, to_gate: Inputs) -> list[Tensor]:
        """Return the gradients of all inputs, in their shapes and types.

        Args:
            to_product: gradient of the product, [E, F].
            to_weight: gradient of the weight of each edge, [E].
            to_gate: gradients of weights and bias of the gate; nothing for no gate.
        """
        weights = self.call.inputs[1]
        results = (to_product, sum_pairs(to_weight.unsqueeze(1), weights.shape[0]))
        rest = (to_product.to(to_weight.dtype).sum(0), *to_gate)
        return [
            slope.reshape(each.shape).to(each.dtype)
            for slope, each in zip((*results, *rest), self.call.inputs, strict=True)
        ]


def gated_sum(call: EdgeCall) -> Tensor:
    """Sum gated messages, see ``edge_functions.gated_linear_sum``."""
    absent = call.inputs[0].new_zeros(call.links.num_nodes, call.inputs[0].shape[1])
    edges = _GatedMessages(call, absent)
    return edges.sum_at_nodes(edges.weight * edges.share).to(_joint_type(call.inputs))


def gated_sum_slopes(call: EdgeCall, grad: Tensor) -> list[Tensor]:
    """Differentiate ``gated_sum`` by all inputs, given the gradient, [N, F]."""
    edges = _GatedMessages(call, grad)
    to_argument = edges.weight * edges.steep * edges.along
    to_product = edges.differentiate(edges.weight * edges.share, to_argument)
    to_gate = (edges.sum_at_nodes(to_argument).sum(0), to_argument.sum()) if edges.gated else ()
    return edges.to_inputs(to_product, edges.share * edges.along, to_gate)


def gated_sum_curvature(call: EdgeCall, grads: Inputs) -> list[Tensor]:
    """Differentiate ``gated_sum_slopes``, given its gradient and those of its first results."""
    grad, second, second_weights = grads
    edges = _GatedMessages(call, grad, second)
    late = expand_pairs(second_weights, second.shape[0]).view(-1).to(edges.dtype)
    tilted = edges.steep * edges.moved + edges.bent * edges.along * edges.tilt
    to_argument = edges.weight * tilted + late * edges.steep * edges.along
    to_along = edges.weight * edges.steep * edges.tilt + late * edges.share
    share, steep = edges.weight * edges.share, edges.weight * edges.steep * edges.along
    to_product = edges.differentiate(to_along, to_argument, share, steep)
    to_weight = edges.share * edges.moved + edges.steep * edges.along * edges.tilt
    to_gate: Inputs = ()
    if edges.gated:
        to_gate = (edges.sum_at_nodes(to_argument, steep).sum(0), to_argument.sum())
    to_grad = edges.sum_at_nodes(to_along, share).to(grad.dtype)
    return [*edges.to_inputs(to_product, to_weight, to_gate), to_grad]


def _constants_of_products(call: EdgeCall, *, curved: bool) -> Constants:
    width = call.inputs[0].shape[1] // 2
    return choose_constants(call.inputs, width) | {"SOFT": bool(call.option), "CURVED": curved}


def _products_at_nodes(call: EdgeCall, seconds: Inputs, *, curved: bool) -> Tensor:
    """Return the value, or the gradient of its gradient if ``curved``, [N, F]."""
    nodes, double = call.inputs[0].shape
    pairs = call.inputs[3].shape[0]
    links = call.links
    out = _new_sums(call, nodes, double // 2)
    edges = (links.sender, links.by_receiver, links.receiver_starts)
    arrays = (*call.inputs, *seconds, *edges, out)
    constants = _constants_of_products
    own = constants(call, curved=curved)
    triton_passes.run_loop("products_by_node", arrays, [pairs], nodes, **own)
    return out


def _product_slopes(call: EdgeCall, seconds: Inputs, grad: Tensor, *, curved: bool) -> list[Tensor]:
    """Return gradients of terms and weights, or those of their gradients if ``curved``."""
    constants = _constants_of_products(call, curved=curved)
    return _slopes_by_ends("product", call, (*call.inputs, *seconds, grad), constants)


def product_sum(call: EdgeCall) -> Tensor:
    """Sum products of gates and contents, see ``edge_functions.gated_product_sum``."""
    return _products_at_nodes(call, call.inputs, curved=False)


def product_sum_slopes(call: EdgeCall, grad: Tensor) -> list[Tensor]:
    """Differentiate ``product_sum`` by all inputs, given the gradient, [N, F]."""
    return _product_slopes(call, call.inputs, grad, curved=False)


def product_sum_curvature(call: EdgeCall, grads: Inputs) -> list[Tensor]:
    """Differentiate ``product_sum_slopes``, given its gradient and those of all its results."""
    grad, *seconds = grads
    to_grad = _products_at_nodes(call, seconds, curved=True).to(grad.dtype)
    return [*_product_slopes(call, seconds, grad, curved=True), to_grad]


def _run_active_rows(call: EdgeCall, arrays: Inputs, *, slopes: bool, curved: bool) -> None:
    """Run the loop of ``active_rows`` on values, both gradients, and both results."""
    rows, width = arrays[0].shape
    flags = {"SOFT": bool(call.option), "SLOPES": slopes, "CURVED": curved}
    constants = choose_constants(arrays, width) | flags
    triton_passes.run_loop("active_rows", arrays, [rows], rows, **constants)


def active_rows(call: EdgeCall) -> Tensor:
    """Activate rows, see ``edge_functions.activate_rows``."""
    (values,) = call.inputs
    out = empty_like(call.inputs[0])
    _run_active_rows(call, (values, values, values, out, out), slopes=False, curved=False)
    return out


def active_rows_slopes(call: EdgeCall, grad: Tensor) -> list[Tensor]:
    """Differentiate ``active_rows``, given the gradient, of the shape of the values."""
    (values,) = call.inputs
    out = empty_like(call.inputs[0])
    _run_active_rows(call, (values, grad, values, out, out), slopes=True, curved=False)
    return [out]


def active_rows_curvature(call: EdgeCall, grads: Inputs) -> list[Tensor]:
    """Differentiate ``active_rows_slopes``, given its gradient and that of its result."""
    slopes = [empty_like(each) for each in (*call.inputs, grads[0])]
    _run_active_rows(call, (*call.inputs, *grads, *slopes), slopes=True, curved=True)
    return slopes


def _constants_of_gates(call: EdgeCall, *, curved: bool) -> Constants:
    return choose_constants(call.inputs, call.inputs[0].shape[1]) | {"CURVED": curved}


def _gates_at_nodes(call: EdgeCall, seconds: Inputs, *, curved: bool) -> tuple[Tensor, ...]:
    """Return sums of gated values and of gates, or gradients of their gradients, [N, F] each."""
    product, nodes, weights, *_ = call.inputs
    links = call.links
    shape = (2, nodes.shape[0], product.shape[1])
    sums = product.new_empty(shape, dtype=_joint_type((product, nodes))).unbind()
    edges = (links.sender, links.by_receiver, links.receiver_starts)
    arrays = (*call.inputs[:3], *seconds[:3], *edges, *sums)
    pairs = weights.shape[0]
    constants = _constants_of_gates(call, curved=curved)
    triton_passes.run_loop("gates_by_node", arrays, [pairs], shape[1], **constants)
    return sums


def _update_edges(call: EdgeCall, seconds: Inputs, *, curved: bool) -> Tensor:
    """Return features of the edges, or gradients of their gradients, [E, F], or [0, F]."""
    (product, nodes, _, *rest) = call.inputs
    (late, late_nodes, _, late_features) = seconds[:4]
    out = empty_like(rest[0].to(_joint_type((product, rest[0]))))
    given = (product, nodes, *rest, late, late_nodes, late_features)
    arrays = (*given, call.links.sender, call.links.receiver, out)
    edges = out.shape[0]
    constants = _constants_of_gates(call, curved=curved)
    triton_passes.run_loop("updated_by_edge", arrays, [edges], edges, **constants)
    return out


def _gate_slopes(
    call: EdgeCall, seconds: Inputs, grads: Inputs, *, curved: bool
) -> list[Tensor | None]:
    """Return gradients of all inputs but features, or those of their gradients if ``curved``."""
    product, nodes, weights, _, *norm = call.inputs
    (edges, width) = product.shape
    sizes = [weights.shape[0], product.shape[0]]
    constants = _constants_of_gates(call, curved=curved)
    normed = norm[0].shape[0] > 0
    dtype = triton_passes.compute_type(constants)
    tiles = -(-edges // int(constants["TILE_E"]))
    to_joint, to_weight = (product.new_empty(edges, n, dtype=dtype) for n in (width, 1))
    to_norm = product.new_empty(tiles, 2, width, dtype=dtype)
    to_nodes = empty_like(nodes)
    s, r, by_r, r_starts, by_s, s_starts = call.links.arrays
    given = (product, nodes, weights, *norm, *seconds[:3], *grads, s, r)
    arrays = (*given, to_joint, to_weight, to_norm)
    own = constants | {"NORMED": normed}
    triton_passes.run_loop("gate_slopes_by_edge", arrays, sizes, edges, **own)
    given = (*call.inputs[:3], *seconds[:3], grads[0], to_joint)
    for receives, links in ((True, (s, by_r, r_starts)), (False, (r, by_s, s_starts))):
        arrays = (*given, *links, to_nodes)
        own = constants | {"RECEIVES": receives}
        triton_passes.run_loop("gate_slopes_by_node", arrays, sizes[:1], nodes.shape[0], **own)
    to_weights = sum_pairs(to_weight, weights.shape[0])
    slopes = (to_joint, to_nodes, to_weights, None, *(to_norm.sum(0) if normed else (None, None)))
    return [
        None if slope is None else slope.to(each.dtype)
        for slope, each in zip(slopes, call.inputs, strict=True)
    ]


def gated_edges(call: EdgeCall) -> tuple[Tensor, ...]:
    """Sum gated values and gates, and update edges, see ``edge_functions.update_gated_edges``.

    Returns:
        Both sums, [N, F] each, and the new features of the edges.
    """
    sums = _gates_at_nodes(call, call.inputs, curved=False)
    return *sums, _update_edges(call, call.inputs, curved=False)


def gated_edges_slopes(call: EdgeCall, *grads: Tensor) -> list[Tensor | None]:
    """Differentiate ``gated_edges`` by all inputs, given the gradients of both sums and edges."""
    slopes = _gate_slopes(call, call.inputs, grads, curved=False)
    slopes[3] = grads[2].to(call.inputs[3].dtype)
    return slopes


def gated_edges_curvature(call: EdgeCall, grads: Inputs) -> list[Tensor | None]:
    """Differentiate ``gated_edges_slopes``, given its gradients and those of its first results."""
    grads, seconds = grads[:3], grads[3:]
    late = _gates_at_nodes(call, seconds, curved=True)
    to_grads = (*late, _update_edges(call, seconds, curved=True))
    return [*_gate_slopes(call, seconds, grads, curved=True), *to_grads]


TRITON_EDGE_LOOPS: dict[str, EdgeLoops] = {
    "gated_edges": EdgeLoops(gated_edges, gated_edges_slopes, gated_edges_curvature, (0, 1, 2, 3)),
    "bent_ends": EdgeLoops(bent_ends, bent_ends_slopes, bent_ends_curvature, (0, 1, 2)),
    "gated_sum": EdgeLoops(gated_sum, gated_sum_slopes, gated_sum_curvature, (0, 1)),
    "product_sum": EdgeLoops(product_sum, product_sum_slopes, product_sum_curvature, (0, 1, 2, 3)),
    "active_rows": EdgeLoops(active_rows, active_rows_slopes, active_rows_curvature, (0,)),
}
"""Implementation of each function."""
