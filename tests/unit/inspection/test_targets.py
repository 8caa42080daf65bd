"""Each judgement on a property, on structures made for it; expected values by hand."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from hydragnn_hpo.data.properties import collect_properties, make_identifier, mark_far
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.inspection.targets import (
    UNKNOWN,
    classify_growth,
    count_elements,
    explained_variance,
    guess_unit,
    has_heavy_tails,
    is_energy,
    is_per_atom,
    propose_targets,
    recognise_total_energy,
)
from hydragnn_hpo.units import inside

PER_ATOM = {29: -3.5, 79: -3.0}


def metals(count=30):
    """Copper and gold in cells of one to eight atoms, with the energy of their atoms."""
    random = np.random.default_rng(3)
    results = []
    for number in range(count):
        atoms = bulk("Cu", cubic=number % 2 == 0) * (1 + number % 2, 1, 1)
        atoms.numbers[0] = 79 if number % 3 else 29
        energy = sum(PER_ATOM[z] for z in atoms.numbers) + random.normal(0, 0.01)
        forces = random.normal(0, 1, (len(atoms), 3))
        atoms.calc = SinglePointCalculator(
            atoms, energy=energy, forces=forces, stress=random.normal(0, 0.1, 6)
        )
        results.append(atoms)
    return results


def look_at(structures, reader="extxyz", units=None, **more):
    result = collect_properties(structures)
    made = propose_targets(structures, result, reader=reader, units=units or {}, **more)
    return {target.key: target for target in made.targets}, made


def with_info(values, name="y", structures=None):
    structures = structures or [a.copy() for a in metals(len(values))]
    for atoms, value in zip(structures, values, strict=True):
        atoms.info[name] = value
    return structures


def test_a_calculator_gives_a_potential():
    targets, _ = look_at(metals())
    energy, forces, stress = targets["energy"], targets["forces"], targets["stress"]
    assert (energy.config.level, energy.config.energy, energy.unit.name) == ("graph", "total", "eV")
    derived = {"unit_guessed": True, "derived_from": "energy"}
    force_lines = {"level": "node", "shape": "vector", "unit": "eV/angstrom", **derived}
    assert list(forces.lines.items()) == list(force_lines.items())
    assert stress.lines == {"level": "graph", "shape": "tensor", "unit": "eV/angstrom^3", **derived}
    assert {energy.unit.sure, forces.unit.sure, stress.unit.sure} == {"guessed"}
    assert energy.head
    assert forces.head
    assert not stress.head


def test_stress_is_kept_where_something_has_no_cell_and_lacks_it():
    structures = [*metals(20), *[m.copy() for m in [molecule("H2O")] * 3]]
    for atoms in structures[20:]:
        atoms.calc = SinglePointCalculator(atoms, energy=-1.0, forces=np.zeros((3, 3)))
    targets, _ = look_at(structures)
    assert targets["stress"].config.derived_from == "energy"
    assert targets["stress"].config.optional
    targets, made = look_at(structures[20:] * 2)
    assert "stress" not in {*targets, *dict(made.left_out)}


def strained(strain, force, count=40):
    """Crystals with energies of 20 eV times the square of their strain, and random forces."""
    random = np.random.default_rng(5)
    results = []
    for number in range(count):
        stretched = strain * (number - count / 2) / count
        atoms = bulk("MgO" if number % 2 else "CaO", "rocksalt", a=4.3 * (1 + stretched))
        forces = force * random.normal(0, 1, (2, 3)) / np.sqrt(3)
        energy = 20 * stretched**2 - 12.0 - number % 2
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        results.append(atoms)
    return results


@pytest.mark.parametrize(
    ("strain", "force", "head"),
    [
        (0.2, 0.02, False),  # 0.02 eV/angstrom * 0.1 angstrom tell 3 % of 0.06 eV/atom
        (0.2, 0.06, True),  # beyond what relaxations leave
        (0.05, 0.02, True),  # 50 % of 0.004 eV/atom: small displacements have small forces
    ],
)
def test_forces_near_zero_that_tell_little_of_the_energy_get_no_head(strain, force, head):
    targets, _ = look_at(strained(strain, force))
    assert targets["forces"].config.derived_from == "energy"
    assert targets["forces"].head == head
    assert ("next to zero" in targets["forces"].why[-1]) != head


def test_forces_without_an_energy_are_vectors_of_their_own_and_no_head():
    structures = metals()
    for atoms in structures:
        del atoms.calc.results["energy"], atoms.calc.results["stress"]
    targets, _ = look_at(structures)
    assert targets["forces"].config.derived_from is None
    assert not targets["forces"].head


def calculators(*names, forces=()):
    """Copper and gold with energies, and with forces, stress or virial, under the names given."""
    random = np.random.default_rng(8)
    structures = [atoms.copy() for atoms in metals()]
    for atoms in structures:
        energy = sum(PER_ATOM[z] for z in atoms.numbers)
        for name in names:
            atoms.info[name] = energy + random.normal(0, 0.1)
        for name in forces:
            tensor = random.normal(0, 0.1, (3, 3))
            if "force" in name:
                atoms.arrays[name] = random.normal(0, 1, (len(atoms), 3))
            else:
                atoms.info[name] = (tensor + tensor.T).ravel()
    return structures


@pytest.mark.parametrize(
    ("energies", "derivatives", "heads"),
    [
        (
            ["gap_energy", "REF_energy"],
            {"gap_forces": "gap_energy", "REF_forces": "REF_energy", "REF_stress": "REF_energy"},
            {"REF_energy", "REF_forces"},
        ),
        (
            ["optimize_energy", "energy_dft"],
            {"optimize_force": "optimize_energy", "force_dft": "energy_dft"},
            {"energy_dft", "force_dft"},
        ),
        (["foo_energy", "dft_energy"], {"foo_forces": "foo_energy"}, {"dft_energy"}),
        (["dft_energy"], {"gap_forces": None, "forces": "dft_energy"}, {"dft_energy", "forces"}),
        (
            ["dft_energy"],
            {"dft_forces": "dft_energy", "forces": None},
            {"dft_energy", "dft_forces"},
        ),
        (["mace_energy"], {"forces": None}, {"mace_energy"}),
        (["a_energy", "b_energy"], {"forces": None}, {"a_energy", "b_energy"}),
        (["energy", "mace_energy"], {"mace_forces": "mace_energy"}, {"energy"}),
        (["scf_energy"], {"forces_eV_A": "scf_energy"}, {"scf_energy", "forces_eV_A"}),
        (["total_energy"], {"atomic_forces": "total_energy"}, {"total_energy", "atomic_forces"}),
        (["energy", "free_energy"], {"forces": "free_energy"}, {"free_energy", "forces"}),
        (
            ["formation_energy", "energy"],
            {"forces": "energy"},
            {"energy", "formation_energy", "forces"},
        ),
        (["u0", "xc_energy"], {"forces": "u0"}, {"u0", "xc_energy", "forces"}),
    ],
)
def test_forces_derive_from_the_energy_of_their_calculator(energies, derivatives, heads):
    targets, _ = look_at(calculators(*energies, forces=derivatives))
    assert {key: targets[key].config.derived_from for key in derivatives} == derivatives
    assert {key for key, target in targets.items() if target.head} == heads
    for key in ({*energies, *derivatives} - heads) & set(targets):
        reason = targets[key].why[-1]
        stress = "left to you" in reason
        assert stress or "second set of" in reason or "no energy of their" in reason, reason


def test_a_derivative_without_an_energy_of_its_calculator_says_why():
    names = ["gap_stress", "dft_virial", "gap_forces"]
    targets, made = look_at(calculators("dft_energy", forces=names))
    reasons = dict(made.left_out)
    assert "no energy of their calculator, only dft_energy" in reasons["gap_stress"]
    virial = targets["dft_virial"]
    assert (virial.config.derived_from, virial.unit.name) == ("dft_energy", "eV(virial)")
    assert not virial.head
    assert "no energy of their calculator" in targets["gap_forces"].why[0]


def test_a_gap_is_a_gap_unless_a_calculator_of_that_name_has_forces():
    targets, _ = look_at(calculators("gap_energy", "energy", forces=["forces"]))
    assert (targets["gap_energy"].config.energy, targets["gap_energy"].head) == (None, True)


def test_other_quantities_of_a_second_calculator_wait_as_well():
    structures = calculators("REF_energy", "mace_energy", forces=["REF_forces"])
    with_info(np.linspace(0, 1, 30) ** 2, "REF_hardness", structures)
    with_info(np.linspace(0, 1, 30) ** 3, "mace_hardness", structures)
    targets, _ = look_at(structures, units={"REF_hardness": "GPa", "mace_hardness": "GPa"})
    heads = {key for key, target in targets.items() if target.head}
    assert heads == {"REF_energy", "REF_forces", "REF_hardness"}
    assert "a second set of REF_hardness" in targets["mace_hardness"].why[-1]
    alone, _ = look_at(calculators("energy", "free_energy"))
    assert all(target.head for target in alone.values())


def test_an_energy_of_a_table_has_a_unit_that_only_the_user_knows():
    totals = [sum(PER_ATOM[z] for z in atoms.numbers) for atoms in metals()]
    targets, _ = look_at(with_info(totals, "energy"), reader="table")
    assert (targets["energy"].config.energy, targets["energy"].unit.name) == ("total", "?")
    message, _ = look_at(with_info(totals, "energy"), reader="table", units={"energy": "Hartree"})
    assert (message["energy"].unit.name, message["energy"].unit.sure) == ("Hartree", "said")


def test_an_energy_per_atom_does_not_grow():
    structures = [a.copy() for a in metals(40)]
    means = [np.mean([PER_ATOM[z] for z in atoms.numbers]) for atoms in structures]
    targets, _ = look_at(with_info(means, "formation_energy", structures), reader="table")
    result = targets["formation_energy"]
    assert (result.unit.name, result.unit.sure) == ("eV/atom", "guessed")
    assert result.config.energy == "per_atom"


HARTREE = {1: -0.5, 6: -37.845, 7: -54.589, 8: -75.067}


def molecules():
    """Twenty molecules, and their all-electron energies in Hartree."""
    results = [molecule(name) for name in ("CH4", "H2O", "C2H6", "NH3", "CH3OH")] * 4
    return results, [
        sum(HARTREE[z] for z in atoms.numbers) - 0.15 * (len(atoms) - 1) - 1e-4 * number
        for number, atoms in enumerate(results)
    ]


def test_hartree_is_recognised_and_the_unit_of_forces_beside_it_is_asked_for():
    structures, energies = molecules()
    for atoms, energy in zip(structures, energies, strict=True):
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=atoms.positions)
    targets, _ = look_at(structures)
    assert (targets["energy"].unit.name, targets["energy"].unit.sure) == ("Hartree", "recognised")
    assert targets["forces"].unit.name == UNKNOWN
    assert targets["forces"].unit.choices == ("Hartree/angstrom", "Hartree/bohr")
    message, _ = look_at(structures, units={"forces": "Hartree/bohr"})
    assert message["forces"].config.derived_from == "energy"
    with pytest.raises(ConfigError, match="unknown unit 'Hartre'. Did you mean 'Hartree'"):
        look_at(structures, units={"energy": "Hartre"})


def test_a_unit_that_contradicts_the_numbers_is_reported():
    structures, energies = molecules()
    _, made = look_at(with_info(energies, "energy_eV", structures), reader="table")
    assert any("its size is that of energies in Hartree" in message for message in made.warnings)


FEW = [float(n % 5) for n in range(30)]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([7.5] * 30, "is 7.5 everywhere"),
        (range(30), "numbers or sorts the structures"),
        ([100 + 2 * n for n in range(30)], "numbers or sorts the structures"),
        ([float("nan")] * 30, "holds no number"),
        ([1e300 * (n % 5 + 1) for n in range(30)], "holds no number up to 1e+30"),
        ([1e-20 * n for n in FEW], "varies by 1e-12 at most"),
        ([np.arange(3.0) * n for n in range(30)], "has 3 numbers for each structure"),
        (FEW, "has the same numbers as gap"),
    ],
    ids=["constant", "counter", "label", "nan", "large", "small", "vector", "copy"],
)
def test_what_cannot_be_learned_is_no_target(values, why):
    targets, made = look_at(with_info(values, "odd", with_info(FEW, "gap")))
    assert list(targets) == ["gap"]
    assert dict(made.left_out)["odd"].startswith(why)


@pytest.mark.parametrize(
    ("place", "wrong", "says"),
    [
        (11, -9999.0, "as -9999, the median is 2"),
        (3, float("inf"), "gap is infinite, or more than 1e+30, in 1"),
        (3, 1e200, "gap is infinite, or more than 1e+30, in 1"),  # its square is infinite
        (3, "1.5", "gap is text in 10 structures, as '1.5'"),
    ],
)
def test_values_that_do_not_belong_are_named(place, wrong, says):
    values = FEW * 10
    values[place] = wrong
    if isinstance(wrong, str):
        values[place : place + 10] = [wrong] * 10
    _, made = look_at(with_info(values, "gap"))
    assert any(says in message for message in made.warnings), made.warnings


def test_what_a_reader_or_a_calculation_puts_there_is_no_target():
    structures = with_info([f"run {n}" for n in range(30)], "comment")
    for atoms in structures:
        atoms.arrays["initial_magmoms"] = np.arange(len(atoms)) * 1.0
        atoms.arrays["spacegroup_kinds"] = np.arange(len(atoms)) + len(atoms)
    targets, made = look_at(structures)
    assert targets == {}
    assert dict(made.left_out) == {"initial_magmoms": "is what a calculation started from"}


def test_missing_values_make_a_target_optional():
    values = [float(n * n % 17) for n in range(30)]
    values[4] = values[9] = values[20] = float("nan")
    targets, _ = look_at(with_info(values, "gap"))
    assert targets["gap"].config.optional
    assert "missing in 10 % of what was read" in targets["gap"].why
    some = with_info(values[:3] * 10, "gap")
    del some[0].info["gap"]
    lines = look_at(some)[0]["gap"].lines
    assert [*lines] == ["level", "unit", "unit_guessed", "min", "optional"]


def test_numbers_per_atom():
    structures = [a.copy() for a in metals()]
    for atoms in structures:
        atoms.arrays["magmom"] = np.linspace(-1, 1, len(atoms)) + len(atoms)
        atoms.arrays["push"] = atoms.positions * 2.0
        atoms.arrays["many"] = np.ones((len(atoms), 6)) * len(atoms)
    targets, made = look_at(structures)
    assert (targets["magmom"].config.level, targets["magmom"].unit.name) == ("node", "muB")
    assert (targets["push"].config.shape, targets["push"].head) == ("vector", False)
    assert "6 numbers for each atom" in dict(made.left_out)["many"]


def test_vectors_and_tensors_of_structures_are_recognised():
    random = np.random.default_rng(4)
    structures = [molecule(name) for name in ("H2O", "NH3", "CO", "CH4", "HCN") * 6]
    for atoms in structures:
        dipole = random.normal(size=3)
        alpha = random.normal(size=(3, 3))
        atoms.calc = SinglePointCalculator(atoms, dipole=dipole)
        atoms.info |= {"polarizability": alpha + alpha.T, "odd": alpha, "cell_lengths": dipole + 9}
        atoms.arrays["born_charges"] = random.normal(size=(len(atoms), 9))
    targets, made = look_at(structures)
    kinds = {
        name: (config.level, config.shape, config.origin, config.unit, targets[name].head)
        for name, config in ((name, target.config) for name, target in targets.items())
    }
    assert kinds == {
        "dipole": ("graph", "vector", "mass", "e*angstrom", False),
        "polarizability": ("graph", "tensor", "mass", "1", False),
        "born_charges": ("node", "tensor", None, "e", False),
    }
    assert "has 9 numbers for each structure" in dict(made.left_out)["odd"]
    assert "has 3 numbers for each structure" in dict(made.left_out)["cell_lengths"]
    crystals, _ = look_at(with_info([random.normal(size=3) for _ in range(30)], "polarization"))
    assert crystals["polarization"].config.origin == "none"


def test_what_grows_and_is_no_energy_is_pooled_as_a_sum():
    structures = [a.copy() for a in metals(40)]
    values = [10.0 * len(atoms) for atoms in structures]
    targets, _ = look_at(with_info(values, "polarizability", structures))
    assert targets["polarizability"].config.extensive
    assert targets["polarizability"].config.energy is None


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


UNITS = {
    "said": {
        "Band gap (eV)": "eV",
        "energy [Hartree]": "Hartree",
        "U0_kcal_mol": "kcal/mol",
        "dH_kj/mol": "kJ/mol",
        "formation_energy_ev_atom": "eV/atom",
        "e_mev_per_atom": "meV/atom",
        "formation_energy_ev_natom": "eV/atom",
        "bulk_gpa": "GPa",
        "stress_kbar": "kbar",
        "last phdos peak cm-1": "1/cm",
        "moment muB": "muB",
        "F_eV/Ang": "eV/angstrom",
        "shift [ppm]": "ppm",
        "mu (D)": "debye",
        "homo (Ha)": "Hartree",
        "alpha [a0^3]": "bohr^3",
    },
    "guessed": {
        "HOMO": "eV",
        "formation_energy_per_atom": "eV/atom",
        "e_above_hull": "eV/atom",
        "total_magnetization_per_atom": "muB/atom",
        "partial_charge": "e",
        "log_gvrh": "log10(GPa)",
        "shear_modulus": "GPa",
        "energy": "eV",
        "nmr_shielding": "ppm",
        "isotropic chemical shift": "ppm",
        "magnetic_shielding": "ppm",
        "cs_iso": "ppm",
        "dipole_moment": "e*angstrom",
        "Dipole_M": "e*angstrom",
        "mu": "e*angstrom",
        "magnetic_moment": "muB",
        "magnetic_dipole_moment": "muB",
        "total_moment": "muB",
        "vertical IP": "eV",
        "ionization_potential": "eV",
        "orbital_energies": "eV",
    },
    "unknown": dict.fromkeys(
        [
            *("logS", "y", "toxicity", "yield", "dihedral", "hev", "nmr_coupling", "redshift"),
            *("quadrupole_moment", "moment_of_inertia", "binding_affinity"),
        ],
        "1",
    ),
}


@pytest.mark.parametrize(
    ("sure", "name", "unit"),
    [(sure, name, unit) for sure, known in UNITS.items() for name, unit in known.items()],
)
def test_a_name_says_its_unit_or_what_is_usual(sure, name, unit):
    result = guess_unit(name)
    assert (result.name, result.sure) == (unit, sure)
    assert inside(result.name)


def test_energies_are_known_by_name():
    energies = ["energy", "REF_energy", "E", "E_tot", "u0", "dft_total_energy"]
    others = ["homo", "gap", "e_above_hull", "zpve", "Fermi_energy", "egg"]
    assert [is_energy(name) for name in [*energies, *others]] == [True] * 6 + [False] * 6
    assert is_per_atom("formation energy per atom")
    assert not is_per_atom("spatial")


RANDOM = np.random.default_rng(5)
COUNTS = RANDOM.integers(0, 12, (60, 3)) + np.array([1.0, 0.0, 0.0])
SUMS = COUNTS @ np.array([-3.0, -5.5, 1.25])
NOISE = RANDOM.normal(0, 1, 60)
ONE = np.arange(1.0, 41.0)[:, None]


@pytest.mark.parametrize(
    ("values", "counts", "growth"),
    [
        (SUMS + 0.3 * NOISE, COUNTS, "extensive"),
        (SUMS / COUNTS.sum(axis=1) + 0.05 * NOISE, COUNTS, "intensive"),
        (5.0 + 0.1 * NOISE, COUNTS, "intensive"),
        (-3.5 * ONE[:, 0] + 0.05 * NOISE[:40], ONE, "extensive"),
        (10.0 * np.array([2.0, 4.0] * 20), np.array([[2.0], [4.0]] * 20), "extensive"),
        (NOISE, COUNTS, None),
        (NOISE, np.tile([3.0, 2.0], (60, 1)), None),
        (COUNTS[:11].sum(axis=1), COUNTS[:11], None),
    ],
    ids=["sum", "mean", "same", "element", "order", "noise", "alike", "few"],
)
def test_growth_with_the_number_of_atoms(values, counts, growth):
    assert classify_growth(values, counts) == growth


def test_a_value_that_nearly_all_have_is_named():
    values = [0.0] * 26 + [0.5, 1.0, 2.0, 3.0]
    targets, _ = look_at(with_info(values, "gap"))
    expected = "87 % of its values are 0: always predicting that has an error of 0.217, so look"
    assert any(reason.startswith(expected) for reason in targets["gap"].why)
    targets, _ = look_at(with_info([0.0] * 23 + [0.1 * n for n in range(1, 8)], "gap"))
    assert not any("always predicting" in reason for reason in targets["gap"].why)


def test_tails_are_heavy_where_few_structures_differ_from_what_elements_explain():
    random = np.random.default_rng(1)
    weights = random.dirichlet(np.ones(3), 400)
    explained = weights @ np.array([1.0, -2.0, 4.0])
    normal = random.normal(size=400)
    laplace = random.laplace(size=400)
    few = np.where(np.arange(400) < 16, 3.0, 0.1 * normal)
    for rest, heavy in ((normal, False), (laplace, False), (few, True), (0.0 * few, False)):
        assert has_heavy_tails(explained + rest, weights) == heavy
    assert not has_heavy_tails(few[:11], weights[:11]), "too few to tell"


def test_explained_is_judged_on_rows_that_were_not_fitted():
    weights = np.array([[1.0], [1.0], [2.0], [2.0], [3.0], [3.0]])
    fit = np.array([True, False] * 3)
    perfect = explained_variance(2.0 * weights[:, 0], weights, fit)
    assert perfect == pytest.approx(1.0, abs=1e-5)
    crossed = explained_variance(np.array([1.0, -1.0, 2.0, -2.0, 3.0, -3.0]), weights, fit)
    # fitted slope 1, held out -1, -2, -3: residuals 2, 4, 6 against a variance of 2/3 times 3
    assert crossed == pytest.approx(1.0 - (4 + 16 + 36) / 2.0, abs=1e-3)


METHANE, WATER, AMMONIA = -40.51, -76.44, -56.56
"""Total energies in Hartree (CCSD(T) near the basis limit, as in textbooks)."""


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("Hartree", 1.0), ("eV", 27.2114), ("kcal/mol", 627.51), ("kJ/mol", 2625.5), ("Rydberg", 2.0)],
)
def test_the_unit_of_all_electron_energies_is_recognised(unit, factor):
    numbers = [np.array([6, 1, 1, 1, 1]), np.array([8, 1, 1])] * 8
    counts, kinds = count_elements(numbers)
    assert kinds == [1, 6, 8]
    assert counts[0].tolist() == [4, 1, 0]
    energies = factor * np.array([METHANE, WATER] * 8)
    assert recognise_total_energy(energies, counts, kinds) == unit


def test_three_compositions_are_enough_to_recognise_all_electron_energies():
    molecules = [[6, 1, 1, 1, 1], [8, 1, 1], [7, 1, 1, 1]]
    counts, kinds = count_elements([np.array(numbers) for numbers in molecules])
    energies = np.array([METHANE, WATER, AMMONIA])
    assert recognise_total_energy(energies, counts, kinds) == "Hartree"
    assert recognise_total_energy(energies[::-1], counts, kinds) is None
    assert recognise_total_energy(energies[:2], counts[:2], kinds) is None


def test_energies_without_core_electrons_are_not_recognised():
    counts, kinds = count_elements([np.array([6, 1, 1, 1, 1]), np.array([8, 1, 1])] * 8)
    tight_binding = 27.2114 * np.array([-4.175, -5.070] * 8)  # GFN2-xTB
    assert recognise_total_energy(tight_binding, counts, kinds) is None
    heavy, elements = count_elements([np.array([29, 29])] * 20)
    assert recognise_total_energy(np.full(20, -3280.0), heavy, elements) is None


LIGHT = {1: -0.6, 6: -38.06, 7: -54.7, 8: -75.15, 9: -99.8}
"""Energies of atoms in molecules in Hartree, all-electron."""

METAL = {30: -227.0, 46: -127.9, 78: -119.3}
"""Energies of zinc, palladium and platinum in Hartree whose cores are pseudopotentials."""


def complexes(count=60):
    """Metal complexes of one metal each, and their energies in Hartree."""
    random = np.random.default_rng(7)
    results, energies = [], []
    for number in range(count):
        metal = sorted(METAL)[number % 3]
        light = random.choice(sorted(LIGHT), random.integers(8, 30), p=[0.4, 0.3, 0.1, 0.1, 0.1])
        positions = 2.0 * np.indices((4, 4, 4)).reshape(3, -1).T[: len(light) + 1]
        results.append(Atoms([metal, *light], positions))
        energies.append(METAL[metal] + sum(LIGHT[z] for z in light) + random.normal(0, 0.05))
    return results, np.array(energies)


@pytest.mark.parametrize(("unit", "factor"), [("Hartree", 1.0), ("eV", 27.2114), ("Rydberg", 2.0)])
def test_totals_with_pseudopotentials_for_metals_are_recognised_by_light_elements(unit, factor):
    structures, energies = complexes()
    counts, kinds = count_elements([atoms.numbers for atoms in structures])
    assert recognise_total_energy(factor * energies, counts, kinds) == unit
    # Without their cores, light elements are not recognised either.
    valence = counts @ [
        {1: -0.6, 6: -5.7, 7: -10.1, 8: -16.1, 9: -24.4}.get(z, -9.0) for z in kinds
    ]
    assert recognise_total_energy(valence, counts, kinds) is None
    few = slice(0, 12)  # for 8 elements
    assert recognise_total_energy(factor * energies[few], counts[few], kinds) is None


def test_beside_totals_in_hartree_the_unit_of_a_dipole_is_asked_for():
    structures, energies = complexes()
    dipoles = np.linspace(0.5, 9.0, len(structures))
    for atoms, energy, dipole in zip(structures, energies, dipoles, strict=True):
        atoms.info |= {"Dipole_M": dipole, "Electronic_E": energy}
    targets, _ = look_at(structures, reader="database")
    energy, dipole = targets["Electronic_E"], targets["Dipole_M"]
    assert energy.config.energy == "total"
    assert (energy.unit.name, energy.unit.sure) == ("Hartree", "recognised")
    assert (dipole.unit.name, dipole.unit.sure) == ("?", "unknown")
    assert dipole.unit.choices[:2] == ("debye", "e*angstrom")
    told, _ = look_at(structures, reader="database", units={"Dipole_M": "debye"})
    assert (told["Dipole_M"].unit.name, told["Dipole_M"].unit.sure) == ("debye", "said")


@pytest.mark.parametrize(
    ("name", "reader", "structures", "unit"),
    [
        ("dipole", "smiles", None, "?"),
        ("mu", "table", None, "?"),
        ("dipole", "extxyz", None, "e*angstrom"),
        ("dipole", "table", metals(20), "e*angstrom"),
        ("mu", "table", metals(20), "1"),
    ],
)
def test_dipoles_of_molecules_are_asked_for_but_in_files_of_ase(name, reader, structures, unit):
    structures = structures or molecules()[0]
    values = np.linspace(0.3, 4.0, len(structures))
    targets, _ = look_at(with_info(values, name, structures), reader=reader)
    assert targets[name].unit.name == unit


def test_the_user_is_not_asked_for_the_unit_of_what_gets_no_head():
    structures = molecules()[0]
    vectors = np.random.default_rng(2).normal(0.0, 1.0, (len(structures), 3))
    targets, _ = look_at(with_info([*vectors], "dipole", structures), reader="table")
    assert not targets["dipole"].head
    assert (targets["dipole"].unit.name, targets["dipole"].unit.sure) == ("1", "unknown")
    told, _ = look_at(structures, reader="table", wanted=["dipole"])
    assert told["dipole"].unit.name == "?"


HOMO = np.linspace(-0.29, -0.22, 20)
LUMO = np.linspace(0.09, 0.02, 20)
"""Levels of molecules in Hartree."""


@pytest.mark.parametrize(
    ("levels", "unit", "sure"),
    [
        ({"homo": HOMO, "lumo": LUMO, "gap": LUMO - HOMO}, "Hartree", "recognised"),
        ({"homo": 27.2114 * HOMO, "lumo": 27.2114 * LUMO}, "eV", "guessed"),
        ({"lumo": LUMO}, "Hartree", "recognised"),
        ({"ionization_energy": -HOMO}, "Hartree", "recognised"),
        ({"homo": 27211.4 * HOMO}, "?", "unknown"),
        ({"singlet_triplet_gap": 3.0 * LUMO}, "Hartree", "recognised"),
        ({"fermi_level": HOMO}, "Hartree", "recognised"),
        ({"fermi_level": 27.2114 * HOMO}, "eV", "guessed"),
        ({"orbital_energies": np.outer(HOMO, [40.0, 3.0, 2.0, 1.0])}, "Hartree", "guessed"),
    ],
    ids=["hartree", "ev", "lumo", "ip", "mev", "st", "fermi", "fermi_ev", "all"],
)
def test_levels_agree_with_total_energies_where_their_size_allows_it(levels, unit, sure):
    structures, energies = molecules()
    for number, atoms in enumerate(structures):
        values = {name: column[number] for name, column in levels.items()}
        atoms.info = {**values, "u0": energies[number]}
    targets, _ = look_at(structures, reader="table")
    assert targets["u0"].unit.name == "Hartree"
    for name in levels:
        assert (targets[name].unit.name, targets[name].unit.sure) == (unit, sure), name


@pytest.mark.parametrize("reader", ["table", "extxyz"])
def test_levels_that_are_not_possible_in_ev_are_asked_for(reader):
    structures = with_info(HOMO, "homo", molecules()[0])
    targets, _ = look_at(with_info(LUMO, "lumo", structures), reader=reader)
    # The LUMO alone could be in eV, but not beside this HOMO.
    for name in ("homo", "lumo"):
        assert (targets[name].unit.name, targets[name].unit.sure) == ("?", "unknown")
        assert targets[name].unit.choices == ("Hartree", "Rydberg")
    said, _ = look_at(structures, reader=reader, units={"homo": "Hartree"})
    assert (said["lumo"].unit.name, said["lumo"].unit.sure) == ("Hartree", "recognised")


def test_narrow_gaps_of_crystals_metals_and_between_spins_are_possible_in_ev():
    narrow = np.linspace(0.0, 0.3, 20)
    crystals, _ = look_at(with_info(narrow, "gap", metals(20)), reader="table")
    assert (crystals["gap"].unit.name, crystals["gap"].unit.sure) == ("eV", "guessed")
    clusters = [Atoms("Na3", np.eye(3) * (3.0 + 0.01 * n)) for n in range(20)]
    assert look_at(with_info(narrow, "gap", clusters), reader="table")[0]["gap"].unit.name == "eV"
    between, _ = look_at(with_info(narrow, "singlet_triplet_gap", molecules()[0]), reader="table")
    assert between["singlet_triplet_gap"].unit.name == "eV"


def test_the_energy_of_a_gap_potential_is_no_gap():
    energies = -900.0 - np.arange(20.0) ** 2
    targets, _ = look_at(with_info(energies, "gap_energy", metals(20)))
    assert (targets["gap_energy"].unit.name, targets["gap_energy"].unit.sure) == ("eV", "guessed")
    assert guess_unit("homogeneity").name == "1"


def test_units_that_the_file_states_are_said_and_unknown_ones_are_named():
    structures, energies = molecules()
    values = {"gap": LUMO - HOMO, "mu": 10.0 * LUMO, "A": HOMO**2, "u0": np.array(energies)}
    for name, column in values.items():
        with_info(column, name, structures)
    stated = {"gap": "Ha", "mu": "D", "A": "GHz", "u0": "furlong"}
    targets, _ = look_at(structures, reader="database", stated=stated)
    assert [targets[name].unit.name for name in ("gap", "mu", "A")] == ["Hartree", "debye", "1"]
    assert {targets[name].unit.sure for name in ("gap", "mu")} == {"said"}
    assert "'GHz'" in targets["A"].unit.why
    assert (targets["u0"].unit.name, targets["u0"].unit.sure) == ("Hartree", "recognised")
    told, _ = look_at(structures, reader="database", stated=stated, units={"gap": "eV"})
    assert told["gap"].unit.name == "eV"


def test_an_energy_per_atom_may_be_said_to_be_in_ev():
    means = [np.mean([PER_ATOM[z] for z in atoms.numbers]) for atoms in metals(40)]
    structures = with_info(means, "formation_energy_per_atom (eV)", metals(40))
    targets, _ = look_at(structures, reader="table")
    (result,) = (each for key, each in targets.items() if key.startswith("formation"))
    assert (result.unit.name, result.unit.sure) == ("eV/atom", "said")
    assert result.config.energy == "per_atom"


def test_an_energy_of_molecules_in_a_table_is_asked_for_even_where_sizes_are_alike():
    structures = [molecule("CH3OH") for _ in range(20)]
    targets, _ = look_at(
        with_info(np.linspace(3.0, 5.0, 20), "internal_energy", structures), reader="table"
    )
    energy = targets["internal_energy"]
    assert (energy.config.energy, energy.unit.name) == (None, "?")
    assert "kcal/mol" in energy.unit.choices
    in_ase, _ = look_at(structures, reader="extxyz")
    assert in_ase["internal_energy"].unit.name == "eV"


def with_atoms(values, name):
    """Metals whose atoms have numbers; ``values`` makes them of the number of atoms."""
    structures = [atoms.copy() for atoms in metals()]
    random = np.random.default_rng(11)
    for atoms in structures:
        atoms.arrays[name] = values(random, len(atoms))
    return structures


ZERO_ONE = [0, 1, 1, 0, 1] * 6


def mask(random, count):
    return random.integers(0, 2, count)


@pytest.mark.parametrize(
    "structures",
    [
        with_atoms(mask, "fixed"),
        with_atoms(lambda random, count: mask(random, count) > 0, "train_mask"),
        with_atoms(lambda random, count: random.integers(0, 2, (count, 3)), "free_axes"),
        with_atoms(lambda random, count: random.integers(0, 3, count), "atom tags"),
        with_atoms(mask, "is_surface"),
        with_info(ZERO_ONE, "mask"),
        with_info([bool(n) for n in ZERO_ONE], "converged"),
        with_info(ZERO_ONE, "is_train"),
        with_info([0, 1, 2] * 10, "tag"),
    ],
)
def test_what_selects_atoms_or_structures_is_no_target_unless_wanted(structures):
    targets, made = look_at(structures)
    ((name, why),) = made.left_out
    assert targets == {}
    assert "seems to select" in why
    wanted, _ = look_at(structures, wanted=[make_identifier(name, "target")])
    assert list(wanted) == [name]


def test_what_may_mark_something_waits_and_a_class_is_predicted():
    assert not look_at(with_info(ZERO_ONE, "is_metal"))[0]["is_metal"].head
    assert not look_at(with_atoms(mask, "reactive"))[0]["reactive"].head
    assert look_at(with_info(ZERO_ONE, "toxic"))[0]["toxic"].head
    # Numbers that a mask's name does not explain stay.
    assert "mask" in look_at(with_info(NOISE[:30], "mask"))[0]


SIZES = np.array([len(atoms) for atoms in metals()])
NUMBERS = np.round(np.random.default_rng(8).normal(-3.0, 0.4, 30), 4)


@pytest.mark.parametrize(
    ("columns", "stays", "why"),
    [
        ({"energy_per_atom": NUMBERS, "energy": SIZES * NUMBERS}, "energy", "is energy per atom:"),
        ({"e_mean": np.round(NUMBERS, 3), "e": SIZES * NUMBERS}, "e", "is e per atom:"),
        ({"x": NUMBERS, "x_sum": SIZES * NUMBERS}, "x", "is x times the number of atoms:"),
        ({"gap": NUMBERS, "gap_mev": 1000 * NUMBERS}, "gap_mev", "is gap_mev times 0.001:"),
        ({"a": NUMBERS, "b": np.round(-0.25 * NUMBERS, 4)}, "a", "is a times -0.25"),
        ({"a": NUMBERS, "b": NUMBERS}, "a", "has the same numbers as a"),
        (
            {"energy": SIZES * NUMBERS, "energy_hartree_per_atom": NUMBERS / 27.2114},
            "energy",
            "is energy per atom times 0.0367493:",
        ),
    ],
)
def test_one_quantity_in_two_columns_is_one_target(columns, stays, why):
    structures = metals()
    for atoms in structures:
        atoms.calc = None
    for name, values in columns.items():
        with_info([float(value) for value in values], name, structures)
    targets, made = look_at(structures)
    assert list(targets) == [stays]
    ((name, message),) = made.left_out
    assert message.startswith(why), message
    assert name in look_at(structures, wanted=[name])[0]


def test_quantities_that_differ_by_more_than_their_last_digits_stay_apart():
    structures = metals()
    with_info([float(n) for n in np.round(1000 * NUMBERS, 3)], "enthalpy", structures)
    heat = np.round(1000 * NUMBERS + 0.05 * NOISE[:30], 3)
    with_info([float(n) for n in heat], "enthalpy_298", structures)
    with_info(ZERO_ONE, "toxic", structures)
    with_info([0, 1, 0, 0, 1] * 6, "active", structures)
    targets, _ = look_at(structures)
    assert {"enthalpy", "enthalpy_298", "toxic", "active"} <= set(targets)


def test_a_warning_quotes_the_values_of_the_file():
    """The energies are compared per atom; -777 is in the file, -777 / 4 is not."""
    structures = metals(150)
    energies = [atoms.calc.results["energy"] for atoms in structures]
    structures[5].calc.results["energy"] = -777.0
    middle = np.median([*energies[:5], -777.0, *energies[6:]])
    _, made = look_at(structures)
    (message,) = made.warnings
    assert "1 of 150 values far from all others per atom (as -777" in message
    assert f"the median is {middle:.4g})" in message


@pytest.mark.parametrize("count", [5, 14, 60, 99, 500])
@pytest.mark.parametrize("wrong", [1e6, -1e5])
def test_one_wrong_value_is_named_at_any_number_of_structures(count, wrong):
    values = [1.0 + 0.1 * (number % 7) for number in range(count)]
    values[count // 2] = wrong
    _, made = look_at(with_info(values))
    assert len(made.warnings) == 1
    assert f"y has 1 of {count} values far from all others (as {wrong:.4g}" in made.warnings[0]


def test_one_wrong_energy_of_a_single_composition_is_named():
    structures = [bulk("Cu", cubic=True) for _ in range(14)]
    for number, atoms in enumerate(structures):
        energy = -22.0 + 0.1 * number
        forces = np.full((4, 3), 0.1 + 0.01 * number)
        if number == 1:
            energy, forces[2] = 19858.0, 16657.0
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
    _, made = look_at(structures)
    told = [text for text in made.warnings if "far from all others" in text]
    assert any(
        "energy has 1 of 14 values far from all others per atom (as 1.986e+04" in t for t in told
    )
    assert any("forces has 1 of 14 structures far from all others (as 2.885e+04" in t for t in told)


TAILS = {
    "exponential": lambda random, count: random.exponential(1.0, count),
    "log-normal": lambda random, count: random.lognormal(0.0, 1.0, count),
    "Student t, 3": lambda random, count: random.standard_t(3, count),
    "mostly zero": lambda random, count: (
        random.exponential(2.0, count) * (random.random(count) < 0.1)
    ),
    "one in all": lambda random, count: 3.0 * (np.arange(count) == 2),
    "two kinds": lambda random, count: (
        random.normal(0.0, 1.0, count) + 500.0 * (random.random(count) < 0.3)
    ),
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("count", [8, 14, 60, 99, 1000])
def test_an_ordinary_tail_is_not_far_from_the_others(tail, count):
    """By the tail of Student's t with 3 degrees, 100 samples hold 0.01 such values."""
    if tail == "two kinds" and count < 60:
        pytest.skip("one of another kind is as far from all others as an error is")
    for seed in range(100):
        values = TAILS[tail](np.random.default_rng(seed), count)
        assert not mark_far(values).any(), (seed, np.sort(np.abs(values))[-3:])


@pytest.mark.parametrize(
    ("name", "lowest", "bound"),
    [
        ("band_gap", 0.0, 0.0),
        ("Band gap (eV)", 0.1, 0.0),
        ("homo_lumo_gap", 0.0, 0.0),
        ("gap", -0.1, None),
        ("gap_error", 0.0, None),
        ("singlet_triplet_gap", 0.0, None),
        ("energy", 0.0, None),
    ],
)
def test_gaps_alone_are_never_negative(name, lowest, bound):
    values = lowest + np.random.default_rng(0).random(30)
    values[0] = lowest
    targets, _ = look_at(with_info(values, name))
    assert targets[name].config.min == bound


def charged(total, error=0.0, count=20):
    """Water and methane with random charges that sum to a total for each structure."""
    random = np.random.default_rng(8)
    structures = [molecule("H2O" if number % 2 else "CH4") for number in range(count)]
    for number, atoms in enumerate(structures):
        charges = random.normal(0, 0.3, len(atoms))
        wanted = total(number) + error * (number == 0)
        atoms.arrays["q"] = charges - (charges.sum() - wanted) / len(atoms)
    return structures


@pytest.mark.parametrize(
    ("structures", "expected"),
    [
        (charged(lambda number: 0.0), 0.0),
        (charged(lambda number: -1.0, error=0.004), -1.0),
        (charged(lambda number: 0.0, error=0.05), None),
        (charged(lambda number: 0.5), None),
        (charged(lambda number: number % 2), None),
        (charged(lambda number: 0.0, count=8), None),
    ],
    ids=["neutral", "anions", "one is off", "no whole number", "two totals", "few"],
)
def test_a_common_sum_of_atoms_is_proposed(structures, expected):
    targets, _ = look_at(structures)
    assert targets["q"].config.sum == expected


@pytest.mark.parametrize(
    ("count", "says"),
    [(5, None), (12, None), (2, "a tensor or a spectrum"), (9, "a tensor or a spectrum")],
)
def test_many_numbers_of_equal_count_are_a_spectrum(count, says):
    values = list(np.random.default_rng(count).uniform(0.0, 1.0, (30, count)))
    targets, made = look_at(with_info(values, "dos"))
    if says is None:
        dos = targets["dos"]
        kind = (dos.config.level, dos.config.shape, dos.config.size)
        assert (*kind, dos.head) == ("graph", "spectrum", count, True)
        assert f"{count} numbers in each structure" in dos.why[0]
    else:
        assert says in dict(made.left_out)["dos"]


def test_many_numbers_of_each_atom_are_a_spectrum():
    structures = metals()
    for atoms in structures:
        atoms.arrays["local"] = np.random.default_rng(len(atoms)).normal(size=(len(atoms), 7))
    targets, _ = look_at(structures)
    config = targets["local"].config
    assert (config.level, config.shape, config.size) == ("node", "spectrum", 7)
