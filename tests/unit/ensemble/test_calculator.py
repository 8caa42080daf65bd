"""Forces and stress against finite differences, and what a calculator promises to ASE."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress

from hydragnn_hpo.ensemble.calculator import EnsembleCalculator
from hydragnn_hpo.ensemble.manifest import Manifest
from hydragnn_hpo.ensemble.predictor import Ensemble
from hydragnn_hpo.errors import ConfigError, DataError


def structure(name: str) -> Atoms:
    if name == "crystal":
        atoms = bulk("C", "diamond", a=3.6) * (1, 1, 2)
        atoms.numbers[1] = 7
    else:
        atoms = molecule(name)
    atoms.rattle(0.05, seed=1)
    return atoms


@pytest.mark.parametrize("name", ["CH3OH", "crystal"])
def test_forces_are_minus_the_slope_of_the_energy(built_zip: Path, name: str) -> None:
    atoms = structure(name)
    atoms.calc = EnsembleCalculator(built_zip)
    forces = atoms.get_forces()
    assert np.abs(forces).max() > 3e-3
    np.testing.assert_allclose(forces, calculate_numerical_forces(atoms, 1e-4), atol=1e-6)
    np.testing.assert_allclose(forces.sum(axis=0), 0.0, atol=1e-10)


def test_stress_is_the_slope_by_strain(built_zip: Path) -> None:
    atoms = structure("crystal")
    atoms.calc = EnsembleCalculator(built_zip)
    stress = atoms.get_stress()
    assert np.abs(stress).max() > 1e-4
    numerical = calculate_numerical_stress(atoms, eps=1e-5, voigt=True)
    np.testing.assert_allclose(stress, numerical, atol=1e-7)


def test_energy_per_atom_is_multiplied_and_its_spread_too(built_zip: Path) -> None:
    ensemble = Ensemble.load(built_zip, precision="fp64")
    atoms = structure("CH3OH")
    atoms.calc = EnsembleCalculator(ensemble)
    head = ensemble.predict_atoms(atoms).heads["energy"]
    assert atoms.get_potential_energy() == pytest.approx(6 * head.mean[0, 0], rel=1e-12)
    assert atoms.calc.results["energy_std"] == pytest.approx(6 * head.std[0, 0], rel=1e-12)


def test_a_total_energy_is_not_multiplied(built_zip: Path) -> None:
    ensemble = Ensemble.load(built_zip, precision="fp64")
    values = ensemble.manifest.model_dump()
    values["heads"]["energy"]["energy"] = "total"
    total = Ensemble(Manifest.model_validate(values), ensemble.members)
    atoms = structure("CH3OH")
    atoms.calc = EnsembleCalculator(total)
    head = ensemble.predict_atoms(atoms).heads["energy"]
    assert atoms.get_potential_energy() == pytest.approx(head.mean[0, 0], rel=1e-12)


def test_the_spread_of_forces_is_that_of_the_members(built_zip: Path) -> None:
    ensemble = Ensemble.load(built_zip, precision="fp64")
    atoms = structure("CH3OH")
    single = []
    for member in ensemble.members:
        atoms.calc = EnsembleCalculator(Ensemble(ensemble.manifest, [member]))
        single.append(atoms.get_forces())
    weights = [member.weight for member in ensemble.members]
    mean = np.average(single, axis=0, weights=weights)
    spread = np.sqrt(np.average((np.array(single) - mean) ** 2, axis=0, weights=weights))

    atoms.calc = EnsembleCalculator(ensemble)

    np.testing.assert_allclose(atoms.get_forces(), mean, atol=1e-12)
    np.testing.assert_allclose(atoms.calc.results["forces_std"], spread, atol=1e-10)


def test_a_molecule_has_no_stress(built_zip: Path) -> None:
    atoms = structure("CH3OH")
    atoms.calc = EnsembleCalculator(built_zip)
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stress()


def test_an_isolated_atom_feels_nothing(built_zip: Path) -> None:
    atoms = Atoms("C")
    atoms.calc = EnsembleCalculator(built_zip)
    np.testing.assert_array_equal(atoms.get_forces(), np.zeros((1, 3)))
    assert np.isfinite(atoms.get_potential_energy())


def test_atoms_at_one_place_are_one_sentence(built_zip: Path) -> None:
    atoms = Atoms("CC", [[0, 0, 0], [0, 0, 0]])
    atoms.calc = EnsembleCalculator(built_zip)
    with pytest.raises(DataError, match="at one place"):
        atoms.get_potential_energy()


def test_no_energy_head_is_one_sentence(built_zip: Path) -> None:
    ensemble = Ensemble.load(built_zip)
    values = ensemble.manifest.model_dump()
    values["heads"]["energy"]["energy"] = None
    with pytest.raises(ConfigError, match="predicts energy, charge, none of them an energy"):
        EnsembleCalculator(Ensemble(Manifest.model_validate(values), ensemble.members))


def test_a_cap_on_neighbours_has_no_forces(built_zip: Path) -> None:
    ensemble = Ensemble.load(built_zip)
    first, *others = ensemble.members
    capped = Ensemble(ensemble.manifest, (replace(first, max_neighbors=12), *others))
    with pytest.raises(ConfigError, match=f"member {first.trial} caps its neighbours"):
        EnsembleCalculator(capped)


def test_a_wrong_target_is_named(built_zip: Path) -> None:
    with pytest.raises(ConfigError, match="unknown energy head 'charge'. Known: energy"):
        EnsembleCalculator(built_zip, target="charge")
