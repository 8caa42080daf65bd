"""A kept neighbour list against a fresh one."""

from dataclasses import replace

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.lj import LennardJones
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.verlet import VelocityVerlet
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.ensemble.conftest import trial_config

from hydragnn_hpo.config.data_config import AttributeConfig
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.ensemble.artefact import Manifest
from hydragnn_hpo.ensemble.calculator import (
    EnsembleCalculator,
    SpreadExceeded,
    StopAtSpread,
    VerletList,
)
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.model.gnn import MultiHeadGNN

RULES = rules_for(4.0)


def crystal() -> Atoms:
    atoms = bulk("NaCl", "rocksalt", a=5.0) * (2, 1, 1)
    atoms.rattle(0.02, seed=3)
    return atoms


def same(skin: VerletList, atoms: Atoms) -> bool:
    kept = skin.columns(atoms)
    fresh = columns_of_atoms([atoms], skin.rules)
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
def test_moves_below_half_the_skin_need_no_search(seed, reach, molecular):
    atoms = molecule("C6H6") if molecular else crystal()
    skin = VerletList(RULES, 0.5)
    assert same(skin, atoms)
    moves = np.random.default_rng(seed).normal(size=(len(atoms), 3))
    atoms.positions += reach * moves / np.linalg.norm(moves, axis=1, keepdims=True)
    assert same(skin, atoms)
    assert skin.searches == 1


def test_a_walk_is_followed_with_few_searches():
    """Small steps add up: displacements are counted from the last search, not the last step."""
    atoms = crystal()
    skin = VerletList(RULES, 0.5)
    rng = np.random.default_rng(0)
    for _ in range(60):
        atoms.positions += rng.normal(scale=0.02, size=(len(atoms), 3))
        assert same(skin, atoms)
    assert 1 < skin.searches < 30


def test_atoms_that_come_near_by_half_the_skin_each_are_searched():
    atoms = Atoms("CC", [[0, 0, 0], [RULES.cutoff + 0.501, 0, 0]])
    skin = VerletList(RULES, 0.5)
    assert same(skin, atoms)
    atoms.positions[:, 0] += [0.251, -0.251]
    assert same(skin, atoms)
    assert skin.columns(atoms).num_edges().tolist() == [2]


def wrap(atoms: Atoms) -> None:
    atoms.positions[0] -= atoms.cell[0]


def stretch(atoms: Atoms) -> None:
    atoms.set_cell(atoms.cell * 1.001)


def swap(atoms: Atoms) -> None:
    atoms.numbers[:2] = atoms.numbers[1::-1]


def open_up(atoms: Atoms) -> None:
    atoms.pbc = (True, True, False)


@pytest.mark.parametrize("change", [wrap, stretch, swap, open_up])
def test_another_structure_is_searched(change):
    atoms = crystal()
    skin = VerletList(RULES, 0.5)
    assert same(skin, atoms)
    change(atoms)
    assert same(skin, atoms)
    assert skin.searches == 2


def test_without_a_skin_every_move_is_searched():
    atoms = crystal()
    skin = VerletList(RULES, 0.0)
    assert same(skin, atoms)
    assert same(skin, atoms)
    atoms.positions[0, 0] += 1e-6
    assert same(skin, atoms)
    assert skin.searches == 2


def test_what_is_written_and_encoded_is_looked_up_each_time():
    rules = rules_for(3.0, {"charge": AttributeConfig(unit="e")}, laplacian=2)
    atoms = molecule("CH3OH")
    skin = VerletList(rules, 0.5)
    atoms.info["charge"] = 0.0
    skin.columns(atoms)
    atoms.info["charge"] = 1.0
    atoms.positions[0] += 0.1
    kept = skin.columns(atoms)
    fresh = columns_of_atoms([atoms], rules)
    assert skin.searches == 1
    assert kept.attributes["charge"].tolist() == [1.0]
    assert kept.laplacian is not None
    np.testing.assert_array_equal(kept.laplacian, fresh.laplacian)
    del atoms.info["charge"]
    with pytest.raises(DataError, match=r"^atoms: structure 0 \(0\) has no "):
        skin.columns(atoms)


@pytest.fixture
def charged(summed_run) -> Ensemble:
    """An ensemble of one net that reads the attribute ``total``."""
    store = open_store(summed_run / "data/toy.bp")
    ensemble = Ensemble.load(summed_run / "ensemble.zip")
    config = trial_config("t0001", 1)
    net = config.model.model_copy(update={"attributes": ("total",)})
    torch.manual_seed(1)
    model = MultiHeadGNN(net, config.heads, store.stats["targets"], stats=store.stats)
    first = replace(ensemble.members[0], model=model.eval(), cutoff=net.cutoff)
    return Ensemble(ensemble.manifest, [first.in_precision("fp64")])


def energy_of(atoms: Atoms, ensemble: Ensemble) -> float:
    """Compute the energy of a copy by a calculator of its own."""
    fresh = atoms.copy()
    fresh.calc = EnsembleCalculator(ensemble)
    return float(fresh.get_potential_energy())


@pytest.mark.parametrize("charge", [1, -1.0, np.float32(1), "1"])
def test_an_attribute_that_changes_is_a_new_structure(charged, charge):
    water = molecule("H2O")
    shared = EnsembleCalculator(charged)
    water.info["total"] = 0
    water.calc = shared
    neutral = water.get_potential_energy()
    forces = water.get_forces()

    water.info["total"] = charge

    assert shared.calculation_required(water, ["energy"])
    assert water.get_potential_energy() == pytest.approx(energy_of(water, charged), rel=1e-12)
    assert abs(water.get_potential_energy() - neutral) > 1e-6
    assert np.abs(water.get_forces() - forces).max() > 1e-6


def test_another_structure_of_the_same_atoms_does_not_get_the_energy_of_the_first(charged):
    shared = EnsembleCalculator(charged)
    neutral = molecule("H2O")
    ion = molecule("H2O")
    neutral.info["total"], ion.info["total"] = 0, 1
    neutral.calc = ion.calc = shared
    energies = [atoms.get_potential_energy() for atoms in (neutral, ion, neutral)]
    assert energies[0] == energies[2]
    assert energies[1] == pytest.approx(energy_of(ion, charged), rel=1e-12)
    assert energies[1] != pytest.approx(energies[0], rel=1e-9)


def test_what_the_ensemble_does_not_read_needs_no_new_prediction(charged):
    water = molecule("H2O")
    water.info["total"] = 0
    water.calc = EnsembleCalculator(charged)
    water.get_potential_energy()
    water.info["step"] = 7
    assert not water.calc.calculation_required(water, ["energy", "forces"])


def test_an_attribute_that_is_removed_is_an_error_and_the_next_structure_is_predicted(charged):
    water = molecule("H2O")
    water.info["total"] = 0
    water.calc = EnsembleCalculator(charged)
    before = water.get_potential_energy()
    for wrong in ({}, {"total": "many"}, {"total": float("nan")}):
        water.info = dict(wrong)
        with pytest.raises(DataError, match="total"):
            water.get_potential_energy()
    water.info["total"] = 0
    assert water.get_potential_energy() == before


def test_atoms_that_meet_or_get_lost_are_one_sentence():
    atoms = Atoms("CC", [[0, 0, 0], [0.2, 0, 0]])
    skin = VerletList(RULES, 0.5)
    skin.columns(atoms)
    atoms.positions[1, 0] = 1e-4
    with pytest.raises(DataError, match="at one place"):
        skin.columns(atoms)
    atoms.positions[1, 0] = np.nan
    with pytest.raises(DataError, match="finite"):
        skin.columns(atoms)


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
    """Compute total energies by ``predict``: another way than the calculator's."""
    energies: np.ndarray = ensemble.predict(structures).heads["energy"].mean[:, 0]
    return energies * len(structures[0])


@pytest.mark.parametrize("name", ["CH3OH", "crystal"])
def test_forces_are_minus_the_slope_of_the_energy(built_zip, name):
    ensemble = unlike_weights(Ensemble.load(built_zip, precision="fp64"))
    atoms = structure(name)
    step = 2e-3
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


def test_stress_is_the_slope_by_strain(built_zip):
    ensemble = unlike_weights(Ensemble.load(built_zip, precision="fp64"))
    atoms = structure("crystal")
    step = 1e-4
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


@pytest.mark.parametrize(
    ("kind", "unit", "factor"), [("per_atom", "eV/atom", 6), ("total", "eV", 1)]
)
def test_an_energy_per_atom_is_multiplied_and_its_spread_too(built_zip, kind, unit, factor):
    ensemble = Ensemble.load(built_zip, precision="fp64")
    values = ensemble.manifest.model_dump()
    values["heads"]["energy"] |= {"energy": kind, "unit": unit}
    atoms = structure("CH3OH")
    atoms.calc = EnsembleCalculator(Ensemble(Manifest.model_validate(values), ensemble.members))
    head = ensemble.predict(atoms).heads["energy"]
    assert atoms.get_potential_energy() == pytest.approx(factor * head.mean[0, 0], rel=1e-12)
    result = atoms.calc.results
    assert result["energy_std"] == pytest.approx(factor * head.std[0, 0], rel=1e-12)


def test_functions_of_ase_take_the_results_without_names_of_this_library(built_zip):
    atoms = structure("crystal")
    atoms.calc = EnsembleCalculator(Ensemble.load(built_zip, precision="fp64"))
    energy = atoms.get_potential_energy()
    named = ("energy", "free_energy", "forces", "stress")
    kept = SinglePointCalculator(atoms, **atoms.calc.results)
    assert set(kept.results) == set(named)
    for properties in (atoms.get_properties(["energy", "forces"]), atoms.calc.export_properties()):
        assert properties["energy"] == kept.results["energy"] == energy
        assert set(properties) == {"natoms", *named}  # natoms is ASE's own
    own = {"energy_std", "energy_std_epistemic", "stress_std", "trust", "forces_max_std"}
    assert all(name in atoms.calc.results for name in own)
    assert atoms.calc.results.get("trust") == atoms.calc.results["trust"]
    assert atoms.calc.results.get("dipole") is None
    with pytest.raises(KeyError):
        atoms.calc.results["dipole"]


def test_spreads_of_forces_and_stress_are_those_of_the_members(built_zip):
    ensemble = unlike_weights(Ensemble.load(built_zip, precision="fp64"))
    atoms = structure("crystal")
    members = [member for member in ensemble.members if "energy" in member.weights]
    weights = [member.weights["energy"] for member in members]
    forces, stresses = [], []
    for member in members:
        atoms.calc = EnsembleCalculator(Ensemble(ensemble.manifest, [member]))
        forces.append(atoms.get_forces())
        stresses.append(atoms.get_stress())

    atoms.calc = EnsembleCalculator(ensemble)

    mean = np.average(forces, axis=0, weights=weights)
    spread = np.sqrt(np.average((np.array(forces) - mean) ** 2, axis=0, weights=weights))
    np.testing.assert_allclose(atoms.get_forces(), mean, atol=1e-12)
    result = atoms.calc.results
    np.testing.assert_allclose(result["forces_std"], spread, atol=1e-10)
    norm = np.sqrt((spread**2).sum(axis=1))
    np.testing.assert_allclose(result["forces_std_norm"], norm, atol=1e-10)
    assert result["forces_max_std"] == pytest.approx(norm.max(), rel=1e-9)
    mean = np.average(stresses, axis=0, weights=weights)
    spread = np.sqrt(np.average((np.array(stresses) - mean) ** 2, axis=0, weights=weights))
    np.testing.assert_allclose(atoms.get_stress(), mean, atol=1e-14)
    np.testing.assert_allclose(result["stress_std"], spread, atol=1e-12)


def test_forces_are_calibrated_where_a_head_of_forces_was(built_zip):
    ensemble = Ensemble.load(built_zip, precision="fp64")
    values = ensemble.manifest.model_dump()
    values["heads"]["energy"] |= {"energy": "total", "unit": "eV"}
    factors = {"elements": {"H": 1.2}, "values": (0.0, 1.0), "at_values": (1.0, 2.0)}
    numbers = {"a": 4.0, "b": 0.09, "c": 0.0, "factors": factors}
    calibration = values["heads"]["charge"]["calibration"] | numbers
    values["heads"]["forces"] = values["heads"]["charge"] | {
        "shape": "vector",
        "unit": "eV/angstrom",
        "derived_from": "energy",
        "calibration": calibration,
        "baseline": None,
    }
    for entry in values["members"]:
        entry["weights"]["forces"] = entry["weights"]["energy"]
    atoms = structure("CH3OH")
    atoms.calc = EnsembleCalculator(Ensemble(Manifest.model_validate(values), ensemble.members))
    atoms.get_forces()
    result = atoms.calc.results
    raw = result["forces_std_epistemic"]
    strength = np.linalg.norm(result["forces"], axis=1).clip(0.0, 1.0)
    factor = np.where(atoms.numbers == 1, 1.2, 1.0) * 2.0**strength
    assert np.ptp(factor) > 0.1
    sigma2 = factor[:, None] ** 2 * (4.0 * raw**2 + 0.09)
    np.testing.assert_allclose(result["forces_std"] ** 2, sigma2, rtol=1e-12)
    assert result["forces_max_std"] == pytest.approx(np.linalg.norm(raw, axis=1).max())


def test_an_isolated_atom_feels_nothing_has_no_stress_and_may_be_unseen(built_zip):
    atoms = Atoms("Si")
    atoms.calc = EnsembleCalculator(built_zip)
    np.testing.assert_array_equal(atoms.get_forces(), np.zeros((1, 3)))
    assert np.isfinite(atoms.get_potential_energy())
    assert "unseen element Si" in atoms.calc.get_property("trust", atoms)
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stress()


def test_an_ensemble_without_forces_is_one_sentence(built_zip):
    ensemble = Ensemble.load(built_zip)
    values = ensemble.manifest.model_dump()
    values["heads"]["energy"]["energy"] = None
    with pytest.raises(ConfigError, match="predicts energy, charge, none of them an energy"):
        EnsembleCalculator(Ensemble(Manifest.model_validate(values), ensemble.members))
    first, *others = ensemble.members
    capped = Ensemble(ensemble.manifest, (replace(first, max_neighbors=12), *others))
    with pytest.raises(ConfigError, match=f"member {first.trial} caps its neighbours"):
        EnsembleCalculator(capped)
    with pytest.raises(ConfigError, match="unknown energy head 'charge'. Known: energy"):
        EnsembleCalculator(built_zip, target="charge")


@pytest.fixture
def calculator(built_zip):
    return EnsembleCalculator(Ensemble.load(built_zip, precision="fp64"))


@pytest.mark.parametrize(
    ("of", "key"), [("energy", "energy_std_epistemic"), ("forces", "forces_max_std")]
)
def test_a_spread_above_the_limit_stops_and_the_structure_is_kept(calculator, tmp_path, of, key):
    atoms = molecule("CH3OH")
    path = tmp_path / "label.extxyz"
    atoms.calc = calculator
    limit = calculator.get_property(key, atoms)
    watch = StopAtSpread(atoms, limit=limit, of=of, write=path)
    watch()  # as large as the limit, which may be
    assert not path.exists()

    calculator.results[key] = limit * 1.001
    with pytest.raises(SpreadExceeded, match="at check 2: .* apart, more than"):
        watch()

    kept = ase.io.read(path)
    assert isinstance(kept, Atoms)
    np.testing.assert_allclose(kept.positions, atoms.positions, atol=1e-7)
    assert kept.calc is None
    assert kept.info["spread"] == pytest.approx(limit * 1.001)
    calculator.results[key] = float("nan")
    with pytest.raises(SpreadExceeded, match="nan eV.* apart"):
        watch()


def test_dynamics_end_with_the_structure_in_the_file(calculator, tmp_path):
    atoms = molecule("CH3OH")
    atoms.calc = calculator
    path = tmp_path / "label.extxyz"
    for frames in (1, 2):
        dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
        dynamics.attach(StopAtSpread(atoms, limit=1e-12, write=path))
        with pytest.raises(SpreadExceeded, match=r"label\.extxyz: label it"):
            dynamics.run(3)
        assert len(ase.io.read(path, ":")) == frames
    dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
    dynamics.attach(watch := StopAtSpread(atoms, limit=1e6))
    dynamics.run(3)
    assert watch.checks == 4
    assert calculator.neighbors.searches == 1, "atoms hardly move"


def total_energies(
    atoms: Atoms, calculator: EnsembleCalculator, steps: int, step: float
) -> np.ndarray:
    """Move a copy; return the total energy after each step in eV, [steps + 1]."""
    moving = atoms.copy()
    results = list[float]()
    moving.calc = calculator
    dynamics = VelocityVerlet(moving, timestep=step * units.fs)
    dynamics.attach(lambda: results.append(moving.get_total_energy()))
    dynamics.run(steps)
    return np.array(results)


def test_halving_the_step_quarters_the_error_of_the_energy(built_zip):
    """Source: Hairer, Lubich, Wanner (2003), Acta Numerica 12, 399: second order, no drift."""
    atoms = molecule("CH3OH")
    rng = np.random.default_rng(0)
    atoms.set_velocities(rng.normal(scale=0.02, size=(len(atoms), 3)))
    whole = Ensemble.load(built_zip, precision="fp64")
    calculator = EnsembleCalculator(Ensemble(whole.manifest, whole.members[:2]))

    coarse = total_energies(atoms, calculator, 40, 1.0)
    fine = total_energies(atoms, calculator, 80, 0.5)

    errors = [np.abs(each - each[0]).max() for each in (coarse, fine)]
    assert errors[1] > 1e-7
    assert 3.5 < errors[0] / errors[1] < 4.5
    assert calculator.neighbors.searches < 60


@pytest.mark.parametrize("limit", [0.0, float("nan"), float("inf")])
def test_a_limit_is_a_positive_number(calculator, limit):
    atoms = molecule("CH3OH")
    atoms.calc = calculator
    with pytest.raises(ConfigError, match="give a number above 0"):
        StopAtSpread(atoms, limit=limit)


def test_what_has_no_spread_cannot_be_watched(calculator):
    atoms = molecule("CH3OH")
    for other in (None, LennardJones()):
        atoms.calc = other
        with pytest.raises(ConfigError, match="no EnsembleCalculator"):
            StopAtSpread(atoms, limit=1.0)
    atoms.calc = calculator
    with pytest.raises(ConfigError, match="'charge' cannot be watched"):
        StopAtSpread(atoms, limit=1.0, of="charge")  # type: ignore[arg-type]
