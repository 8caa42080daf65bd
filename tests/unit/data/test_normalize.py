"""Target statistics: from train alone, and safe to divide by."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hydragnn_hpo.config.data_config import KIND, AxisConfig, TargetConfig, TargetKind, kind_of
from hydragnn_hpo.data.columns import Columns, Graph, columns_of
from hydragnn_hpo.data.normalize import (
    RIDGE,
    SMALLEST,
    fit_element_baseline,
    fit_target_stats,
    refit_target_stats,
)
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.units import shown_unit

TARGETS = {
    "energy": TargetConfig(level="graph", unit="meV"),
    "charge": TargetConfig(level="node", unit="e"),
    "push": TargetConfig(level="node", shape="vector", unit="eV/angstrom"),
}


@pytest.fixture
def divided(columns: Columns) -> Columns:
    split = np.arange(columns.num_graphs) % 5
    return replace(columns, split=split.astype(np.int8))


def test_scalars_are_centred_on_train(divided: Columns) -> None:
    stats = fit_target_stats(divided, TARGETS)["energy"]
    train = [divided.targets["energy"][row, 0] for row in (0, 5, 10, 15)]
    mean = sum(train) / 4
    assert stats["mean"] == pytest.approx(mean)
    assert stats["std"] == pytest.approx((sum((x - mean) ** 2 for x in train) / 4) ** 0.5)
    assert stats["mad"] == pytest.approx(sum(abs(x - mean) for x in train) / 4)
    assert (stats["min"], stats["max"]) == (min(train), max(train))
    assert (stats["count"], stats["unit"]) == (4, "eV")


def test_the_mark_of_a_guessed_unit_is_kept(divided: Columns) -> None:
    guessed = TARGETS["energy"].model_copy(update={"unit_guessed": True})
    stats = fit_target_stats(divided, {**TARGETS, "energy": guessed})
    assert [shown_unit(stats[name]) for name in ("energy", "charge")] == ["eV (guessed)", "e"]
    assert shown_unit(refit_target_stats(divided, "energy", stats["energy"])) == "eV (guessed)"
    assert "unit_guessed" not in stats["charge"]


def test_every_property_of_a_target_is_carried_from_card_to_store(divided: Columns) -> None:
    """A new property is declared in ``TargetKind`` alone; nothing lists its fields by hand."""
    said = {name: f"some {name}" for name in KIND} | {"unit": "1", "unit_guessed": True}
    said |= {"level": "graph", "shape": "scalar", "energy": None, "extensive": True}
    said |= {"origin": "none", "size": 7, "classes": ("a", "b")}
    said |= {"axis": AxisConfig(first=0.0, last=1.0), "charge": "q"}
    card = TargetConfig.model_construct(None, **said)
    stats = fit_target_stats(divided, {"energy": card})["energy"]
    stored = json.loads(json.dumps(stats))
    assert kind_of(stored) == TargetKind.model_construct(None, **said)
    assert said.keys() - {"energy"} <= stored.keys()


def test_other_splits_do_not_matter(divided: Columns) -> None:
    before = fit_target_stats(divided, TARGETS)
    elsewhere = divided.split != 0
    divided.targets["energy"][elsewhere] += 100.0
    divided.targets["charge"][np.repeat(elsewhere, divided.num_nodes())] += 100.0
    assert fit_target_stats(divided, TARGETS) == before


def test_tensors_have_the_mean_of_their_diagonal(divided: Columns) -> None:
    tensors = (
        np.random.default_rng(2).normal(size=(divided.num_graphs, 9)) + 3.0 * np.eye(3).ravel()
    )
    divided.targets["alpha"] = tensors
    divided.masks["alpha"] = np.ones(divided.num_graphs, bool)
    alpha = TargetConfig(level="graph", shape="tensor", unit="angstrom^3")
    stats = fit_target_stats(divided, {"alpha": alpha})["alpha"]
    train = tensors[divided.split == 0]
    mean = np.mean([np.trace(each.reshape(3, 3)) / 3 for each in train])
    rest = train - mean * np.eye(3).ravel()
    assert stats["mean"] == pytest.approx(mean)
    assert stats["std"] == pytest.approx(np.sqrt((rest**2).mean()))
    assert stats["mad"] == pytest.approx(np.abs(rest).mean())
    assert stats["origin"] == "mass"


def test_vectors_keep_their_direction(divided: Columns) -> None:
    stats = fit_target_stats(divided, TARGETS)["push"]
    train = divided.masks["push"] & np.repeat(divided.split == 0, divided.num_nodes())
    values = divided.targets["push"][train]
    assert (stats["mean"], stats["elements"]) == (0.0, None)
    assert stats["std"] == pytest.approx(np.sqrt((values**2).mean()))


def test_missing_values_do_not_count(divided: Columns) -> None:
    moved = replace(divided, split=np.where(np.arange(18) == 4, 0, 1).astype(np.int8))
    assert fit_target_stats(moved, TARGETS)["charge"]["count"] == 11  # benzene less one


def test_a_constant_can_be_divided_by(divided: Columns) -> None:
    divided.targets["energy"][:] = -7.0
    divided.masks["energy"][:] = True
    assert fit_target_stats(divided, TARGETS)["energy"]["std"] == 1.0


def test_a_target_without_training_values_is_an_error(divided: Columns) -> None:
    divided.masks["energy"][:] = False
    with pytest.raises(DataError, match="target 'energy' has no value in the training split"):
        fit_target_stats(divided, TARGETS)


PLANTED = {1: -3.0, 6: 2.0, 8: 0.5, 26: -7.0}
MEAN = 4.0

SUM = TargetConfig(level="graph", unit="1", extensive=True)
TOTAL = TargetConfig(level="graph", unit="eV", energy="total")
PER_ATOM = TargetConfig(level="graph", unit="eV/atom", energy="per_atom")
PLAIN = TargetConfig(level="graph", unit="eV")
NODE = TargetConfig(level="node", unit="e")


def planted(target, count=600, sizes=(2, 12), seed=0):
    """Graphs of random elements: their target is a sum, or a mean and 4, of planted numbers."""
    random = np.random.default_rng(seed)
    graphs = []
    for row in range(count):
        nodes = int(random.integers(*sizes))
        numbers = random.choice(list(PLANTED), nodes).astype(np.int16)
        each = np.array([PLANTED[int(z)] for z in numbers])
        value = {
            "node": each[:, None],
            "graph": np.array([each.sum() - MEAN if target in (TOTAL, SUM) else each.mean()]),
        }[target.level]
        graphs.append(
            Graph(
                str(row), numbers, np.zeros((nodes, 3)), np.zeros((3, 3)), np.zeros(3, bool),
                np.zeros((0, 2), np.int32), np.zeros((0, 3), np.int16),
                {"x": value + MEAN}, "x", None,
            )
        )  # fmt: skip
    columns = columns_of(graphs, {"x": target})
    return replace(columns, split=(np.arange(count) % 5).astype(np.int8))


def train_mean(columns, target):
    chosen = columns.split == 0
    if target.level == "node":
        chosen = np.repeat(chosen, columns.num_nodes())
    return float(columns.targets["x"][chosen & columns.masks["x"]].mean())


def elements_of(columns, target):
    """Return what each train value holds of each element: counts, fractions, or the one, [V, Z]."""
    rows = []
    for graph in np.flatnonzero(columns.split == 0):
        own = columns.numbers[columns.node_offset[graph] : columns.node_offset[graph + 1]]
        each = np.array([own == z for z in PLANTED], dtype=float).T
        if target.level == "node":
            rows.extend(each)
        else:
            rows.append(each.sum(axis=0) if target in (TOTAL, SUM) else each.mean(axis=0))
    return np.array(rows)


@pytest.mark.parametrize("target", [PER_ATOM, PLAIN, NODE])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_numbers_of_elements_are_least_squares_with_a_pull(target, noise):
    columns = planted(target, count=200)
    every = columns.targets["x"]
    every += noise * np.random.default_rng(1).normal(size=every.shape)
    train = np.repeat(columns.split == 0, columns.num_nodes() if target.level == "node" else 1)
    values = every[train, 0] - MEAN
    design = elements_of(columns, target)
    pulled = np.vstack((design, np.sqrt(RIDGE) * np.eye(4)))
    expected, *_ = np.linalg.lstsq(pulled, np.concatenate((values, np.zeros(4))), rcond=None)
    result = fit_element_baseline(columns, "x", target, MEAN)
    np.testing.assert_allclose([result["by_number"][z] for z in PLANTED], expected, rtol=1e-9)
    after = values - design @ expected
    assert result["std"] == pytest.approx(after.std(), rel=1e-9)
    assert result["mean"] == pytest.approx(MEAN + after.mean(), rel=1e-9)
    assert result["std"] < 0.05 * values.std() or noise, "the elements explain everything"
    assert len(result["by_number"]) == 119
    assert [v for z, v in enumerate(result["by_number"]) if z not in PLANTED] == [0.0] * 115


@pytest.mark.parametrize("target", [TOTAL, PER_ATOM, NODE])
def test_only_known_rows_of_train_matter(target):
    columns = planted(target, count=50)
    train = np.flatnonzero(columns.split == 0)
    alone = fit_element_baseline(columns.take(np.delete(train, 2)), "x", target, MEAN)
    nodes = columns.num_nodes() if target.level == "node" else 1
    graph = np.repeat(np.arange(50), nodes)
    columns.targets["x"][columns.split[graph] != 0] = 1e6
    columns.targets["x"][graph == train[2]] = np.nan
    columns.masks["x"][graph == train[2]] = False
    result = fit_element_baseline(columns, "x", target, MEAN)
    np.testing.assert_allclose(result["by_number"], alone["by_number"], rtol=1e-12)
    assert (result["mean"], result["std"]) == pytest.approx((alone["mean"], alone["std"]))


@pytest.mark.parametrize("target", [TOTAL, SUM])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_sum_over_atoms_is_least_squares_without_a_constant(target, noise):
    columns = planted(target, count=200)
    values = columns.targets["x"]
    values += noise * np.random.default_rng(1).normal(size=values.shape)
    known = values[columns.split == 0, 0]
    design = elements_of(columns, target)
    expected, *_ = np.linalg.lstsq(design, known, rcond=None)
    stats = fit_target_stats(columns, {"x": target})["x"]
    result = stats["elements"]
    atoms = design.sum(axis=1)
    np.testing.assert_allclose([result["by_number"][z] for z in PLANTED], expected, rtol=1e-8)
    assert result["mean"] == 0.0
    own = known.sum() / atoms.sum()
    rest = {"elements": known - design @ expected, "mean": known - atoms * own}
    spread = {name: np.sqrt(np.square(left).mean()) for name, left in rest.items()}
    assert stats["atom_mean"]["mean"] == pytest.approx(own, rel=1e-12)
    assert stats["atom_mean"]["std"] == pytest.approx(spread["mean"], rel=1e-9)
    least = SMALLEST * spread["mean"]
    assert result["std"] == pytest.approx(max(spread["elements"], least), rel=1e-6)


def test_a_sum_of_one_composition_is_shared_by_its_atoms():
    """Least norm: no data says which element holds the energy."""
    same = planted(TOTAL, count=20, sizes=(5, 6))
    same.numbers.reshape(-1, 5)[:] = [6, 8, 8, 6, 6]
    result = fit_element_baseline(same, "x", TOTAL, train_mean(same, TOTAL))
    each = train_mean(same, TOTAL) / 5
    assert [result["by_number"][z] for z in (6, 8)] == pytest.approx([each, each], rel=1e-9)
    assert result["mean"] == 0.0


def test_each_value_of_a_spectrum_is_centred(divided: Columns) -> None:
    """By hand: two rows in train, [0, 2, 10] and [2, 2, 16]."""
    spectrum = TargetConfig(
        level="graph", shape="spectrum", size=3, unit="1", axis={"first": 0, "last": 4}
    )
    values = np.full((divided.num_graphs, 3), 99.0)
    values[:2] = [[0.0, 2.0, 10.0], [2.0, 2.0, 16.0]]
    columns = replace(
        divided,
        split=np.where(np.arange(divided.num_graphs) < 2, 0, 1).astype(np.int8),
        targets={"dos": values},
        masks={"dos": np.ones(divided.num_graphs, dtype=bool)},
        levels={"dos": "graph"},
    )
    stats = fit_target_stats(columns, {"dos": spectrum})["dos"]
    assert stats["means"] == [1.0, 2.0, 13.0]
    assert stats["mean"] == pytest.approx(32 / 6)
    assert stats["std"] == pytest.approx(((1 + 1 + 9 + 9) / 6) ** 0.5)
    assert stats["mad"] == pytest.approx((1 + 1 + 3 + 3) / 6)
    assert (stats["size"], stats["elements"]) == (3, None)
    assert stats["axis"] == {"first": 0.0, "last": 4.0, "unit": "1"}
    again = refit_target_stats(columns, "dos", {**stats, "means": [0.0] * 3, "std": 7.0})
    assert again == stats
