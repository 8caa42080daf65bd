"""Edges drawn at random, for tests of sums over them."""

import torch

from hydragnn_hpo.model import scatter

NODES, WIDTH = 24, 19
"""The width is no multiple of a vector register."""


def random_links(seed, paired, nodes=NODES):
    """Draw edges in blocks of nodes: images of oneself, repeated bonds, and nodes without any."""
    draw = torch.Generator().manual_seed(seed)
    first, second = torch.randint(0, nodes - 2, (2, 5 * nodes), generator=draw)
    if not paired:
        return scatter.build_links(first, second, nodes), len(first)
    sender, receiver = torch.cat((first, second)), torch.cat((second, first))
    order = torch.argsort(receiver, stable=True)
    return scatter.build_paired_links(sender, receiver, order, nodes), len(first)
