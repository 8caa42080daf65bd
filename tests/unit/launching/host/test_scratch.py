"""An agent's private folder: made late, ours alone, never left behind."""

import tempfile

import pytest

from hydragnn_hpo.launching.host.scratch import Scratch


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_made_at_its_first_use_for_us_alone(temporary):
    scratch = Scratch("run@host")
    assert list(temporary.iterdir()) == []

    path = scratch.file("a/../b")

    assert path.parent.parent == temporary
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert scratch.file("c").parent == path.parent
    scratch.remove()
    assert list(temporary.iterdir()) == []


def test_what_an_earlier_life_left_is_removed_and_nothing_else(temporary):
    Scratch("run@host").file("x").touch()
    Scratch("run@host2").file("y").touch()
    Scratch("run@host-2").file("w").touch()
    Scratch("other@host").file("z").touch()

    Scratch("run@host")

    assert sorted(path.name for path in temporary.glob("*/*")) == ["w", "y", "z"]
