"""The cap on neighbours: whole shells, symmetric, the same for any order of atoms."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.data.cap import capped
from hydragnn_hpo.data.neighbors import edge_vectors, edges_of


def graph(atoms: Atoms, cutoff: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    edges, shift = edges_of(atoms.positions, atoms.cell.array, atoms.pbc, cutoff)
    vectors = edge_vectors(atoms.positions, atoms.cell.array, edges, shift)
    return edges.astype(np.int64), shift, np.linalg.norm(vectors, axis=1)


def degrees(atoms: Atoms, cutoff: float, cap: int) -> list[int]:
    edges, _, lengths = graph(atoms, cutoff)
    kept = capped(edges.T, lengths, len(atoms), cap)
    return np.bincount(edges[kept, 1], minlength=len(atoms)).tolist()


# Shells of fcc: 12, 6, 24 (Kittel); of rock salt around either ion: 6, 12.
@pytest.mark.parametrize(
    ("cap", "left"), [(1, 12), (12, 12), (13, 18), (18, 18), (19, 42), (42, 42), (99, 42)]
)
def test_whole_shells_of_copper_stay(cap: int, left: int) -> None:
    assert degrees(bulk("Cu", a=3.6, cubic=True), 4.5, cap) == [left] * 4


def test_whole_shells_of_salt_stay() -> None:
    salt = bulk("NaCl", "rocksalt", a=5.6, cubic=True)
    assert degrees(salt, 4.2, 6) == [6] * 8
    assert degrees(salt, 4.2, 7) == [18] * 8


def test_one_end_is_enough() -> None:
    # On a line at 0, 1, 3, 6: the nearest neighbours are 1, 0, 1, 2, so every pair of
    # neighbours stays, and none of the others.
    line = Atoms("H4", [[0, 0, 0], [1, 0, 0], [3, 0, 0], [6, 0, 0]])
    assert degrees(line, 9.0, 1) == [1, 2, 2, 1]


def test_atoms_on_a_slab_keep_theirs() -> None:
    slab = fcc111("Cu", (3, 3, 3), a=3.6, vacuum=8.0)
    # 9 neighbours at a surface (6 in the plane, 3 below), 12 inside.
    assert sorted(degrees(slab, 2.7, 9)) == [9] * 18 + [12] * 9


def test_atoms_without_neighbours_are_no_trouble() -> None:
    assert degrees(Atoms("ArHe", [[0, 0, 0], [9, 0, 0]]), 3.0, 2) == [0, 0]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), cap=st.integers(1, 20))
def test_symmetric_and_blind_to_order_and_rotation(seed: int, cap: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 9))
    atoms = Atoms(f"C{count}", random.uniform(0, 5, (count, 3)), cell=4 * np.eye(3), pbc=True)
    edges, shift, lengths = graph(atoms, 5.0)
    kept = capped(edges.T, lengths, count, cap)
    chosen = {(*e, *s) for e, s in zip(edges[kept].tolist(), shift[kept].tolist(), strict=True)}
    assert chosen == {(r, s, -x, -y, -z) for s, r, x, y, z in chosen}
    assert (np.bincount(edges[kept, 1], minlength=count) >= min(cap, len(edges) // count)).all()

    order = random.permutation(count)
    turned = atoms[order.tolist()]
    turned.rotate(37, (1, 2, 3), rotate_cell=True)
    edges2, _, lengths2 = graph(turned, 5.0)
    kept2 = capped(edges2.T, lengths2, count, cap)
    before = np.bincount(edges[kept, 1], minlength=count)[order]
    assert before.tolist() == np.bincount(edges2[kept2, 1], minlength=count).tolist()
