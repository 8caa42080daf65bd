"""Profiles that change others: what is merged, what is replaced, where values are from."""

import math

import pytest

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.config.machine import (
    PROFILES,
    ProfileConfig,
    find_profile,
    inherited,
    known_profiles,
    merge,
    read_profile,
    resolve_machine,
)
from hydragnn_hpo.config.schema import dump_config, load_config
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.resources import resource_path


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_tables_merge_key_by_key_and_lists_are_replaced():
    below = {"a": 1, "list": [1, 2, 3], "table": {"x": 1, "y": {"z": 1}}, "same": "s"}
    above = {"a": 2, "list": [9], "table": {"y": {"w": 2}}, "new": {"k": 1}}
    assert merge(below, above) == {
        "a": 2,
        "list": [9],
        "table": {"x": 1, "y": {"z": 1, "w": 2}},
        "same": "s",
        "new": {"k": 1},
    }
    assert below == {"a": 1, "list": [1, 2, 3], "table": {"x": 1, "y": {"z": 1}}, "same": "s"}


def test_false_takes_away_what_is_no_yes_or_no():
    assert merge({"a": "x", "t": {"k": 1}, "yes": True}, {"a": False, "yes": False}) == {
        "t": {"k": 1},
        "yes": False,
    }
    assert merge({}, {"new": False}) == {"new": False}


def test_a_chain_of_three_files_and_the_origin_of_each_value(write):
    base = write("base.toml", 'one = 1\ntwo = 1\nthree = 1\n[t]\na = 1\nb = 1\nc = "gone"\n')
    middle = write("middle.toml", 'extends = "base"\ntwo = 2\nthree = 2\n[t]\nb = 2\nc = false\n')
    top = write("top.toml", 'extends = "middle.toml"\nthree = 3\n')
    found = inherited(top, PROFILES)
    assert found.values == {"one": 1, "two": 2, "three": 3, "t": {"a": 1, "b": 2}}
    assert found.origins == {"one": base, "two": middle, "three": top, "t.a": base, "t.b": middle}
    assert found.files == (top, middle, base)


def test_a_file_beside_counts_before_one_that_ships(write):
    write("near/frontier.toml", "n = 1\n")
    mine = write("near/mine.toml", 'extends = "frontier"\n')
    assert inherited(mine, PROFILES).values == {"n": 1}


def test_a_file_of_ones_own_may_have_the_name_of_what_it_extends(write):
    mine = write("frontier.toml", 'extends = "frontier"\nscratch = "/fast/$USER"\n')
    profile = read_profile(str(mine))
    assert profile.config.scratch == "/fast/$USER"
    assert profile.config.hosts == 9408
    assert profile.files == (mine, resource_path(f"{PROFILES}/frontier.toml"))
    assert profile.origins["scratch"] == mine
    assert profile.origins["layout.cores_of_slot"] == resource_path(f"{PROFILES}/frontier.toml")
    assert "batch.environment" not in profile.origins, "no file says it"


def test_a_path_from_the_files_own_folder(write):
    write("elsewhere/base.toml", "n = 1\n")
    mine = write("here/mine.toml", 'extends = "../elsewhere/base.toml"\n')
    assert inherited(mine, PROFILES).values == {"n": 1}


def test_circles_are_refused(write):
    one = write("one.toml", 'extends = "two"\n')
    write("two.toml", 'extends = "three"\n')
    write("three.toml", 'extends = "one"\n')
    with pytest.raises(ConfigError, match=r"in a circle: .*one.* -> .*two.* -> .*three.* -> .*one"):
        inherited(one, PROFILES)


def test_a_file_that_extends_itself_by_its_path(write, tmp_path):
    mine = write("mine.toml", f'extends = "{tmp_path}/mine.toml"\n')
    with pytest.raises(ConfigError, match="in a circle"):
        inherited(mine, PROFILES)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('extends = "frontir"', "mine.toml: extends: .*Did you mean 'frontier'"),
        ('extends = "nowhere.toml"', "mine.toml: extends: .*no such file"),
        ("extends = 3", "'extends' is 3: write the name"),
        ('extends = ""', "write the name"),
        (r'extends = "a\nb"', r"'extends' is 'a\\nb': write the name"),
        ('extends = ["frontier"]', "write the name"),
        ('extends = "broken"', "broken.toml: is not valid TOML"),
        ('extends = "frontier"\nslot_per_host = 4', "Did you mean 'slots_per_host'"),
        ('extends = "frontier"\n[rank]\nvisble = "x"', "Did you mean 'visible'"),
        (
            'extends = "frontier"\nslots_per_host = 4',
            "mine.toml: .*describes 8 slots, slots_per_host is 4",
        ),
        ('extends = "frontier"\nname = false', "'name' is missing"),
        ('extends = "frontier"\nrank = 3', "'rank' is 3"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(write, text, says):
    write("broken.toml", "a = = 1\n")
    with pytest.raises(ConfigError, match=says):
        find_profile(str(write("mine.toml", text + "\n")))


def test_the_five_lines_of_the_readme(write):
    mine = write(
        "mine.toml",
        'extends = "frontier"\nname = "mine"\nhosts = 64\nscratch = "/tmp"\n'
        '[rank.many_hosts]\nNCCL_SOCKET_IFNAME = "hsn0"\n',
    )
    found, base = find_profile(str(mine)), find_profile("frontier")
    assert (found.name, found.hosts, found.scratch) == ("mine", 64, "/tmp")
    assert found.rank.many_hosts == {**base.rank.many_hosts, "NCCL_SOCKET_IFNAME": "hsn0"}
    same = {"name", "hosts", "scratch", "rank"}
    assert found.model_dump(exclude=same) == base.model_dump(exclude=same)


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
    path.write_text(dump_config(profile))
    assert load_config(path, ProfileConfig) == profile, (
        "all of it can be written down and read again"
    )


def test_eight_profiles_ship():
    assert list(known_profiles()) == NAMES


@pytest.mark.parametrize("name", SITES)
def test_the_wrapper_of_a_site_shows_devices_by_the_sites_variable(name):
    rank = find_profile(name).rank
    said = resource_path(rank.wrapper).read_text()
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
    path.write_text(dump_config(find_profile("generic-slurm").model_copy(update={"name": "mine"})))
    assert find_profile(str(path)).name == "mine"


def test_what_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'frontier'"):
        find_profile("frontir")
    path = tmp_path / "mine.toml"
    wrong = find_profile("frontier").model_copy(update={"slot_order": (0, 1, 1)})
    path.write_text(dump_config(wrong))
    with pytest.raises(ConfigError, match="name each from 0 to 7 once"):
        find_profile(str(path))


def test_limits_begin_with_the_fewest_hosts(tmp_path):
    path = tmp_path / "mine.toml"
    text = dump_config(find_profile("frontier"))
    path.write_text(text.replace("hosts = 91", "hosts = 300"))
    with pytest.raises(ConfigError, match="begin with the fewest"):
        find_profile(str(path))


def test_a_campaign_that_names_no_machine_stays_as_it_is():
    said = MachineConfig(slots=3, max_width=8)
    assert resolve_machine(said, {}) == said
    assert resolve_machine(said, {"profile": None, "slots": None}) == said


@pytest.mark.parametrize("name", known_profiles())
def test_one_word_says_how_a_machine_is_used(name):
    settled = resolve_machine(MachineConfig(), {"profile": name})
    assert settled.profile == name
    assert settled.backend == find_profile(name).backend
    assert settled == resolve_machine(MachineConfig(profile=name), {})


def test_what_is_asked_counts_before_the_campaign_and_the_campaign_before_the_profile():
    campaign = MachineConfig(profile="frontier", backend="steps", hosts=4)
    assert resolve_machine(campaign, {}).backend == "steps", "the profile says slurm"
    assert resolve_machine(campaign, {"backend": "local", "hosts": 2}) == MachineConfig(
        profile="frontier", backend="local", hosts=2
    )


def test_another_machine_forgets_how_the_first_was_used_and_nothing_else():
    campaign = MachineConfig(
        profile="frontier", backend="steps", interface="hsn0", address="x", hosts=4, lanes=2
    )
    assert resolve_machine(campaign, {"profile": "ray"}) == MachineConfig(
        profile="ray", backend="ray", hosts=4, lanes=2
    )
    same = resolve_machine(campaign, {"profile": "frontier"})
    assert (same.backend, same.interface) == ("steps", "hsn0")


def test_zero_and_false_are_asked_too():
    campaign = MachineConfig(hosts=4, shared_files=True)
    settled = resolve_machine(campaign, {"hosts": 0, "shared_files": False})
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
    settled = resolve_machine(MachineConfig(profile="mine.toml"), {}, mine.parent)
    assert (settled.profile, settled.backend) == (str(mine), "slurm")
    assert resolve_machine(settled, {}, mine.parent.parent) == settled


def test_a_profile_that_is_asked_for_is_looked_up_from_here(mine):
    asked = {"profile": "mine.toml"}
    settled = resolve_machine(
        MachineConfig(profile="mine.toml", backend="steps"), asked, mine.parent
    )
    assert settled.profile == str(mine.parent.parent / "mine.toml")
    assert settled.backend == "mpiexec", "it is another machine"
    same = resolve_machine(
        MachineConfig(profile="mine.toml", backend="steps"), {"profile": str(mine)}, mine.parent
    )
    assert same.backend == "steps", "it is the same machine under another name"


def test_a_machine_that_is_asked_for_does_not_need_the_campaigns_own(mine):
    elsewhere = MachineConfig(profile="not/here.toml", backend="steps", hosts=3)
    settled = resolve_machine(elsewhere, {"profile": "ray"}, mine.parent)
    assert settled == MachineConfig(profile="ray", backend="ray", hosts=3)


def test_a_shipped_profile_has_one_name():
    for named in ("frontier", "launch/machines/frontier.toml"):
        assert resolve_machine(MachineConfig(profile=named), {}).profile == "frontier"


def test_what_is_refused_on_machine():
    with pytest.raises(ConfigError, match="Did you mean 'frontier'"):
        resolve_machine(MachineConfig(), {"profile": "frontir"})
    with pytest.raises(ConfigError, match=r"\[machine\]: 'hosts' is -1"):
        resolve_machine(MachineConfig(), {"hosts": -1})
    with pytest.raises(ConfigError, match="unknown key 'host'"):
        resolve_machine(MachineConfig(), {"host": 1})
