"""TensorNet against the paper's equations, written with whole matrices as loops over edges."""

import pytest
import torch
import torch.nn.functional as F
from bonds import four_atoms

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.vector import TENSORNET, TensorNetOptions
from hydragnn_hpo.model.convs.tensornet import TensorNetConv

pytestmark = pytest.mark.usefixtures("fp64")
CUTOFF, WIDTH = 4.0, 4
ONE = torch.eye(3, dtype=torch.float64)


def skew(vector):
    """Return the matrix that multiplies as ``vector x``."""
    return torch.linalg.cross(vector.expand(3, 3), ONE).T


def split(matrix):
    """Return the multiple of the identity, the antisymmetric and the traceless part, [F, 3, 3]."""
    scalar = matrix.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * ONE
    turned = matrix.transpose(1, 2)
    return scalar, (matrix - turned) / 2, (matrix + turned) / 2 - scalar


def square(matrix):
    """Return Tr(X^T X), [F]."""
    return torch.einsum("fij,fij->f", matrix, matrix)


def mixed(maps, matrix):
    return [
        torch.einsum("gf,fij->gij", m.weight, p) for m, p in zip(maps, split(matrix), strict=True)
    ]


def scaled(factors, parts):
    thirds = factors.chunk(3)
    return sum(f[:, None, None] * part for f, part in zip(thirds, parts, strict=True))


def embed(layer, scalars, edges):
    """Return the tensors of the nodes, [F, 3, 3] each."""
    sums = [torch.zeros(WIDTH, 3, 3) for _ in scalars]
    for e, (j, i) in enumerate(zip(edges.sender, edges.receiver, strict=True)):
        r = edges.directions[e]
        faded = torch.cat((edges.basis[e], torch.ones(1))) * edges.envelope[e]
        filters = torch.cat([each(faded) for each in layer.filters.maps])
        parts = (ONE, skew(r), torch.outer(r, r) - ONE / 3)
        sums[i] = sums[i] + layer.send(scalars[j])[:, None, None] * scaled(filters, parts)
    return [
        scaled(1 + layer.factors(torch.cat((x, (1 + square(m)).log()))), mixed(layer.mix, m))
        for x, m in zip(scalars, sums, strict=True)
    ]


def interact(layer, scalars, tensors, edges):
    bounded = [m / (1 + square(m))[:, None, None] for m in tensors]
    pairs = zip(scalars, bounded, strict=True)
    own = [scaled(1 + layer.factors(x), mixed(layer.mix, m)) for x, m in pairs]
    sums = [torch.zeros(WIDTH, 3, 3) for _ in scalars]
    for e, (j, i) in enumerate(zip(edges.sender, edges.receiver, strict=True)):
        hidden = F.silu(layer.radial(edges.basis[e])) * edges.envelope[e]
        filters = torch.cat([each(hidden) for each in layer.filters])
        sums[i] = sums[i] + scaled(filters, split(own[j]))
    moved = []
    for before, y, m in zip(tensors, own, sums, strict=True):
        product = y @ m + m @ y
        change = sum(mixed(layer.mix_products, product / (1 + square(product))[:, None, None]))
        moved.append(before + change + change @ change)
    return moved


@pytest.mark.parametrize("paired", [True, False])
def test_three_layers_equal_the_equations(paired):
    torch.manual_seed(0)
    options = TensorNetOptions(radial=5)
    places = [Dimensions(WIDTH, 3, CUTOFF, layer=n) for n in range(3)]
    layers = [TensorNetConv(place, options) for place in places]
    edges = four_atoms(paired, CUTOFF)
    expected = scalars = torch.randn(4, WIDTH)
    tensors = state = None
    with torch.no_grad():
        for conv, place in zip(layers, places, strict=True):
            if tensors is None:
                tensors = embed(conv.tensors, expected, edges)
            else:
                tensors = interact(conv.tensors, expected, tensors, edges)
            norms = [torch.cat([square(part) for part in split(m)]) for m in tensors]
            expected = expected + conv.read((1 + torch.stack(norms)).log())
            change, state = conv(scalars, state, edges)
            scalars = scalars + change
            assert sum(p.numel() for p in conv.parameters()) == TENSORNET.parameters(place, options)
    torch.testing.assert_close(scalars, expected)
    _, skews, _ = split(torch.cat(tensors))
    vectors = torch.stack((skews[:, 2, 1], skews[:, 0, 2], skews[:, 1, 0]))
    torch.testing.assert_close(state[:, :3].transpose(0, 1).flatten(1), vectors)
