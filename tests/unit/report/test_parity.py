"""The figure of a run, drawn from the two files that the ensemble leaves."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.report import parity
from hydragnn_hpo.report.parity import draw_parity, find_members
from hydragnn_hpo.report.test_predictions import sample_evenly


@pytest.fixture
def run(made: SimpleNamespace, tmp_path: Path) -> Path:
    """Return a run whose third head has three numbers for each atom."""
    shutil.copytree(made.run.report, tmp_path / "run" / "report")
    path = tmp_path / "run" / "report" / "test_predictions.safetensors"
    arrays = load_file(path)
    for name in ("charge/truth", "charge/mean"):
        arrays[name] = np.repeat(arrays[name], 3, axis=1)
    save_file(arrays, path)
    return tmp_path / "run"


def test_it_draws_a_png_of_every_head_and_the_leaderboard(run: Path) -> None:
    draw_parity(run, run / "a.png")
    data = (run / "a.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width = int.from_bytes(data[16:20], "big")
    height = int.from_bytes(data[20:24], "big")
    assert width == height  # three heads, one of vectors, and the leaderboard


def test_all_components_of_a_vector_have_points_and_their_interval(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, list[np.ndarray]] = {}

    def note(axis: object, *values: np.ndarray, unit: str) -> None:
        drawn[unit] = list(values)

    monkeypatch.setattr(parity, "draw_intervals", note)
    draw_parity(run, run / "a.png")
    arrays = load_file(run / "report" / "test_predictions.safetensors")
    truth, mean, half = drawn[read_json(run / "report/ensemble.json")["heads"]["charge"]["unit"]]
    assert truth.tolist() == arrays["charge/truth"].reshape(-1).tolist()
    assert mean.tolist() == arrays["charge/mean"].reshape(-1).tolist()
    assert half.tolist() == np.repeat(arrays["charge/half90"], 3).tolist()


def test_a_class_has_its_reliability(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run / "report/ensemble.json"
    table = read_json(path)
    bins = {"confidence": [0.55, 0.9], "right": [0.5, 0.95], "count": [40.0, 40.0]}
    table["curves"]["charge"] = {"reliability": bins}
    path.write_text(json.dumps(table))
    drawn = []
    monkeypatch.setattr(parity, "draw_reliability", lambda axis, given: drawn.append(given))
    draw_parity(run, run / "a.png")
    assert drawn == [bins]
    monkeypatch.undo()
    draw_parity(run, run / "b.png")
    assert (run / "b.png").read_bytes() != (run / "a.png").read_bytes()


def test_a_sample_keeps_both_ends_and_no_row_twice() -> None:
    truth = np.random.default_rng(1).normal(size=5000)
    sample = sample_evenly(truth, 1500)
    assert len(sample) == len(set(sample.tolist())) == 1500
    assert {int(truth.argmin()), int(truth.argmax())} <= set(sample.tolist())
    assert sorted(sample_evenly(truth[:1500], 1500).tolist()) == list(range(1500))


def test_one_row_is_drawn(run: Path) -> None:
    path = run / "report" / "test_predictions.safetensors"
    save_file({name: rows[:1].copy() for name, rows in load_file(path).items()}, path)
    draw_parity(run, run / "a.png")
    assert (run / "a.png").exists()


def test_a_run_without_ensemble_gets_instructions(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no ensemble yet"):
        draw_parity(tmp_path, tmp_path / "parity.png")


def test_a_damaged_report_is_named(run: Path) -> None:
    path = run / "report" / "test_predictions.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(RunError, match="build the ensemble again"):
        draw_parity(run, run / "parity.png")
    assert not (run / "parity.png").exists()


def test_configurations_whose_fits_are_members_are_marked(run: Path) -> None:
    table = read_json(run / "report" / "ensemble.json")
    own = {member["trial"] for member in table["members"]}
    assert find_members(table) == own
    for of_head in table["diversity"].values():
        of_head["members"] = ["t0007", "t0009"]
    assert find_members(table) == own | {"t0007", "t0009"}
