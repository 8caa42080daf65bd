"""ALIGNN against the paper's equations written as loops over edges and triplets."""

import pytest
import torch
import torch.nn.functional as F
from bonds import four_atoms
from scipy.special import eval_legendre

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.angular import ALIGNN, AlignnOptions
from hydragnn_hpo.model.convs.alignn import AlignnConv
from hydragnn_hpo.model.edges import envelope

pytestmark = pytest.mark.usefixtures("fp64")
CUTOFF, REACH = 4.0, 3.0


def gated_by_hand(conv, nodes, along, weight, ends):
    """Eqs. 3 and 4 with a mean that counts the node itself, one edge at a time."""
    above = [torch.zeros_like(row) for row in nodes]
    below = [torch.ones_like(row) for row in nodes]
    changes = []
    for (j, i), feature, w in zip(ends, along, weight, strict=True):
        met = conv.receive(nodes[i]) + conv.send(nodes[j]) + conv.gate(feature)
        above[i] = above[i] + w * met.sigmoid() * conv.value(nodes[j])
        below[i] = below[i] + w * met.sigmoid()
        changes.append(F.silu(conv.edge_norm(met)) if conv.edge_norm else None)
    messages = [a / b for a, b in zip(above, below, strict=True)]
    rows = [F.silu(conv.norm(conv.own(x) + h)) for x, h in zip(nodes, messages, strict=True)]
    return torch.stack(rows), changes


def by_hand(layers, scalars, edges):
    ends = list(zip(edges.sender.tolist(), edges.receiver.tolist(), strict=True))
    fall = envelope(edges.lengths, REACH)
    triplets, weight, angles = [], [], []
    for b, (j, i) in enumerate(ends):
        for a, (k, middle) in enumerate(ends):
            if middle == j and k != i and max(edges.lengths[a], edges.lengths[b]) < REACH:
                triplets.append((a, b))
                weight.append(fall[a] * fall[b])
                cosine = -float(edges.directions[a] @ edges.directions[b])
                scales = [((2 * n + 1) / (4 * torch.pi)) ** 0.5 for n in range(3)]
                terms = [s * eval_legendre(n, cosine) for n, s in enumerate(scales)]
                angles.append(F.silu(layers[0].bend(torch.tensor([terms]))[0]))
    bonds = layers[0].measure(edges.basis)
    assert len(triplets) == 10, "atoms have 2, 3, 2 and 1 neighbours in reach: 2 + 6 + 2 + 0"
    for conv in layers:
        if conv.between is not None:
            change, bent = gated_by_hand(conv.between, bonds, angles, weight, triplets)
            bonds = bonds + change
            angles = [a + b if conv.keeps else a for a, b in zip(angles, bent, strict=True)]
        change, more = gated_by_hand(conv.along, scalars, bonds, edges.envelope, ends)
        bonds = bonds + torch.stack(more) if conv.along.edge_norm else bonds
        scalars = scalars + change
    return scalars, bonds


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("lines", [1, 2, 4])
def test_three_layers_equal_the_equations(paired, lines):
    torch.manual_seed(0)
    options = AlignnOptions(angle_cutoff=REACH, angle_basis=3, line_graph_layers=lines)
    places = [Dimensions(4, 3, CUTOFF, layer=n, state_is_read=n < 2) for n in range(3)]
    layers = [AlignnConv(place, options) for place in places]
    edges = four_atoms(paired, CUTOFF)
    scalars = torch.randn(4, 4)
    with torch.no_grad():
        expected, _ = by_hand(layers, scalars, edges)
        state = None
        for conv in layers:
            change, state = conv(scalars, state, edges)
            scalars = scalars + change
    torch.testing.assert_close(scalars, expected)
    assert state is None
    for conv, place in zip(layers, places, strict=True):
        assert sum(p.numel() for p in conv.parameters()) == ALIGNN.parameters(place, options)


def test_a_longer_reach_counts_as_the_cutoff():
    assert AlignnConv(Dimensions(4, 3, cutoff=3.0), AlignnOptions()).reach == 3.0
    assert ALIGNN.angle_cutoff(AlignnOptions()) == 3.5
