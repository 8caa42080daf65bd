"""Neighbours against hand counts and ASE's own list."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.neighborlist import neighbor_list

from hydragnn_hpo.data.neighbors import edge_vectors, edges_of


def test_fcc_shells_hold_12_6_24_neighbours() -> None:
    # Kittel, Introduction to Solid State Physics: shells at a/sqrt(2), a, a sqrt(3/2).
    copper = bulk("Cu", a=3.6)
    counts = [
        len(edges_of(copper.positions, copper.cell.array, copper.pbc, 3.6 * factor)[0])
        for factor in (0.75, 1.05, 1.25)
    ]
    assert counts == [12, 12 + 6, 12 + 6 + 24]


@pytest.mark.parametrize("pbc", [(1, 1, 1), (1, 1, 0), (0, 0, 1), (0, 0, 0)], ids=str)
def test_edges_and_their_vectors_are_those_of_ase(pbc: tuple[int, int, int]) -> None:
    random = np.random.default_rng(0)
    cell = 4 * np.eye(3) + random.normal(size=(3, 3))
    atoms = Atoms("Cu7", random.uniform(-8, 12, (7, 3)), cell=cell, pbc=pbc)  # also outside

    edges, shift = edges_of(atoms.positions, atoms.cell.array, atoms.pbc, 5.0)
    vectors = edge_vectors(atoms.positions, atoms.cell.array, edges, shift)
    # ASE: D = positions[j] - positions[i] + S @ cell, so i is our sender and j our receiver.
    sender, receiver, expected_shift, distance = neighbor_list("ijSD", atoms, 5.0)

    order = np.lexsort((*expected_shift.T[::-1], sender, receiver))
    np.testing.assert_array_equal(edges, np.stack((sender, receiver), axis=1)[order])
    np.testing.assert_array_equal(shift, expected_shift[order])
    np.testing.assert_allclose(vectors, distance[order], atol=1e-12)
    assert len(edges) > 0


def test_every_pair_stands_once_per_direction() -> None:
    salt = bulk("NaCl", "rocksalt", a=5.6)
    edges, shift = edges_of(salt.positions, salt.cell.array, salt.pbc, 4.5)
    there = {(*edge, *move) for edge, move in zip(edges.tolist(), shift.tolist(), strict=True)}
    back = {(r, s, -x, -y, -z) for s, r, x, y, z in there}
    assert there == back
    assert len(there) == len(edges)


def test_an_isolated_atom_has_no_edge() -> None:
    alone = Atoms("ArHe", [[0, 0, 0], [9, 0, 0]])
    edges, shift = edges_of(alone.positions, alone.cell.array, alone.pbc, 5.0)
    assert edges.shape == (0, 2)
    assert shift.shape == (0, 3)


def test_the_order_is_by_receiver_sender_shift() -> None:
    water = molecule("CH3CH2OH")
    edges, _ = edges_of(water.positions, water.cell.array, water.pbc, 5.0)
    receivers_first = edges[:, ::-1].tolist()
    assert receivers_first == sorted(receivers_first)
