"""Each judgement on a property, on structures made for it; expected values by hand."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from hydragnn_hpo.data.properties import collect_properties, make_identifier
from hydragnn_hpo.data.targets import (
    classify_growth,
    count_elements,
    explained_variance,
    guess_unit,
    is_energy,
    is_per_atom,
    propose_targets,
    recognise_total_energy,
)
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.units import inside

PER_ATOM = {29: -3.5, 79: -3.0}


def metals(count=30):
    """Copper and gold in cells of one to eight atoms, with the energy of their atoms."""
    random = np.random.default_rng(3)
    found = []
    for number in range(count):
        atoms = bulk("Cu", cubic=number % 2 == 0) * (1 + number % 2, 1, 1)
        atoms.numbers[0] = 79 if number % 3 else 29
        energy = sum(PER_ATOM[z] for z in atoms.numbers) + random.normal(0, 0.01)
        forces = random.normal(0, 1, (len(atoms), 3))
        atoms.calc = SinglePointCalculator(
            atoms, energy=energy, forces=forces, stress=random.normal(0, 0.1, 6)
        )
        found.append(atoms)
    return found


def look_at(structures, reader="extxyz", units=None, forced=()):
    found = collect_properties(structures)
    made = propose_targets(structures, found, reader=reader, units=units or {}, forced=forced)
    return {target.key: target for target in made.targets}, made


def with_info(values, name="y", structures=None):
    structures = structures or [a.copy() for a in metals(len(values))]
    for atoms, value in zip(structures, values, strict=True):
        atoms.info[name] = value
    return structures


def test_a_calculator_gives_a_potential():
    targets, _ = look_at(metals())
    energy, forces, stress = targets["energy"], targets["forces"], targets["stress"]
    assert (energy.level, energy.energy, energy.unit.name) == ("graph", "total", "eV")
    assert (forces.level, forces.shape, forces.derived_from) == ("node", "vector", "energy")
    assert (stress.level, stress.shape, stress.derived_from) == ("graph", "tensor", "energy")
    assert {energy.unit.sure, forces.unit.sure, stress.unit.sure} == {"guessed"}
    assert energy.head
    assert forces.head
    assert not stress.head


def test_stress_is_left_out_where_something_is_not_periodic():
    structures = [*metals(20), *[m.copy() for m in [molecule("H2O")] * 3]]
    for atoms in structures[20:]:
        atoms.calc = SinglePointCalculator(atoms, energy=-1.0, forces=np.zeros((3, 3)))
    _, made = look_at(structures)
    assert "stress" in dict(made.left_out)


def test_forces_without_an_energy_are_vectors_of_their_own_and_no_head():
    structures = metals()
    for atoms in structures:
        del atoms.calc.results["energy"], atoms.calc.results["stress"]
    targets, _ = look_at(structures)
    assert targets["forces"].derived_from is None
    assert not targets["forces"].head


def test_an_energy_of_a_table_has_a_unit_that_only_the_user_knows():
    totals = [sum(PER_ATOM[z] for z in atoms.numbers) for atoms in metals()]
    targets, _ = look_at(with_info(totals, "energy"), reader="table")
    assert (targets["energy"].energy, targets["energy"].unit.name) == ("total", "?")
    said, _ = look_at(with_info(totals, "energy"), reader="table", units={"energy": "Hartree"})
    assert (said["energy"].unit.name, said["energy"].unit.sure) == ("Hartree", "said")


def test_an_unknown_unit_is_refused():
    with pytest.raises(ConfigError, match="unknown unit 'Hartre'. Did you mean 'Hartree'"):
        look_at(metals(), units={"energy": "Hartre"})


def test_an_energy_per_atom_does_not_grow():
    structures = [a.copy() for a in metals(40)]
    means = [np.mean([PER_ATOM[z] for z in atoms.numbers]) for atoms in structures]
    targets, _ = look_at(with_info(means, "formation_energy", structures), reader="table")
    found = targets["formation_energy"]
    assert (found.energy, found.unit.name, found.unit.sure) == ("per_atom", "eV/atom", "guessed")


def test_hartree_is_recognised_and_forces_beside_it_are_not_guessed():
    structures = [molecule(name) for name in ("CH4", "H2O", "C2H6", "NH3", "CH3OH")] * 4
    hartree = {1: -0.5, 6: -37.845, 7: -54.589, 8: -75.067}
    for number, atoms in enumerate(structures):
        energy = sum(hartree[z] for z in atoms.numbers) - 0.15 * (len(atoms) - 1) - 1e-4 * number
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=atoms.positions)
    targets, made = look_at(structures)
    assert (targets["energy"].unit.name, targets["energy"].unit.sure) == ("Hartree", "recognised")
    assert "unknown unit" in dict(made.left_out)["forces"]
    told, _ = look_at(structures, units={"forces": "Hartree/bohr"})
    assert told["forces"].derived_from == "energy"


def test_a_unit_that_contradicts_the_numbers_is_said():
    structures = [molecule(name) for name in ("CH4", "H2O", "C2H6", "NH3", "CH3OH")] * 4
    hartree = {1: -0.5, 6: -37.845, 7: -54.589, 8: -75.067}
    values = [sum(hartree[z] for z in a.numbers) - 1e-4 * n for n, a in enumerate(structures)]
    _, made = look_at(with_info(values, "energy_eV", structures), reader="table")
    assert any("its size is that of energies in Hartree" in said for said in made.warnings)


def test_constants_counters_texts_and_leftovers_are_no_targets():
    structures = with_info(range(30), "index")
    with_info([7.5] * 30, "pressure", structures)
    with_info([f"run {n}" for n in range(30)], "comment", structures)
    with_info([100 + 2 * n for n in range(30)], "label", structures)
    for atoms in structures:
        atoms.arrays["initial_magmoms"] = np.arange(len(atoms)) * 1.0
    targets, made = look_at(structures)
    reasons = dict(made.left_out)
    assert targets == {}
    assert reasons["pressure"] == "is 7.5 everywhere"
    assert reasons["index"] == reasons["label"] == "numbers or sorts the structures"
    assert reasons["initial_magmoms"] == "is what a calculation started from"
    assert "comment" not in reasons


def test_missing_values_make_a_target_optional():
    values = [float(n * n % 17) for n in range(30)]
    values[4] = values[9] = values[20] = float("nan")
    targets, _ = look_at(with_info(values, "gap"))
    assert targets["gap"].optional
    assert "missing in 10 % of what was read" in targets["gap"].why
    some = with_info(values[:3] * 10, "gap")
    del some[0].info["gap"]
    assert look_at(some)[0]["gap"].optional


def test_what_only_nan_holds_is_no_target():
    _, made = look_at(with_info([float("nan")] * 30, "gap"))
    assert dict(made.left_out)["gap"] == "holds no number"


def test_a_marker_far_from_all_values_is_named():
    values = [1.0 + 0.1 * (n % 7) for n in range(300)]
    values[11] = -9999.0
    _, made = look_at(with_info(values, "gap"))
    (said,) = [w for w in made.warnings if "far from all others" in w]
    assert "as -9999, the median is 1.3" in said


def test_infinite_values_are_named():
    values = [float(n % 5) for n in range(30)]
    values[3] = float("inf")
    _, made = look_at(with_info(values, "gap"))
    assert any(
        said.startswith("gap is infinite, or more than 1e+30, in 1") for said in made.warnings
    )
    values[3] = 1e200  # its square is infinite
    _, made = look_at(with_info(values, "gap"))
    assert any(
        said.startswith("gap is infinite, or more than 1e+30, in 1") for said in made.warnings
    )


def test_what_is_too_large_or_too_small_to_be_learned_is_no_target():
    _, made = look_at(with_info([1e300 * (n % 5 + 1) for n in range(30)], "gap"))
    assert dict(made.left_out)["gap"] == "holds no number up to 1e+30"
    _, made = look_at(with_info([1e-20 * (n % 5) for n in range(30)], "gap"))
    assert dict(made.left_out)["gap"].startswith("varies by 1e-12 at most")


def test_words_among_numbers_are_named():
    values = [["1.5", "n/a"][n % 2] if n % 3 else 0.25 * n for n in range(30)]
    _, made = look_at(with_info(values, "gap"))
    assert any("gap is text in 20 structures, as '1.5'" in said for said in made.warnings)


def test_what_a_reader_puts_beside_atoms_is_no_target():
    structures = [a.copy() for a in metals()]
    for number, atoms in enumerate(structures):
        atoms.arrays["spacegroup_kinds"] = np.arange(len(atoms)) + number
    targets, made = look_at(structures)
    assert "spacegroup_kinds" not in {*targets, *dict(made.left_out)}


def test_copies_and_long_properties_are_left_out():
    values = [float(n % 5) for n in range(30)]
    structures = with_info(values, "gap")
    with_info(values, "gap_again", structures)
    with_info([np.arange(3.0) * n for n in range(30)], "dipole", structures)
    targets, made = look_at(structures)
    assert list(targets) == ["gap"]
    assert dict(made.left_out)["gap_again"] == "has the same numbers as gap"
    assert "3 numbers for each structure" in dict(made.left_out)["dipole"]


def test_a_charge_that_varies_is_known_beforehand():
    structures = with_info([n % 3 - 1 for n in range(30)], "charge")
    with_info([float(n % 5) for n in range(30)], "gap", structures)
    _, made = look_at(structures)
    assert made.attributes == ("charge",)
    assert [target.key for target in made.targets] == ["gap"]


def test_numbers_per_atom():
    structures = [a.copy() for a in metals()]
    for atoms in structures:
        atoms.arrays["magmom"] = np.linspace(-1, 1, len(atoms)) + len(atoms)
        atoms.arrays["push"] = atoms.positions * 2.0
        atoms.arrays["many"] = np.ones((len(atoms), 7)) * len(atoms)
    targets, made = look_at(structures)
    assert (targets["magmom"].level, targets["magmom"].unit.name) == ("node", "muB")
    assert (targets["push"].shape, targets["push"].head) == ("vector", False)
    assert "7 numbers for each atom" in dict(made.left_out)["many"]


def test_what_grows_and_is_no_energy_is_pooled_as_a_sum():
    structures = [a.copy() for a in metals(40)]
    values = [10.0 * len(atoms) for atoms in structures]
    targets, _ = look_at(with_info(values, "polarizability", structures))
    assert targets["polarizability"].extensive
    assert targets["polarizability"].energy is None


def test_a_ninth_head_waits():
    structures = [a.copy() for a in metals()]
    random = np.random.default_rng(1)
    for number in range(11):
        with_info(random.normal(0, 1, 30).tolist(), f"p{number}", structures)
    targets, _ = look_at(structures)
    assert [target.head for target in targets.values()] == [True] * 8 + [False] * 3


def test_a_property_of_a_table_without_a_header_stays_even_if_it_is_constant():
    targets, _ = look_at(with_info([1.0] * 30, "property"), reader="folder", forced=("property",))
    assert not targets["property"].head


def test_names_become_names_of_targets():
    assert make_identifier("Band gap (eV)", "target") == "Band_gap_eV"
    assert make_identifier("3d-energy", "target") == "target_3d_energy"
    assert make_identifier("\x1b]0;x\n'\"", "target") == "target_0_x"
    assert make_identifier("...", "data") == "data"
    structures = with_info([float(n % 5) for n in range(30)], "a b")
    with_info([float(n % 7) for n in range(30)], "a-b", structures)
    _, made = look_at(structures)
    assert [target.name for target in made.targets] == ["a_b", "a_b_2"]


def test_one_atom_is_no_vector():
    lone = [Atoms("Cu", info={"v": [1.0 * n, 2.0, 3.0]}) for n in range(8)]
    targets, made = look_at(lone)
    assert targets == {}
    assert "3 numbers for each structure" in dict(made.left_out)["v"]


SAID = {
    "gap_ev": "eV",
    "Band gap (eV)": "eV",
    "energy [Hartree]": "Hartree",
    "U0_kcal_mol": "kcal/mol",
    "dH_kj/mol": "kJ/mol",
    "formation_energy_ev_atom": "eV/atom",
    "e_mev_per_atom": "meV/atom",
    "bulk_gpa": "GPa",
    "stress_kbar": "kbar",
    "last phdos peak cm-1": "1/cm",
    "moment muB": "muB",
    "F_eV/Ang": "eV/angstrom",
}

GUESSED = {
    "band_gap": "eV",
    "HOMO": "eV",
    "formation_energy_per_atom": "eV/atom",
    "e_above_hull": "eV/atom",
    "magmom": "muB",
    "total_magnetization_per_atom": "muB/atom",
    "partial_charge": "e",
    "log_gvrh": "log10(GPa)",
    "shear_modulus": "GPa",
    "energy": "eV",
}

NONE = ["logS", "y", "property", "toxicity", "yield", "dihedral", "hev"]


@pytest.mark.parametrize(("name", "unit"), SAID.items())
def test_a_name_says_its_unit(name, unit):
    found = guess_unit(name)
    assert (found.name, found.sure) == (unit, "said")
    assert inside(found.name)


@pytest.mark.parametrize(("name", "unit"), GUESSED.items())
def test_what_is_usual_is_a_guess(name, unit):
    found = guess_unit(name)
    assert (found.name, found.sure) == (unit, "guessed")
    assert inside(found.name)


@pytest.mark.parametrize("name", NONE)
def test_otherwise_nothing_is_known_and_nothing_converted(name):
    found = guess_unit(name)
    assert (found.name, found.sure) == ("1", "unknown")


@pytest.mark.parametrize("name", ["energy", "REF_energy", "E", "E_tot", "u0", "dft_total_energy"])
def test_energies_by_name(name):
    assert is_energy(name)


@pytest.mark.parametrize("name", ["homo", "gap", "e_above_hull", "zpve", "Fermi_energy", "egg"])
def test_other_names_are_no_energies(name):
    assert not is_energy(name)


def test_per_atom_by_name():
    assert is_per_atom("formation energy per atom")
    assert not is_per_atom("spatial")


RANDOM = np.random.default_rng(5)


def crystals(count=60, kinds=3, largest=12):
    """Counts of atoms of some elements, [G, Z]; sizes differ."""
    counts = RANDOM.integers(0, largest, (count, kinds)).astype(float)
    counts[:, 0] += 1.0
    return counts


def test_a_sum_over_atoms_is_extensive():
    counts = crystals()
    energies = counts @ np.array([-3.0, -5.5, 1.25]) + RANDOM.normal(0, 0.3, len(counts))
    assert classify_growth(energies, counts) == "extensive"


def test_a_mean_over_atoms_is_intensive():
    counts = crystals()
    energies = counts @ np.array([-3.0, -5.5, 1.25]) / counts.sum(axis=1)
    assert classify_growth(energies + RANDOM.normal(0, 0.05, len(counts)), counts) == "intensive"


def test_a_gap_that_is_about_the_same_everywhere_is_intensive():
    counts = crystals()
    assert classify_growth(5.0 + RANDOM.normal(0, 0.1, len(counts)), counts) == "intensive"


def test_the_order_of_a_file_does_not_matter():
    counts = np.array([[2.0], [4.0]] * 20)
    assert classify_growth(10.0 * counts[:, 0], counts) == "extensive"


def test_noise_says_nothing():
    counts = crystals(200)
    assert classify_growth(RANDOM.normal(0, 1, len(counts)), counts) is None


def test_equal_sizes_and_few_structures_say_nothing():
    alike = np.tile([3.0, 2.0], (50, 1))
    assert classify_growth(RANDOM.normal(0, 1, 50), alike) is None
    few = crystals(11)
    assert classify_growth(few.sum(axis=1), few) is None


def test_one_element_of_all_sizes_is_extensive():
    counts = np.arange(1.0, 41.0)[:, None]
    assert classify_growth(-3.5 * counts[:, 0] + RANDOM.normal(0, 0.05, 40), counts) == "extensive"


def test_explained_is_judged_on_rows_that_were_not_fitted():
    weights = np.array([[1.0], [1.0], [2.0], [2.0], [3.0], [3.0]])
    fit = np.array([True, False] * 3)
    perfect = explained_variance(2.0 * weights[:, 0], weights, fit)
    assert perfect == pytest.approx(1.0, abs=1e-5)
    crossed = explained_variance(np.array([1.0, -1.0, 2.0, -2.0, 3.0, -3.0]), weights, fit)
    # fitted slope 1, held out -1, -2, -3: residuals 2, 4, 6 against a variance of 2/3 times 3
    assert crossed == pytest.approx(1.0 - (4 + 16 + 36) / 2.0, abs=1e-3)


METHANE, WATER = {6: 1, 1: 4}, {8: 1, 1: 2}
"""Total energies in Hartree: -40.51 and -76.44 (CCSD(T) near the basis limit, as in textbooks)."""


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("Hartree", 1.0), ("eV", 27.2114), ("kcal/mol", 627.51), ("kJ/mol", 2625.5), ("Rydberg", 2.0)],
)
def test_the_unit_of_all_electron_energies_is_recognised(unit, factor):
    numbers = [np.array([6, 1, 1, 1, 1]), np.array([8, 1, 1])] * 8
    counts, kinds = count_elements(numbers)
    assert kinds == [1, 6, 8]
    assert counts[0].tolist() == [4, 1, 0]
    energies = factor * np.array([-40.51, -76.44] * 8)
    assert recognise_total_energy(energies, counts, kinds) == unit


def test_energies_without_core_electrons_are_not_recognised():
    counts, kinds = count_elements([np.array([6, 1, 1, 1, 1]), np.array([8, 1, 1])] * 8)
    tight_binding = 27.2114 * np.array([-4.175, -5.070] * 8)  # GFN2-xTB
    assert recognise_total_energy(tight_binding, counts, kinds) is None
    heavy, elements = count_elements([np.array([29, 29])] * 20)
    assert recognise_total_energy(np.full(20, -3280.0), heavy, elements) is None
