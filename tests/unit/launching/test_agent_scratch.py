"""An agent's private folder: made late, ours alone, never left behind."""

import tempfile

import pytest

from hydragnn_hpo.launching.agent_scratch import AgentScratch


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_made_at_its_first_use_for_us_alone(temporary):
    scratch = AgentScratch("run@host")
    assert list(temporary.iterdir()) == []

    path = scratch.file("a/../b")

    assert path.parent.parent == temporary
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert scratch.file("c").parent == path.parent
    scratch.remove()
    assert list(temporary.iterdir()) == []


def test_what_an_earlier_life_left_is_removed_and_nothing_else(temporary):
    AgentScratch("run@host").file("x").touch()
    AgentScratch("run@host2").file("y").touch()
    AgentScratch("run@host-2").file("w").touch()
    AgentScratch("other@host").file("z").touch()

    AgentScratch("run@host")

    assert sorted(path.name for path in temporary.glob("*/*")) == ["w", "y", "z"]
