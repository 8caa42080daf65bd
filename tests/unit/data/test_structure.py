"""One structure to one graph: units, groups, and every kind of bad input."""

from collections.abc import Callable

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.errors import DataError

Make = Callable[..., Graph]
ENERGY = TargetConfig(level="graph", unit="kcal/mol")
CHARGE = TargetConfig(level="node", unit="e")


def refused(make: Make, atoms: Atoms, verb: str = "has", **targets: TargetConfig) -> str:
    """Give the sentence, which names file, number and id."""
    with pytest.raises(DataError) as caught:
        make(atoms, **targets)
    sentence = str(caught.value)
    assert sentence.startswith(f"some.extxyz: structure 7 (it) {verb} ")
    assert "; " in sentence  # what to do
    return sentence


def test_targets_arrive_in_our_units(graph: Make) -> None:
    water = molecule("H2O")
    water.info["energy"] = 100.0
    water.arrays["q"] = np.array([-0.8, 0.4, 0.4])
    made = graph(water, energy=ENERGY, charge=CHARGE.model_copy(update={"key": "q"}))
    # 1 kcal/mol is 0.0433641 eV (CODATA 2018).
    assert made.targets["energy"] == pytest.approx([4.33641], rel=1e-5)
    np.testing.assert_array_equal(made.targets["charge"], [[-0.8], [0.4], [0.4]])


def test_results_of_a_calculator_are_found(graph: Make) -> None:
    water = molecule("H2O")
    water.calc = SinglePointCalculator(water, energy=-14.0, forces=np.ones((3, 3)))
    forces = TargetConfig(level="node", shape="vector", unit="eV/angstrom")
    made = graph(water, e=TargetConfig(key="energy", level="graph", unit="eV"), forces=forces)
    assert made.targets["e"] == [-14.0]
    np.testing.assert_array_equal(made.targets["forces"], np.ones((3, 3)))


def test_a_missing_target_is_named(graph: Make) -> None:
    said = refused(graph, molecule("H2O"), energy=ENERGY)
    assert "no graph property 'energy' for target 'energy'" in said
    assert "optional = true" in said


def test_an_optional_target_may_be_missing(graph: Make) -> None:
    optional = ENERGY.model_copy(update={"optional": True})
    assert graph(molecule("H2O"), energy=optional).targets == {}
    water = molecule("H2O")
    water.info["energy"] = np.nan
    assert graph(water, energy=optional).targets == {}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_targets_that_are_not_finite_are_named(graph: Make, value: float) -> None:
    water = molecule("H2O")
    water.info["energy"] = value
    assert f"has 'energy' = {value}" in refused(graph, water, energy=ENERGY)
    water.arrays["charge"] = np.array([0.0, value, 0.0])
    assert f"'charge' = {value} at atom 2" in refused(graph, water, charge=CHARGE)


def test_infinity_is_never_optional(graph: Make) -> None:
    water = molecule("H2O")
    water.info["energy"] = np.inf
    refused(graph, water, energy=ENERGY.model_copy(update={"optional": True}))


def test_text_is_no_target(graph: Make) -> None:
    water = molecule("H2O")
    water.info["energy"] = "None"
    assert "'energy' = 'None', which is no number" in refused(graph, water, energy=ENERGY)


def test_a_wrong_shape_is_named(graph: Make) -> None:
    water = molecule("H2O")
    water.arrays["charge"] = np.zeros((3, 2))
    assert "of shape [3, 2], wanted is [3, 1]" in refused(graph, water, charge=CHARGE)
    water.info["energy"] = [1.0, 2.0]
    assert "of shape [2], wanted is [1]" in refused(graph, water, energy=ENERGY)
    water.calc = SinglePointCalculator(water)
    water.calc.results["forces"] = np.zeros((4, 3))
    forces = TargetConfig(level="node", shape="vector", unit="eV/angstrom")
    assert "of shape [4, 3], wanted is [3, 3]" in refused(graph, water, forces=forces)


def test_positions_must_be_finite(graph: Make) -> None:
    water = molecule("H2O")
    water.positions[1, 2] = np.nan
    assert "position [0.0, 0.763239, nan] at atom 2" in refused(graph, water)


@pytest.mark.parametrize("number", [0, 119])
def test_unknown_elements_are_named(graph: Make, number: int) -> None:
    water = molecule("H2O")
    water.numbers[2] = number
    assert f"unknown element at atom 3 (atomic number {number}" in refused(graph, water)


def test_two_atoms_at_one_place(graph: Make) -> None:
    water = molecule("H2O")
    water.positions[2] = water.positions[0] + [0.05, 0, 0]
    said = refused(graph, water)
    assert "atom 1 and atom 3 at one place (0.05 angstrom apart)" in said
    assert "graphs.min_distance" in said


def test_two_atoms_at_one_place_across_the_border(graph: Make) -> None:
    pair = Atoms("Cu2", [[0.01, 2, 2], [4.98, 2, 2]], cell=[5, 5, 5], pbc=True)
    assert "atom 1 and atom 2 at one place (0.03 angstrom" in refused(graph, pair)
    pair.pbc = (False, True, True)
    assert len(graph(pair).numbers) == 2


@pytest.mark.parametrize(
    "cell",
    [np.zeros((3, 3)), np.diag([4.0, 4.0, 0.0]), [[4, 0, 0], [0, 4, 0], [4, 4, 0]], [4, 4, 0.05]],
    ids=["none", "open", "flat", "thin"],
)
def test_a_periodic_cell_spans_a_volume(graph: Make, cell: np.ndarray) -> None:
    assert "that span no volume" in refused(graph, Atoms("Cu", cell=cell, pbc=True))


def test_open_directions_need_no_lattice_vector(graph: Make) -> None:
    sheet = Atoms("Cu", cell=[2.5, 2.5, 0], pbc=[1, 1, 0])
    assert len(graph(sheet).edges) == 8  # four at 2.5 and four at 3.54 angstrom


@pytest.mark.parametrize("pbc", [(1, 1, 1), (1, 0, 0)], ids=str)
def test_atoms_outside_are_taken_until_shifts_overflow(graph: Make, pbc: tuple[int, ...]) -> None:
    # 9,999 cells of 3 angstrom away there are edges of 10,000 cells; 40,000 would not fit 16 bits.
    pair = Atoms("Cu2", [[0, 0, 0], [3 * 9999 + 1.5, 0, 0]], cell=[3, 9, 9], pbc=pbc)
    assert np.abs(graph(pair).edge_shift[:, 0]).max() == 10_000
    pair.positions[1, 0] = 3 * 40_000 + 1.5
    said = refused(graph, pair)
    assert "has atom 2 at [120001.5, 0.0, 0.0], 4e+04 cells from the cell" in said


@pytest.mark.parametrize("pbc", [(0, 0, 0), (1, 0, 0), (0, 1, 1)], ids=str)
def test_stray_atoms_are_refused(graph: Make, pbc: tuple[int, ...]) -> None:
    # The cutoff is 4 angstrom, 300 of it are 1200: only open directions count.
    pair = Atoms("Cu2", [[9, 9, 9]] * 2, cell=[5, 7, 8], pbc=pbc)
    way = np.array([0, 1, 0]) if pbc[0] else np.array([1, 0, 0])
    pair.positions[1] += 1199 * way
    assert len(graph(pair).numbers) == 2
    pair.positions[1] += 2 * way
    assert "1201 angstrom wide, more than 300 times the cutoff of 4 ang" in refused(
        graph, pair, "is"
    )


def test_empty_space_is_refused(graph: Make) -> None:
    box = Atoms("Cu", cell=[9, 9, 1300], pbc=True)
    assert "is 1300 angstrom wide" in refused(graph, box, "is")
    box.pbc = (1, 1, 0)
    assert len(graph(box).numbers) == 1


def test_no_atoms(graph: Make) -> None:
    assert "has no atoms" in refused(graph, Atoms())


def test_disordered_crystals_are_refused(graph: Make) -> None:
    alloy = bulk("Cu")
    alloy.info["occupancy"] = {"0": {"Cu": 0.75, "Au": 0.25}}
    assert "partial occupancy (site 0: Cu 0.75, Au 0.25)" in refused(graph, alloy)
    alloy.info["occupancy"] = {"0": {"Cu": 1.0}}
    assert len(graph(alloy).numbers) == 1


def grouped(atoms: Atoms, group: str, published: str | None = None) -> Graph:
    place = Place("f", 3, "it")  # type: ignore[arg-type]
    return graph_of(atoms, place, Rules(3.0, 0.1, {}, group, published))


def test_a_supercell_has_the_composition_of_its_cell() -> None:
    salt = bulk("NaCl", "rocksalt", a=5.6)
    assert grouped(salt, "composition").group == grouped(salt * (2, 1, 1), "composition").group
    assert grouped(salt, "composition").group != grouped(bulk("Cu"), "composition").group


def test_groups_and_published_splits_come_from_info() -> None:
    water = molecule("H2O")
    water.info.update(family="wet", fold=np.int64(0))
    made = grouped(water, "family", "fold")
    assert (made.group, made.published) == ("wet", "0")
    assert grouped(water, "structure").group == "f:3"
    with pytest.raises(DataError, match="has no 'tribe', which the card's split asks for"):
        grouped(water, "tribe")
