"""Machine profiles: strings that do no harm, what ships, what others change, ``[machine]``."""

import math

import pytest
from pydantic import TypeAdapter, ValidationError

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.config.machine import (
    PROFILES,
    Directive,
    Interface,
    Module,
    Option,
    Place,
    Plain,
    ProfileConfig,
    Title,
    Variable,
    find_profile,
    known_profiles,
    merge,
    read_chain,
    read_profile,
    resolve_machine,
)
from hydragnn_hpo.config.machine_checks import cores_of
from hydragnn_hpo.config.path_templates import fill_path
from hydragnn_hpo.config.schema import dump_config, load_config, parse_config
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
    base = write(
        "base.toml", 'extends = "frontier"\nhosts = 1\nwall_hours = 1\n[step]\nagents = []\n'
    )
    middle = write("middle.toml", 'extends = "base"\nhosts = 2\nmemory_gb = 2\n')
    top = write("top.toml", 'extends = "middle.toml"\nmemory_gb = 3\nwall_hours = false\n')
    profile = read_profile(str(top))
    shipped = resource_path(f"{PROFILES}/frontier.toml")
    config, origins = profile.config, profile.origins
    assert (config.hosts, config.memory_gb, config.wall_hours) == (2, 3.0, None)
    assert [origins[key] for key in ("step.agents", "hosts", "memory_gb")] == [base, middle, top]
    assert origins["layout.cores_of_slot"] == shipped
    assert "wall_hours" not in origins, "it was taken away"
    assert profile.files == (top, middle, base, shipped)
    same_name = write("frontier.toml", 'extends = "frontier"\n')
    assert read_profile(str(same_name)).files == (same_name, shipped)


def test_a_file_beside_counts_before_one_that_ships(write):
    near = write("near/frontier.toml", "n = 1\n")
    mine = write("near/mine.toml", 'extends = "frontier"\n')
    assert read_chain(mine) == [(mine, {}), (near, {"n": 1})]
    other = write("far/other.toml", 'extends = "../near/mine.toml"\n')
    assert read_chain(other)[-1][1] == {"n": 1}


def test_circles_are_refused(write):
    one = write("one.toml", 'extends = "two"\n')
    write("two.toml", 'extends = "three"\n')
    write("three.toml", 'extends = "one"\n')
    with pytest.raises(ConfigError, match=r"in a circle: .*one.* -> .*two.* -> .*three.* -> .*one"):
        read_chain(one)
    alone = write("alone.toml", f'extends = "{one.parent}/alone.toml"\n')
    with pytest.raises(ConfigError, match="in a circle"):
        read_chain(alone)


def test_long_chains_are_refused(write):
    for number in range(25):
        write(f"p{number}.toml", f'extends = "p{number + 1}"\n')
    last = write("p25.toml", "n = 1\n")
    assert len(read_chain(last.parent / "p5.toml")) == 21
    with pytest.raises(ConfigError, match="p4.toml: extends more than 20 files"):
        read_chain(last.parent / "p4.toml")


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
        ('extends = "frontier"\nslot_order = [0, 1, 1]', "name each from 0 to 7 once"),
        ('extends = "frontier"\n[layout]\nnuma_of_slot = [0, 1]', "describes 2 slots, slots_per"),
        (
            'extends = "frontier"\n[[limits]]\nhosts = 300\nwall_hours = 2\n'
            "[[limits]]\nhosts = 183\nwall_hours = 6",
            "begin with the fewest",
        ),
        ('extends = "frontier"\nname = false', "'name' is missing"),
        ('extends = "frontier"\nrank = 3', "'rank' is 3"),
    ],
)
def test_what_is_wrong_is_reported_in_a_sentence(write, text, says):
    write("broken.toml", "a = = 1\n")
    with pytest.raises(ConfigError, match=says):
        find_profile(str(write("mine.toml", text + "\n")))


SITES = ["aurora", "frontier", "lumi", "perlmutter"]


def test_the_sites_ship():
    assert {*SITES, "generic-pbs", "generic-slurm", "ray", "workstation"} <= {*known_profiles()}


@pytest.mark.parametrize("name", known_profiles())
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


@pytest.mark.parametrize("name", SITES)
def test_the_wrapper_of_a_site_shows_devices_by_the_sites_variable(name):
    rank = find_profile(name).rank
    script = resource_path(rank.wrapper).read_text()
    assert f"variable={rank.visible}" in script
    assert f"name={rank.accelerator}:0" in script


def test_slots_lie_as_the_sites_guides_have_it():
    """Their cores are in ``test_slots`` and the golden places; sources as there."""
    frontier = find_profile("frontier")
    assert (frontier.hosts, frontier.slots_per_host, frontier.memory_bytes) == (9408, 8, 64e9)
    assert frontier.layout.numa_of_slot == (3, 3, 1, 1, 0, 0, 2, 2)
    assert find_profile("lumi").layout.numa_of_slot == (3, 3, 1, 1, 0, 0, 2, 2)
    assert find_profile("perlmutter").layout.numa_of_slot == (3, 2, 1, 0)
    assert cores_of(frontier.layout.reserved) == tuple(range(0, 64, 8)), "first of each L3 region"
    aurora = find_profile("aurora").layout
    assert cores_of(aurora.reserved) == (0, 52), "for system services since March 2025"
    for cores, socket in zip(aurora.cores_of_slot, aurora.numa_of_slot, strict=True):
        assert {core // 52 for core in cores_of(cores)} == {socket}, "52 cores per socket"
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


@pytest.mark.parametrize("name", known_profiles())
def test_one_word_says_how_a_machine_is_used(name):
    settled = resolve_machine(MachineConfig(), {"profile": name})
    assert settled.profile == name
    assert settled.backend == find_profile(name).backend
    assert settled == resolve_machine(MachineConfig(profile=name), {})
    assert resolve_machine(MachineConfig(profile=f"launch/machines/{name}.toml"), {}) == settled


USED = {"backend": "mpiexec", "interface": "hsn0", "address": "x"}


@pytest.mark.parametrize(
    ("campaign", "options", "settled"),
    [
        ({"slots": 3}, {"profile": None, "slots": None}, {"slots": 3}),
        ({"slots": 3}, {"slots": 0}, {"slots": 0}),
        # The profile says slurm.
        ({"profile": "frontier", **USED}, {}, {"profile": "frontier", **USED}),
        (
            {"profile": "frontier", "backend": "mpiexec", "hosts": 4},
            {"backend": "local", "hosts": 2},
            {"profile": "frontier", "backend": "local", "hosts": 2},
        ),
        # Another machine forgets how the first was used, and nothing else.
        (
            {"profile": "frontier", **USED, "hosts": 4, "lanes": 2},
            {"profile": "ray"},
            {"profile": "ray", "backend": "ray", "hosts": 4, "lanes": 2},
        ),
        (
            {"profile": "frontier", **USED},
            {"profile": "frontier"},
            {"profile": "frontier", **USED},
        ),
        # It need not be where the campaign's own would have been.
        (
            {"profile": "not/here.toml", "backend": "mpiexec", "hosts": 3},
            {"profile": "ray"},
            {"profile": "ray", "backend": "ray", "hosts": 3},
        ),
    ],
    ids=["no machine", "zero", "campaign", "options", "another", "same", "elsewhere"],
)
def test_what_is_requested_counts_before_the_campaign_and_that_before_the_profile(
    campaign, options, settled
):
    assert resolve_machine(MachineConfig(**campaign), options) == MachineConfig(**settled)


def test_storage_is_shared_whatever_earlier_versions_wrote():
    earlier = parse_config({"hosts": 2, "shared_files": True}, MachineConfig, "campaign.toml")
    assert earlier == MachineConfig(hosts=2)


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


def test_a_profile_that_is_requested_is_looked_up_from_here(mine):
    options = {"profile": "mine.toml"}
    settled = resolve_machine(
        MachineConfig(profile="mine.toml", backend="mpiexec"), options, mine.parent
    )
    assert settled.profile == str(mine.parent.parent / "mine.toml")
    assert settled.backend == "mpiexec", "it is another machine"
    same = resolve_machine(
        MachineConfig(profile="mine.toml", backend="mpiexec"), {"profile": str(mine)}, mine.parent
    )
    assert same.backend == "mpiexec", "it is the same machine under another name"


def test_what_is_refused_on_machine():
    with pytest.raises(ConfigError, match="Did you mean 'frontier'"):
        resolve_machine(MachineConfig(), {"profile": "frontir"})
    with pytest.raises(ConfigError, match=r"\[machine\]: 'hosts' is -1"):
        resolve_machine(MachineConfig(), {"hosts": -1})
    with pytest.raises(ConfigError, match="unknown key 'host'"):
        resolve_machine(MachineConfig(), {"host": 1})


WRITTEN = {
    Variable: (["FI_CXI_RDZV_PROTO"], ["2A", "A-B", "A=B"]),
    Plain: (["hsn0,hsn1 with 'quotes' and ; signs"], []),
    Place: (["/mnt/bb/$USER", "${TMPDIR}/hpo"], ["relative/path", "~/scratch"]),
    Interface: (["hsn0", "enp1s0f0.4093"], ["-x", "sixteen-letters-"]),
    Module: (["PrgEnv-gnu/8.7.0", "gcc/13.2.0+cuda"], ["--help", "a b", "../a;b"]),
    Option: (["-c7", "--cpu-bind=list:2-4:10-12"], ["rm", "--a b", "", "--"]),
    Directive: (
        ["--partition=batch", "-C nvme", "-l filesystems=home:flare"],
        ["--comment='x'", '--comment="x"', "--x;y", "--x#y"],
    ),
    Title: (["generic-slurm"], ["../frontier", "a b"]),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_sites_really_write_is_taken_and_other_things_are_refused(kind):
    taken, refused = WRITTEN[kind]
    for text in taken:
        assert TypeAdapter(kind).validate_python(text) == text
    for text in refused:
        with pytest.raises(ValidationError):
            TypeAdapter(kind).validate_python(text)


HOSTILE = ("a\nb", "$(touch x)", "`touch x`", "${A:-$(id)}", "a\x1b[31m", "a\u2028b", "a\x00b")


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("start", ["", "--x=", "/x/"])
def test_what_a_shell_would_take_for_more_is_refused(kind, text, start):
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(start + text)


def test_variables_of_a_path_are_filled_in():
    known = {"USER": "ada", "JOB": "12"}
    assert fill_path("/mnt/bb/$USER", known) == "/mnt/bb/ada"
    assert fill_path("${USER}/$JOB-x", {"USER": "/home/ada", "JOB": "12"}) == "/home/ada/12-x"
    assert fill_path("/tmp", {}) == "/tmp"
    assert fill_path("/x/$A", {"A": "$B", "B": "secret"}) == "/x/$B", "filled in once"


@pytest.mark.parametrize(
    ("text", "environment", "says"),
    [
        ("/x/$USER", {}, "USER is not set"),
        ("/x/$USER", {"USER": ""}, "USER is not set"),
        ("/x/$USER", {"USER": "a\nb"}, "no part of a path"),
        ("/x/$USER", {"USER": "../../etc"}, "no part of a path"),
        ("/x/$(id)", {"id": "1"}, "write variables as"),
        ("/x/`id`", {}, "write variables as"),
        ("/x/$1", {"1": "x"}, "write variables as"),
        ("/x/${A-b}", {"A": "x"}, "write variables as"),
        ("x", {}, "no absolute path"),
    ],
)
def test_what_cannot_be_filled_in_is_refused(text, environment, says):
    with pytest.raises(ConfigError, match=says):
        fill_path(text, environment)


@pytest.mark.parametrize(
    ("name", "hours"),
    [
        ("frontier", {1: 2, 91: 2, 92: 6, 183: 6, 184: 12, 9408: 12}),  # bins 5, 4 and 3 to 1
        ("lumi", {1: 48, 1024: 48, 1025: 6, 2978: 6}),  # standard-g, then bench
        ("aurora", {1: 6, 512: 6, 513: 12, 1025: 18, 1919: 18, 1920: 24, 10624: 24}),
    ],
)
def test_allocations_are_as_long_as_their_size_allows(name, hours):
    """Sources: the sites' pages on queues and priorities by number of nodes."""
    longest = find_profile(name).longest_hours
    assert {hosts: longest(hosts) for hosts in hours} == hours


def test_lists_of_cores():
    assert cores_of("1-3,65") == (1, 2, 3, 65)
    assert cores_of("") == ()
    for wrong in ("3-1", "1,1", "1-3,2", "a", "1;2", "-1", "123456"):
        with pytest.raises(ValueError, match="no list|backwards|twice"):
            cores_of(wrong)
