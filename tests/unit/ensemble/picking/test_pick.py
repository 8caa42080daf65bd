"""From a pool to picks, with an ensemble of toy models."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.io import read, write

from hydragnn_hpo.cli.pick import pick as command
from hydragnn_hpo.data.structure import Place, graph_of
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.picking.descriptors import descriptors
from hydragnn_hpo.ensemble.picking.pick import DEVIATION, Wish, pick, ranking_of
from hydragnn_hpo.ensemble.simulation.calculator import EnsembleCalculator
from hydragnn_hpo.ensemble.structure_batches import Structures, columns_of_atoms
from hydragnn_hpo.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def ensemble(built_zip: Path) -> Ensemble:
    return Ensemble.load(built_zip, precision="fp64")


def structures(count: int, seed: int = 5) -> list[Atoms]:
    rng = np.random.default_rng(seed)
    grid = np.array([(x, y, z) for x in range(2) for y in range(2) for z in range(2)], float)
    made = []
    for _ in range(count):
        size = int(rng.integers(2, 6))
        places = 1.7 * grid[rng.permutation(8)[:size]] + rng.uniform(-0.2, 0.2, (size, 3))
        made.append(Atoms(rng.choice(["H", "C", "N", "O"], size), places))
    return made


def pool(ensemble: Ensemble, some: list[Atoms], size: int) -> Iterator[Structures]:
    for first in range(0, len(some), size):
        batch = some[first : first + size]
        names = tuple(f"s{first + k}" for k in range(len(batch)))
        yield Structures(columns_of_atoms(batch, ensemble.rules), names, {})


def test_the_first_pick_is_the_most_uncertain_one(ensemble: Ensemble) -> None:
    some = structures(40)
    found = pick(ensemble, pool(ensemble, some, 7), Wish(5, by="charge"))
    head, said = ensemble.manifest.heads["charge"], ensemble.predict(some).heads["charge"]
    column = (said.std if head.calibration.a > 0 else said.std_epistemic)[:, 0]
    ends = np.cumsum([len(atoms) for atoms in some])
    worst = [float(part.max()) for part in np.split(column, ends[:-1])]
    first = found.candidates[0]
    assert first.id == f"s{int(np.argmax(worst))}"
    assert first.score == pytest.approx(max(worst) / head.std, rel=1e-6)
    assert len({candidate.id for candidate in found.candidates}) == 5
    assert found.counts["read"] == 40


def test_how_the_pool_is_cut_changes_nothing(ensemble: Ensemble) -> None:
    some = structures(30)
    once = pick(ensemble, pool(ensemble, some, 30), Wish(4))
    pieces = pick(ensemble, pool(ensemble, some, 4), Wish(4))
    assert [c.id for c in once.candidates] == [c.id for c in pieces.candidates]
    assert once.counts == pieces.counts


def test_picks_lie_farther_apart_than_the_highest_scores(ensemble: Ensemble) -> None:
    found = pick(ensemble, pool(ensemble, structures(80), 40), Wish(6))
    assert found.mean_distance > found.mean_distance_top > 0.0


def test_copies_are_picked_once(ensemble: Ensemble) -> None:
    (one,) = structures(1)
    turned = one.copy()
    turned.rotate(33, "x")
    turned.translate([5.0, 1.0, 2.0])
    order = np.random.default_rng(0).permutation(len(one))
    several = [one, turned, one[order], *structures(6, seed=6)]
    found = pick(ensemble, pool(ensemble, several, 3), Wish(9))
    assert len({c.id for c in found.candidates} & {"s0", "s1", "s2"}) == 1
    assert found.counts["same"] == 2


def test_descriptors_do_not_see_turns_shifts_order_or_supercells(ensemble: Ensemble) -> None:
    cell = Atoms("CO", [[0, 0, 0], [1.3, 1.1, 1.2]], cell=4.2 * np.eye(3), pbc=True)
    twice = cell.repeat((2, 1, 1))
    turned = cell.copy()
    turned.rotate(40, "z", rotate_cell=True)
    graphs = [
        graph_of(atoms, Place(Path("x"), k, str(k)), ensemble.rules)
        for k, atoms in enumerate([cell, twice, turned, cell[[1, 0]], *structures(4)])
    ]
    points = descriptors(ensemble, graphs)
    for other in points[1:4]:
        np.testing.assert_allclose(other, points[0], atol=1e-4)
    assert np.linalg.norm(points[4] - points[0]) > 0.1


def test_unseen_elements_are_picked_on_wish_only(ensemble: Ensemble) -> None:
    some = [*structures(5), Atoms("UH", [[0, 0, 0], [1.9, 0, 0]])]
    without = pick(ensemble, pool(ensemble, some, 6), Wish(6))
    assert without.counts["unseen"] == 1
    assert "s5" not in {c.id for c in without.candidates}
    with_them = pick(ensemble, pool(ensemble, some, 6), Wish(6, unseen=True))
    told = {c.id: c.told["trust"] for c in with_them.candidates}
    assert "unseen element U" in told["s5"]


def test_forces_rank_by_the_largest_disagreement(ensemble: Ensemble) -> None:
    some = structures(8)
    found = pick(ensemble, pool(ensemble, some, 3), Wish(8, by="forces"))
    calculator = EnsembleCalculator(ensemble)
    for candidate in found.candidates:
        atoms = some[int(candidate.id[1:])]
        atoms.calc = calculator
        spread = calculator.get_property("forces_std_epistemic", atoms)
        wanted = np.sqrt(np.square(spread).sum(axis=1)).max()
        assert candidate.told[DEVIATION] == pytest.approx(wanted, rel=1e-6)
        assert candidate.score == candidate.told[DEVIATION]


def test_trust_levels_sort_structures(ensemble: Ensemble) -> None:
    some = structures(12)
    everything = pick(ensemble, pool(ensemble, some, 12), Wish(12, by="forces"))
    values = sorted(c.told[DEVIATION] for c in everything.candidates)
    low, high = (values[2] + values[3]) / 2, (values[8] + values[9]) / 2
    found = pick(ensemble, pool(ensemble, some, 5), Wish(12, by="forces", low=low, high=high))
    assert all(low <= c.told[DEVIATION] < high for c in found.candidates)
    counts = found.counts
    assert (counts["accurate"], counts["candidate"], counts["failed"]) == (3, 6, 3)


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        (Wish(1, by="energi"), "Did you mean 'energy'"),
        (Wish(1, by="charge", low=0.1), "add --by forces"),
        (Wish(1, by="forces", low=0.3, high=0.1), "is not below --high"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(
    ensemble: Ensemble, wish: Wish, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ranking_of(ensemble, wish)


def test_a_pool_without_candidates_is_told(ensemble: Ensemble) -> None:
    with pytest.raises(DataError, match="1 unseen"):
        pick(ensemble, pool(ensemble, [Atoms("U")], 1), Wish(3))
    with pytest.raises(DataError, match="0 read"):
        pick(ensemble, iter(()), Wish(3))


def test_the_command_writes_picks_and_tells(
    built_zip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = structures(12)
    for number, atoms in enumerate(some):
        atoms.info["name"] = f"m{number}"
    source, out = tmp_path / "pool.extxyz", tmp_path / "picked.extxyz"
    write(source, some)
    with source.open("a") as file:
        file.write("1\nProperties=species:S:1:pos:R:3\nQq 0 0 0\n")
    command([source], ensemble=built_zip, out=out, number=4, as_json=True)
    told = json.loads(capsys.readouterr().out)
    frames = read(out, ":")
    assert [frame.info["id"] for frame in frames] == [entry["id"] for entry in told["picked"]]
    assert [frame.info["pick"] for frame in frames] == [1, 2, 3, 4]
    for frame in frames:
        original = some[int(frame.info["id"][1:])]
        np.testing.assert_allclose(frame.positions, original.positions, atol=1e-7)
        assert frame.symbols.get_chemical_formula() == original.symbols.get_chemical_formula()
        assert {"score", "trust", "energy_std", "charge_std"} <= set(frame.info)
    assert told["counts"]["read"] == 13
    assert told["counts"]["bad"] == 1
    command([source], ensemble=built_zip, out=out, number=4)
    assert "4 of 13 picked" in capsys.readouterr().out


def test_a_dry_run_writes_nothing(
    built_zip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "picked.extxyz"
    command([tmp_path / "pool.extxyz"], ensemble=built_zip, out=out, dry_run=True)
    assert "would rank" in capsys.readouterr().out
    assert not out.exists()
    with pytest.raises(ConfigError, match=r"end it in \.extxyz"):
        command([tmp_path / "x"], ensemble=built_zip, out=tmp_path / "picked.cif", dry_run=True)


def test_the_pool_is_never_replaced(tmp_path: Path, built_zip: Path) -> None:
    pool = tmp_path / "pool.extxyz"
    write(pool, structures(3))
    before = pool.read_bytes()
    with pytest.raises(ConfigError, match="is read from"):
        command([pool], ensemble=built_zip, out=pool, number=2)
    assert pool.read_bytes() == before
