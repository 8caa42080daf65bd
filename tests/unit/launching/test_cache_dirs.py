"""Folders of a rank's own: where they are, whose they are, when they go."""

from pathlib import Path

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching import cache_dirs

HOSTILE = ("..", ".", "a/b", "../../etc", "$(touch x)", "a b", "line\nbreak", "'\"", "-rf", "~")
FIELDS = {"scratch": "/nvme/me", "trial": "t0001.2", "host": "n03", "slot": "5"}


def test_fields_are_filled_in():
    found = cache_dirs.fill("{scratch}/miopen/{trial}/{host}-{slot}", FIELDS)

    assert found == Path("/nvme/me/miopen/t0001.2/n03-5")


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_one_step_down(name):
    path = cache_dirs.fill("{scratch}/{trial}/x", FIELDS | {"trial": name})

    assert path.parts[:3] == ("/", "nvme", "me")
    assert len(path.parts) == 5
    assert path.parts[3] not in (".", "..")
    assert path.parts[3].isprintable()


def test_an_unknown_field_is_told_with_those_we_know():
    with pytest.raises(ConfigError, match=r"names \{rank\}; known: \{scratch\}, \{trial\}"):
        cache_dirs.fill("{scratch}/{rank}", FIELDS)


def test_what_names_the_trial_goes_and_the_rest_stays():
    templates = {
        "A": "{scratch}/miopen/{trial}/{host}",
        "B": "{scratch}/triton-{slot}",
        "C": "/dev/shm/{trial}",
        "D": "{scratch}/../{trial}",
    }

    assert cache_dirs.passing(templates, FIELDS) == [Path("/nvme/me/miopen/t0001.2")]


def order_of(*templates):
    ranks = [{"slot": n, "folders": dict(t), "environment": {}} for n, t in enumerate(templates)]
    return {"job": "t0001.2", "ranks": ranks}


def test_folders_are_made_for_us_alone_and_told(tmp_path):
    order = order_of({"CACHE": "{scratch}/{trial}/{slot}"}, {"CACHE": "{scratch}/{trial}/{slot}"})

    left = cache_dirs.settle(order, host="n03", scratch=tmp_path)

    made = [Path(place["environment"]["CACHE"]) for place in order["ranks"]]
    assert made == [tmp_path / "t0001.2" / "0", tmp_path / "t0001.2" / "1"]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
    cache_dirs.remove(left)
    assert list(tmp_path.iterdir()) == []


def test_the_fastest_place_is_used_if_it_is_there(tmp_path):
    (tmp_path / "me").mkdir()
    place = f"{tmp_path}/$USER"

    assert cache_dirs.local_place(place, {"USER": "me"}) == tmp_path / "me"
    assert cache_dirs.local_place(None, {}) is None


@pytest.mark.parametrize("user", ["you", "", "../me", "file"])
def test_a_place_that_is_not_there_is_told(tmp_path, caplog, user):
    (tmp_path / "me").mkdir()
    (tmp_path / "file").touch()

    assert cache_dirs.local_place(f"{tmp_path}/$USER", {"USER": user}) is None
    assert len(caplog.records) == 1
