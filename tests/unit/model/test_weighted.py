"""Weighted sums against a dense matrix of weights, in values and two derivatives."""

import pytest
import torch
from bonds import edges_between, random_edges

from hydragnn_hpo.model.weighted import weighted


def dense(values, weights, edges):
    """Sum through a matrix [N, N] per head."""
    both = edges.expand_pairs(weights)
    parts = []
    for part, weight in zip(values.chunk(weights.shape[1], dim=1), both.unbind(1), strict=True):
        matrix = torch.zeros(len(values), len(values), dtype=values.dtype)
        matrix = matrix.index_put((edges.receiver, edges.sender), weight, accumulate=True)
        parts.append(matrix @ part)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
def test_sums_equal_a_dense_matrix_and_have_two_derivatives(paired, heads):
    edges = random_edges(paired)
    values = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(edges.pair_lengths), heads, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(weighted(values, weights, edges.links), dense(values, weights, edges))

    def curved(values, weights):
        return weighted(values, weights, edges.links).square()

    torch.autograd.gradcheck(curved, (values, weights))
    torch.autograd.gradgradcheck(curved, (values, weights))


@pytest.mark.parametrize("num_nodes", [0, 2])
def test_no_edges_give_zeros_that_reach_the_parameters(num_nodes):
    none = torch.zeros(0, dtype=torch.long)
    edges = edges_between(none, none, num_nodes, True)
    values = torch.ones(num_nodes, 4, dtype=torch.float64, requires_grad=True)
    weights = edges.pair_envelope.clone().requires_grad_(True)
    found = weighted(values, weights, edges.links)
    found.sum().backward()
    assert torch.equal(found, torch.zeros_like(values))
    assert torch.equal(values.grad, torch.zeros_like(values))
    assert weights.grad.shape == (0, 1)


def test_degrees_are_sums_of_envelopes():
    edges = edges_between(torch.tensor([0, 0]), torch.tensor([1, 2]), 4, True)
    near, far = edges.pair_envelope.flatten().tolist()
    expected = torch.tensor([[near + far], [near], [far], [0.0]], dtype=torch.float64)
    torch.testing.assert_close(edges.sum_messages(edges.envelope), expected)
