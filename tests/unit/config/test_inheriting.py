"""Profiles that change others: what is merged, what is replaced, where values are from."""

import pytest

from hydragnn_hpo.config.inheriting import inherited, merge
from hydragnn_hpo.config.machine import PROFILES, find_profile, read_profile
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.shipped import shipped


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
    assert profile.files == (mine, shipped(f"{PROFILES}/frontier.toml"))
    assert profile.origins["scratch"] == mine
    assert profile.origins["layout.cores_of_slot"] == shipped(f"{PROFILES}/frontier.toml")
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
