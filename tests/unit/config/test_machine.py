"""Machine profiles: those that ship, and what is refused."""

import math

import pytest

from hydragnn_hpo.config.loading import dump, load
from hydragnn_hpo.config.machine import ProfileConfig, find_profile, known_profiles
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.shipped import shipped

SITES = ["aurora", "frontier", "lumi", "perlmutter"]
NAMES = sorted([*SITES, "generic-pbs", "generic-slurm", "ray", "workstation"])


@pytest.mark.parametrize("name", NAMES)
def test_profiles_that_ship(name, tmp_path):
    profile = find_profile(name)
    assert profile.name == name
    assert profile.within.latency_seconds <= profile.between.latency_seconds
    assert profile.source
    assert profile.checked.year >= 2026
    path = tmp_path / "all.toml"
    path.write_text(dump(profile))
    assert load(path, ProfileConfig) == profile, "all of it can be written down and read again"


def test_eight_profiles_ship():
    assert list(known_profiles()) == NAMES


@pytest.mark.parametrize("name", SITES)
def test_the_wrapper_of_a_site_shows_devices_by_the_sites_variable(name):
    rank = find_profile(name).rank
    said = shipped(rank.wrapper).read_text()
    assert f"variable={rank.visible}" in said
    assert f"name={rank.accelerator}:0" in said


def test_frontier_has_the_numbers_of_its_guide():
    """reference/hpc.md: 9,408 hosts of 8 GCDs of 64 GB; pairs and quads of cards."""
    frontier = find_profile("frontier")
    assert (frontier.hosts, frontier.slots_per_host, frontier.memory_bytes) == (9408, 8, 64e9)
    order = frontier.slot_order
    assert {frozenset(order[i : i + 2]) for i in range(0, 8, 2)} == {
        frozenset(pair) for pair in ({0, 1}, {2, 3}, {4, 5}, {6, 7})
    }
    assert {frozenset(order[:4]), frozenset(order[4:])} == {
        frozenset({0, 1, 6, 7}),
        frozenset({2, 3, 4, 5}),
    }


def test_this_computer_is_meant_where_nothing_is_named():
    profile = find_profile()
    assert (profile.name, profile.slots_per_host) == ("workstation", 0)
    assert math.isinf(profile.memory_bytes), "nobody has looked yet"


def test_a_profile_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(dump(find_profile("generic-slurm").model_copy(update={"name": "mine"})))
    assert find_profile(str(path)).name == "mine"


def test_what_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'frontier'"):
        find_profile("frontir")
    path = tmp_path / "mine.toml"
    wrong = find_profile("frontier").model_copy(update={"slot_order": (0, 1, 1)})
    path.write_text(dump(wrong))
    with pytest.raises(ConfigError, match="name each from 0 to 7 once"):
        find_profile(str(path))


def test_limits_begin_with_the_fewest_hosts(tmp_path):
    path = tmp_path / "mine.toml"
    text = dump(find_profile("frontier"))
    path.write_text(text.replace("hosts = 91", "hosts = 300"))
    with pytest.raises(ConfigError, match="begin with the fewest"):
        find_profile(str(path))
