"""Harmonics and couplings against formulas, sums and a layer of MACE against slow loops."""

import math

import pytest
import torch
from bonds import directed_edges
from scipy.special import eval_legendre

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.vector import MACEOptions, pairs, paths, start
from hydragnn_hpo.model.convs.mace import MACEConv
from hydragnn_hpo.model.tensor_product import (
    coupling_coefficients,
    spherical_harmonics,
)

EVERY = paths(3, 3, 3)


def directions(count, seed=0):
    drawn = torch.randn(
        count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return torch.nn.functional.normalize(drawn, dim=-1)


def of(ell, values):
    return values[..., start(ell) : start(ell + 1)]


@pytest.mark.parametrize("ell", range(4))
def test_harmonics_obey_the_addition_theorem(ell):
    a = directions(30)
    b = directions(30, seed=1)
    actual = (of(ell, spherical_harmonics(a, 3)) * of(ell, spherical_harmonics(b, 3))).sum(-1)
    expected = (2 * ell + 1) * eval_legendre(ell, (a * b).sum(-1).numpy())
    torch.testing.assert_close(actual, torch.from_numpy(expected), rtol=0, atol=1e-12)


def test_degree_one_is_x_y_z():
    a = directions(5)
    torch.testing.assert_close(of(1, spherical_harmonics(a, 1)), math.sqrt(3) * a)


@pytest.mark.parametrize("path", EVERY)
def test_couplings_turn_and_are_scaled(path):
    """Matrices of rotation come from the harmonics themselves."""
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    points = directions(60)
    before = spherical_harmonics(points, 3)
    after = spherical_harmonics(points @ turn.T, 3)
    one, two, three = (torch.linalg.lstsq(of(ell, before), of(ell, after)).solution for ell in path)
    matrix = torch.from_numpy(coupling_coefficients(*path))
    turned = torch.einsum("cab,Cc,Aa,Bb->CAB", matrix, three, one, two)
    torch.testing.assert_close(turned, matrix, rtol=0, atol=1e-10)
    rows = matrix.square().sum((1, 2))
    torch.testing.assert_close(rows, torch.ones_like(rows))


@pytest.mark.parametrize("path", EVERY)
def test_pairs_hold_every_product_that_counts(path):
    """The cost of a product is counted by them."""
    counts = set(pairs((path,)))
    entries = torch.from_numpy(coupling_coefficients(*path)).abs().amax(0).nonzero().tolist()
    assert {(start(path[0]) + a, start(path[1]) + b) for a, b in entries} <= counts
    assert {(min(p), max(p)) for p in counts} == set(pairs((path,), same=True))


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
        results = [[] for _ in gather.mix]
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
                results[three].append(total)
        single = [mix(torch.cat(each, -1)) for mix, each in zip(gather.mix, results, strict=True)]
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
    conv = MACEConv(dimensions, chosen).double()
    edges = directed_edges(paired, 4)
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
