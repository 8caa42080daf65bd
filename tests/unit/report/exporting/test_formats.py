"""What every export keeps to: whole or not at all, over nothing, one sentence where it cannot."""

import doctest
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hydragnn_hpo.cli.export_run import WAYS
from hydragnn_hpo.errors import ConfigError, HydraError, RunError
from hydragnn_hpo.report.exporting import csv_files, written
from hydragnn_hpo.report.exporting.formats import FORMATS, export
from hydragnn_hpo.report.exporting.written import folder_names

NOTHING = """
name = "nothing"
command = {argv = ["true"]}
space = {a = [1, 2]}
search = {trials = 2, finalists = 1, rungs = [1]}
"""


def test_help_names_all_formats() -> None:
    assert all(name in WAYS for name in FORMATS)


@pytest.mark.parametrize("to", FORMATS)
def test_nothing_is_written_over(to: str, made: SimpleNamespace, tmp_path: Path) -> None:
    there = tmp_path / f"there{(FORMATS[to].suffixes or ('',))[0]}"
    there.write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        export(made.facts, to, there)
    assert there.read_text() == "mine"


@pytest.mark.parametrize(
    ("to", "out", "trial", "says"),
    [
        ("excel", "x", None, "unknown format 'excel'"),
        ("optuna", "x.txt", None, "name it NAME.db or NAME.sqlite3 or NAME.log"),
        ("best", "best", None, "name it NAME.toml"),
        ("csv", "x", "t0001", "--trial goes with --to best"),
        ("best", "x.toml", "t042", "unknown trial 't042'. Did you mean"),
    ],
)
def test_what_cannot_be_is_said(
    to: str, out: str, trial: str | None, says: str, made: SimpleNamespace, tmp_path: Path
) -> None:
    with pytest.raises(HydraError, match=says):
        export(made.facts, to, tmp_path / out, trial=trial)
    assert not list(tmp_path.iterdir())


def test_an_empty_campaign_is_said(run_of: Any, tmp_path: Path) -> None:
    facts = run_of(NOTHING, [])
    for to, made in FORMATS.items():
        out = tmp_path / f"out{(made.suffixes or ('',))[0]}"
        with pytest.raises(RunError, match="no trial was proposed yet"):
            export(facts, to, out)


def test_no_best_trial_yet_is_said(run_of: Any, tmp_path: Path) -> None:
    events = [{"event": "proposed", "trial": "t0000", "values": {"a": 1}, "until": 1}]
    with pytest.raises(RunError, match="no trial has a result yet"):
        export(run_of(NOTHING, events), "best", tmp_path / "best.toml")


def test_a_full_disk_leaves_nothing(
    made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(csv_files, "_encoded", full)
    with pytest.raises(HydraError, match="No space left"):
        export(made.facts, "csv", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_names_of_folders_lead_nowhere_else() -> None:
    names = ["t0001", "../t", ".._t", "/etc/passwd", "", ".", "..", "a" * 300, "a" * 301]
    found = folder_names(names)
    assert found["t0001"] == "t0001"
    assert len(set(found.values())) == len(names)
    for name in found.values():
        assert name not in ("", ".", "..")
        assert "/" not in name
        assert len(name) < 120


def test_examples_hold() -> None:
    assert doctest.testmod(written).failed == 0


def test_exports_leave_torch_out() -> None:
    """They are made on login nodes."""
    code = (
        "import sys\n"
        "import hydragnn_hpo.report.exporting.formats\n"
        "import hydragnn_hpo.report.compare_page\n"
        "assert not {'torch', 'matplotlib', 'optuna', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
