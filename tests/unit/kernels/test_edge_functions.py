"""Functions of edges give by loops what torch gives, to the second derivative and bit by bit."""

from dataclasses import replace

import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from kernel_cases import (
    EDGE_CASES,
    LAYOUTS,
    NODES,
    SMOOTH,
    WIDTH,
    E,
    N,
    P,
    differentiate,
    draw_edges,
    random_links,
)

from hydragnn_hpo.kernels import edge_loops, kernel_choice
from hydragnn_hpo.kernels.eager_edge_functions import EAGER_FUNCTIONS
from hydragnn_hpo.kernels.numba_edge_functions import EDGE_LOOPS
from hydragnn_hpo.kernels.scatter import Links
from hydragnn_hpo.model.messages import gated_product_sum


def ends_of(links, rows):
    """Yield number, receiver, sender and pair of each edge."""
    ends = zip(links.receiver.tolist(), links.sender.tolist(), strict=True)
    return [(edge, i, j, edge % rows) for edge, (i, j) in enumerate(ends)]


def sum_rows(rows, links, like):
    totals = [torch.zeros_like(like[0])] * links.num_nodes
    for (_, i, _, _), row in zip(ends_of(links, 1), rows, strict=True):
        totals[i] = totals[i] + row
    return torch.stack(totals)


def looped_ends(received, sent, measured, links, slope):
    rows = [received[i] + sent[j] + measured[p] for _, i, j, p in ends_of(links, len(measured))]
    return torch.stack([slope * x + (1 - slope) * x * torch.sigmoid(x) for x in rows])


def looped_gated(hidden, weights, matrix, bias, *gate_and_links):
    *gate, links = gate_and_links
    rows = []
    for edge, _, _, p in ends_of(links, len(weights)):
        row = matrix @ hidden[edge] + bias
        row = row * torch.sigmoid(row)
        rows.append(row * weights[p] * (torch.sigmoid(gate[0] @ row + gate[1]) if gate else 1.0))
    return sum_rows(rows, links, hidden)


def looped_products(received, sent, measured, weights, links, activate):
    rows = []
    for _, i, j, p in ends_of(links, len(weights)):
        gate, content = (received[i] + sent[j] + measured[p]).chunk(2)
        rows.append(torch.sigmoid(gate) * activate(content) * weights[p])
    return sum_rows(rows, links, received[:, :WIDTH])


def looped_update(product, nodes, weights, *rest):
    *edges, links = rest
    gates, values, updated = [], [], []
    for edge, i, j, p in ends_of(links, len(weights)):
        joint = product[edge] + nodes[i, :WIDTH] + nodes[j, WIDTH : 2 * WIDTH]
        gates.append(weights[p] * torch.sigmoid(joint))
        values.append(gates[-1] * nodes[j, 2 * WIDTH :])
        if edges:
            features, scale, shift = edges
            normal = (joint - joint.mean()) / (joint.var(correction=0) + 1e-5).sqrt()
            normal = scale * normal + shift
            updated.append(features[edge] + normal * torch.sigmoid(normal))
    sums = [sum_rows(rows, links, product) for rows in (values, gates)]
    return (*sums, torch.stack(updated)) if edges else tuple(sums)


SLOW = {
    "ends": lambda *given: looped_ends(*given, 0.0),
    "leaky ends": lambda *given: looped_ends(*given, 0.2),
    "gated": looped_gated,
    "no gate": looped_gated,
    "softplus": lambda *given: looped_products(*given, F.softplus),
    "silu": lambda *given: looped_products(*given, F.silu),
    "soft": lambda rows, links: torch.log(0.5 + 0.5 * rows.exp()),
    "silu rows": lambda rows, links: rows / (1.0 + (-rows).exp()),
    "edges": looped_update,
    "edges stay": looped_update,
}
"""The same functions by a loop over edges."""
VALUES = {"edges": (N, N, E), "edges stay": (N, N), "silu rows": (E,)}
"""What the values belong to, but for sums of nodes."""


def first_columns(values, count=2):
    """Return the first columns of a value, or of all values below each other."""
    return (torch.cat(values) if isinstance(values, tuple) else values)[:, :count]


@pytest.mark.parametrize("paired", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("case", EDGE_CASES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=["fp64", "fp32"]
)
def test_loops_equal_torch_to_the_second_derivative(case, paired, dtype, tolerance, loops):
    layout = random_links(1, paired)
    inputs = draw_edges(case, layout, dtype)
    for smooth in {SMOOTH.get(case, len(inputs)), len(inputs)}:
        expected = differentiate(case, inputs, layout[0], "eager", smooth)
        assert not loops
        values = differentiate(case, inputs, layout[0], "numba", smooth)
        assert any(name.endswith("_curvature") for name in loops) == (
            smooth == SMOOTH.get(case, len(inputs))
        )
        loops.clear()
        scales = [float(wanted.detach().abs().max()) for wanted in expected]
        if dtype is torch.float32:  # a sum over all edges may cancel, but rounds as its terms do
            scales = [max(scales)] * len(scales)
        for each, wanted, scale in zip(values, expected, scales, strict=True):
            torch.testing.assert_close(each, wanted, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("case", EDGE_CASES)
def test_functions_equal_a_loop_over_edges(case):
    for paired in LAYOUTS.values():
        layout = random_links(2, paired, nodes=12)
        inputs = draw_edges(case, layout, scale=4.0)  # softplus is cut at 20
        expected = SLOW[case](*inputs, layout[0])
        for kernels in ("eager", "numba"):
            values = EDGE_CASES[case][0](*inputs, replace(layout[0], kernels=kernels))
            torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", EDGE_CASES)
def test_loops_pass_gradgradcheck(case):
    layout = random_links(3, True, nodes=4)
    links = replace(layout[0], kernels="numba")
    inputs = draw_edges(case, layout)
    smooth = SMOOTH.get(case, len(inputs))
    fixed = [each.detach() for each in inputs[smooth:]]
    assert torch.autograd.gradgradcheck(
        lambda *given: first_columns(EDGE_CASES[case][0](*given, *fixed, links)),
        inputs[:smooth],
        fast_mode=True,
    )


@pytest.mark.parametrize("case", EDGE_CASES)
def test_third_derivatives_are_those_of_torch(case):
    layout = random_links(4, True, nodes=6)
    thirds = []
    for kernels in ("eager", "numba"):
        inputs = draw_edges(case, layout)
        links = replace(layout[0], kernels=kernels)
        order = first_columns(EDGE_CASES[case][0](*inputs, links), WIDTH).sin().sum()
        for _ in range(2):
            slopes = torch.autograd.grad(order, inputs, create_graph=True)
            order = sum(each.square().sum() for each in slopes)
        thirds.append(torch.autograd.grad(order, inputs))
    for each, wanted in zip(*thirds, strict=True):
        scale = float(wanted.abs().max())
        torch.testing.assert_close(each, wanted, rtol=0, atol=1e-11 * scale)


@pytest.mark.parametrize(
    ("case", "kernels", "nodes"),
    [*((case, "numba", NODES) for case in EDGE_CASES), ("edges", "triton", 4)],
)
def test_a_graph_gets_the_same_bits_alone_and_after_another(case, kernels, nodes):
    """Law 7, for the value and for what reaches nodes and pairs by both derivatives."""
    if kernel_choice.choose_kernels(kernels, "cpu", torch.float32) != kernels:
        pytest.skip("Triton is not installed, or compiles its loops where there is a GPU.")
    links, rows = random_links(6, True, nodes)
    ends = [torch.cat((end[:rows], end[:rows] + nodes)) for end in (links.sender, links.receiver)]
    sender = torch.cat(ends)
    receiver = torch.cat(ends[::-1])
    both = Links.of(sender, receiver, 2 * nodes)
    inputs = draw_edges(case, (links, rows), torch.float32)
    doubled = [
        _double(each, shape, rows) for each, shape in zip(inputs, EDGE_CASES[case][1], strict=True)
    ]
    alone = differentiate(case, inputs, links, kernels)
    together = differentiate(case, doubled, both, kernels)
    values = [(rows, WIDTH) for rows in VALUES.get(case, (E if "ends" in case else N,))]
    shapes = [
        *values,
        *EDGE_CASES[case][1],
        *EDGE_CASES[case][1][: SMOOTH.get(case)],
        *EDGE_CASES[case][1],
        *values,
    ]
    for a, b, shape in zip(alone, together, shapes, strict=True):
        if shape[0] in (N, P, E):
            assert torch.equal(_second_graph(b, shape, rows), a)


def _double(values, shape, rows):
    """Put other numbers of a graph of the same shape before those of a graph."""
    values = values.detach()
    if shape[0] == E:
        ways = values.view(2, rows, -1)
        values = torch.cat((ways * 3.0, ways), dim=1).reshape(4 * rows, -1)
    elif shape[0] in (N, P):
        values = torch.cat((values + 1.0, values))
    return values.requires_grad_()


def _second_graph(values, shape, rows):
    if shape[0] == E:
        return values.view(2, 2 * rows, -1)[:, rows:].reshape(2 * rows, -1)
    return values[len(values) // 2 :]


@pytest.mark.parametrize("case", EDGE_CASES)
def test_without_edges_sums_are_zero_and_all_inputs_get_gradients(case):
    none = torch.zeros(0, dtype=torch.long)
    links = Links.of(none, none, 3)
    for values in differentiate(case, draw_edges(case, (links, 0)), links, "numba"):
        assert not values.any()


def test_an_input_may_depend_on_another():
    """Features of a later layer depend on the weights, which all layers share."""
    layout = random_links(7, True)
    slopes = []
    received, *others, weights = draw_edges("softplus", layout)
    for kernels in ("eager", "numba"):
        links = replace(layout[0], kernels=kernels)
        value = gated_product_sum(received * weights.sum(), *others, weights, links).sum()
        (slope,) = torch.autograd.grad(value, weights, create_graph=True)
        slopes += [slope, torch.autograd.grad(slope.square().sum(), weights)[0]]
    for a, b in zip(slopes[:2], slopes[2:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_exponentials_are_exact_to_two_bits(dtype):
    """Of numpy in twice the precision, or as much as there is, to two units in the last place."""

    @numba.njit(error_model="numpy")
    def run(x, out):
        for k in range(len(x)):
            out[0, k] = edge_loops.exponential(x[k])
            out[1, k] = edge_loops.softplus(x[k], x.dtype.type(1))[0]

    x = np.linspace(-80.0, 80.0, 100_001).astype(dtype)
    out = np.empty((2, len(x)), dtype)
    run(x, out)
    wide = x.astype(np.longdouble)
    for values, wanted in zip(out, (np.exp(wide), np.log1p(np.exp(wide))), strict=True):
        wanted = np.where((wide > 20) & (values == x), wide, wanted)  # as torch cuts softplus
        assert float(np.max(np.abs(values / wanted - 1))) < 2 * np.finfo(dtype).eps
    beyond = np.array([np.nan, np.inf, -np.inf, 1000.0], dtype)
    run(beyond, out[:, :4])
    assert np.isnan(out[:, 0]).all()
    assert out[0, 2] < 1e-37 < 1e37 < out[0, 1] == out[0, 3]


def test_dispatch_modes_and_bf16_go_through_torch(loops):
    layout = random_links(8, True)
    inputs = [each.detach() for each in draw_edges("softplus", layout)]
    links = replace(layout[0], kernels="numba")
    assert gated_product_sum(*(each.bfloat16() for each in inputs), links).dtype is torch.bfloat16
    assert gated_product_sum(*inputs, layout[0]).shape
    assert not loops
    assert EAGER_FUNCTIONS.keys() == EDGE_LOOPS.keys()
