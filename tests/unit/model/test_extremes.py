"""Largest and smallest messages against a loop, with ties, floors and no edges."""

import pytest
import torch

from hydragnn_hpo.model.extremes import segment_max, segment_min
from hydragnn_hpo.model.sums import links_of


def random_messages(seed=0, num_nodes=6, num_edges=25, features=3):
    torch.manual_seed(seed)
    sender, receiver = torch.randint(0, num_nodes - 1, (2, num_edges))
    messages = torch.randn(num_edges, features, dtype=torch.float64)
    return messages, links_of(sender, receiver, num_nodes)


def by_hand(messages, links, pick):
    rows = []
    for node in range(links.num_nodes):
        heard = [m for m, r in zip(messages, links.receiver, strict=True) if r == node]
        stack = torch.stack([torch.zeros_like(messages[0]), *heard])
        rows.append(pick(stack, dim=0))
    return torch.stack(rows)


@pytest.mark.parametrize(("found", "pick"), [(segment_max, torch.amax), (segment_min, torch.amin)])
def test_values_equal_a_loop_and_nodes_without_edges_hear_zero(found, pick):
    messages, links = random_messages()
    assert torch.equal(found(messages, links), by_hand(messages, links, pick))
    assert (found(messages, links)[-1] == 0).all()


@pytest.mark.parametrize("found", [segment_max, segment_min])
def test_two_derivatives_equal_finite_differences(found):
    messages, links = random_messages(1)
    messages.requires_grad_(True)
    weight = torch.rand(links.sender.shape[0], 1, dtype=torch.float64, requires_grad=True)

    def curved(messages, weight):
        return found(messages * weight, links).square()

    torch.autograd.gradcheck(curved, (messages, weight))
    torch.autograd.gradgradcheck(curved, (messages, weight))


def test_equal_messages_share_the_gradient_and_the_floor_takes_none():
    links = links_of(torch.tensor([0, 1, 2, 0]), torch.tensor([3, 3, 3, 1]), 4)
    messages = torch.tensor([[2.0], [2.0], [1.0], [0.0]], requires_grad=True)
    segment_max(messages, links).sum().backward()
    assert messages.grad.flatten().tolist() == [0.5, 0.5, 0.0, 0.0]
    messages.grad = None
    segment_min(messages, links).sum().backward()
    assert (messages.grad == 0).all()


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_no_edges_give_zeros_that_reach_the_parameters(num_nodes):
    none = torch.zeros(0, dtype=torch.long)
    messages = torch.zeros(0, 4, requires_grad=True)
    found = segment_max(messages, links_of(none, none, num_nodes))
    found.sum().backward()
    assert found.shape == (num_nodes, 4)
    assert messages.grad.shape == (0, 4)
