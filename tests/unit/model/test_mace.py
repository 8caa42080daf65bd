"""Harmonics and couplings against formulas, sums and a layer of MACE against slow loops."""

import math

import pytest
import torch
from scipy.special import eval_legendre
from sympy.physics.quantum.cg import CG
from torch.autograd import gradcheck, gradgradcheck

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.vector import MACEOptions, Plan, pairs, paths, start
from hydragnn_hpo.config.model_config import ModelConfig
from hydragnn_hpo.model.convs.mace import MACEConv
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.scatter import build_links, build_paired_links
from hydragnn_hpo.model.tensor_product import (
    coupled_sum,
    coupling_coefficients,
    spherical_harmonics,
)

EVERY = paths(3, 3, 3)
BONDS = torch.tensor([[0, 1], [2, 0], [0, 3], [2, 2], [0, 1]])
"""Sender and receiver: an image of node 2 itself, 0 and 1 joined twice, node 4 alone."""


def directions(count, seed=0):
    drawn = torch.randn(
        count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return torch.nn.functional.normalize(drawn, dim=-1)


def of(ell, values):
    return values[..., start(ell) : start(ell + 1)]


def links(paired, bonds=BONDS):
    """Lay bonds out in pairs, or in an order without pairs."""
    sender, receiver = torch.cat((bonds, bonds.flip(1))).unbind(1)
    if paired:
        return build_paired_links(sender, receiver, torch.argsort(receiver, stable=True), 5)
    return build_links(sender.flip(0), receiver.flip(0), 5)


@pytest.mark.parametrize("ell", range(4))
def test_harmonics_obey_the_addition_theorem(ell):
    a, b = directions(30), directions(30, seed=1)
    found = (of(ell, spherical_harmonics(a, 3)) * of(ell, spherical_harmonics(b, 3))).sum(-1)
    expected = (2 * ell + 1) * eval_legendre(ell, (a * b).sum(-1).numpy())
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-12)


def test_degree_one_is_x_y_z():
    a = directions(5)
    torch.testing.assert_close(of(1, spherical_harmonics(a, 1)), math.sqrt(3) * a)


@pytest.mark.parametrize("path", EVERY)
def test_harmonics_of_one_direction_couple_to_harmonics(path):
    """``Y_l1 Y_l2 -> Y_l3`` with a factor that holds one Clebsch-Gordan coefficient.

    Source: Varshalovich et al. (1988), Quantum Theory of Angular Momentum, section 5.6.2.
    """
    one, two, three = path
    around = spherical_harmonics(directions(20), 3)
    matrix = torch.from_numpy(coupling_coefficients(*path))
    found = torch.einsum("cab,ea,eb->ec", matrix, of(one, around), of(two, around))
    factor = abs(float(CG(one, 0, two, 0, three, 0).doit()))
    factor *= math.sqrt((2 * one + 1) * (2 * two + 1) / (2 * three + 1))
    torch.testing.assert_close(found, factor * of(three, around), rtol=0, atol=1e-11)


@pytest.mark.parametrize("path", EVERY)
def test_couplings_turn_and_are_scaled(path):
    """Matrices of rotation come from the harmonics themselves."""
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    points = directions(60)
    before, after = spherical_harmonics(points, 3), spherical_harmonics(points @ turn.T, 3)
    one, two, three = (torch.linalg.lstsq(of(ell, before), of(ell, after)).solution for ell in path)
    matrix = torch.from_numpy(coupling_coefficients(*path))
    turned = torch.einsum("cab,Cc,Aa,Bb->CAB", matrix, three, one, two)
    torch.testing.assert_close(turned, matrix, rtol=0, atol=1e-10)
    rows = matrix.square().sum((1, 2))
    torch.testing.assert_close(rows, torch.ones_like(rows))


@pytest.mark.parametrize("path", EVERY)
def test_pairs_hold_every_product_that_counts(path):
    counts = set(pairs((path,)))
    entries = torch.from_numpy(coupling_coefficients(*path)).abs().amax(0).nonzero().tolist()
    assert {(start(path[0]) + a, start(path[1]) + b) for a, b in entries} <= counts
    assert {(min(p), max(p)) for p in counts} == set(pairs((path,), same=True))


@pytest.mark.parametrize(("sent", "arrive"), [(1, 1), (1, 3), (3, 1), (3, 5), (3, 2)])
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("bonds", [BONDS, BONDS[:0]])
def test_coupled_sums_equal_a_loop_and_so_do_two_derivatives(paired, sent, arrive, bonds):
    made, rows = links(paired, bonds), len(bonds) * (1 if paired else 2)
    shapes = ((5, sent, 2), (rows, 2), (2 * len(bonds), arrive, sent))
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    values, filters, mixing = inputs
    expected = torch.zeros(5, arrive, 2, dtype=torch.float64)
    for edge, (j, i) in enumerate(zip(made.sender.tolist(), made.receiver.tolist(), strict=True)):
        expected[i] += (mixing[edge] @ values[j]) * filters[edge % rows]
    torch.testing.assert_close(coupled_sum(*inputs, made), expected)
    assert gradcheck(lambda *given: coupled_sum(*given, made), inputs)
    assert gradgradcheck(lambda *given: coupled_sum(*given, made), inputs, fast_mode=True)


def geometry(paired=True):
    made, around = links(paired), directions(len(BONDS))
    whole = torch.cat((around, -around))
    rows = len(BONDS) if paired else 2 * len(BONDS)
    basis, fade = torch.rand(rows, 4, dtype=torch.float64), torch.rand(rows, 1).double()
    return Edges(made, whole if paired else whole.flip(0), torch.ones(rows).double(), basis, fade)


def slow_products(conv, scalars, single):
    """Couple features of each node, factor by factor; lists of [2l + 1, F] by degree."""
    terms = [single]
    for order, product in zip(conv.gather.plan.orders, conv.products, strict=True):
        couplings = conv.gather.plan.couplings(order)
        weights = product.weights(scalars).view(len(couplings), -1)
        made = [torch.zeros_like(single[path[2]]) for path in couplings]
        for row, (one, two, three) in enumerate(couplings):
            matrix = torch.from_numpy(coupling_coefficients(one, two, three))
            met = torch.einsum("cab,af,bf->cf", matrix, terms[-1][one], single[two])
            made[row] = met * weights[row]
        top = conv.gather.plan.made(order)
        terms.append(
            [
                sum(m for m, path in zip(made, couplings, strict=True) if path[2] == ell)
                for ell in range(top + 1)
            ]
        )
    return terms


def slow_layer(conv, scalars, state, edges):
    """Write the layer out edge by edge; gives features by degree for every node."""
    gather, plan = conv.gather, conv.gather.plan
    features = [scalars.unsqueeze(1)]
    for ell in range(1, plan.reads + 1):
        part = state[:, start(ell) - 1 : start(ell + 1) - 1]
        features.append(part / (1 + part.square().mean(dim=(1, 2), keepdim=True)).sqrt())
    sent = [send(part) for send, part in zip(gather.send, features, strict=True)]
    result = []
    for node in range(len(scalars)):
        found = [[] for _ in gather.mix]
        for ((one, two), ends), weights in zip(plan.moments.items(), gather.weights, strict=True):
            for three in ends:
                matrix = torch.from_numpy(coupling_coefficients(one, two, three))
                total = scalars.new_zeros(2 * three + 1, scalars.shape[1])
                for edge in (edges.receiver == node).nonzero().flatten().tolist():
                    row = edge % len(edges.pair_lengths)
                    radial = torch.nn.functional.silu(gather.radial(edges.pair_basis[row]))
                    strength = weights(radial) * edges.pair_envelope[row] * gather.scale
                    around = of(two, spherical_harmonics(edges.directions[edge : edge + 1], 3))[0]
                    given = sent[one][edges.sender[edge]]
                    total = total + torch.einsum("cab,af,b->cf", matrix, given, around) * strength
                found[three].append(total)
        single = [mix(torch.cat(each, -1)) for mix, each in zip(gather.mix, found, strict=True)]
        terms = slow_products(conv, scalars[node], single)
        result.append(
            [mix(torch.cat([t[ell] for t in terms], -1)) for ell, mix in enumerate(conv.mix)]
        )
    return result


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_ell": 1},
        {"correlation": 1},
        {"max_ell": 3, "node_max_ell": 2, "correlation": 3},
    ],
)
@pytest.mark.parametrize(("layer", "read"), [(0, True), (1, True), (1, False)])
def test_a_layer_equals_a_loop_over_edges(options, layer, read, paired):
    torch.manual_seed(1)
    dimensions = Dimensions(3, 4, degree=4.0, layer=layer, state_is_read=read)
    chosen = MACEOptions(**options)
    conv, edges = MACEConv(dimensions, chosen).double(), geometry(paired)
    scalars = torch.randn(5, 3, dtype=torch.float64)
    columns = start(chosen.node_max_ell + 1) - 1
    state = torch.randn(5, columns, 3, dtype=torch.float64) if layer else None
    change, made = conv(scalars, state, edges)
    slow = slow_layer(conv, scalars, state, edges)
    torch.testing.assert_close(change, torch.cat([node[0] for node in slow]))
    if not read:
        assert made is None
        return
    expected = torch.stack([torch.cat(node[1:]) for node in slow])
    torch.testing.assert_close(made, expected if state is None else expected + state)


def test_no_layer_makes_what_no_one_reads():
    plan = Plan(Dimensions(8, 4, layer=0, state_is_read=False), MACEOptions(correlation=1))
    assert plan.moments == {(0, 0): (0,)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_ell": 4}, "less than or equal to 3"),
        ({"correlation": 4}, "less than or equal to 3"),
        ({"max_ell": 1, "node_max_ell": 2}, "node_max_ell is 2, above max_ell 1"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        ModelConfig(conv="mace", options=options)
