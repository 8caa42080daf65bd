"""An edge without its reverse takes the pairs from no other edge, and changes no result."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.ensemble.engine import cut_to_cutoff, squared_lengths
from hydragnn_hpo.model.edges import BesselBasis, measure_edges, pair_vectors
from hydragnn_hpo.testing.sample_structures import (
    add_isolated_atom,
    batch_graphs,
    molecule_and_crystal,
    random_structure,
)


def some_graphs():
    """A molecule and a crystal with images of atoms, some edges one-way, and an isolated atom."""
    random = np.random.default_rng(0)
    graphs = []
    for structure in (*molecule_and_crystal(), add_isolated_atom(4)):
        graph = structure.graph()
        keep = random.random(len(graph.edges)) > 0.2
        graphs.append(replace(graph, edges=graph.edges[keep], edge_shift=graph.edge_shift[keep]))
    return graphs


def results_of(net, batch):
    """Energies, charges, forces, and gradients of a loss on all of them, as training takes them."""
    for parameter in net.parameters():
        parameter.grad = None
    predictions = net.train()(batch)
    sum(each.square().sum() for each in predictions.values()).backward()
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    return [*(each.detach() for each in predictions.values()), *grads]


@pytest.mark.parametrize("kernels", ["eager", "numba"])
@pytest.mark.parametrize("conv", CONV_SPECS)
def test_results_are_those_without_pairs(make, fp64, conv, kernels):
    heads = {"energy": {}, "charge": {}}
    heads |= {"forces": {}} if CONV_SPECS[conv].forces else {}
    net = make.net(heads, conv=conv, features=16, kernels=kernels)
    laid, plain = (batch_graphs(some_graphs(), paired=paired) for paired in (True, False))
    assert 0 < laid.num_lone < laid.num_pairs < plain.num_pairs
    for value, expected in zip(results_of(net, laid), results_of(net, plain), strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-11 * max(scale, 1.0))


def test_links_lead_to_each_nodes_own_edges():
    links, vectors = pair_vectors(batch_graphs(some_graphs()))
    edges = len(links.sender)
    assert len(vectors) < edges
    for ends, order, starts in (
        (links.receiver, links.by_receiver, links.receiver_starts),
        (links.sender, links.by_sender, links.sender_starts),
    ):
        assert sorted(order.tolist()) == list(range(edges))
        own = [order[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)]
        assert all((ends[rows] == node).all() for node, rows in enumerate(own))


def test_the_order_of_a_nodes_edges_does_not_depend_on_other_graphs():
    """Law 7: sums are rounded in this order."""

    def edges_of(batch, node):
        links, vectors = pair_vectors(batch)
        vectors = torch.cat((vectors, -vectors[: len(links.sender) - len(vectors)]))
        for order, starts in (
            (links.by_receiver, links.receiver_starts),
            (links.by_sender, links.sender_starts),
        ):
            yield vectors[order[starts[node] : starts[node + 1]]].tolist()

    whole = [random_structure(seed, 7, periodic=True).graph() for seed in (5, 6)]
    alone = batch_graphs(whole)
    among = batch_graphs([*whole, *some_graphs()])
    assert among.num_lone > alone.num_lone == 0
    for node in range(len(alone.numbers)):
        assert list(edges_of(among, node)) == list(edges_of(alone, node))


def test_a_shorter_cutoff_keeps_edges_without_a_reverse():
    batch = batch_graphs(some_graphs())
    cut = cut_to_cutoff(batch, squared_lengths(batch), 2.5)
    assert 0 < cut.num_lone < batch.num_lone
    links, vectors = pair_vectors(cut)
    whole = torch.cat((vectors, -vectors[: len(links.sender) - len(vectors)]))
    given, among = pair_vectors(batch_graphs(some_graphs(), paired=False))
    near = among.norm(dim=1) <= 2.5
    rows = [
        sorted(
            (s, r, *np.round(v, 6)) for s, r, v in zip(*map(torch.Tensor.tolist, of), strict=True)
        )
        for of in (
            (links.sender, links.receiver, whole),
            (given.sender[near], given.receiver[near], among[near]),
        )
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("basis", [None, BesselBasis(4, 3.5)], ids=["lengths", "directions"])
@pytest.mark.parametrize("batch", ["pairs", "edges", "empty", "alone"])
def test_a_loop_measures_edges_and_sorts_neighbours_as_torch_does(batch, basis, dtype):
    """The cutoff is shorter than some edges; envelopes of these are 0."""
    graphs = {"empty": [], "alone": [add_isolated_atom(4).graph()]}.get(batch, some_graphs())
    given = batch_graphs(graphs, dtype=dtype, paired=batch != "edges")
    fields = ("directions", "pair_lengths", "pair_basis", "pair_envelope")
    result, wanted = (
        measure_edges(given, kernels=kernels, basis=basis, cutoff=3.5)
        for kernels in ("numba", "eager")
    )
    tolerance = 1e-12 if dtype is torch.float64 else 1e-5
    for name in fields:
        own = getattr(result, name)
        value = getattr(wanted, name)
        torch.testing.assert_close(own, value, rtol=0, atol=tolerance, msg=name)
    for name in ("faded_neighbors", "averaged_neighbors"):
        for own, value in zip(getattr(result, name), getattr(wanted, name), strict=True):
            torch.testing.assert_close(own, value, rtol=0, atol=tolerance, msg=name)
    moving = replace(given, positions=given.positions.clone().requires_grad_())
    edges = measure_edges(moving, kernels="numba", basis=basis, cutoff=3.5)
    assert edges.pair_envelope.requires_grad
