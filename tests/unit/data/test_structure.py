"""One structure to one graph: units, groups, and every kind of bad input."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.neighborlist import neighbor_list

from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.data import structure
from hydragnn_hpo.data.columns import Graph
from hydragnn_hpo.data.structure import (
    Place,
    Rules,
    compute_laplacian_encodings,
    edge_vectors,
    find_edges,
    graph_of,
)
from hydragnn_hpo.errors import DataError

Make = Callable[..., Graph]
ENERGY = TargetConfig(level="graph", unit="kcal/mol")
CHARGE = TargetConfig(level="node", unit="e")


def refused(make: Make, atoms: Atoms, verb: str = "has", **targets: TargetConfig) -> str:
    """Return the sentence, which names file, number and id."""
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


def test_a_dipole_arrives_in_e_angstrom(graph: Make) -> None:
    atoms = water()
    atoms.info["mu"] = [0.0, 0.0, 1.8546]
    made = graph(atoms, mu=TargetConfig(level="graph", shape="vector", unit="debye"))
    # 1 debye is 1e-21 C m^2 / s over the speed of light: 0.2081943 e angstrom.
    np.testing.assert_allclose(made.targets["mu"], [0.0, 0.0, 0.386117], rtol=1e-5)


ALPHA = TargetConfig(level="graph", shape="tensor", unit="angstrom^3")
FULL = [[1.0, 6.0, 5.0], [6.0, 2.0, 4.0], [5.0, 4.0, 3.0]]


@pytest.mark.parametrize("given", [FULL, np.ravel(FULL), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
def test_tensors_of_structures_have_nine_or_six_numbers(graph: Make, given: object) -> None:
    atoms = molecule("CO")
    atoms.info["alpha"] = given
    np.testing.assert_array_equal(graph(atoms, alpha=ALPHA).targets["alpha"], np.ravel(FULL))


def test_small_asymmetry_is_averaged_and_large_is_refused(graph: Make) -> None:
    atoms = molecule("CO")
    tensor = np.array(FULL)
    tensor[0, 1] += 0.04
    atoms.info["alpha"] = tensor
    assert graph(atoms, alpha=ALPHA).targets["alpha"][[1, 3]].tolist() == [6.02, 6.02]
    tensor[0, 1] += 0.04
    assert "differ from those of its transpose by 0.08" in refused(graph, atoms, alpha=ALPHA)


@pytest.mark.parametrize("shape", [(2, 9), (2, 3, 3)])
def test_tensors_of_atoms_keep_their_order(graph: Make, shape: tuple[int, ...]) -> None:
    atoms = molecule("CO")
    atoms.arrays["born"] = np.arange(18.0).reshape(shape)
    born = TargetConfig(level="node", shape="tensor", unit="e")
    values = graph(atoms, born=born).targets["born"]
    np.testing.assert_array_equal(values, np.arange(18.0).reshape(2, 9))


def test_a_periodic_structure_has_no_dipole_from_positions(graph: Make) -> None:
    atoms = bulk("NaCl", "rocksalt", a=5.6)
    atoms.info["p"] = [0.0, 0.0, 0.1]
    p = {"level": "graph", "shape": "vector", "unit": "e*angstrom"}
    message = refused(graph, atoms, "is", p=TargetConfig.model_validate(p))
    assert "positions and so the 'p' of their head are not unique" in message
    free = TargetConfig.model_validate({**p, "origin": "none"})
    assert graph(atoms, p=free).targets["p"].tolist() == [0.0, 0.0, 0.1]


def water(**changes: object) -> Atoms:
    """Return a molecule with some of its arrays or properties changed."""
    atoms = molecule("H2O")
    for name, value in changes.items():
        if name in ("positions", "numbers"):
            atoms.arrays[name][2] = value
        elif np.ndim(value) and len(value) == len(atoms):
            atoms.arrays[name] = np.array(value)
        else:
            atoms.info[name] = value
    return atoms


FLAT = [[4, 0, 0], [0, 4, 0], [4, 4, 0]]
CLOSE = molecule("H2O").positions[0] + [0.05, 0, 0]

WRONG: dict[str, tuple[Atoms, str]] = {
    "nothing": (Atoms(), "has no atoms"),
    "missing": (water(charge=[0.0] * 3), "no graph property 'energy' for target 'energy'"),
    "text": (water(energy="None"), "'energy' = 'None', which is no number"),
    "infinite": (water(energy=1.0, charge=[0, np.inf, 0]), "'charge' = inf at atom 2"),
    "two numbers": (water(energy=[1.0, 2.0]), "of shape [2], wanted is [1]"),
    "two each": (water(energy=1.0, charge=np.zeros((3, 2))), "of shape [3, 2], wanted is [3, 1]"),
    "position": (water(positions=np.nan), "position [nan, nan, nan] at atom 3"),
    "dummy": (water(numbers=0), "unknown element at atom 3 (atomic number 0"),
    "element": (water(numbers=119), "unknown element at atom 3 (atomic number 119"),
    "twice": (water(positions=CLOSE), "atom 1 and atom 3 at one place (0.05 angstrom apart)"),
    "no cell": (Atoms("Cu", pbc=True), "that span no volume"),
    "open": (Atoms("Cu", cell=[4, 4, 0], pbc=True), "that span no volume"),
    "flat": (Atoms("Cu", cell=FLAT, pbc=True), "that span no volume"),
    "nearly flat": (Atoms("Cu", cell=[*FLAT[:2], [4, 4, 0.005]], pbc=True), "span no volume"),
    "thin": (Atoms("Cu", cell=[4, 4, 0.05], pbc=True), "that span no volume"),
}


@pytest.mark.parametrize(("atoms", "says"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_learned_from_is_named(graph: Make, atoms: Atoms, says: str) -> None:
    assert says in refused(graph, atoms, energy=ENERGY, charge=CHARGE)


def test_open_directions_need_no_lattice_vector(graph: Make) -> None:
    sheet = Atoms("Cu", cell=[2.5, 2.5, 0], pbc=[1, 1, 0])
    assert len(graph(sheet).edges) == 8  # four at 2.5 and four at 3.54 angstrom


def test_an_optional_target_may_be_missing(graph: Make) -> None:
    optional = ENERGY.model_copy(update={"optional": True})
    assert graph(molecule("H2O"), energy=optional).targets == {}
    water = molecule("H2O")
    water.info["energy"] = np.nan
    assert graph(water, energy=optional).targets == {}


def test_two_atoms_at_one_place_across_the_border(graph: Make) -> None:
    pair = Atoms("Cu2", [[0.01, 2, 2], [4.98, 2, 2]], cell=[5, 5, 5], pbc=True)
    assert "atom 1 and atom 2 at one place (0.03 angstrom" in refused(graph, pair)
    pair.pbc = (False, True, True)
    assert len(graph(pair).numbers) == 2


@pytest.mark.parametrize("pbc", [(1, 1, 1), (1, 0, 0)], ids=str)
def test_atoms_outside_are_taken_until_shifts_overflow(graph: Make, pbc: tuple[int, ...]) -> None:
    # 9,999 cells of 3 angstrom away there are edges of 10,000 cells; 40,000 would not fit 16 bits.
    pair = Atoms("Cu2", [[0, 0, 0], [3 * 9999 + 1.5, 0, 0]], cell=[3, 9, 9], pbc=pbc)
    assert np.abs(graph(pair).edge_shift[:, 0]).max() == 10_000
    pair.positions[1, 0] = 3 * 40_000 + 1.5
    message = refused(graph, pair)
    assert "has atom 2 at [120001.5, 0.0, 0.0], 4e+04 cells from the cell" in message


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


@pytest.mark.parametrize(
    ("pbc", "edges"),
    [
        # One atom in a cube of 2 angstrom: 4/3 pi 1000^3 / 8, pi 1000^2 / 4 and 2000 / 2 images.
        ((1, 1, 1), 4.0 / 3.0 * np.pi * 1e9 / 8.0),
        ((1, 1, 0), np.pi * 1e6 / 4.0),
        ((1, 0, 0), 1000.0),
    ],
    ids=str,
)
def test_too_many_edges_are_refused_before_they_are_searched(
    monkeypatch: pytest.MonkeyPatch, pbc: tuple[int, ...], edges: float
) -> None:
    def search(*_: object) -> None:
        raise AssertionError("was searched")

    monkeypatch.setattr(structure, "find_edges", search)
    atom = Atoms("Cu", cell=[2, 2, 2], pbc=pbc)
    monkeypatch.setattr(structure, "MOST_EDGES", 1.01 * edges)
    with pytest.raises(AssertionError, match="was searched"):
        graph_of(atom, Place(Path("a"), 1, "it"), Rules(1e3, 0.1, {}))
    monkeypatch.setattr(structure, "MOST_EDGES", 0.99 * edges)
    with pytest.raises(DataError) as caught:
        graph_of(atom, Place(Path("a"), 1, "it"), Rules(1e3, 0.1, {}))
    assert f"has about {edges:.2g} edges within the cutoff of 1000 angstrom" in str(caught.value)


def test_a_large_cluster_is_judged_by_its_density(monkeypatch: pytest.MonkeyPatch) -> None:
    # 8000 atoms have 6.4e7 pairs, but in a simple cubic lattice only 6 neighbours each.
    cluster = bulk("Po", "sc", a=3.0, cubic=True).repeat((20, 20, 20))
    cluster.pbc = False
    monkeypatch.setattr(structure, "MOST_EDGES", 1e6)
    assert len(graph_of(cluster, Place(Path("a"), 1, "it"), Rules(3.1, 0.1, {})).edges) == 45_600
    with pytest.raises(DataError, match="has about 6.4e"):
        graph_of(cluster, Place(Path("a"), 1, "it"), Rules(90.0, 0.1, {}))


def test_empty_space_is_refused(graph: Make) -> None:
    box = Atoms("Cu", cell=[9, 9, 1300], pbc=True)
    assert "is 1300 angstrom wide" in refused(graph, box, "is")
    box.pbc = (1, 1, 0)
    assert len(graph(box).numbers) == 1


def test_disordered_crystals_are_refused(graph: Make) -> None:
    alloy = bulk("Cu")
    alloy.info["occupancy"] = {"0": {"Cu": 0.75, "Au": 0.25}}
    assert "partial occupancy (site 0: Cu 0.75, Au 0.25)" in refused(graph, alloy)
    alloy.info["occupancy"] = {"0": {"Cu": "?"}}
    assert "partial occupancy (site 0: Cu ?)" in refused(graph, alloy)
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
    for missing in (None, "", " ", float("nan")):
        water.info["fold"] = missing
        assert grouped(water, "structure", "fold").published is None
    assert grouped(water, "structure", "absent").published is None
    assert grouped(water, "structure").group == "f:4"  # counted from 1, as splits of old
    with pytest.raises(DataError, match="has no 'tribe', which the card's split asks for"):
        grouped(water, "tribe")


CUBE = np.eye(3)
SKEWED = np.array([[2.5, 0.0, 0.0], [2.2, 1.9, 0.0], [-1.6, 1.4, 2.8]])

# Name, cell, periodic directions, how far out atoms lie in angstrom, cutoff in angstrom.
CELLS = [
    ("tiny", 1.1 * CUBE, (1, 1, 1), 1.0, 2.3),
    ("needle", np.diag([0.9, 6.0, 7.0]), (1, 1, 1), 4.0, 3.0),
    ("skewed", SKEWED, (1, 1, 1), 2.0, 3.1),
    ("far outside", 3.0 * CUBE, (1, 1, 1), 14.0, 3.2),
    ("slab", 2.0 * CUBE, (1, 1, 0), 3.0, 3.0),
    ("skewed slab", SKEWED, (0, 1, 1), 6.0, 3.0),
    ("slab without third vector", np.diag([2.0, 2.5, 0.0]), (1, 1, 0), 3.0, 3.0),
    ("wire", SKEWED, (0, 0, 1), 4.0, 4.0),
    ("wire alone", np.diag([0.0, 1.3, 0.0]), (0, 1, 0), 4.0, 4.0),
    ("molecule in a box", 2.0 * CUBE, (0, 0, 0), 3.0, 3.0),
    ("molecule", 0.0 * CUBE, (0, 0, 0), 3.0, 3.0),
    # Cells of the list are narrower than the structure here, unlike in the cases above.
    ("large", 12.0 * CUBE, (1, 1, 1), 9.0, 3.0),
]


@pytest.mark.parametrize("count", [1, 4, 40])
@pytest.mark.parametrize(
    ("cell", "pbc", "out", "cutoff"), [row[1:] for row in CELLS], ids=[row[0] for row in CELLS]
)
def test_edges_and_their_vectors_are_those_of_ase(
    cell: np.ndarray, pbc: tuple[int, ...], out: float, cutoff: float, count: int
) -> None:
    positions = np.random.default_rng(count).uniform(-out, out, (count, 3))
    atoms = Atoms(f"Cu{count}", positions, cell=cell, pbc=pbc)
    edges, shift = find_edges(positions, cell, atoms.pbc, cutoff)
    # ASE: D = positions[j] - positions[i] + S @ cell, so i is our sender and j our receiver.
    sender, receiver, expected_shift, distance = neighbor_list("ijSD", atoms, cutoff)
    order = np.lexsort((*expected_shift.T[::-1], sender, receiver))
    np.testing.assert_array_equal(edges, np.stack((sender, receiver), axis=1)[order])
    np.testing.assert_array_equal(shift, expected_shift[order])
    vectors = edge_vectors(positions, cell, edges, shift)
    np.testing.assert_allclose(vectors, distance[order], atol=1e-12)


@pytest.mark.parametrize("count", [0, 2])
def test_isolated_atoms_have_no_edge(count: int) -> None:
    alone = Atoms(f"Ar{count}", [[0, 0, 0], [9, 0, 0]][:count], cell=[18, 9, 9], pbc=True)
    edges, shift = find_edges(alone.positions, alone.cell.array, alone.pbc, 5.0)
    assert edges.shape == (0, 2)
    assert shift.shape == (0, 3)
    assert (edges.dtype, shift.dtype) == (np.int32, np.int16)


def both_ways(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array([*pairs, *((b, a) for a, b in pairs)], dtype=np.int32).reshape(-1, 2)


def quotients(num_nodes: int, edges: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the Rayleigh quotient of each vector by a loop over edges."""
    degree = np.bincount(edges[:, 0], minlength=num_nodes)
    values = []
    for vector in vectors.T.astype(float):
        scaled = vector / np.sqrt(degree)
        energy = sum((scaled[a] - scaled[b]) ** 2 for a, b in edges) / 2
        values.append(energy / (vector @ vector))
    return np.array(values)


def test_a_path_has_its_spectrum() -> None:
    """Its ends have another degree than its middle, so the scaling by degrees shows."""
    edges = both_ways([(n, n + 1) for n in range(5)])
    actual = quotients(6, edges, compute_laplacian_encodings(6, edges, 3))
    np.testing.assert_allclose(actual, 1 - np.cos(np.pi * np.arange(1, 4) / 5), atol=1e-6)


def test_a_cycle_has_its_spectrum_in_pairs() -> None:
    edges = both_ways([(n, (n + 1) % 7) for n in range(7)])
    vectors = compute_laplacian_encodings(7, edges, 4)
    wanted = 1 - np.cos(2 * np.pi * np.array([1, 1, 2, 2]) / 7)
    np.testing.assert_allclose(quotients(7, edges, vectors), wanted, atol=1e-6)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(4), atol=1e-6)


def test_images_and_loops_count_once() -> None:
    edges = both_ways([(0, 1), (1, 2)])
    more = np.concatenate((edges, edges, [[0, 0], [2, 2]])).astype(np.int32)
    np.testing.assert_array_equal(
        compute_laplacian_encodings(3, more, 2), compute_laplacian_encodings(3, edges, 2)
    )


def test_what_is_constant_on_a_component_is_left_out() -> None:
    two = both_ways([(0, 1), (2, 3)])
    vectors = compute_laplacian_encodings(
        5, two, 2
    )  # two bonds and a single atom: 3 trivial vectors
    np.testing.assert_allclose(np.abs(vectors).max(axis=0), [np.sqrt(0.5)] * 2, atol=1e-6)
    assert vectors[4].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_small_graphs_are_filled_up_with_zeros(count: int) -> None:
    edges = both_ways([(0, 1)])
    vectors = compute_laplacian_encodings(2, edges, count)
    assert vectors.shape == (2, count)
    np.testing.assert_allclose(np.abs(vectors[:, 0]), np.sqrt(0.5), atol=1e-6)
    assert not vectors[:, 1:].any()


def test_signs_do_not_depend_on_the_solver() -> None:
    edges = both_ways([(0, 1), (1, 2), (2, 3), (3, 4), (1, 4)])
    vectors = compute_laplacian_encodings(5, edges, 4)
    assert (vectors.max(axis=0) >= -vectors.min(axis=0) - 1e-6).all()
