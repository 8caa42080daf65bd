"""DimeNet++ against the paper's equations written as loops over edges and triplets."""

import math

import pytest
import torch
import torch.nn.functional as F
from bonds import four_atoms
from scipy.special import eval_legendre, spherical_jn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.angular import DIMENETPP, DimeNetPPOptions
from hydragnn_hpo.model.convs.dimenetpp import DimeNetPPConv
from hydragnn_hpo.model.edges import envelope
from hydragnn_hpo.model.triplets import bessel_roots

pytestmark = pytest.mark.usefixtures("fp64")
CUTOFF, REACH = 4.0, 3.0
OPTIONS = DimeNetPPOptions(
    num_spherical=3, num_radial=2, int_emb=5, basis_emb=3, out_emb=6, angle_cutoff=REACH
)


def spherical(conv, length, cosine):
    """Eq. 6 of arXiv:2003.03123 times what filters make of it, [W]."""
    roots = bessel_roots(3, 2)
    total = torch.zeros(5)
    for l in range(3):  # noqa: E741
        harmonic = math.sqrt((2 * l + 1) / (4 * math.pi)) * eval_legendre(l, cosine)
        for n in range(2):
            z = roots[l, n]
            scale = math.sqrt(2) / abs(spherical_jn(l + 1, z))
            value = scale * spherical_jn(l, z * length / REACH) * harmonic
            total += value * (conv.angular.first[l, n] @ conv.angular.second)
    return total


def by_hand(conv, scalars, messages, edges):
    """One layer as the paper writes it: one edge, one triplet at a time."""
    count = len(edges.sender)
    ends = [(edges.sender[e], edges.receiver[e]) for e in range(count)]
    both = [conv.receive(scalars[i]) + conv.send(scalars[j]) for j, i in ends]
    if messages is None:
        messages = [F.silu(both[e] + conv.measure(edges.basis[e])) for e in range(count)]
        both = [0.0] * count
    filtered_messages = [
        F.silu(conv.other(messages[e])) * conv.filter(edges.basis[e]) for e in range(count)
    ]
    filtered_messages = [F.silu(conv.down(each)) for each in filtered_messages]
    short = edges.lengths < REACH
    fall = envelope(edges.lengths, REACH)
    new = []
    gathered = torch.zeros_like(scalars)
    for e, (j, i) in enumerate(ends):
        turned = torch.zeros(5)
        for g, (k, middle) in enumerate(ends):
            if middle == j and k != i and short[e] and short[g]:
                cosine = -float(edges.directions[g] @ edges.directions[e])
                filters = spherical(conv, edges.lengths[g].item(), cosine)
                turned += filters * filtered_messages[g] * fall[g] * fall[e]
        met = F.silu(conv.own(messages[e]) + both[e]) + F.silu(conv.up(turned))
        for block in conv.before:
            met = met + F.silu(block.second(F.silu(block.first(met))))
        met = F.silu(conv.mix(met)) + messages[e]
        for block in conv.after:
            met = met + F.silu(block.second(F.silu(block.first(met))))
        new.append(met)
        gathered[i] += conv.gate(edges.basis[e]) * edges.envelope[e] * new[e]
    return conv.out(gathered), new


@pytest.mark.parametrize("paired", [True, False])
def test_two_layers_equal_the_equations(paired):
    torch.manual_seed(0)
    layers = [DimeNetPPConv(Dimensions(4, 3, CUTOFF, layer=n), OPTIONS) for n in (0, 1)]
    edges = four_atoms(paired, CUTOFF)
    scalars = torch.randn(4, 4)
    with torch.no_grad():
        state, messages = None, None
        for conv in layers:
            change, state = conv(scalars, state, edges)
            expected, messages = by_hand(conv, scalars, messages, edges)
            torch.testing.assert_close(change, expected)
            torch.testing.assert_close(state.messages, torch.stack(messages))
            scalars = scalars + change


def test_a_longer_reach_counts_as_the_cutoff():
    far = DimeNetPPConv(Dimensions(4, 3, CUTOFF), DimeNetPPOptions(angle_cutoff=9.0))
    assert far.reach == DimeNetPPConv(Dimensions(4, 3, CUTOFF), DimeNetPPOptions()).reach == CUTOFF
    assert DIMENETPP.angle_cutoff(DimeNetPPOptions()) is None
    assert DIMENETPP.angle_cutoff(OPTIONS) == REACH
