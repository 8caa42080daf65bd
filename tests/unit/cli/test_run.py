"""What ``run`` tells people to do next."""

import sys

import pytest

from hydragnn_hpo.cli import run


@pytest.mark.parametrize(
    ("on_path", "called", "said"),
    [
        ("/usr/bin/hydragnn-hpo", "x", "hydragnn-hpo"),
        (None, ".venv/bin/hydragnn-hpo", ".venv/bin/hydragnn-hpo"),
        (None, "/x/hydragnn_hpo/__main__.py", f"{sys.executable} -m hydragnn_hpo"),
    ],
)
def test_the_next_command_can_be_typed_as_it_stands(monkeypatch, on_path, called, said):
    monkeypatch.setattr("shutil.which", lambda name: on_path)
    monkeypatch.setattr("sys.argv", [called, "run"])
    assert run._program() == said
