"""The figure of a run, drawn from the two files that the ensemble leaves."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.report.parity import draw_parity
from hydragnn_hpo.report.test_predictions import sample_evenly


def make_report(run: Path, rows: int = 70, nodes: int = 4000) -> Path:
    rng = np.random.default_rng(0)
    arrays, heads = {}, {}
    for name, unit, count, width in (
        ("atomization_energy", "eV/atom", rows, 1),
        ("partial_charge", "e", nodes, 1),
        ("forces", "eV/angstrom", nodes, 3),
    ):
        truth = rng.normal(size=(count, width))
        half = 0.2 + 0.3 * rng.random((count, 1))
        arrays[f"{name}/truth"] = truth
        arrays[f"{name}/mean"] = truth + half / 1.645 * rng.normal(size=truth.shape)
        arrays[f"{name}/half90"] = half
        heads[name] = {
            "unit": unit,
            "test_mae": 0.184,
            "single_mae": 0.2213,
            "mean_baseline_mae": 0.791,
            "coverage90": 0.912,
        }
    board = [
        {
            "trial": f"t{k:04d}",
            "conv": ("painn", "egnn", "schnet")[(k * 7 + k // 5) % 3],
            "status": "completed" if k < 6 else "stopped",
            "objective": 0.2 + 0.02 * k + 0.002 * k**1.5,
            "epochs": 30,
        }
        for k in range(27)
    ]
    board.append(
        {"trial": "t0030", "conv": "egnn", "status": "failed", "objective": None, "epochs": None}
    )
    members = [{"trial": f"t{k:04d}", "weight": 0.2} for k in (0, 1, 2, 4, 5)]
    folder = run / "report"
    folder.mkdir(parents=True)
    save_file(arrays, folder / "test_predictions.safetensors")
    table = {"heads": heads, "members": members, "leaderboard": board, "method": "greedy"}
    (folder / "ensemble.json").write_text(json.dumps(table))
    return run


def test_it_draws_a_png_of_every_scalar_head_and_the_leaderboard(tmp_path: Path) -> None:
    run = make_report(tmp_path / "run")
    out = tmp_path / "parity.png"

    draw_parity(run, out)

    data = out.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    assert width == 3 * height  # two scalar heads and the leaderboard: forces are left out


def test_the_same_run_gives_the_same_picture(tmp_path: Path) -> None:
    run = make_report(tmp_path / "run")
    draw_parity(run, tmp_path / "a.png")
    draw_parity(run, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_sample_keeps_both_ends_and_no_row_twice() -> None:
    truth = np.random.default_rng(1).normal(size=5000)
    shown = sample_evenly(truth, 1500)
    assert len(shown) == len(set(shown.tolist())) == 1500
    assert {int(truth.argmin()), int(truth.argmax())} <= set(shown.tolist())


def test_few_rows_are_all_shown() -> None:
    assert sorted(sample_evenly(np.array([3.0, 1.0, 2.0]), 1500).tolist()) == [0, 1, 2]


def test_one_row_one_trial_is_drawn(tmp_path: Path) -> None:
    run = make_report(tmp_path / "run", rows=1, nodes=1)
    table = json.loads((run / "report/ensemble.json").read_text())
    table["leaderboard"] = table["leaderboard"][:1]
    (run / "report/ensemble.json").write_text(json.dumps(table))
    draw_parity(run, tmp_path / "parity.png")
    assert (tmp_path / "parity.png").exists()


def test_a_run_without_ensemble_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no ensemble yet"):
        draw_parity(tmp_path, tmp_path / "parity.png")


def test_a_damaged_report_is_named(tmp_path: Path) -> None:
    run = make_report(tmp_path / "run")
    path = run / "report/test_predictions.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(RunError, match="build the ensemble again"):
        draw_parity(run, tmp_path / "parity.png")
    assert not (tmp_path / "parity.png").exists()
