"""What bounds the work of a structure before it is done."""

import numpy as np
import pytest
from ase import Atoms
from ase.neighborlist import neighbor_list
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.ensemble.request_parsing import bound_pairs


def test_without_a_lattice_every_pair_counts_once() -> None:
    assert bound_pairs(7, np.zeros((3, 3)), (False, False, False), 5.0) == 49


def test_images_of_a_cubic_cell_are_counted_along_its_heights() -> None:
    # a = 2, cutoff 5: 2 * 5 / 2 + 1 = 6 images along each of two directions
    assert bound_pairs(3, 2.0 * np.eye(3), (True, True, False), 5.0) == pytest.approx(9 * 36)


def test_a_lattice_that_spans_nothing_has_no_bound() -> None:
    cell = np.array([[1.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]])
    assert bound_pairs(1, cell, (True, True, True), 5.0) == np.inf


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(1.0, 6.0), st.integers(0, 7))
def test_there_are_never_more_edges_than_the_bound(
    seed: int, atoms: int, cutoff: float, mask: int
) -> None:
    rng = np.random.default_rng(seed)
    cell = 3.0 * np.eye(3) + rng.uniform(-1.2, 1.2, (3, 3))
    pbc = [bool(mask & bit) for bit in (1, 2, 4)]
    structure = Atoms("H" * atoms, rng.uniform(-4, 8, (atoms, 3)), cell=cell, pbc=pbc)
    edges = len(neighbor_list("i", structure, cutoff))
    assert edges <= bound_pairs(atoms, cell, pbc, cutoff) + 1e-9
