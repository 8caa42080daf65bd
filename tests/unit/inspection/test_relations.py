"""How properties depend on each other, on structures made for it; expected values by hand."""

import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from made_properties import PER_ATOM, look_at, metals, with_info

NOISE = np.random.default_rng(5).normal(0, 1, 30)
ZERO_ONE = [0, 1, 1, 0, 1] * 6


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


VIRIAL = "the strain derivative of dft_energy: stress = -virial / volume"
TENSILE = "the strain derivative of dft_energy, positive when tensile, as in ASE"


@pytest.mark.parametrize(
    ("name", "given", "unit", "says"),
    [
        ("dft_forces", None, "eV/angstrom", "minus the gradient of dft_energy"),
        ("dft_virial", None, "eV(virial)", VIRIAL),
        ("dft_stress", "eV", "eV(virial)", VIRIAL),
        ("dft_stress", None, "eV/angstrom^3", TENSILE),
        ("dft_stress", "GPa", "GPa(stress)", TENSILE),
    ],
)
def test_a_derivative_says_of_which_energy_and_with_which_sign(name, given, unit, says):
    units = {} if given is None else {name: given}
    targets, _ = look_at(calculators("dft_energy", forces=[name]), units=units)
    target = targets[name]
    assert (target.config.derived_from, target.unit.name) == ("dft_energy", unit)
    assert target.why[0] == says


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
