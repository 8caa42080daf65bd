"""GIN, SAGE, GAT, MFC and CGCNN against loops over edges, written from the papers' equations.

The loops follow the smooth conventions: each neighbour counts by its envelope w, and the node
itself is one neighbour wherever neighbours are averaged.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from bonds import random_edges

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.scalar import GAT as GAT
from hydragnn_hpo.config.convs.scalar import (
    CGCNNOptions,
    GATOptions,
    GINOptions,
    MFCOptions,
    SAGEOptions,
)
from hydragnn_hpo.model.convs.cgcnn import CGCNNConv
from hydragnn_hpo.model.convs.gat import GATConv
from hydragnn_hpo.model.convs.gin import GINConv
from hydragnn_hpo.model.convs.mfc import MFCConv
from hydragnn_hpo.model.convs.sage import SAGEConv

DIMENSIONS = Dimensions(features=8, basis_size=4)


def built(conv, options):
    """Build a layer in fp64 whose parameters are all different from 0."""
    torch.manual_seed(2)
    layer = conv(DIMENSIONS, options).double()
    for parameter in layer.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return layer


def scalars_of(edges):
    torch.manual_seed(4)
    return torch.randn(edges.num_nodes, DIMENSIONS.features, dtype=torch.float64)


def neighbours(edges, node):
    """List sender, envelope and basis of each edge that a node receives."""
    rows = zip(edges.sender.tolist(), edges.receiver, edges.envelope, edges.basis, strict=True)
    return [(sender, w.item(), basis) for sender, receiver, w, basis in rows if receiver == node]


def check(layer, edges, one_node):
    """Compare a layer with a function of one node, with and without the state of a layer before."""
    scalars = scalars_of(edges)
    actual, state = layer(scalars, None, edges)
    expected = [one_node(scalars, i, neighbours(edges, i)) for i in range(edges.num_nodes)]
    torch.testing.assert_close(actual, torch.stack(expected))
    again, kept = layer(scalars, state, edges)
    assert torch.equal(again, actual)
    assert kept is state


@pytest.fixture(params=[True, False], ids=["paired", "unpaired"])
def edges(request):
    return random_edges(request.param)


@pytest.mark.parametrize("learn_eps", [True, False])
def test_gin_is_its_equation(edges, learn_eps):
    layer = built(GINConv, GINOptions(learn_eps=learn_eps))
    eps = layer.eps.item() if learn_eps else 0.0
    assert (eps != 0) == learn_eps

    def one_node(x, i, others):
        return layer.update((1 + eps) * x[i] + sum((w * x[j] for j, w, _ in others), 0 * x[i]))

    check(layer, edges, one_node)


@pytest.mark.parametrize("aggregation", ["mean", "sum", "max"])
def test_sage_is_its_equation(edges, aggregation):
    layer = built(SAGEConv, SAGEOptions(aggregation=aggregation))

    def one_node(x, i, others):
        messages = 0 * x[i]
        for j, w, _ in others:
            if aggregation == "max":
                messages = torch.maximum(messages, w * F.silu(layer.pool(x[j])))
            else:
                messages = messages + w * x[j]
        if aggregation == "mean":
            messages = messages / (1 + sum(w for _, w, _ in others))
        return F.silu(layer.own.weight @ x[i] + layer.neighbors(messages))

    check(layer, edges, one_node)


@pytest.mark.parametrize(("heads", "slope"), [(1, 0.2), (4, 0.0), (8, 0.3)])
def test_gat_is_its_equation(edges, heads, slope):
    layer = built(GATConv, GATOptions(heads=heads, negative_slope=slope))

    def score(x, i, j, basis):
        z = layer.receive(x[i]) + layer.send(x[j]) + layer.measure(basis)
        bent = slope * z + (1 - slope) * z * torch.sigmoid(z)
        return (bent.view(heads, -1) * layer.attention).sum(1).exp()

    def one_node(x, i, others):
        terms = [(i, 1.0, torch.zeros(4, dtype=x.dtype)), *others]
        weights = torch.stack([w * score(x, i, j, basis) for j, w, basis in terms])
        messages = torch.stack([layer.send(x[j]).view(heads, -1) for j, _, _ in terms])
        mean = (weights / weights.sum(0)).unsqueeze(-1) * messages
        return F.silu(mean.sum(0).flatten() + layer.bias)

    check(layer, edges, one_node)


def test_gat_survives_scores_whose_exponentials_do_not_exist(edges):
    layer = built(GATConv, GATOptions())
    layer.attention.data.mul_(1e4)
    scalars = scalars_of(edges).requires_grad_(True)
    result, _ = layer(scalars, None, edges)
    (slope,) = torch.autograd.grad(result.square().sum(), scalars)
    assert torch.isfinite(result).all()
    assert torch.isfinite(slope).all()


def smooth_step(x):
    """Rise from 0 to 1 as the integral of ``30 t^2 (1 - t)^2``, by hand."""
    return 10 * x**3 - 15 * x**4 + 6 * x**5


@pytest.mark.parametrize("highest", [1, 2, 10])
def test_mfc_is_its_equation(edges, highest):
    layer = built(MFCConv, MFCOptions(max_degree=highest))
    degrees = [sum(w for _, w, _ in neighbours(edges, i)) for i in range(6)]
    assert len({math.floor(degree) for degree in degrees}) >= 3, "else whole numbers are not met"

    def one_node(x, i, others):
        degree = min(sum(w for _, w, _ in others), highest)
        both = torch.cat((sum((w * x[j] for j, w, _ in others), 0 * x[i]), x[i]))
        messages = layer.bias
        for d in range(highest + 1):
            messages = messages + smooth_step(max(0, 1 - abs(degree - d))) * (
                both @ layer.weight[d]
            )
        return F.silu(messages)

    check(layer, edges, one_node)


@pytest.mark.parametrize("activation", ["softplus", "silu"])
def test_cgcnn_is_its_equation(edges, activation):
    layer = built(CGCNNConv, CGCNNOptions(activation=activation))
    bend = {"softplus": lambda b: torch.log(1 + b.exp()), "silu": lambda b: b * torch.sigmoid(b)}
    whole = torch.cat((layer.receive.weight, layer.send.weight, layer.measure.weight), dim=1)

    def one_node(x, i, others):
        total = 0 * x[i]
        for j, w, basis in others:
            z = whole @ torch.cat((x[i], x[j], basis)) + layer.receive.bias
            gate, content = z.chunk(2)
            total = total + w / (1 + (-gate).exp()) * bend[activation](content)
        return total

    check(layer, edges, one_node)
