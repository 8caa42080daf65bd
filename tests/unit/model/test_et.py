"""Attention along the edges and a layer of the equivariant transformer, against slow loops."""

import pytest
import torch
import torch.nn.functional as F
from bonds import directed_edges

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.vector import ETOptions
from hydragnn_hpo.model.convs.et import ETConv

NODES, FEATURES, HEADS = 5, 4, 2


def by_head(values):
    return values.view(HEADS, -1)


@pytest.fixture(params=[True, False], ids=["paired", "single"])
def paired(request):
    return request.param


def ends(made):
    return enumerate(zip(made.sender.tolist(), made.receiver.tolist(), strict=True))


def slow_layer(conv, scalars, state, edges):
    """Write the layer out edge by edge: what arrives at each node, then the update."""
    query = conv.query(scalars)
    key = conv.key(scalars)
    sent = conv.send(scalars) * conv.scale
    messages = torch.zeros_like(scalars)
    vectors = scalars.new_zeros(NODES, 3, FEATURES) if state is None else state.clone()
    for edge, (j, i) in ends(edges.links):
        row = edge % len(edges.pair_lengths)
        near = F.silu(conv.near(edges.pair_basis[row]))
        weight = 1.0 + F.silu(by_head(query[i] * key[j] * near).sum(1, keepdim=True))
        filters = [each[row] for each in conv.filters(edges)]
        say, point, *carry = sent[j].chunk(conv.sent)
        messages[i] += (by_head(say * filters[0]) * weight).flatten()
        vectors[i] += torch.outer(edges.directions[edge], point * filters[1])
        if carry:
            vectors[i] += state[j] * carry[0] * filters[2]
    messages = conv.out(messages)
    answer, vectors = conv.update(scalars + messages, vectors)
    return messages + answer, vectors


@pytest.mark.parametrize("layer", [0, 1])
def test_a_layer_equals_a_loop_over_edges(layer, paired):
    torch.manual_seed(2)
    conv = ETConv(Dimensions(FEATURES, 3, degree=4.0, layer=layer), ETOptions(heads=HEADS))
    edges = directed_edges(paired, 3)
    scalars = torch.randn(NODES, FEATURES).double()
    state = torch.randn(NODES, 3, FEATURES).double() if layer else None
    results = conv.double()(scalars, state, edges)
    for mine, slow in zip(results, slow_layer(conv, scalars, state, edges), strict=True):
        torch.testing.assert_close(mine, slow)
