"""Triplets against a loop over neighbours and images; angular functions against scipy."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import eval_legendre, spherical_jn

from hydragnn_hpo.config.convs.angular import chebyshev_terms
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.scatter import build_links, build_paired_links
from hydragnn_hpo.model.triplets import (
    SphericalBessel,
    bessel_roots,
    chebyshev,
    find_triplets,
    legendre,
)

CELL = np.array([[3.1, 0.0, 0.0], [0.4, 2.9, 0.0], [-0.3, 0.5, 3.3]])


def bonds(seed=0, num_nodes=3, cutoff=3.5, cell=CELL):
    """All bonds of a small cell by a loop over images, each once: sender, receiver, vector."""
    random = np.random.default_rng(seed)
    positions = random.random((num_nodes, 3)) @ cell
    reach = range(-2, 3) if cell.any() else range(1)
    found = []
    for i, j in itertools.product(range(num_nodes), repeat=2):
        for image in itertools.product(reach, repeat=3):
            vector = positions[j] + np.array(image) @ cell - positions[i]
            first = (i, j) if i != j else (image, (0, 0, 0))
            if 0.0 < np.linalg.norm(vector) < cutoff and first[0] < first[1]:
                found.append((i, j, vector))
    return found


def edges_of(found, num_nodes, paired):
    sender, receiver = (torch.tensor([b[k] for b in found], dtype=torch.long) for k in (0, 1))
    vectors = torch.tensor(np.array([b[2] for b in found]).reshape(-1, 3))
    sender, receiver = torch.cat((sender, receiver)), torch.cat((receiver, sender))
    both = torch.cat((vectors, -vectors))
    if paired:
        order = torch.argsort(receiver, stable=True)
        links, lengths = build_paired_links(sender, receiver, order, num_nodes), vectors.norm(dim=1)
    else:
        mixed = torch.randperm(len(sender), generator=torch.Generator().manual_seed(0))
        both = both[mixed]
        links, lengths = build_links(sender[mixed], receiver[mixed], num_nodes), both.norm(dim=1)
    return Edges(links, both / both.norm(dim=1, keepdim=True), lengths, lengths[:, None], lengths)


def by_hand(edges, reach):
    """The definition: meet in j, both short, and not the same way back."""
    vectors = edges.directions * edges.lengths[:, None]
    short = [e for e in range(len(vectors)) if edges.lengths[e] < reach]
    found = {}
    for a, b in itertools.product(short, short):
        if edges.receiver[a] == edges.sender[b]:
            back = edges.sender[a] == edges.receiver[b]
            if not (back and (vectors[a] + vectors[b]).norm() < 1e-6):
                found[a, b] = float(-vectors[a] @ vectors[b]) / float(
                    vectors[a].norm() * vectors[b].norm()
                )
    return found


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("reach", [3.5, 2.6, 0.1])
@pytest.mark.parametrize("num_nodes", [1, 3])
def test_triplets_equal_a_loop_with_images_of_a_node_itself(paired, reach, num_nodes):
    edges = edges_of(bonds(1, num_nodes), num_nodes, paired)
    expected = by_hand(edges, reach)
    triplets = find_triplets(edges, reach)
    links = triplets.links
    pairs = list(zip(links.sender.tolist(), links.receiver.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) == set(expected)
    wanted = torch.tensor([expected[pair] for pair in pairs], dtype=torch.float64)
    torch.testing.assert_close(triplets.cosines, wanted)
    assert len(expected) > 10 or reach < 3.0
    order = build_links(links.sender, links.receiver, len(edges.sender))
    for found, sorted_ in zip(links.arrays, order.arrays, strict=True):
        assert torch.equal(found, sorted_)


def test_a_simple_cubic_crystal_has_thirty_triplets_per_atom():
    """Six neighbours, all images of the atom itself: six edges in, six out, six turned round."""
    edges = edges_of(bonds(0, 1, 3.2, 3.0 * np.eye(3)), 1, True)
    triplets = find_triplets(edges, 3.2)
    counts = {c: int((triplets.cosines.round() == c).sum()) for c in (-1.0, 0.0, 1.0)}
    assert counts == {-1.0: 6, 0.0: 24, 1.0: 0}


def test_polynomials_equal_scipy():
    cosines = torch.linspace(-1, 1, 41, dtype=torch.float64)
    found = legendre(cosines, 8)
    for degree in range(8):
        scale = math.sqrt((2 * degree + 1) / (4 * math.pi))
        expected = scale * eval_legendre(degree, cosines.numpy())
        torch.testing.assert_close(found[:, degree], torch.from_numpy(expected))
    found = chebyshev(cosines, 37)
    expected = np.cos(np.arange(37) * np.arccos(cosines.numpy())[:, None])
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-11)


def test_roots_equal_those_of_tables():
    """Abramowitz and Stegun (1964), table 10.6: zeros of j_1 and j_2."""
    roots = bessel_roots(3, 3)
    assert roots[0] == pytest.approx(np.arange(1, 4) * math.pi)
    assert roots[1] == pytest.approx([4.493409, 7.725252, 10.904122], abs=1e-6)
    assert roots[2] == pytest.approx([5.763459, 9.095011, 12.322941], abs=1e-6)


@pytest.mark.parametrize(("orders", "count"), [(2, 1), (7, 6), (8, 12), (8, 32)])
def test_radial_functions_equal_scipy_from_contact_to_the_cutoff(orders, count):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        bessel = SphericalBessel(orders, count, 5.0)
    finally:
        torch.set_default_dtype(before)
    lengths = torch.linspace(0.0, 5.0, 101, dtype=torch.float64)
    roots, degree = bessel_roots(orders, count)[:, None], np.arange(orders)[:, None, None]
    scale = math.sqrt(2.0) / np.abs(spherical_jn(degree + 1, roots))
    expected = scale * spherical_jn(degree, roots * lengths.numpy()[:, None] / 5.0)
    largest = np.abs(expected).max()
    found = bessel(lengths).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11 * largest)
    rough = SphericalBessel(orders, count, 5.0)(lengths.float()).numpy()
    np.testing.assert_allclose(rough, expected, rtol=0, atol=3e-6 * largest)
    assert roots.max() < (count + orders / 2) * math.pi
    assert chebyshev_terms(orders, count) > roots.max() / 2
