"""Triplets of a crystal against a hand count; angular functions against scipy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_cases import LAYOUTS, random_links
from scipy.special import eval_legendre, spherical_jn

from hydragnn_hpo.config.convs.angular import chebyshev_terms
from hydragnn_hpo.kernels.scatter import Links
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.triplets import (
    SphericalBessel,
    bessel_roots,
    chebyshev,
    find_triplets,
    legendre,
)


def test_a_simple_cubic_crystal_has_thirty_triplets_per_atom():
    """Six neighbours, all images of the atom itself: six edges in, six out, six turned round."""
    atom = torch.zeros(6, dtype=torch.long)
    axes = torch.eye(3, dtype=torch.float64)
    lengths = torch.full((6,), 3.0, dtype=torch.float64)
    links = Links.of(atom, atom, 1)
    edges = Edges(links, torch.cat((axes, -axes)), lengths, lengths[:, None], lengths)
    triplets = find_triplets(edges, 3.2)
    counts = {c: int((triplets.cosines.round() == c).sum()) for c in (-1.0, 0.0, 1.0)}
    assert counts == {-1.0: 6, 0.0: 24, 1.0: 0}
    assert len(find_triplets(edges, 2.9).cosines) == 0


@pytest.mark.parametrize("paired", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("reach", [0.0, 1.0, 2.0])
def test_loops_list_the_triplets_of_torch_in_the_same_order(paired, reach):
    links, pairs = random_links(5, paired)
    draw = torch.Generator().manual_seed(0)
    lengths = 2.0 * torch.rand(pairs, generator=draw, dtype=torch.float64)
    ways = torch.nn.functional.normalize(torch.randn(pairs, 3, generator=draw, dtype=lengths.dtype))
    directions = torch.cat((ways, -ways[: len(links.sender) - pairs]))
    expected, result = (
        find_triplets(
            Edges(replace(links, kernels=each), directions, lengths, lengths[:, None], lengths),
            reach,
        )
        for each in ("eager", "numba")
    )
    assert bool(len(expected.cosines)) == (reach > 0.0)
    assert torch.equal(result.cosines, expected.cosines)
    for each, other in zip(result.links.arrays, expected.links.arrays, strict=True):
        assert torch.equal(each, other)


def test_polynomials_equal_scipy():
    cosines = torch.linspace(-1, 1, 41, dtype=torch.float64)
    actual = legendre(cosines, 8)
    for degree in range(8):
        scale = math.sqrt((2 * degree + 1) / (4 * math.pi))
        expected = scale * eval_legendre(degree, cosines.numpy())
        torch.testing.assert_close(actual[:, degree], torch.from_numpy(expected))
    actual = chebyshev(cosines, 37)
    expected = np.cos(np.arange(37) * np.arccos(cosines.numpy())[:, None])
    torch.testing.assert_close(actual, torch.from_numpy(expected), rtol=0, atol=1e-11)


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
    roots = bessel_roots(orders, count)[:, None]
    degree = np.arange(orders)[:, None, None]
    scale = math.sqrt(2.0) / np.abs(spherical_jn(degree + 1, roots))
    expected = scale * spherical_jn(degree, roots * lengths.numpy()[:, None] / 5.0)
    largest = np.abs(expected).max()
    actual = bessel(lengths).numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11 * largest)
    rough = SphericalBessel(orders, count, 5.0)(lengths.float()).numpy()
    np.testing.assert_allclose(rough, expected, rtol=0, atol=3e-6 * largest)
    assert roots.max() < (count + orders / 2) * math.pi
    assert chebyshev_terms(orders, count) > roots.max() / 2
