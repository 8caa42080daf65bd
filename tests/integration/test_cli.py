"""The command line: what it loads, what ``--dry-run`` leaves alone."""

import subprocess
import sys

from hydragnn_hpo import __version__

SLOW = ("torch", "ase", "numpy", "deephyper", "matplotlib", "rich.live", "pandas", "sklearn")


def test_help_loads_nothing_slow():
    code = (
        "import sys, hydragnn_hpo.cli.main\n"
        f"found = [name for name in {SLOW!r} if name in sys.modules]\n"
        "assert not found, found\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_version_and_help(hpo):
    done = hpo("--version")
    assert (done.code, done.out) == (0, f"hydragnn-hpo {__version__}\n")
    done = hpo("--help")
    assert done.code == 0
    for verb in ("run", "trial", "status", "leaderboard", "predict", "dataset", "ensemble"):
        assert verb in done.out


def test_a_dry_run_of_a_campaign_makes_nothing(hpo):
    done = hpo("run", "ci", "--run", "run", "--slots", "2", "--dry-run")
    assert done.code == 0, done.err
    assert "slot local:1" in done.out
    assert "would start" in done.out
    assert not any(hpo.folder.iterdir())


def test_a_dry_run_of_a_build_makes_nothing(hpo):
    done = hpo("dataset", "build", "g2_xtb", "--dry-run")
    assert done.code == 0, done.err
    assert "g2_xtb.extxyz.gz" in done.out
    assert "g2_xtb.bp" in done.out
    assert not any(hpo.folder.iterdir())


def test_a_dry_run_of_a_trial_makes_nothing(hpo):
    hpo.trial()
    done = hpo("trial", "trial", "--dry-run")
    assert done.code == 0, done.err
    assert "learning_rate" in done.out, "resolved values are shown"
    assert hpo.files_of(hpo.folder) == {"trial/trial.toml"}


def test_a_dry_run_of_an_ensemble_makes_nothing(finished):
    before = {path: path.stat().st_mtime_ns for path in finished.run.rglob("*")}
    done = finished.hpo("ensemble", "build", finished.run, "--dry-run")
    assert done.code == 0, done.err
    assert finished.printed["leaderboard"]["trials"][0]["trial"] in done.out
    assert {path: path.stat().st_mtime_ns for path in finished.run.rglob("*")} == before
