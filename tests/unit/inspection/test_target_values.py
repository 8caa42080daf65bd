"""Stress, divided values, attributes: what a structure's file may hold beside plain targets."""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms

from hydragnn_hpo.config.data_config import AttributeConfig, CardConfig, TargetConfig
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.data.columns import columns_of
from hydragnn_hpo.data.normalize import fit_target_stats
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.errors import ConfigError, DataError

PLACE = Place(Path("some.extxyz"), 7, "it")
STRESS = TargetConfig(
    level="graph", shape="tensor", unit="eV/angstrom^3", derived_from="energy", optional=True
)
CARD = {
    "name": "tiny",
    "files": [{"path": "tiny.extxyz"}],
    "targets": {"energy": {"level": "graph", "unit": "eV", "energy": "total"}},
}


def water(**info: object) -> Atoms:
    atoms = Atoms("OH2", positions=[[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])
    atoms.info.update(info)
    return atoms


def crystal(**info: object) -> Atoms:
    atoms = water(**info)
    atoms.set_cell([5.0, 5.0, 4.0])
    atoms.pbc = True
    return atoms


def value(atoms: Atoms, **targets: TargetConfig) -> np.ndarray:
    [result] = graph_of(atoms, PLACE, Rules(4.0, 0.1, targets)).targets.values()
    return result


MATRIX = np.arange(9.0)
GIGAPASCAL = 160.2176634 * np.eye(3)
"""1 eV/angstrom^3 = 1.602176634e-19 J / 1e-30 m^3 = 160.2176634 GPa."""


@pytest.mark.parametrize(
    ("stress", "unit", "expected"),
    [
        # ASE: xx, yy, zz, yz, xz, xy
        (np.array([1.0, 2, 3, 4, 5, 6]), "eV/angstrom^3", [1, 6, 5, 6, 2, 4, 5, 4, 3]),
        (MATRIX, "eV/angstrom^3", MATRIX),
        (MATRIX.reshape(3, 3), "eV/angstrom^3", MATRIX),
        (GIGAPASCAL, "GPa(stress)", np.eye(3).reshape(-1)),
    ],
    ids=["six", "nine", "matrix", "GPa"],
)
def test_a_stress_is_a_matrix_in_our_units(
    stress: np.ndarray, unit: str, expected: np.ndarray
) -> None:
    target = STRESS.model_copy(update={"unit": unit})
    np.testing.assert_allclose(value(crystal(stress=stress), stress=target), expected, rtol=1e-12)


def test_a_value_is_divided_by_the_number_of_atoms() -> None:
    target = TargetConfig(level="graph", unit="muB", per_atom=True)
    assert value(water(moment=6.0), moment=target).tolist() == [2.0]
    graphs = [graph_of(water(moment=6.0), PLACE, Rules(4.0, 0.1, {"moment": target}))]
    columns = columns_of(graphs, {"moment": target})
    columns.split[:] = 0
    assert fit_target_stats(columns, {"moment": target})["moment"]["unit"] == "muB/atom"


def test_a_tensor_keeps_its_centre_and_has_one_spread() -> None:
    atoms = crystal(stress=np.full((3, 3), 2.0))
    columns = columns_of(
        [graph_of(atoms, PLACE, Rules(4.0, 0.1, {"stress": STRESS}))], {"stress": STRESS}
    )
    columns.split[:] = 0
    stats = fit_target_stats(columns, {"stress": STRESS})["stress"]
    assert (stats["mean"], stats["std"], stats["derived_from"]) == (0.0, 2.0, "energy")


ATTRIBUTES = {
    "charge": AttributeConfig(key="q", unit="e"),
    "temperature": AttributeConfig(unit="K", default=300.0),
}


def test_attributes_are_looked_up_converted_or_given_their_default() -> None:
    rules = Rules(4.0, 0.1, {}, attributes=ATTRIBUTES)
    graphs = [
        graph_of(water(q=-1), PLACE, rules),
        graph_of(water(q=2, temperature=10), PLACE, rules),
    ]
    columns = columns_of(graphs, {}, attributes=ATTRIBUTES)
    assert columns.attributes["charge"].tolist() == [-1.0, 2.0]
    assert columns.attributes["temperature"].tolist() == [300.0, 10.0]


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({}, "has no 'q' for attribute 'charge'"),
        ({"q": "minus one"}, "has 'q' = 'minus one', which is no number"),
        ({"q": float("nan")}, "has 'q' = nan"),
        ({"q": 1e300}, "no number up to 1e\\+30"),
        ({"q": [1.0, 2.0]}, "which is no number"),
        ({"q": "1_0"}, "has 'q' = '1_0', which is no number"),
    ],
)
def test_an_attribute_that_is_missing_or_no_number_is_refused(info: dict, says: str) -> None:
    with pytest.raises(DataError, match=says):
        graph_of(water(**info), PLACE, Rules(4.0, 0.1, {}, attributes=ATTRIBUTES))


@pytest.mark.parametrize(
    ("value", "optional", "says"),
    [
        (float("nan"), False, "has 'y' = nan; mend it, or set optional = true"),
        (float("inf"), False, "has 'y' = inf; mend or remove it"),
        (float("-inf"), True, "has 'y' = -inf; mend or remove it"),
        (-1e31, False, r"has 'y' = -1e\+31, more than 1e\+30; .* larger unit"),
        (1e300, True, r"has 'y' = 1e\+300, more than 1e\+30"),
        ("1_000", False, "has 'y' = '1_000', which is no number"),
    ],
)
def test_a_value_that_cannot_be_learned_is_refused_with_its_cure(
    value: float, optional: bool, says: str
) -> None:
    target = TargetConfig(level="graph", unit="eV", optional=optional)
    with pytest.raises(DataError, match=says):
        graph_of(water(y=value), PLACE, Rules(4.0, 0.1, {"y": target}))


def test_a_key_that_is_nearly_there_is_named() -> None:
    target = TargetConfig(level="graph", unit="eV", key="enrgy")
    with pytest.raises(DataError, match=r"'enrgy' for target 'e' \(did you mean 'energy'\?\); add"):
        graph_of(water(energy=1.0), PLACE, Rules(4.0, 0.1, {"e": target}))


DOS = {"level": "graph", "shape": "spectrum", "size": 4, "unit": "1/eV"}
FORCES = {"level": "node", "shape": "vector", "unit": "eV/angstrom", "derived_from": "energy"}


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ({**FORCES, "derived_from": "nothing"}, "'nothing', which is no target"),
        ({**FORCES, "level": "graph"}, "neither forces"),
        ({**FORCES, "unit": "eV"}, "neither forces"),
        ({"level": "node", "unit": "e", "per_atom": True}, "per_atom divides graph-level"),
        ({"level": "graph", "unit": "eV", "energy": "total", "per_atom": True}, "per_atom divides"),
        ({"level": "graph", "unit": "eV/atom", "energy": "total"}, "f': .*has unit eV/atom"),
        ({"level": "graph", "unit": "kcal/mol/atom", "energy": "total"}, "has unit kcal/mol/atom"),
        ({"level": "graph", "unit": "angstrom", "energy": "total"}, "has unit angstrom"),
        ({"level": "graph", "unit": "eV", "energy": "per_atom"}, 'else it is energy = "total"'),
        ({"level": "graph", "unit": "K", "energy": "per_atom"}, "has unit K: write an energy per"),
        ({"level": "graph", "unit": "muB/atom", "energy": "per_atom"}, "has unit muB/atom"),
        ({"level": "node", "unit": "eV", "energy": "total"}, "this is a scalar per atom: drop it"),
        ({"level": "node", "shape": "vector", "unit": "eV"}, "a vector has no energy as its unit"),
        ({"level": "node", "shape": "vector", "unit": "kJ/mol"}, "has no energy as its unit"),
        ({**FORCES, "unit": "1/cm"}, "neither forces"),
        ({**DOS, "size": None}, "without a size: add its number of values"),
        ({**DOS, "size": 1}, "size.* is 1"),
        ({**DOS, "unit": "eV", "energy": "total"}, "this is a spectrum per structure: drop it"),
        ({**DOS, "axis": {"first": 2.0, "last": 2.0}}, "axis starts and ends at 2"),
        (
            {"level": "graph", "unit": "1", "size": 4},
            "size belongs to shape = .spectrum.: drop|a scalar",
        ),
        ({"level": "graph", "unit": "1", "axis": {"first": 0, "last": 1}}, "axis belongs to shape"),
    ],
)
def test_a_target_that_does_not_hang_together_is_refused(target: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_config({**CARD, "targets": {**CARD["targets"], "f": target}}, CardConfig, "c")


def test_a_spectrum_has_its_number_of_values_in_every_structure():
    dos = TargetConfig(**{**DOS, "unit": "1/meV", "min": 0.0})
    assert value(water(dos=[0.0, 1.0, 2.0, 3.0]), dos=dos).tolist() == [0.0, 1e3, 2e3, 3e3]
    with pytest.raises(DataError, match=r"'dos' of shape \[3\], wanted is \[4\]; mend it"):
        value(water(dos=[0.0, 1.0, 2.0]), dos=dos)
    with pytest.raises(DataError, match="'dos' = -1, beyond the min = 0"):
        value(water(dos=[0.0, 1.0, -1.0, 3.0]), dos=dos)
    atoms = water()
    atoms.arrays["dos"] = np.arange(12.0).reshape(3, 4)
    local = TargetConfig(**{**DOS, "level": "node"})
    assert value(atoms, dos=local).shape == (3, 4)


GAP = {"level": "graph", "unit": "meV", "min": 0.0, "max": 9000.0}


def test_labels_beyond_their_bounds_are_refused_in_the_unit_of_the_file():
    target = TargetConfig(**GAP)
    assert target.bounds == (0.0, 9.0)
    assert value(water(gap=0.0), gap=target) == 0.0
    assert value(water(gap=9000.0), gap=target) == 9.0
    with pytest.raises(DataError, match="has 'gap' = -2, beyond the min = 0 of its target") as low:
        value(water(gap=-2.0), gap=target)
    assert "mend it, or correct the target's min in the card" in str(low.value)
    with pytest.raises(DataError, match="has 'gap' = 9001, beyond the max = 9000"):
        value(water(gap=9001.0), gap=target)
    atoms = water()
    atoms.arrays["q"] = np.array([0.5, np.nan, -0.5])
    charge = TargetConfig(level="node", unit="e", min=-0.4, optional=True)
    with pytest.raises(DataError, match="'q' = -0.5 at atom 3, beyond the min"):
        value(atoms, q=charge)
    assert value(atoms, q=charge.model_copy(update={"min": -0.5})).shape == (3, 1)


def test_bounds_of_a_quotient_are_those_of_the_quotient():
    target = TargetConfig(level="graph", unit="eV", per_atom=True, max=1.0)
    assert value(water(x=3.0), x=target) == 1.0
    with pytest.raises(DataError, match="beyond the max = 1"):
        value(water(x=3.3), x=target)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"min": 2.0, "max": 2.0}, "raise max above min"),
        ({"min": 0.0, "energy": "total"}, "bound scalars that are no energies"),
        ({"min": 0.0, "shape": "vector", "unit": "angstrom"}, "bound scalars that are no energies"),
    ],
)
def test_bounds_that_mean_nothing_are_refused(wrong, sentence):
    with pytest.raises(ConfigError, match=sentence):
        parse_config({"level": "graph", "unit": "eV", **wrong}, TargetConfig, where="card")


def test_bounds_are_kept_in_the_statistics():
    target = TargetConfig(**GAP)
    graphs = [graph_of(water(gap=g), PLACE, Rules(4.0, 0.1, {"gap": target})) for g in (1.0, 5.0)]
    columns = columns_of(graphs, {"gap": target})
    columns.split[:] = 0
    stats = fit_target_stats(columns, {"gap": target})["gap"]
    assert stats["bounds"] == (0.0, 9.0)
    assert (stats["min"], stats["max"]) == pytest.approx((0.001, 0.005))


CHARGE = TargetConfig(level="node", unit="e", sum=0.0)
BORN = TargetConfig(level="node", shape="tensor", unit="e", sum=0.0)


@pytest.mark.parametrize(
    ("target", "charges", "says"),
    [
        (CHARGE, [-0.8, 0.4, 0.3], r"sum to -0.1 e and miss the sum 0 of target 'q' by 0.1, more"),
        (CHARGE.model_copy(update={"sum": 1.0}), [-0.8, 0.4, 0.4], "miss the sum 1 .* by 1, more"),
        (CHARGE.model_copy(update={"sum": "total"}), [0.0, 0.4, 0.4], "miss the sum -1 .* by 1.8"),
        (CHARGE.model_copy(update={"sum_tolerance": 1e-3}), [-0.8, 0.4, 0.402], "by 0.002, more"),
        (BORN, [np.eye(3), np.eye(3), -np.ones((3, 3))], "sum to 1 e and miss the sum 0 .* by 1,"),
        (BORN.model_copy(update={"sum": 3.0}), [np.eye(3)] * 2 + [0 * np.eye(3)], "sum 3 .* by 1,"),
    ],
)
def test_labels_that_miss_their_sum_are_refused(
    target: TargetConfig, charges: list, says: str
) -> None:
    atoms = water(total=-1)
    atoms.arrays["q"] = np.array(charges).reshape(3, -1).squeeze()
    rules = Rules(4.0, 0.1, {"q": target}, attributes={"total": AttributeConfig(unit="e")})
    with pytest.raises(DataError, match=says):
        graph_of(atoms, PLACE, rules)


def test_a_sum_is_measured_in_the_unit_used_inside_and_needs_all_labels() -> None:
    target = TargetConfig(level="node", unit="meV", sum=2000.0, sum_tolerance=3.0, optional=True)
    graphs = []
    for values in ([500.0, 700.0, 802.0], [1.0, np.nan, 1.0], [2000.0, -1.0, 2.0]):
        atoms = water()
        atoms.arrays["q"] = np.array(values)
        graphs.append(graph_of(atoms, PLACE, Rules(4.0, 0.1, {"q": target})))
    columns = columns_of(graphs, {"q": target})
    columns.split[:] = 0
    stats = fit_target_stats(columns, {"q": target})["q"]
    assert stats["sum"] == pytest.approx(2.0)
    assert stats["sum_miss"] == pytest.approx(0.002)


def test_tensors_of_atoms_sum_to_so_many_unit_tensors() -> None:
    target = BORN.model_copy(update={"sum": 2.0})
    atoms = water()
    tensors = np.stack([np.full((3, 3), 0.5), np.eye(3), np.eye(3) - 0.5])
    tensors[0, 1, 2] += 0.004
    atoms.arrays["q"] = tensors.reshape(3, 9)
    columns = columns_of([graph_of(atoms, PLACE, Rules(4.0, 0.1, {"q": target}))], {"q": target})
    columns.split[:] = 0
    assert fit_target_stats(columns, {"q": target})["q"]["sum_miss"] == pytest.approx(0.004)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sum": 0.0, "level": "graph"}, "sum is for a number or tensor per atom"),
        ({"sum": 0.0, "shape": "vector"}, "sum is for a number or tensor per atom"),
        ({"sum": 0.0, "min": 0.0}, "sum and min or max exclude each other"),
        ({"sum": "total"}, "targets.q.sum is 'total', which is no attribute of the card"),
        ({"sum": "spin"}, "targets.q.sum is 'spin', an attribute in 1, and the target is in e"),
    ],
)
def test_a_sum_that_cannot_hold_is_refused(change: dict, says: str) -> None:
    target = {"level": "node", "unit": "e"} | change
    card = CARD | {"targets": {"q": target}, "attributes": {"spin": {}}}
    with pytest.raises(ConfigError, match=says):
        parse_config(card, CardConfig, where="card")
