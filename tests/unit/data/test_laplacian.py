"""Laplacian encodings against the spectra of paths and cycles.

Source: Chung (1997), Spectral Graph Theory, examples 1.4 and 1.5: the normalised Laplacian of
a path of n nodes has eigenvalues 1 - cos(pi k / (n - 1)), that of a cycle 1 - cos(2 pi k / n).
"""

import numpy as np
import pytest

from hydragnn_hpo.data.laplacian import compute_laplacian_encodings


def both_ways(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array([*pairs, *((b, a) for a, b in pairs)], dtype=np.int32).reshape(-1, 2)


def quotients(num_nodes: int, edges: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Give the Rayleigh quotient of each vector by a loop over edges."""
    degree = np.bincount(edges[:, 0], minlength=num_nodes)
    values = []
    for vector in vectors.T.astype(float):
        scaled = vector / np.sqrt(degree)
        energy = sum((scaled[a] - scaled[b]) ** 2 for a, b in edges) / 2
        values.append(energy / (vector @ vector))
    return np.array(values)


def test_a_path_has_its_spectrum() -> None:
    edges = both_ways([(n, n + 1) for n in range(5)])
    found = quotients(6, edges, compute_laplacian_encodings(6, edges, 3))
    np.testing.assert_allclose(found, 1 - np.cos(np.pi * np.arange(1, 4) / 5), atol=1e-6)


def test_a_cycle_has_its_spectrum_in_pairs() -> None:
    edges = both_ways([(n, (n + 1) % 7) for n in range(7)])
    vectors = compute_laplacian_encodings(7, edges, 4)
    wanted = 1 - np.cos(2 * np.pi * np.array([1, 1, 2, 2]) / 7)
    np.testing.assert_allclose(quotients(7, edges, vectors), wanted, atol=1e-6)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(4), atol=1e-6)


def test_images_and_loops_count_once() -> None:
    edges = both_ways([(0, 1), (1, 2)])
    more = np.concatenate((edges, edges, [[0, 0], [2, 2]])).astype(np.int32)
    np.testing.assert_array_equal(
        compute_laplacian_encodings(3, more, 2), compute_laplacian_encodings(3, edges, 2)
    )


def test_what_is_constant_on_a_component_is_left_out() -> None:
    two = both_ways([(0, 1), (2, 3)])
    vectors = compute_laplacian_encodings(
        5, two, 2
    )  # two bonds and a single atom: 3 trivial vectors
    np.testing.assert_allclose(np.abs(vectors).max(axis=0), [np.sqrt(0.5)] * 2, atol=1e-6)
    assert vectors[4].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_small_graphs_are_filled_up_with_zeros(count: int) -> None:
    edges = both_ways([(0, 1)])
    vectors = compute_laplacian_encodings(2, edges, count)
    assert vectors.shape == (2, count)
    np.testing.assert_allclose(np.abs(vectors[:, 0]), np.sqrt(0.5), atol=1e-6)
    assert not vectors[:, 1:].any()


def test_signs_do_not_depend_on_the_solver() -> None:
    edges = both_ways([(0, 1), (1, 2), (2, 3), (3, 4), (1, 4)])
    vectors = compute_laplacian_encodings(5, edges, 4)
    assert (vectors.max(axis=0) >= -vectors.min(axis=0) - 1e-6).all()
