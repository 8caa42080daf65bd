"""A campaign on a machine: who has the last word."""

import pytest

from hydragnn_hpo.config.campaign import MachineConfig
from hydragnn_hpo.config.machine import find_profile, known_profiles
from hydragnn_hpo.config.on_machine import on_machine
from hydragnn_hpo.errors import ConfigError


def test_a_campaign_that_names_no_machine_stays_as_it_is():
    said = MachineConfig(slots=3, max_width=8)
    assert on_machine(said, {}) == said
    assert on_machine(said, {"profile": None, "slots": None}) == said


@pytest.mark.parametrize("name", known_profiles())
def test_one_word_says_how_a_machine_is_used(name):
    settled = on_machine(MachineConfig(), {"profile": name})
    assert settled.profile == name
    assert settled.backend == find_profile(name).backend
    assert settled == on_machine(MachineConfig(profile=name), {})


def test_what_is_asked_counts_before_the_campaign_and_the_campaign_before_the_profile():
    campaign = MachineConfig(profile="frontier", backend="steps", hosts=4)
    assert on_machine(campaign, {}).backend == "steps", "the profile says slurm"
    assert on_machine(campaign, {"backend": "local", "hosts": 2}) == MachineConfig(
        profile="frontier", backend="local", hosts=2
    )


def test_another_machine_forgets_how_the_first_was_used_and_nothing_else():
    campaign = MachineConfig(
        profile="frontier", backend="steps", interface="hsn0", address="x", hosts=4, lanes=2
    )
    assert on_machine(campaign, {"profile": "ray"}) == MachineConfig(
        profile="ray", backend="ray", hosts=4, lanes=2
    )
    same = on_machine(campaign, {"profile": "frontier"})
    assert (same.backend, same.interface) == ("steps", "hsn0")


def test_zero_and_false_are_asked_too():
    campaign = MachineConfig(hosts=4, shared_files=True)
    settled = on_machine(campaign, {"hosts": 0, "shared_files": False})
    assert (settled.hosts, settled.shared_files) == (0, False)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Give a profile of ones own beside a campaign, seen from another folder."""
    (tmp_path / "site").mkdir()
    (tmp_path / "mine.toml").write_text('extends = "generic-pbs"\nname = "far"\n')
    path = tmp_path / "site" / "mine.toml"
    path.write_text('extends = "generic-slurm"\nname = "mine"\n')
    monkeypatch.chdir(tmp_path)
    return path


def test_a_profile_beside_the_campaign_is_found_from_any_folder(mine):
    settled = on_machine(MachineConfig(profile="mine.toml"), {}, mine.parent)
    assert (settled.profile, settled.backend) == (str(mine), "slurm")
    assert on_machine(settled, {}, mine.parent.parent) == settled


def test_a_profile_that_is_asked_for_is_looked_up_from_here(mine):
    asked = {"profile": "mine.toml"}
    settled = on_machine(MachineConfig(profile="mine.toml", backend="steps"), asked, mine.parent)
    assert settled.profile == str(mine.parent.parent / "mine.toml")
    assert settled.backend == "mpiexec", "it is another machine"
    same = on_machine(
        MachineConfig(profile="mine.toml", backend="steps"), {"profile": str(mine)}, mine.parent
    )
    assert same.backend == "steps", "it is the same machine under another name"


def test_a_machine_that_is_asked_for_does_not_need_the_campaigns_own(mine):
    elsewhere = MachineConfig(profile="not/here.toml", backend="steps", hosts=3)
    settled = on_machine(elsewhere, {"profile": "ray"}, mine.parent)
    assert settled == MachineConfig(profile="ray", backend="ray", hosts=3)


def test_a_shipped_profile_has_one_name():
    for named in ("frontier", "launch/machines/frontier.toml"):
        assert on_machine(MachineConfig(profile=named), {}).profile == "frontier"


def test_what_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'frontier'"):
        on_machine(MachineConfig(), {"profile": "frontir"})
    with pytest.raises(ConfigError, match=r"\[machine\]: 'hosts' is -1"):
        on_machine(MachineConfig(), {"hosts": -1})
    with pytest.raises(ConfigError, match="unknown key 'host'"):
        on_machine(MachineConfig(), {"host": 1})
