"""Attention along the edges and a layer of the equivariant transformer, against slow loops."""

import pytest
import torch
import torch.nn.functional as F
from bonds import BONDS, directed_edges, links_between
from torch.autograd import gradcheck, gradgradcheck

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.vector import ETOptions
from hydragnn_hpo.model.convs.et import ETConv, attention_sum, edge_scores

NODES, FEATURES, HEADS = 5, 4, 2


def drawn(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def by_head(values):
    return values.view(HEADS, -1)


@pytest.fixture(params=[True, False], ids=["paired", "single"])
def paired(request):
    return request.param


@pytest.fixture(params=[BONDS, BONDS[:0]], ids=["edges", "no edges"])
def made(request, paired):
    """Links, and the rows of a filter."""
    return links_between(paired, request.param), len(request.param) * (1 if paired else 2)


def ends(made):
    return enumerate(zip(made.sender.tolist(), made.receiver.tolist(), strict=True))


def test_scores_equal_a_loop_and_so_do_two_derivatives(made):
    found, rows = made
    inputs = drawn(NODES, FEATURES), drawn(NODES, FEATURES), drawn(rows, FEATURES)
    received, sent, filters = inputs
    expected = [
        by_head(received[i] * sent[j] * filters[edge % rows]).sum(1) for edge, (j, i) in ends(found)
    ]
    whole = torch.stack(expected) if expected else torch.zeros(0, HEADS, dtype=torch.float64)

    def score(*given):
        return edge_scores(*given, found, HEADS)

    torch.testing.assert_close(score(*inputs), whole)
    assert gradcheck(score, inputs)
    assert gradgradcheck(score, inputs)


def test_attended_sums_equal_a_loop_and_so_do_two_derivatives(made):
    found, rows = made
    inputs = drawn(NODES, FEATURES), drawn(rows, FEATURES), drawn(len(found.sender), HEADS)
    values, filters, weights = inputs
    expected = torch.zeros(NODES, FEATURES, dtype=torch.float64)
    for edge, (j, i) in ends(found):
        message = by_head(values[j] * filters[edge % rows]) * weights[edge].unsqueeze(1)
        expected[i] += message.flatten()

    def attend(*given):
        return attention_sum(*given, found)

    torch.testing.assert_close(attend(*inputs), expected)
    assert gradcheck(attend, inputs)
    assert gradgradcheck(attend, inputs)


def slow_layer(conv, scalars, state, edges):
    """Write the layer out edge by edge: what arrives at each node, then the update."""
    query, key, sent = conv.query(scalars), conv.key(scalars), conv.send(scalars) * conv.scale
    heard = torch.zeros_like(scalars)
    vectors = scalars.new_zeros(NODES, 3, FEATURES) if state is None else state.clone()
    for edge, (j, i) in ends(edges.links):
        row = edge % len(edges.pair_lengths)
        near = F.silu(conv.near(edges.pair_basis[row]))
        weight = 1.0 + F.silu(by_head(query[i] * key[j] * near).sum(1, keepdim=True))
        filters = [each[row] for each in conv.filters(edges)]
        say, point, *carry = sent[j].chunk(conv.sent)
        heard[i] += (by_head(say * filters[0]) * weight).flatten()
        vectors[i] += torch.outer(edges.directions[edge], point * filters[1])
        if carry:
            vectors[i] += state[j] * carry[0] * filters[2]
    heard = conv.out(heard)
    answer, vectors = conv.update(scalars + heard, vectors)
    return heard + answer, vectors


@pytest.mark.parametrize("layer", [0, 1])
def test_a_layer_equals_a_loop_over_edges(layer, paired):
    torch.manual_seed(2)
    conv = ETConv(Dimensions(FEATURES, 3, degree=4.0, layer=layer), ETOptions(heads=HEADS))
    edges, scalars = directed_edges(paired, 3), torch.randn(NODES, FEATURES).double()
    state = torch.randn(NODES, 3, FEATURES).double() if layer else None
    found = conv.double()(scalars, state, edges)
    for mine, slow in zip(found, slow_layer(conv, scalars, state, edges), strict=True):
        torch.testing.assert_close(mine, slow)
