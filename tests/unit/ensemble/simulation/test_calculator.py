"""Forces and stress against finite differences, and what a calculator promises to ASE."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import PropertyNotImplementedError

from hydragnn_hpo.ensemble.artefact.manifest import Manifest
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.simulation.calculator import EnsembleCalculator
from hydragnn_hpo.errors import ConfigError, DataError


def structure(name: str) -> Atoms:
    if name == "crystal":
        atoms = bulk("C", "diamond", a=3.6) * (1, 1, 2)
        atoms.numbers[1] = 7
    else:
        atoms = molecule(name)
    atoms.rattle(0.05, seed=1)
    return atoms


def unlike_weights(ensemble: Ensemble) -> Ensemble:
    """Weigh members differently for each head, and leave the first one out of the energy."""
    total = sum(range(len(ensemble.members)))
    members = [
        replace(member, weights={"charge": 1 / 6} | ({"energy": k / total} if k else {}))
        for k, member in enumerate(ensemble.members)
    ]
    values = ensemble.manifest.model_dump()
    for entry, member in zip(values["members"], members, strict=True):
        entry["weights"] = dict(member.weights)
    return Ensemble(Manifest.model_validate(values), members)


def five_points(energies: np.ndarray, step: float) -> np.ndarray:
    """Differentiate by the five-point rule: values at -2, -1, 1, 2 steps in the last axis."""
    far, near = energies[..., 3] - energies[..., 0], energies[..., 2] - energies[..., 1]
    slope: np.ndarray = (8.0 * near - far) / (12.0 * step)
    return slope


def energies_of(ensemble: Ensemble, structures: list[Atoms]) -> np.ndarray:
    """Give total energies by ``predict``: another way than the calculator's."""
    energies: np.ndarray = ensemble.predict(structures).heads["energy"].mean[:, 0]
    return energies * len(structures[0])


@pytest.mark.parametrize("name", ["CH3OH", "crystal"])
def test_forces_are_minus_the_slope_of_the_energy(built_zip: Path, name: str) -> None:
    ensemble = unlike_weights(Ensemble.load(built_zip, precision="fp64"))
    atoms, step = structure(name), 2e-3
    moved = []
    for place in np.ndindex(len(atoms), 3):
        for steps in (-2, -1, 1, 2):
            moved.append(atoms.copy())
            moved[-1].positions[place] += steps * step
    energies = energies_of(ensemble, moved).reshape(len(atoms), 3, 4)
    atoms.calc = EnsembleCalculator(ensemble)
    forces = atoms.get_forces()
    largest = np.abs(forces).max()
    assert largest > 3e-3
    np.testing.assert_allclose(forces, -five_points(energies, step), atol=1e-6 * largest)
    np.testing.assert_allclose(forces.sum(axis=0), 0.0, atol=1e-10)


def test_stress_is_the_slope_by_strain(built_zip: Path) -> None:
    ensemble = unlike_weights(Ensemble.load(built_zip, precision="fp64"))
    atoms, step = structure("crystal"), 1e-4
    strained = []
    for row, column in ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1)):
        for steps in (-2, -1, 1, 2):
            bend = np.zeros((3, 3))
            bend[row, column] = steps * step
            strained.append(atoms.copy())
            strained[-1].set_cell(
                atoms.cell @ (np.eye(3) + 0.5 * (bend + bend.T)), scale_atoms=True
            )
    energies = energies_of(ensemble, strained).reshape(6, 4)
    atoms.calc = EnsembleCalculator(ensemble)
    stress = atoms.get_stress()
    largest = np.abs(stress).max()
    assert largest > 1e-4
    expected = five_points(energies, step) / atoms.get_volume()
    np.testing.assert_allclose(stress, expected, atol=1e-6 * largest)


def test_energy_per_atom_is_multiplied_and_its_spread_too(built_zip: Path) -> None:
    ensemble = Ensemble.load(built_zip, precision="fp64")
    atoms = structure("CH3OH")
    atoms.calc = EnsembleCalculator(ensemble)
    head = ensemble.predict(atoms).heads["energy"]
    assert atoms.get_potential_energy() == pytest.approx(6 * head.mean[0, 0], rel=1e-12)
    assert atoms.calc.results["energy_std"] == pytest.approx(6 * head.std[0, 0], rel=1e-12)


def test_a_total_energy_is_not_multiplied(built_zip: Path) -> None:
    ensemble = Ensemble.load(built_zip, precision="fp64")
    values = ensemble.manifest.model_dump()
    values["heads"]["energy"]["energy"] = "total"
    total = Ensemble(Manifest.model_validate(values), ensemble.members)
    atoms = structure("CH3OH")
    atoms.calc = EnsembleCalculator(total)
    head = ensemble.predict(atoms).heads["energy"]
    assert atoms.get_potential_energy() == pytest.approx(head.mean[0, 0], rel=1e-12)


def test_the_spread_of_forces_is_that_of_the_members(built_zip: Path) -> None:
    ensemble = Ensemble.load(built_zip, precision="fp64")
    atoms = structure("CH3OH")
    single = []
    for member in ensemble.members:
        atoms.calc = EnsembleCalculator(Ensemble(ensemble.manifest, [member]))
        single.append(atoms.get_forces())
    weights = [member.weights["energy"] for member in ensemble.members]
    mean = np.average(single, axis=0, weights=weights)
    spread = np.sqrt(np.average((np.array(single) - mean) ** 2, axis=0, weights=weights))

    atoms.calc = EnsembleCalculator(ensemble)

    np.testing.assert_allclose(atoms.get_forces(), mean, atol=1e-12)
    found = atoms.calc.results
    np.testing.assert_allclose(found["forces_std"], spread, atol=1e-10)
    norm = np.sqrt((spread**2).sum(axis=1))
    np.testing.assert_allclose(found["forces_std_norm"], norm, atol=1e-10)
    assert found["forces_max_std"] == pytest.approx(norm.max(), rel=1e-9)


def test_the_spread_of_the_stress_is_that_of_the_members(built_zip: Path) -> None:
    ensemble = Ensemble.load(built_zip, precision="fp64")
    atoms = structure("crystal")
    single = []
    for member in ensemble.members:
        atoms.calc = EnsembleCalculator(Ensemble(ensemble.manifest, [member]))
        single.append(atoms.get_stress())
    atoms.calc = EnsembleCalculator(ensemble)
    np.testing.assert_allclose(atoms.get_stress(), np.mean(single, axis=0), atol=1e-14)
    np.testing.assert_allclose(atoms.calc.results["stress_std"], np.std(single, axis=0), atol=1e-12)


def test_forces_are_calibrated_where_a_head_of_forces_was(built_zip: Path) -> None:
    ensemble = Ensemble.load(built_zip, precision="fp64")
    values = ensemble.manifest.model_dump()
    calibration = values["heads"]["charge"]["calibration"] | {"a": 4.0, "b": 0.09, "c": 0.0}
    values["heads"]["forces"] = values["heads"]["charge"] | {
        "shape": "vector",
        "unit": "eV/angstrom",
        "derived_from": "energy",
        "calibration": calibration,
    }
    for entry in values["members"]:
        entry["weights"]["forces"] = entry["weights"]["energy"]
    atoms = structure("CH3OH")
    atoms.calc = EnsembleCalculator(Ensemble(Manifest.model_validate(values), ensemble.members))
    atoms.get_forces()
    found = atoms.calc.results
    raw = found["forces_std_epistemic"]
    np.testing.assert_allclose(found["forces_std"] ** 2, 4.0 * raw**2 + 0.09, rtol=1e-12)
    assert found["forces_max_std"] == pytest.approx(np.linalg.norm(raw, axis=1).max())


def test_what_is_not_to_be_believed_is_said(built_zip: Path) -> None:
    atoms = structure("CH3OH")
    atoms.numbers[0] = 14
    atoms.calc = EnsembleCalculator(built_zip)
    assert "unseen element Si" in atoms.calc.get_property("trust", atoms)


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
