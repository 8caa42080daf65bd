"""The command line as a whole: what a user is told when something is not his to read."""

import sys
from pathlib import Path

import pytest

from hydragnn_hpo.cli.main import main


def test_a_run_of_somebody_else_is_a_sentence(monkeypatch, capsys):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    monkeypatch.setattr(sys, "argv", ["hydragnn-hpo", "report", "theirs"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: theirs/campaign.toml: Permission denied")
    assert said.count("\n") == 1
