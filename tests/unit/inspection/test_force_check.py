"""Forces of known relation to the energies; expected ratios from the definition of a force."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from scipy.spatial.transform import Rotation

from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.data.columns import columns_of
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.inspection.force_check import LabelledStructure, compare_forces, read_labels

STIFF = 8.0
"""Spring constant of every atom, eV/angstrom^2."""


def label(atoms, energy, forces):
    cell = np.asarray(atoms.cell.array)
    return LabelledStructure(atoms.numbers, atoms.positions, cell, atoms.pbc, energy, forces)


def springs(frame, count=30, factor=1.0):
    """Displaced copies of a structure; their atoms are bound to its places by springs.

    A spring's energy is quadratic, so that half the sum of both forces times the step is exact.
    """
    random = np.random.default_rng(2)
    made = []
    for _ in range(count):
        away = random.normal(0.0, 0.04, frame.positions.shape)
        atoms = frame.copy()
        forces = -STIFF * away
        atoms.positions += away
        made.append(label(atoms, -7.0 + 0.5 * STIFF * float((away**2).sum()), factor * forces))
    return made


def crystal():
    """Copper with an atom at the border of the cell."""
    atoms = bulk("Cu", cubic=True)
    atoms.wrap()
    return atoms


def wrapped(structures):
    """The same structures, each atom in the cell."""
    made = []
    for each in structures:
        atoms = Atoms(each.numbers, each.positions, cell=each.cell, pbc=each.pbc)
        atoms.wrap()
        made.append(label(atoms, each.energy, each.forces))
    return made


def test_forces_that_are_minus_the_gradient_agree():
    found = compare_forces(springs(crystal()))
    assert found.verdict == "agree"
    assert found.ratio == pytest.approx(1.0, abs=1e-9)
    assert found.sentence.startswith("agree with the energies")


def test_steps_go_to_the_nearest_image():
    found = compare_forces(wrapped(springs(crystal())))
    assert (found.verdict, round(found.ratio, 9)) == ("agree", 1.0)


def test_molecules_may_turn_between_frames():
    """Springs between all atoms, which do not feel that the molecule turns and moves."""
    random = np.random.default_rng(2)
    made = []
    rest = molecule("NH3").get_all_distances()
    for _ in range(30):
        atoms = molecule("NH3")
        atoms.positions += random.normal(0.0, 0.04, (4, 3))
        atoms.positions = Rotation.random(rng=random).apply(atoms.positions) + random.normal(size=3)
        vectors = atoms.get_all_distances(vector=True)
        stretch = atoms.get_all_distances() - rest
        pull = stretch / np.maximum(atoms.get_all_distances(), 1e-9)
        energy = 0.25 * STIFF * float((stretch**2).sum())
        made.append(label(atoms, energy, STIFF * (pull[:, :, None] * vectors).sum(axis=1)))
    found = compare_forces(made)
    assert found.verdict == "agree"
    assert found.ratio == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (-1.0, "the sign of one is wrong"),
        (1.0 / 51.42207, "Hartree/bohr for eV/angstrom"),
        (0.5291772, "bohr for angstrom"),
        (23.06055, "kcal/mol for eV"),
        (-0.5291772, "the sign of one is wrong, and the unit of one is wrong"),
    ],
)
def test_a_wrong_sign_or_unit_contradicts(factor, says):
    found = compare_forces(springs(crystal(), factor=factor))
    assert found.verdict == "contradict"
    assert found.ratio == pytest.approx(1.0 / factor, rel=1e-9)
    assert says in found.sentence


def with_energies(structures, energies):
    positions = [Atoms(s.numbers, s.positions, cell=s.cell, pbc=s.pbc) for s in structures]
    rows = zip(positions, energies, structures, strict=True)
    return [label(atoms, energy, s.forces) for atoms, energy, s in rows]


def test_energies_of_another_calculation_contradict():
    structures = springs(crystal(), count=60)
    other = np.random.default_rng(5).normal(-7.0, 0.3, 60)
    found = compare_forces(with_energies(structures, other))
    assert (found.verdict, "of another calculation" in found.sentence) == ("contradict", True)


def test_energies_with_the_kinetic_energy_contradict():
    structures = springs(crystal(), count=60)
    constant = -7.0 + 1e-4 * np.arange(60)
    found = compare_forces(with_energies(structures, constant))
    assert (found.verdict, "kinetic" in found.sentence) == ("contradict", True)


def test_one_wrong_structure_does_not_decide():
    structures = springs(crystal())
    energies = [each.energy for each in structures]
    energies[3] = 19858.0
    structures[3].forces[:] *= 1e4
    assert compare_forces(with_energies(structures, energies)).verdict == "agree"
    few = np.random.default_rng(7).normal(-22.0, 1.0, 14)
    few[1] = 19858.0
    chosen = with_energies([structures[k] for k in (0, 3, *range(4, 16))], few)
    assert compare_forces(chosen).verdict == "unclear"


def test_noise_of_the_energies_is_no_contradiction():
    structures = springs(crystal(), count=60)
    noise = np.random.default_rng(6).normal(0.0, 0.01, 60)
    found = compare_forces(with_energies(structures, [s.energy for s in structures] + noise))
    assert found.verdict == "agree"


def alloys(count=80, elements=("Cu", "Ag", "Au"), rattle=0.12):
    """Strained cells of random elements: none is a small step from another one."""
    random = np.random.default_rng(1)
    made = []
    for seed in range(count):
        atoms = bulk("Cu", a=float(random.uniform(3.6, 4.2)), cubic=True)
        atoms.symbols = random.choice(list(elements), 4)
        atoms.rattle(float(random.uniform(0.2, 1.0)) * rattle, seed=seed)
        atoms.calc = EMT()
        made.append(label(atoms, atoms.get_potential_energy(), atoms.get_forces()))
    return made


def scaled(structures, factor):
    made = []
    for each in structures:
        atoms = Atoms(each.numbers, each.positions, cell=each.cell, pbc=each.pbc)
        made.append(label(atoms, each.energy, factor * each.forces))
    return made


def test_the_sign_is_found_among_structures_that_are_no_steps_of_each_other():
    right = alloys()
    assert compare_forces(right).verdict == "agree"
    wrong = compare_forces(scaled(right, -1.0))
    assert wrong.verdict == "contradict"
    assert "sign" in wrong.sentence
    for factor in (1.0 / 51.42207, 23.06055):
        assert "the unit of one is wrong" in compare_forces(scaled(right, factor)).sentence


def test_what_tells_nothing_is_no_contradiction():
    right = alloys(count=40)
    assert compare_forces(right[:25]) is None, "too few"
    relaxed = [
        label(Atoms(s.numbers, s.positions, cell=s.cell), s.energy, 1e-3 * s.forces[::-1])
        for s in right
    ]
    assert compare_forces(relaxed).verdict == "unclear"
    random = np.random.default_rng(3)
    other = random.permutation([s.energy for s in right])
    assert compare_forces(with_energies(scaled(right, -1.0), other)).verdict == "unclear"
    still = with_energies(right, np.zeros(40))
    for each in still:
        each.forces[:] = 0.0
    assert compare_forces(still) is None


def test_labels_are_read_where_both_are_known():
    targets = {
        "e": TargetConfig(level="graph", unit="eV", energy="total", optional=True),
        "f": TargetConfig(
            level="node", shape="vector", unit="eV/bohr", derived_from="e", optional=True
        ),
    }
    graphs = []
    for number in range(4):
        atoms = bulk("Cu", cubic=True)
        atoms.info["e"] = np.nan if number == 1 else float(number)
        atoms.arrays["f"] = np.full((4, 3), np.nan if number == 2 else 1.0)
        graphs.append(graph_of(atoms, Place(None, number, f"s{number}"), Rules(3.0, 0.1, targets)))
    found = list(read_labels(columns_of(graphs, targets), "e", "f"))
    assert [each.energy for each in found] == [0.0, 3.0]
    # 1 eV/bohr is 1 / 0.529177 eV/angstrom
    assert found[0].forces == pytest.approx(1.0 / 0.529177, rel=1e-5)
