"""Each judgement on a property, on structures made for it; expected values by hand."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from made_properties import PER_ATOM, look_at, metals, with_info

from hydragnn_hpo.data.properties import make_identifier, mark_far

NOISE = np.random.default_rng(5).normal(0, 1, 60)


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


def test_an_energy_per_atom_does_not_grow():
    structures = [a.copy() for a in metals(40)]
    means = [np.mean([PER_ATOM[z] for z in atoms.numbers]) for atoms in structures]
    targets, _ = look_at(with_info(means, "formation_energy", structures), reader="table")
    result = targets["formation_energy"]
    assert (result.unit.name, result.unit.sure) == ("eV/atom", "guessed")
    assert result.config.energy == "per_atom"


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


def test_a_value_that_nearly_all_have_is_named():
    values = [0.0] * 26 + [0.5, 1.0, 2.0, 3.0]
    targets, _ = look_at(with_info(values, "gap"))
    expected = "87 % of its values are 0: always predicting that has an error of 0.217, so look"
    assert any(reason.startswith(expected) for reason in targets["gap"].why)
    targets, _ = look_at(with_info([0.0] * 23 + [0.1 * n for n in range(1, 8)], "gap"))
    assert not any("always predicting" in reason for reason in targets["gap"].why)


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
