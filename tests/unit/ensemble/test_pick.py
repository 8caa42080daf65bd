"""Far from each other, and uncertain."""

import itertools
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.io import read, write
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.cli.ensemble_command import pick as command
from hydragnn_hpo.ensemble.artefact import HeadEntry
from hydragnn_hpo.ensemble.calculator import EnsembleCalculator
from hydragnn_hpo.ensemble.descriptors import standardize
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.pick import (
    DEVIATION,
    LEVELS,
    PickRequest,
    assign_levels,
    compute_descriptors,
    farthest_first,
    force_disagreement,
    make_ranking,
    mean_distance,
    pick_structures,
    score_head,
    score_structures,
)
from hydragnn_hpo.ensemble.prediction import HeadPrediction
from hydragnn_hpo.ensemble.structure_batches import Structures, columns_of_atoms
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.uncertainty.calibrate import Calibration, compute_moments
from hydragnn_hpo.uncertainty.error_factors import ErrorFactors


def cover(points: np.ndarray, centers: list[int]) -> float:
    """Return how far the farthest point is from its nearest centre."""
    return max(min(float(np.linalg.norm(p - points[c])) for c in centers) for p in points)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 3))
def test_with_equal_scores_it_covers_at_most_twice_as_wide_as_the_best(seed, count, wanted):
    points = np.random.default_rng(seed).normal(size=(count, 2))
    result = farthest_first(points, np.ones(count), wanted)
    wanted = min(wanted, count)
    best = min(cover(points, list(some)) for some in itertools.combinations(range(count), wanted))
    assert cover(points, result.rows.tolist()) <= 2.0 * best + 0.01


def test_it_begins_with_the_best_and_goes_far():
    points = np.array([[0.0], [0.1], [5.0], [10.0]])
    result = farthest_first(points, np.array([1.0, 2.0, 1.0, 1.0]), 3)
    # 0.1 has the best score; 10 is 9.9 from it, 5 is then 4.9 from both.
    assert result.rows.tolist() == [1, 3, 2]
    assert result.distances[1:] == pytest.approx([9.9, 4.9])


def test_a_far_but_known_point_does_not_win():
    points = np.array([[0.0], [4.0], [10.0]])
    assert farthest_first(points, np.array([1.0, 0.9, 0.1]), 2).rows.tolist() == [0, 1]


def test_what_is_the_same_is_picked_once():
    points = np.array([[0.0], [0.0], [1.0], [1.0 + 1e-6], [2.0]])
    result = farthest_first(points, np.array([5.0, 4.0, 3.0, 2.0, 1.0]), 5)
    assert sorted(result.rows.tolist()) == [0, 2, 4]
    assert result.duplicates == 2
    nothing = farthest_first(np.zeros((0, 2)), np.zeros(0), 3)
    assert (len(nothing.rows), nothing.duplicates) == (0, 0)


def test_two_random_points_are_about_the_root_of_two_apart():
    points = standardize(np.random.default_rng(0).normal(3.0, 50.0, (400, 30)))
    squares = np.square(points[:, None] - points[None]).sum(axis=-1)
    # Mean over ordered pairs of distinct points of |x - y|^2: 2 n / (n - 1) times the variances.
    assert squares.sum() / (400 * 399) == pytest.approx(2.0 * 400 / 399)


def test_what_never_changes_tells_nothing():
    assert not standardize(np.full((5, 3), 7.0)).any()
    features = np.array([[1.0, 0.0], [1.0, 2.0]])
    assert standardize(features).tolist() == [[-1.0], [1.0]]


def test_mean_distance_by_hand():
    assert mean_distance(np.array([[0.0], [1.0], [3.0]])) == pytest.approx((1 + 3 + 2) / 3)
    assert mean_distance(np.zeros((1, 2))) == 0.0


FACTORS = ErrorFactors({"O": 2.0}, (0.0,), (1.0,))


def head(
    level: str = "graph", a: float = 1.0, factors: ErrorFactors | None = None, **more: Any
) -> HeadEntry:
    known = Calibration(a, 0.01, {"0.9": 1.6}, spread99=1.0, rows=9, groups=9, factors=factors)
    values = {"level": level, "shape": "scalar", "unit": "eV", "mean": 0.0, "std": 2.0}
    return HeadEntry(**{**values, **more}, calibration=known)


def prediction_of(std: list[float], epistemic: list[float] | None = None) -> HeadPrediction:
    column = np.array(std)[:, None]
    spread = column if epistemic is None else np.array(epistemic)[:, None]
    return HeadPrediction(column, column, spread, column, column)


@pytest.mark.parametrize(
    ("entry", "std", "epistemic", "score"),
    [
        (head(), [1.0, 4.0, 3.0], None, [0.5, 2.0, 1.5]),
        (head("node"), [1.0, 6.0, 4.0], None, [3.0, 2.0]),
        (head(a=0.0), [1.0, 1.0], [0.2, 0.4], [0.1, 0.2]),
        (head(a=0.0, factors=FACTORS), [1.0, 4.0], [0.2, 0.4], [0.5, 2.0]),
        (head(std=0.0), [3.0], None, [3.0]),
    ],
    ids=[
        "of a graph",
        "of the worst atom",
        "raw, where sigma is constant",
        "with factors it is not",
        "never changed",
    ],
)
def test_the_score_is_the_spread_in_units_of_the_target(entry, std, epistemic, score):
    assert score_head(entry, prediction_of(std, epistemic), np.array([0, 2, 3])).tolist() == score


def test_heads_whose_spread_tells_nothing_do_not_count_beside_others():
    known = SimpleNamespace(heads={"x": head(), "y": head(), "z": head(a=0.0)})
    offsets = np.array([0, 1])
    heads = {"x": prediction_of([1.0]), "y": prediction_of([3.0]), "z": prediction_of([9.0], [8.0])}
    assert score_structures(known, heads, offsets).tolist() == [(0.5 + 1.5) / 2]  # type: ignore[arg-type]
    assert score_structures(known, {"z": heads["z"]}, offsets).tolist() == [4.0]  # type: ignore[arg-type]


def test_disagreement_on_forces_is_that_of_dp_gen():
    rng = np.random.default_rng(1)
    forces = rng.normal(size=(5, 7, 3))  # members, atoms
    offsets = np.array([0, 3, 7])
    spread = compute_moments(forces, np.full(5, 0.2)).spread
    result = force_disagreement(
        HeadPrediction(forces[0], spread, spread, forces[0], forces[0]), offsets
    )
    for graph in range(2):
        worst = 0.0
        for atom in range(offsets[graph], offsets[graph + 1]):
            mean = sum(forces[m, atom] for m in range(5)) / 5
            square = sum(np.linalg.norm(forces[m, atom] - mean) ** 2 for m in range(5)) / 5
            worst = max(worst, float(np.sqrt(square)))
        assert result[graph] == pytest.approx(worst, rel=1e-12)


def test_levels_include_their_lower_end():
    level = assign_levels(np.array([0.04, 0.05, 0.1, 0.25, 9.0]), 0.05, 0.25)
    assert [LEVELS[place] for place in level] == [
        *("accurate", "candidate", "candidate", "failed", "failed"),
    ]


@pytest.fixture(scope="module")
def ensemble(built_zip):
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


def test_the_first_pick_is_the_most_uncertain_one(ensemble):
    some = structures(40)
    result = pick_structures(ensemble, pool(ensemble, some, 7), PickRequest(5, by="charge"))
    head = ensemble.manifest.heads["charge"]
    prediction = ensemble.predict(some).heads["charge"]
    column = (prediction.std if head.calibration.a > 0 else prediction.std_epistemic)[:, 0]
    ends = np.cumsum([len(atoms) for atoms in some])
    worst = [float(part.max()) for part in np.split(column, ends[:-1])]
    first = result.candidates[0]
    assert first.id == f"s{int(np.argmax(worst))}"
    assert first.score == pytest.approx(max(worst) / head.std, rel=1e-6)
    assert len({candidate.id for candidate in result.candidates}) == 5
    assert result.counts["read"] == 40


def test_how_the_pool_is_cut_changes_nothing_and_picks_lie_far_apart(ensemble):
    some = structures(60)
    once = pick_structures(ensemble, pool(ensemble, some, 60), PickRequest(5))
    pieces = pick_structures(ensemble, pool(ensemble, some, 7), PickRequest(5))
    assert [c.id for c in once.candidates] == [c.id for c in pieces.candidates]
    assert once.counts == pieces.counts
    assert once.mean_distance > once.mean_distance_top > 0.0


def test_turns_shifts_order_and_supercells_are_the_same_structure(ensemble):
    cell = Atoms("CO", [[0, 0, 0], [1.3, 1.1, 1.2]], cell=4.2 * np.eye(3), pbc=True)
    turned = cell.copy()
    turned.rotate(40, "z", rotate_cell=True)
    shifted = cell[[1, 0]]
    shifted.translate([5.0, 1.0, 2.0])
    several = [cell, cell.repeat((2, 1, 1)), turned, shifted, *structures(4)]
    points = compute_descriptors(ensemble, columns_of_atoms(several, ensemble.rules))
    for other in points[1:4]:
        np.testing.assert_allclose(other, points[0], atol=1e-4)
    assert np.linalg.norm(points[4] - points[0]) > 0.1
    result = pick_structures(ensemble, pool(ensemble, several, 3), PickRequest(8))
    assert len({c.id for c in result.candidates} & {"s0", "s1", "s2", "s3"}) == 1
    assert result.counts["same"] == 3


def test_unseen_elements_are_picked_on_request_only(ensemble):
    some = [*structures(5), Atoms("UH", [[0, 0, 0], [1.9, 0, 0]])]
    without = pick_structures(ensemble, pool(ensemble, some, 6), PickRequest(6))
    assert without.counts["unseen"] == 1
    assert "s5" not in {c.id for c in without.candidates}
    with_them = pick_structures(ensemble, pool(ensemble, some, 6), PickRequest(6, unseen=True))
    trust_by_id = {c.id: c.trust for c in with_them.candidates}
    assert "unseen element U" in trust_by_id["s5"]


def test_forces_rank_and_sort_structures_by_the_largest_disagreement(ensemble):
    some = structures(12)
    everything = pick_structures(ensemble, pool(ensemble, some, 5), PickRequest(12, by="forces"))
    calculator = EnsembleCalculator(ensemble)
    for candidate in everything.candidates:
        spread = calculator.get_property("forces_std_epistemic", some[int(candidate.id[1:])])
        wanted = np.sqrt(np.square(spread).sum(axis=1)).max()
        assert candidate.deviations[DEVIATION] == pytest.approx(wanted, rel=1e-6)
        assert candidate.score == candidate.deviations[DEVIATION]
    values = sorted(c.deviations[DEVIATION] for c in everything.candidates)
    low, high = (values[2] + values[3]) / 2, (values[8] + values[9]) / 2
    result = pick_structures(
        ensemble, pool(ensemble, some, 5), PickRequest(12, by="forces", low=low, high=high)
    )
    assert all(low <= c.deviations[DEVIATION] < high for c in result.candidates)
    counts = result.counts
    assert (counts["accurate"], counts["candidate"], counts["failed"]) == (3, 6, 3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (PickRequest(1, by="energi"), "Did you mean 'energy'"),
        (PickRequest(1, by="charge", low=0.1), "add --by forces"),
        (PickRequest(1, by="forces", low=0.3, high=0.1), "is not below --high"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(ensemble, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make_ranking(ensemble, options)


def test_a_pool_without_candidates_is_reported(ensemble):
    with pytest.raises(DataError, match="1 unseen"):
        pick_structures(ensemble, pool(ensemble, [Atoms("U")], 1), PickRequest(3))
    with pytest.raises(DataError, match="0 read"):
        pick_structures(ensemble, iter(()), PickRequest(3))


def test_the_command_writes_picks_and_tells(built_zip, tmp_path, capsys):
    some = structures(12)
    for number, atoms in enumerate(some):
        atoms.info["name"] = f"m{number}"
    source, out = tmp_path / "pool.extxyz", tmp_path / "picked.extxyz"
    write(source, some)
    with source.open("a") as file:
        file.write("1\nProperties=species:S:1:pos:R:3\nQq 0 0 0\n")
    command([source], ensemble=built_zip, out=out, number=4, as_json=True)
    report = json.loads(capsys.readouterr().out)
    frames = read(out, ":")
    assert [frame.info["id"] for frame in frames] == [entry["id"] for entry in report["picked"]]
    assert [frame.info["pick"] for frame in frames] == [1, 2, 3, 4]
    for frame in frames:
        original = some[int(frame.info["id"][1:])]
        np.testing.assert_allclose(frame.positions, original.positions, atol=1e-7)
        assert frame.symbols.get_chemical_formula() == original.symbols.get_chemical_formula()
        assert {"score", "trust", "energy_std", "charge_std"} <= set(frame.info)
    assert report["counts"]["read"] == 13
    assert report["counts"]["bad"] == 1
    command([source], ensemble=built_zip, out=out, number=4)
    assert "4 of 13 picked" in capsys.readouterr().out


def test_a_dry_run_writes_nothing_and_the_pool_is_never_replaced(built_zip, tmp_path, capsys):
    out = tmp_path / "picked.extxyz"
    command([tmp_path / "pool.extxyz"], ensemble=built_zip, out=out, dry_run=True)
    assert "would rank" in capsys.readouterr().out
    assert not out.exists()
    with pytest.raises(ConfigError, match=r"end it in \.extxyz"):
        command([tmp_path / "x"], ensemble=built_zip, out=tmp_path / "picked.cif", dry_run=True)
    source = tmp_path / "source.extxyz"
    write(source, structures(3))
    before = source.read_bytes()
    with pytest.raises(ConfigError, match="is read from"):
        command([source], ensemble=built_zip, out=source, number=2)
    assert source.read_bytes() == before
    ensemble = tmp_path / "e.extxyz"
    ensemble.write_bytes(built_zip.read_bytes())
    with pytest.raises(ConfigError, match=r"e.extxyz: is read from; give --out another name"):
        command([source], ensemble=ensemble, out=ensemble, number=2)
    assert ensemble.read_bytes() == built_zip.read_bytes()
