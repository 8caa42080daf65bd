"""A kept neighbour list against a fresh one."""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.config.data import AttributeConfig
from hydragnn_hpo.ensemble.simulation.calculator import EnsembleCalculator
from hydragnn_hpo.ensemble.simulation.skin import SkinList
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for
from hydragnn_hpo.errors import DataError

RULES = rules_for(4.0)


def crystal() -> Atoms:
    atoms = bulk("NaCl", "rocksalt", a=5.0) * (2, 1, 1)
    atoms.rattle(0.02, seed=3)
    return atoms


def same(skin: SkinList, atoms: Atoms) -> bool:
    kept, fresh = skin.columns(atoms), columns_of_atoms([atoms], skin.rules)
    return all(
        np.array_equal(getattr(kept, name), getattr(fresh, name))
        for name in ("numbers", "positions", "cell", "edges", "edge_shift", "edge_offset")
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    reach=st.floats(0.0, 0.249),
    molecular=st.booleans(),
)
def test_moves_below_half_the_skin_need_no_search(seed: int, reach: float, molecular: bool) -> None:
    atoms = molecule("C6H6") if molecular else crystal()
    skin = SkinList(RULES, 0.5)
    assert same(skin, atoms)
    moves = np.random.default_rng(seed).normal(size=(len(atoms), 3))
    atoms.positions += reach * moves / np.linalg.norm(moves, axis=1, keepdims=True)
    assert same(skin, atoms)
    assert skin.searches == 1


def test_a_walk_is_followed_with_few_searches() -> None:
    atoms, skin = crystal(), SkinList(RULES, 0.5)
    rng = np.random.default_rng(0)
    for _ in range(60):
        atoms.positions += rng.normal(scale=0.02, size=(len(atoms), 3))
        assert same(skin, atoms)
    assert 1 < skin.searches < 30


def wrap(atoms: Atoms) -> None:
    atoms.positions[0] -= atoms.cell[0]


def stretch(atoms: Atoms) -> None:
    atoms.set_cell(atoms.cell * 1.001)


def swap(atoms: Atoms) -> None:
    atoms.numbers[:2] = atoms.numbers[1::-1]


def open_up(atoms: Atoms) -> None:
    atoms.pbc = (True, True, False)


@pytest.mark.parametrize("change", [wrap, stretch, swap, open_up])
def test_another_structure_is_searched(change: object) -> None:
    atoms, skin = crystal(), SkinList(RULES, 0.5)
    assert same(skin, atoms)
    change(atoms)  # type: ignore[operator]
    assert same(skin, atoms)
    assert skin.searches == 2


def test_without_a_skin_every_move_is_searched() -> None:
    atoms, skin = crystal(), SkinList(RULES, 0.0)
    assert same(skin, atoms)
    assert same(skin, atoms)
    atoms.positions[0, 0] += 1e-6
    assert same(skin, atoms)
    assert skin.searches == 2


def test_what_is_told_and_encoded_is_looked_up_each_time() -> None:
    rules = rules_for(3.0, {"charge": AttributeConfig(unit="e")}, laplacian=2)
    atoms, skin = molecule("CH3OH"), SkinList(rules, 0.5)
    atoms.info["charge"] = 0.0
    skin.columns(atoms)
    atoms.info["charge"] = 1.0
    atoms.positions[0] += 0.1
    kept, fresh = skin.columns(atoms), columns_of_atoms([atoms], rules)
    assert skin.searches == 1
    assert kept.attributes["charge"].tolist() == [1.0]
    assert kept.laplacian is not None
    np.testing.assert_array_equal(kept.laplacian, fresh.laplacian)


def test_atoms_that_meet_or_get_lost_are_one_sentence() -> None:
    atoms = Atoms("CC", [[0, 0, 0], [0.2, 0, 0]])
    skin = SkinList(RULES, 0.5)
    skin.columns(atoms)
    atoms.positions[1, 0] = 1e-4
    with pytest.raises(DataError, match="at one place"):
        skin.columns(atoms)
    atoms.positions[1, 0] = np.nan
    with pytest.raises(DataError, match="finite"):
        skin.columns(atoms)


def test_forces_are_those_of_a_fresh_list(built_zip: Path) -> None:
    atoms = crystal()
    atoms.numbers[:] = [6, 8] * (len(atoms) // 2)
    kept = EnsembleCalculator(built_zip, skin=1.0)
    rng = np.random.default_rng(1)
    for _ in range(3):
        atoms.positions += rng.normal(scale=0.05, size=(len(atoms), 3))
        forces = kept.get_forces(atoms)
        fresh = EnsembleCalculator(kept.ensemble, skin=0.0).get_forces(atoms)
        assert np.abs(fresh).max() > 1e-3
        np.testing.assert_allclose(forces, fresh, rtol=0, atol=1e-12)
    assert kept.neighbors.searches == 1
