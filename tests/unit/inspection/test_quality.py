"""Twins, leakage, outliers, contradictions and damage that were planted must be found."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, make_supercell, molecule
from stores import write_store
from structure_files import bound_by_springs

from hydragnn_hpo.cli.dataset_command import _outliers, _verdict, findings_blocks
from hydragnn_hpo.config.data_config import SPLITS, AttributeConfig, CardConfig, TargetConfig
from hydragnn_hpo.data import store_index
from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.graph_sizes import edge_lengths, size_stats
from hydragnn_hpo.data.normalize import fit_target_stats
from hydragnn_hpo.data.store_summary import robust_center_and_scale
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.inspection import duplicates
from hydragnn_hpo.inspection.duplicates import (
    FEW,
    Signatures,
    composition_keys,
    compute_signatures,
    find_twins,
)
from hydragnn_hpo.inspection.quality import check_store, find_twins_of_models

CUTOFF = 4.5
TARGETS = {
    "energy": TargetConfig(level="graph", unit="eV", energy="total", optional=True),
    "gap": TargetConfig(level="graph", unit="eV", optional=True),
    "charge": TargetConfig(level="node", unit="e", optional=True),
    "push": TargetConfig(level="node", shape="vector", unit="eV/angstrom", optional=True),
}
ATTRIBUTES = {"spin": AttributeConfig(default=0.0)}
ELEMENT_ENERGY = {1: -3.0, 6: -9.0, 7: -8.0, 8: -5.0, 11: -1.0, 17: -2.0, 29: -4.0}


def lay(structures: Sequence[Atoms], group: str = "structure") -> Columns:
    """Lay structures end to end as a build does; ``info["split"]`` is the split, else train."""
    rules = Rules(CUTOFF, 0.05, TARGETS, group=group, attributes=ATTRIBUTES)
    graphs = [
        graph_of(atoms, Place(Path("s"), n + 1, f"s{n}"), rules)
        for n, atoms in enumerate(structures)
    ]
    columns = columns_of(graphs, TARGETS, attributes=ATTRIBUTES)
    columns.split[:] = [SPLITS.index(a.info.get("split", "train")) for a in structures]
    return columns


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Write a store of small windows and give its report."""

    def check(structures: Sequence[Atoms], group: str = "structure", **options: float) -> Any:
        columns = lay(structures, group)
        stats = size_stats(columns, CUTOFF) | {"targets": fit_target_stats(columns, TARGETS)}
        card = CardConfig(name="planted", files=({"path": "x"},), targets=TARGETS)
        write_store(tmp_path / "planted.bp", [columns], stats, card, window=7)
        return check_store(tmp_path / "planted.bp", **options).report

    return check


def sound(count: int = 40, seed: int = 0) -> list[Atoms]:
    """Shaken molecules and crystals, all different, whose labels follow simple rules."""
    random = np.random.default_rng(seed)
    kinds = [molecule("CH3OH"), bulk("NaCl", "rocksalt", a=5.6), molecule("NH3"), bulk("Cu")]
    made = []
    for number in range(count):
        atoms = kinds[number % len(kinds)].repeat(2 if number % 2 else 1)
        atoms.pbc = atoms.cell.rank > 0
        atoms.rattle(0.1, seed=int(random.integers(1 << 30)))
        made.append(label(atoms, random))
    return made


def label(atoms: Atoms, random: np.random.Generator) -> Atoms:
    base = sum(ELEMENT_ENERGY[number] for number in atoms.numbers)
    atoms.info["energy"] = base + 0.01 * len(atoms) * float(random.normal())
    atoms.info["gap"] = 2.0 + 0.5 * float(random.normal())
    atoms.arrays["charge"] = np.where(atoms.numbers > 8, 0.5, -0.2)
    atoms.arrays["charge"] += 0.02 * random.normal(size=len(atoms))
    atoms.arrays["push"] = random.normal(size=(len(atoms), 3))
    return atoms


def copy_of(atoms: Atoms, rotation: np.ndarray, seed: int) -> Atoms:
    """Turn, move, renumber, choose another cell and move atoms by whole lattice vectors."""
    random = np.random.default_rng(seed)
    twin = atoms[random.permutation(len(atoms))]
    if twin.cell.rank == 3:
        twin.positions += random.integers(-2, 3, (len(twin), 3)) @ twin.cell.array
        twin.set_cell(np.array([[1, 1, 0], [0, 1, 0], [0, -1, 1]]) @ twin.cell.array)
    twin.positions += random.normal(size=3)
    twin.set_cell(twin.cell.array @ rotation.T)
    twin.positions = twin.positions @ rotation.T
    return twin


@pytest.fixture
def rotation() -> np.ndarray:
    q, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    return q * np.sign(np.linalg.det(q))


@pytest.mark.parametrize("row", [0, 1, 2, 3])
def test_a_turned_renumbered_copy_is_found(
    checked: Callable[..., Any], rotation: np.ndarray, row: int
) -> None:
    structures = sound()
    structures.append(copy_of(structures[row], rotation, 5))
    report = checked(structures)
    assert not report["serious"], "both are in train"
    result = report["duplicates"]
    assert [one["rows"] for one in result["rows"]] == [[row, 40]]
    assert (result["groups"], result["structures"], result["exact_groups"]) == (1, 2, 1)
    assert result["rows"][0]["distance"] < 1e-5


def test_a_supercell_is_its_cell(checked: Callable[..., Any], rotation: np.ndarray) -> None:
    structures = sound()
    cell = structures[1]
    large = copy_of(make_supercell(cell, [[1, 1, 0], [-1, 1, 0], [0, 0, 1]]), rotation, 1)
    large.info = cell.info | {"energy": 2 * cell.info["energy"], "gap": cell.info["gap"]}
    report = checked([*structures, large])
    assert [one["rows"] for one in report["duplicates"]["rows"]] == [[1, 40]]
    assert report["conflicts"] == []  # the energy is twice as large, and so is the cell


def test_what_differs_is_no_twin(checked: Callable[..., Any]) -> None:
    structures = sound()
    swapped, spun, stretched = (structures[1].copy() for _ in range(3))
    swapped.numbers[[0, 1]] = swapped.numbers[[1, 0]]
    spun.info["spin"] = 1.0
    stretched.set_cell(stretched.cell * 1.02, scale_atoms=True)
    near = structures[2].copy()
    near.positions[0, 0] += 0.004
    structures += [near, swapped, spun, stretched]
    assert checked(structures, tolerance=0.01)["duplicates"]["rows"][0]["rows"] == [2, 40]
    assert checked(structures, tolerance=0.01)["duplicates"]["groups"] == 1
    assert checked(structures, tolerance=0.0001)["duplicates"]["groups"] == 0


def lay_bare(structures: Sequence[Atoms]) -> Columns:
    rules = Rules(CUTOFF, 0.05, {})
    return columns_of([graph_of(a, Place(Path("s"), 1, "s"), rules) for a in structures], {})


def test_signatures_are_those_of_a_slow_count() -> None:
    # Cobalt: fcc and hcp differ in their fourth shell.
    hcp = bulk("Co", "hcp", a=2.5, c=2.5 * np.sqrt(8 / 3))
    structures = [*sound(4), bulk("Co", "fcc", a=2.5 * np.sqrt(2)), hcp]
    columns = lay_bare(structures)
    values, sizes = compute_signatures(columns, CUTOFF)
    expected: list[float] = []
    for atoms, one in ((atoms, lay_bare([atoms])) for atoms in structures):
        lengths = edge_lengths(one)
        for receiving in sorted(set(atoms.numbers)):
            for sending in sorted(set(atoms.numbers)):
                near = []
                for atom in np.flatnonzero(atoms.numbers == receiving):
                    of = (one.edges[:, 1] == atom) & (one.numbers[one.edges[:, 0]] == sending)
                    near.append([*sorted(lengths[of]), *[CUTOFF] * 64][:64])
                for first, last in ((0, 1), (1, 4), (4, 12), (12, 20), (20, 64)):
                    band = sorted(d for row in near for d in row[first:last])
                    places = [max(math.ceil(q * len(band)) - 1, 0) for q in (0, 0.25, 0.5, 0.75, 1)]
                    expected += [band[place] for place in places] + [sum(band) / len(band)]
    assert values == pytest.approx(expected, abs=1e-5)
    assert sizes.sum() == len(expected)
    assert np.abs(values[-60:-30] - values[-30:]).max() > 0.02


def test_signatures_of_an_equal_sided_triangle() -> None:
    # Each atom has two neighbours at 1.5: ranks 1 and 2; all others stand at the cutoff.
    side = 1.5
    points = [[0, 0, 0], [side, 0, 0], [side / 2, side * np.sqrt(3) / 2, 0]]
    values, sizes = compute_signatures(lay_bare([Atoms("H3", points)]), CUTOFF)
    # Bands hold ranks 1, 2-4, ...; five quantiles and the mean. Of the nine distances in the
    # second band three are known: (3 * 1.5 + 6 * 4.5) / 9 = 3.5.
    assert values[:12] == pytest.approx([1.5] * 6 + [1.5, 1.5, 4.5, 4.5, 4.5, 3.5], abs=1e-6)
    assert values[12:] == pytest.approx([4.5] * 18, abs=1e-6)
    assert sizes.tolist() == [30]


@pytest.mark.parametrize("step", [1e-3, 1e-2])
def test_signatures_follow_the_atoms_no_faster_than_twice(step: float) -> None:
    atoms = sound(4)[1]
    before, _ = compute_signatures(lay_bare([atoms]), CUTOFF)
    moves = np.random.default_rng(0).normal(size=(len(atoms), 3))
    atoms.positions += step * moves / np.linalg.norm(moves, axis=1, keepdims=True)
    after, _ = compute_signatures(lay_bare([atoms]), CUTOFF)
    assert step / 100 < np.abs(after - before).max() <= 2 * step + 1e-6


def test_compositions_are_reduced() -> None:
    columns = lay_bare(
        [molecule("C2H2"), molecule("C6H6"), molecule("CH4"), Atoms("HC", [[0, 0, 0], [1, 0, 0]])]
    )
    keys = composition_keys(columns.numbers, columns.num_nodes().astype(np.int32))
    assert keys[0] == keys[1] == keys[3] != keys[2]
    full = composition_keys(columns.numbers, columns.num_nodes().astype(np.int32), reduced=False)
    assert len(set(full.tolist())) == 4


def test_many_of_one_composition_are_sorted_like_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "CHUNK", 100)
    random = np.random.default_rng(2)
    count = 3 * FEW
    width = 5
    points = random.uniform(0, 4, (count // 3, width)).astype(np.float32)
    points = np.concatenate((points, points, points + random.choice((0.004, 0.3), (FEW, 1))))
    points = points.astype(np.float32)
    offset = np.arange(count + 1) * width
    keys = np.ones(count, dtype=np.uint64)
    results = find_twins(Signatures(np.arange(count), keys, points.reshape(-1), offset), 0.01)

    slow: list[set[int]] = []
    for row in range(count):
        near = set(np.flatnonzero(np.abs(points - points[row]).max(axis=1) <= 0.01).tolist())
        joined = [group for group in slow if group & near]
        slow = [group for group in slow if not group & near] + [near.union(*joined)]
    expected = sorted(sorted(group) for group in slow if len(group) > 1)
    assert [twins.rows.tolist() for twins in results] == expected
    assert len(expected) == FEW


def test_leaks_are_found_and_counted(checked: Callable[..., Any], rotation: np.ndarray) -> None:
    structures = sound()
    leaks = {"val": 0, "test": 1, "cal": 2}
    for split, row in leaks.items():
        structures.append(copy_of(structures[row], rotation, row))
        structures[-1].info["split"] = split
        structures[-1].positions[0] += 0.002
    report = checked(structures)
    splits = report["leakage"]["splits"]
    assert {name: result["twins"] for name, result in splits.items()} == {
        "val": 1, "sel": 0, "cal": 1, "test": 1,
    }  # fmt: skip
    pairs = [(p["row"], p["train_row"], p["split"]) for p in report["leakage"]["twins"]]
    assert pairs == [(40, 0, "val"), (41, 1, "test"), (42, 2, "cal")]
    assert report["duplicates"]["between"] == {"train-val": 1, "train-cal": 1, "train-test": 1}
    assert report["serious"]
    # Each structure is a group of its own; their compositions stand in train.
    assert [splits[name]["groups"] for name in leaks] == [0, 0, 0]
    assert [splits[name]["compositions"] for name in leaks] == [1, 1, 1]


def test_groups_on_both_sides_are_serious(checked: Callable[..., Any]) -> None:
    structures = sound()
    structures[7].info["split"] = "test"
    report = checked(structures, group="composition")
    assert report["leakage"]["splits"]["test"]["groups"] == 1
    assert [named["row"] for named in report["leakage"]["groups"]] == [7]
    assert report["serious"]


def test_outliers_are_found(checked: Callable[..., Any]) -> None:
    structures = sound(80)
    structures[5].info["energy"] += 5.0 * len(structures[5])
    structures[9].info["gap"] = 40.0
    structures[12].arrays["charge"][2] += 3.0
    structures[14].arrays["push"][0] = [200.0, 0.0, 0.0]
    result = checked(structures)["outliers"]
    rows = {name: [row["row"] for row in one["rows"]] for name, one in result.items()}
    assert rows == {"energy": [5], "gap": [9], "charge": [12], "push": [14]}
    # Copper alone has -32 eV in eight atoms: what elements explain is taken away before.
    assert result["energy"]["scale"] == pytest.approx(0.01, rel=0.4)
    assert result["charge"]["rows"][0]["atom"] == 3
    assert result["push"]["rows"][0]["value"] == 200.0


@pytest.mark.parametrize("count", [6, 14, 60, 90, 400])
def test_one_wrong_label_is_an_error_at_any_number_of_structures(
    checked: Callable[..., Any], count: int
) -> None:
    structures = sound(count)
    for number, atoms in enumerate(structures):
        atoms.info["gap"] = 1.0 + number % 5
    structures[3].info["gap"] = 1e6
    wrong = {"gap": 3}
    if count > 6:  # else the element has too few atoms
        structures[2].arrays["push"][0] = [1e6, 0.0, 0.0]
        wrong["push"] = 2
    report = checked(structures)
    outliers = report["outliers"]
    assert {name: one["far"] for name, one in outliers.items() if one["far"]} == dict.fromkeys(
        wrong, 1
    )
    assert {name: outliers[name]["rows"][0]["row"] for name in wrong} == wrong
    lines = [line for line in _outliers(report, 5)[1:] if "far from all others" in line]
    assert len(lines) == len(wrong)
    assert lines[0].startswith("  gap: 1 structure has a value far from all others: an error")
    assert f"which spoil a training: {', '.join(f'1 of {n}' for n in wrong)}" in _verdict(report)


@pytest.mark.parametrize(
    ("values", "middle", "scale"),
    [
        ([*range(11)], 5.0, 1.4826 * 3.0),
        ([4.0] * 20, 4.0, 0.0),
        ([0.0] * 30 + [*range(1, 12)], 0.0, 1.4826 * 6.0),
        ([0.0] * 19 + [10.0], 0.0, 1.2533 * 0.5),
        ([1.0, 2.0, 90.0], 2.0, 0.0),
    ],
    ids=["plain", "constant", "mostly zero", "one other", "too few"],
)
def test_median_and_scale(values: list[float], middle: float, scale: float) -> None:
    assert robust_center_and_scale(np.array(values, dtype=float)) == pytest.approx((middle, scale))


def test_twins_with_other_labels_contradict(
    checked: Callable[..., Any], rotation: np.ndarray
) -> None:
    structures = sound()
    for row in (0, 1, 2):
        structures.append(copy_of(structures[row], rotation, row))
    structures[40].info["gap"] += 3.0
    structures[41].info["energy"] += 1.0 * len(structures[41])
    structures[42].arrays["charge"][0] += 1.0
    result = {one["target"]: one for one in checked(structures)["conflicts"]}
    assert {name: one["rows"] for name, one in result.items()} == {
        "gap": [0, 40], "energy": [1, 41], "charge": [2, 42],
    }  # fmt: skip
    assert result["gap"]["difference"] == pytest.approx(3.0)
    assert (result["energy"]["difference"], result["energy"]["unit"]) == (
        pytest.approx(1.0), "eV/atom",
    )  # fmt: skip


def methylene(angle: float, gap: float, **more: Any) -> Atoms:
    """CH2 of one angle, with bonds of 1.1 angstrom."""
    half = math.radians(angle / 2)
    x = 1.1 * math.sin(half)
    y = 1.1 * math.cos(half)
    atoms = Atoms("CH2", [[0, 0, 0], [x, y, 0], [-x, y, 0]])
    atoms.info |= {"gap": gap, "energy": -15.0, **more}
    atoms.arrays |= {"charge": np.zeros(3), "push": np.zeros((3, 3))}
    return atoms


def methylenes(**more: Any) -> list[Atoms]:
    """Singlets around 102 degrees and triplets around 132, whose gaps hardly depend on the angle.

    H-H distances are 2.2 sin(angle / 2): 1.710 and 2.010 angstrom, and 0.012 for each degree.
    """
    singlets = [methylene(102 + n, 1.07 + 0.02 * n, kind="s", **more) for n in range(6)]
    triplets = [methylene(132 - n, 12.04 + 0.02 * n, kind="t", split="test") for n in range(6)]
    return [*singlets, *triplets]


def test_close_geometries_with_labels_far_apart_are_named_once(
    checked: Callable[..., Any],
) -> None:
    (result,) = checked(methylenes(), group="kind")["near_twins"]
    assert (result["target"], result["rows"], result["formula"]) == ("gap", [5, 11], "H2C")
    assert result["splits"] == ["train", "test"]
    assert result["difference"] == pytest.approx(12.04 - 1.07)
    # Of both kinds the closest pair, at 107 and 127 degrees.
    sines = [math.sin(math.radians(half)) for half in (53.5, 63.5)]
    assert result["distance"] == pytest.approx(2.2 * (sines[1] - sines[0]), abs=1e-4)


def test_an_attribute_tells_near_twins_apart(checked: Callable[..., Any]) -> None:
    assert checked(methylenes(spin=1.0), group="kind")["near_twins"] == []


def test_models_that_read_no_attribute_have_near_twins(checked: Callable[..., Any]) -> None:
    path = Path(checked(methylenes(spin=1.0), group="kind")["store"])
    (twins,) = find_twins_of_models(path, ()).near
    assert (twins["rows"], twins["told_apart_by"]) == ([5, 11], ["spin"])
    assert twins["difference"] == pytest.approx(12.04 - 1.07)
    assert find_twins_of_models(path, ("spin",)).near == []
    checked(methylenes(), group="kind")
    (twins,) = find_twins_of_models(path, ()).near
    assert twins["told_apart_by"] == []


def test_targets_that_follow_the_geometry_are_no_near_twins(checked: Callable[..., Any]) -> None:
    smooth = [methylene(90 + n, 0.3 * n, kind=f"{n % 2}") for n in range(30)]
    assert checked(smooth, group="kind")["near_twins"] == []


def test_close_and_lone_atoms_are_named(checked: Callable[..., Any]) -> None:
    structures = sound()
    random = np.random.default_rng(1)
    # Covalent radii of carbon are 0.76 angstrom: 0.5 is 0.33 of their sum.
    close = Atoms("CCO", [[0, 0, 0], [0.5, 0, 0], [2.0, 0, 0]])
    lone = Atoms("CCO", [[0, 0, 0], [1.3, 0, 0], [30, 0, 0]])
    structures += [label(a, random) for a in (close, lone, Atoms("Cu"))]
    result = checked(structures)["geometry"]
    (near,) = result["close"]
    assert (near["row"], near["atoms"], near["elements"]) == (40, [1, 2], ["C", "C"])
    assert near["distance"] == pytest.approx(0.5)
    assert near["ratio"] == pytest.approx(0.5 / 1.52)
    assert [(one["row"], one["atoms"]) for one in result["isolated"]] == [(41, 1)]
    assert [one["row"] for one in result["bare"]] == [42]
    assert (result["shortest"]["row"], result["shortest"]["distance"]) == (40, pytest.approx(0.5))


def test_missing_values_are_left_out(checked: Callable[..., Any]) -> None:
    structures = sound()
    for row in range(0, 40, 3):
        del structures[row].info["gap"]
        structures[row].arrays["charge"][0] = np.nan
    report = checked([*structures, structures[0].copy(), structures[3].copy()])
    assert report["outliers"]["gap"]["values"] == 42 - 16
    assert report["conflicts"] == []


def test_damage_is_reported_and_nothing_else(
    checked: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_index, "_SMALL", 0)  # as large files are
    checked(sound())
    file = tmp_path / "planted.bp" / "part-00000.bp" / "data.0"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    result = check_store(tmp_path / "planted.bp")
    assert result.serious
    (sentence,) = result.report["damage"]
    assert "data.0: was altered" in sentence
    assert "duplicates" not in result.report


def test_twins_of_one_size_are_compared_whatever_the_first_one_is(
    checked: Callable[..., Any],
) -> None:
    random = np.random.default_rng(1)
    cell = bulk("Cu")
    twins = [cell.copy(), cell.repeat((2, 1, 1)), cell.repeat((2, 1, 1))]
    structures = [*sound(), *(label(atoms, random) for atoms in twins)]
    for atoms, gap in zip(structures[40:], (0.1, 0.1, 90.0), strict=True):
        atoms.info["gap"] = gap
        atoms.arrays["charge"] = np.full(len(atoms), gap)
    result = {one["target"]: one["rows"] for one in checked(structures)["conflicts"]}
    assert result["gap"] == [41, 42]
    assert result["charge"] == [41, 42]


def test_forces_that_contradict_their_energy_are_reported(
    checked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    push = TARGETS["push"].model_copy(update={"derived_from": "energy"})
    monkeypatch.setitem(TARGETS, "push", push)
    random = np.random.default_rng(0)
    structures = []
    for atoms, energy, gradient in bound_by_springs():
        label(atoms, random)
        atoms.info["energy"] = energy
        atoms.arrays["push"] = gradient
        structures.append(atoms)
    report = checked(structures)
    assert [(one["target"], one["verdict"]) for one in report["forces"]] == [("push", "contradict")]
    assert report["forces"][0]["ratio"] == pytest.approx(-1.0, abs=1e-6)
    blocks = [str(block) for block in findings_blocks(report, 5)]
    assert any("CONTRADICTION: push" in block for block in blocks)
    assert report["serious"]
    assert blocks[-1].startswith("SERIOUS: push cannot be the derivative")
