"""Neighbours against hand counts, a search through all images, and ASE's own list."""

from itertools import product

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.neighborlist import neighbor_list

from hydragnn_hpo.data.neighbors import edge_vectors, find_edges

CUBE = np.eye(3)
SKEWED = np.array([[2.5, 0.0, 0.0], [2.2, 1.9, 0.0], [-1.6, 1.4, 2.8]])

# Name, cell, periodic directions, how far out atoms lie in angstrom, cutoff in angstrom.
CELLS = [
    ("tiny", 1.1 * CUBE, (1, 1, 1), 1.0, 2.3),
    ("needle", np.diag([0.9, 6.0, 7.0]), (1, 1, 1), 4.0, 3.0),
    ("skewed", SKEWED, (1, 1, 1), 2.0, 3.1),
    ("far outside", 3.0 * CUBE, (1, 1, 1), 14.0, 3.2),
    ("slab", 2.0 * CUBE, (1, 1, 0), 3.0, 3.0),
    ("skewed slab", SKEWED, (0, 1, 1), 6.0, 3.0),
    ("slab without third vector", np.diag([2.0, 2.5, 0.0]), (1, 1, 0), 3.0, 3.0),
    ("wire", SKEWED, (0, 0, 1), 4.0, 4.0),
    ("wire alone", np.diag([0.0, 1.3, 0.0]), (0, 1, 0), 4.0, 4.0),
    ("molecule in a box", 2.0 * CUBE, (0, 0, 0), 3.0, 3.0),
    ("molecule", 0.0 * CUBE, (0, 0, 0), 3.0, 3.0),
]


def all_images(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float
) -> list[tuple[int, ...]]:
    """Try every pair in every image: receiver, sender, shift; ascending."""
    reach = 30
    steps = np.array(list(product(*(range(-reach, reach + 1) if p else [0] for p in pbc))))
    found = []
    for receiver, sender in product(range(len(positions)), repeat=2):
        away = np.linalg.norm(positions[receiver] + steps @ cell - positions[sender], axis=1)
        for step in steps[away <= cutoff]:
            assert np.abs(step).max() < reach, "the search is too narrow"
            if receiver != sender or step.any():
                found.append((receiver, sender, *step.tolist()))
    return sorted(found)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize(
    ("cell", "pbc", "out", "cutoff"), [row[1:] for row in CELLS], ids=[row[0] for row in CELLS]
)
def test_no_image_is_missed(
    cell: np.ndarray, pbc: tuple[int, ...], out: float, cutoff: float, count: int
) -> None:
    positions = np.random.default_rng(count).uniform(-out, out, (count, 3))
    periodic = np.array(pbc, dtype=bool)
    edges, shift = find_edges(positions, cell, periodic, cutoff)
    found = [(r, s, *move) for (s, r), move in zip(edges.tolist(), shift.tolist(), strict=True)]
    expected = all_images(positions, cell, periodic, cutoff)
    assert found == expected
    assert (len(expected) > 0) == (count > 1 or any(pbc))


def test_many_atoms_are_no_other_way() -> None:
    # Here cells of the list are narrower than the structure, unlike in the cases above.
    atoms = bulk("NaCl", "rocksalt", a=5.6, cubic=True) * (3, 3, 3)
    atoms.rattle(0.3, seed=0)
    edges, _ = find_edges(atoms.positions, atoms.cell.array, atoms.pbc, 4.5)
    vectors = atoms.positions[:, None] - atoms.positions
    nearest = vectors - 16.8 * np.round(vectors / 16.8)
    close = (np.linalg.norm(nearest, axis=2) <= 4.5) & ~np.eye(len(atoms), dtype=bool)
    np.testing.assert_array_equal(edges[:, ::-1], np.argwhere(close))


def test_fcc_shells_hold_12_6_24_neighbours() -> None:
    # Kittel, Introduction to Solid State Physics: shells at a/sqrt(2), a, a sqrt(3/2).
    copper = bulk("Cu", a=3.6)
    counts = [
        len(find_edges(copper.positions, copper.cell.array, copper.pbc, 3.6 * factor)[0])
        for factor in (0.75, 1.05, 1.25)
    ]
    assert counts == [12, 12 + 6, 12 + 6 + 24]


@pytest.mark.parametrize("pbc", [(1, 1, 1), (1, 1, 0), (0, 0, 1), (0, 0, 0)], ids=str)
def test_edges_and_their_vectors_are_those_of_ase(pbc: tuple[int, int, int]) -> None:
    random = np.random.default_rng(0)
    cell = 4 * np.eye(3) + random.normal(size=(3, 3))
    atoms = Atoms("Cu7", random.uniform(-8, 12, (7, 3)), cell=cell, pbc=pbc)  # also outside

    edges, shift = find_edges(atoms.positions, atoms.cell.array, atoms.pbc, 5.0)
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
    edges, shift = find_edges(salt.positions, salt.cell.array, salt.pbc, 4.5)
    there = {(*edge, *move) for edge, move in zip(edges.tolist(), shift.tolist(), strict=True)}
    back = {(r, s, -x, -y, -z) for s, r, x, y, z in there}
    assert there == back
    assert len(there) == len(edges)


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("pbc", [False, (1, 1, 0), True], ids=str)
def test_isolated_atoms_have_no_edge(count: int, pbc: bool | tuple[int, ...]) -> None:
    alone = Atoms(f"Ar{count}", [[0, 0, 0], [9, 0, 0]][:count], cell=[18, 9, 9], pbc=pbc)
    edges, shift = find_edges(alone.positions, alone.cell.array, alone.pbc, 5.0)
    assert edges.shape == (0, 2)
    assert shift.shape == (0, 3)
    assert (edges.dtype, shift.dtype) == (np.int32, np.int16)


def test_the_order_is_by_receiver_sender_shift() -> None:
    water = molecule("CH3CH2OH")
    edges, _ = find_edges(water.positions, water.cell.array, water.pbc, 5.0)
    receivers_first = edges[:, ::-1].tolist()
    assert receivers_first == sorted(receivers_first)
