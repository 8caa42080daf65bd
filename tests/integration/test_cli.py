"""The command line: what it loads, what ``--dry-run`` leaves alone."""

import json
import os
import shutil

import pytest

from hydragnn_hpo import __version__


def test_version_and_help(hpo):
    done = hpo("--version")
    assert (done.code, done.out) == (0, f"hydragnn-hpo {__version__}\n")
    done = hpo.here("--help")
    assert done.code == 0
    for verb in ("run", "trial", "status", "leaderboard", "predict", "dataset", "ensemble"):
        assert verb in done.out
    for verb in ("plan", "stop", "pause", "retry", "cancel", "add-trials"):
        assert verb in done.out


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run ci --run run --slots 2", ("slot local:1", "would start")),
        ("dataset build g2_xtb", ("g2_xtb.extxyz.gz", "g2_xtb.bp")),
        ("trial trial", ("learning_rate",)),
    ],
)
def test_a_dry_run_makes_nothing_and_says_what_would_be(hpo, command, says):
    hpo.trial()
    done = hpo.here(*command.split(), "--dry-run")
    assert done.code == 0, done.err
    assert not [word for word in says if word not in done.out]
    assert hpo.files_of(hpo.folder) == {"trial/trial.toml"}


def test_a_dry_run_shows_slots_as_the_profile_lays_them_out(hpo):
    mine = min(os.sched_getaffinity(0))
    profile = {
        "extends": "workstation", "name": "mine", "slots_per_host": 1,
        "layout": {"cores_of_slot": [str(mine)]}, "rank": {"accelerator": "cpu"},
    }  # fmt: skip
    path = hpo.toml("mine.toml", profile)

    done = hpo.here("run", "ci", "--run", "run", "--machine", path, "--dry-run")

    assert done.code == 0, done.err
    assert [line for line in done.out.splitlines() if line.startswith("slot ")] == [
        f"slot local:0: cpu, cores {mine}"
    ]


def test_a_dry_run_of_an_ensemble_makes_nothing(finished):
    before = {path: path.stat().st_mtime_ns for path in finished.run.rglob("*")}
    done = finished.hpo.here("ensemble", "build", finished.run, "--dry-run")
    assert done.code == 0, done.err
    assert finished.printed["leaderboard"]["trials"][0]["trial"] in done.out
    assert {path: path.stat().st_mtime_ns for path in finished.run.rglob("*")} == before


def test_a_dry_run_misses_the_files_that_a_run_would_miss(hpo):
    hpo.card(hpo.molecules(4))
    campaign = hpo.campaign()
    assert hpo.here("run", campaign, "--dry-run").code == 0
    (hpo.folder / "tiny.extxyz").unlink()
    hpo.refused("run", campaign, "--dry-run", says=("tiny.toml", "'tiny.extxyz' is not in"))


@pytest.mark.slow
def test_a_finished_run_has_its_report(finished):
    text = (finished.run / "report" / "report.html").read_text()
    assert ", finished, as of " in text
    assert "could not be made" not in text
    for head in finished.printed["ensemble"]["heads"].values():
        assert f'value="{head["test_mae"]!r}"' in text


def test_warnings_of_an_ensemble_are_printed_with_it(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished.run, run)
    summary = json.loads((run / "summary.json").read_text())
    summary["ensemble"]["warnings"] = ["3 groups in cal are too few; raise its share."]
    (run / "summary.json").write_text(json.dumps(summary))
    done = finished.hpo.here("run", finished.hpo.root / "workflows" / "ci.toml", "--run", run)
    assert done.code == 0, done.err
    assert "warning: 3 groups in cal are too few; raise its share.\n" in done.err
