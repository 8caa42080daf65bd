"""Folders of a rank's own: where they are, whose they are, when they go."""

import tempfile
from pathlib import Path

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching import scratch_folders
from hydragnn_hpo.launching.protocol import RankStart
from hydragnn_hpo.launching.scratch_folders import AgentScratch

HOSTILE = ("..", ".", "a/b", "../../etc", "$(touch x)", "a b", "line\nbreak", "'\"", "-rf", "~")
FIELDS = {"scratch": "/nvme/me", "trial": "t0001.2", "host": "n03", "slot": "5"}


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_one_step_down(name):
    path = scratch_folders.fill("{scratch}/{trial}/x", FIELDS | {"trial": name})

    assert path.parts[:3] == ("/", "nvme", "me")
    assert len(path.parts) == 5
    assert path.parts[3] not in (".", "..")
    assert path.parts[3].isprintable()


def test_fields_are_filled_in_if_they_are_known():
    actual = scratch_folders.fill("{scratch}/miopen/{trial}/{host}-{slot}", FIELDS)
    assert actual == Path("/nvme/me/miopen/t0001.2/n03-5")
    with pytest.raises(ConfigError, match=r"names \{rank\}; known: \{scratch\}, \{trial\}"):
        scratch_folders.fill("{scratch}/{rank}", FIELDS)


def test_what_names_the_trial_goes_and_the_rest_stays():
    templates = {
        "A": "{scratch}/miopen/{trial}/{host}",
        "B": "{scratch}/triton-{slot}",
        "C": "/dev/shm/{trial}",
        "D": "{scratch}/../{trial}",
    }

    assert scratch_folders.attempt_folders(templates, FIELDS) == [Path("/nvme/me/miopen/t0001.2")]


def ranks_of(*templates):
    return [RankStart(n, n, (), {}, (), dict(t)) for n, t in enumerate(templates)]


def test_folders_are_made_for_us_alone_and_reported(tmp_path):
    ranks = ranks_of({"CACHE": "{scratch}/{trial}/{slot}"}, {"CACHE": "{scratch}/{trial}/{slot}"})

    left = scratch_folders.make_rank_folders("t0001.2", ranks, host="n03", scratch=tmp_path)

    made = [Path(rank.environment["CACHE"]) for rank in ranks]
    assert made == [tmp_path / "t0001.2" / "0", tmp_path / "t0001.2" / "1"]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
    scratch_folders.remove_folders(left)
    assert list(tmp_path.iterdir()) == []


def test_the_fastest_place_is_used_if_it_is_there(tmp_path):
    (tmp_path / "me").mkdir()
    place = f"{tmp_path}/$USER"

    assert scratch_folders.local_place(place, {"USER": "me"}) == tmp_path / "me"
    assert scratch_folders.local_place(None, {}) is None


@pytest.mark.parametrize("user", ["you", "", "../me", "file"])
def test_a_place_that_is_not_there_is_reported(tmp_path, caplog, user):
    (tmp_path / "me").mkdir()
    (tmp_path / "file").touch()

    assert scratch_folders.local_place(f"{tmp_path}/$USER", {"USER": user}) is None
    assert len(caplog.records) == 1


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
