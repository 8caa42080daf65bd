"""Small graphs as convs see them, without structures behind them."""

import torch

from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.scatter import build_links, build_paired_links


def edges_between(first, second, num_nodes, paired, dtype=torch.float64):
    """Bonds between two rows of nodes, as pairs or as edges that only happen to be turned."""
    sender, receiver = torch.cat((first, second)), torch.cat((second, first))
    order = torch.argsort(receiver, stable=True)
    if paired:
        links = build_paired_links(sender, receiver, order, num_nodes)
    else:
        links = build_links(sender, receiver, num_nodes)
    count = len(first) if paired else len(sender)
    torch.manual_seed(0)
    lengths = torch.rand(count, dtype=dtype)
    basis, envelope = torch.rand(count, 4, dtype=dtype), torch.rand(count, 1, dtype=dtype)
    return Edges(links, torch.zeros(len(sender), 3, dtype=dtype), lengths, basis, envelope)


def random_edges(paired, num_nodes=6, bonds=9):
    """With a self-image, a doubled bond and an isolated node."""
    torch.manual_seed(1)
    first, second = torch.randint(0, num_nodes - 1, (2, bonds))
    first[0] = second[0]
    first[2], second[2] = first[1], second[1]
    return edges_between(first, second, num_nodes, paired)
