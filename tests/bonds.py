"""Small graphs as convs see them, without structures behind them."""

import torch

from hydragnn_hpo.kernels.scatter import Links
from hydragnn_hpo.model.edges import Edges, envelope

BONDS = torch.tensor([[0, 1], [2, 0], [0, 3], [2, 2], [0, 1]])
"""Sender and receiver of five nodes: an image of node 2 itself, 0 and 1 joined twice, node 4
alone."""


def links_between(paired):
    """Links of five nodes: ``BONDS`` laid out in pairs, or in an order without pairs."""
    sender, receiver = torch.cat((BONDS, BONDS.flip(1))).unbind(1)
    if paired:
        return Links.of(sender, receiver, 5)
    return Links.of(sender.flip(0), receiver.flip(0), 5)


def directed_edges(paired, basis_size):
    """Edges along ``BONDS`` in random directions, with random bases and envelopes, in fp64."""
    around = torch.nn.functional.normalize(torch.randn(len(BONDS), 3).double(), dim=-1)
    whole = torch.cat((around, -around))
    rows = len(BONDS) if paired else 2 * len(BONDS)
    basis = torch.rand(rows, basis_size).double()
    fade = torch.rand(rows, 1).double()
    directions = whole if paired else whole.flip(0)
    return Edges(links_between(paired), directions, torch.ones(rows).double(), basis, fade)


def four_atoms(paired, cutoff):
    """All six edges of four atoms, in fp64: one is longer than 4 angstrom, one than 3."""
    positions = [[0.0, 0, 0], [1.6, 0.2, 0], [0.3, 1.9, 0.8], [3.2, -0.9, 0.4]]
    positions = torch.tensor(positions, dtype=torch.float64)
    first, second = torch.triu_indices(4, 4, 1)
    sender = torch.cat((first, second))
    receiver = torch.cat((second, first))
    vectors = positions[receiver] - positions[sender]
    links = Links.of(sender, receiver, 4)
    rows = len(first) if paired else len(sender)
    lengths = vectors[:rows].norm(dim=1)
    basis = torch.stack((lengths.sin(), lengths.cos(), 1 / lengths), dim=1)
    weight = envelope(lengths, cutoff)[:, None]
    return Edges(links, vectors / vectors.norm(dim=1, keepdim=True), lengths, basis, weight)


def random_edges(paired):
    """Edges of six nodes, in fp64: with a self-image, a doubled bond and an isolated node."""
    torch.manual_seed(1)
    first, second = torch.randint(0, 5, (2, 9))
    first[0] = second[0]
    first[2], second[2] = first[1], second[1]
    sender = torch.cat((first, second))
    receiver = torch.cat((second, first))
    links = Links.of(sender, receiver, 6)
    count = len(first) if paired else len(sender)
    lengths, basis, fade = (torch.rand(count, width).double() for width in (1, 4, 1))
    return Edges(links, torch.zeros(len(sender), 3).double(), lengths[:, 0], basis, fade)
