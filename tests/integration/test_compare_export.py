"""``compare``, ``export``, and ``trial NAME.toml``: what a person types, and what comes of it."""

import csv
import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_campaign import make_campaign

from hydragnn_hpo.config.schema import to_toml


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    made = [make_campaign(tmp_path / f"r{n}", trials=24, seed=n, name=f"n{n}") for n in (0, 1)]
    return made[0].path, made[1].path


def test_campaigns_are_compared(hpo: Any, two: tuple[Path, Path]) -> None:
    done = hpo.here("compare", *two)
    assert done.code == 0, done.err
    for word in ("Campaigns", "Winners", "Cost to reach an error", "Spaces", "host-seconds", "n1"):
        assert word in done.out
    plain = hpo.json("compare", *two, "--reach", "gap=0.3")
    assert [run["label"] for run in plain["runs"]] == ["n0", "n1"]
    assert [(each["quantity"], each["level"]) for each in plain["reached"]] == [
        ("val_mae.gap", 0.3)
    ]


def test_comparisons_that_make_no_sense(hpo: Any, two: tuple[Path, Path]) -> None:
    hpo.refused("compare", two[0], says=("one run directory is nothing to compare", "report RUN"))
    hpo.refused("compare", two[0], two[0], says=("named twice",))
    hpo.refused("compare", *two, "--reach", "gap", says=("write HEAD=MAE",))
    hpo.refused("compare", *two, "--reach", "gap=nan", says=("write HEAD=MAE",))
    hpo.refused("compare", *two, "--reach", "gup=1", says=("Did you mean 'gap'?",))


def test_a_campaign_is_exported(hpo: Any, two: tuple[Path, Path], tmp_path: Path) -> None:
    report = hpo.json("export", two[0], "--to", "csv", "--out", tmp_path / "tables")
    assert report["files"] == [str(tmp_path / "tables" / f"{n}.csv") for n in ("trials", "epochs")]
    with (tmp_path / "tables" / "trials.csv").open() as file:
        assert len(list(csv.DictReader(file))) == report["trials"] == 24
    done = hpo.here("export", two[0], "--to", "optuna", "--out", tmp_path / "study.db")
    assert f"optuna-dashboard sqlite:///{tmp_path / 'study.db'}" in done.out
    hpo.refused("export", two[0], "--to", "csv", "--out", tmp_path / "tables", says=("already",))
    hpo.refused("export", two[0], "--to", "exel", "--out", "x", says=("unknown format",))
    hpo.refused("export", tmp_path, "--to", "csv", "--out", "x", says=("holds no campaign",))


def plain_trial(folder: Path, **changes: Any) -> Path:
    """Write a configuration by itself, beside its store."""
    values = {
        "trial": "alone",
        "data": {"store": "tiny.bp"},
        "model": {"conv": "schnet", "features": 8, "layers": 1, "cutoff": 4.0},
        "heads": {"energy_like": {}},
        "training": {"epochs": 1, "global_batch": 8},
    }
    path = folder / "alone.toml"
    path.write_text(to_toml(values | changes))
    return path


def test_its_folder_belongs_to_it(hpo: Any, tmp_path: Path) -> None:
    path = plain_trial(tmp_path)
    other = hpo.toml("alone/trial.toml", tomllib.loads(path.read_text()) | {"seed": 7})
    hpo.refused("trial", path, says=("holds another trial", "rename the file"))
    assert tomllib.loads(other.read_text())["seed"] == 7
    bare = path.rename(tmp_path / "alone2")
    hpo.refused("trial", bare, says=("name it NAME.toml",))


def test_the_best_configuration_trains(finished: SimpleNamespace, hpo: Any, tmp_path: Path) -> None:
    """As it is, and to the result that the campaign had: Law 5."""
    board = hpo.json("leaderboard", finished.run)["trials"][0]
    report = hpo.json(
        "export", finished.run, "--to", "best", "--out", tmp_path / "best_config.toml"
    )
    assert report["open_with"] == f"hydragnn-hpo trial {tmp_path / 'best_config.toml'}"
    done = hpo("trial", tmp_path / "best_config.toml")
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "best_config/attempts/001/result.json").read_text())
    assert result["status"] == "completed"
    assert result["trial"] == board["trial"]
    assert result["epochs"] == board["epochs"]
    if board["width"] == 1:
        assert result["objective"] == pytest.approx(board["objective"], rel=1e-6)
    again = hpo.here("trial", tmp_path / "best_config.toml", "--dry-run")
    assert again.code == 0, again.err
