"""An exclusion list is written whole, kept, and read back; nothing else passes for a host."""

import logging

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.excluded_hosts import add_excluded, read_excluded, read_run_excluded
from hydragnn_hpo.launching.slurm_allocation import without_excluded


@pytest.fixture
def path(tmp_path):
    return tmp_path / "exclude.hosts"


def test_what_is_written_is_read(path, tmp_path):
    assert read_run_excluded(tmp_path) == {}
    add_excluded(path, {"n2": "devices: found 7", "n1": ""})
    add_excluded(path, {"n3": "scratch\nfull # now", "n2": "something later"})

    known = {"n1": "", "n2": "devices: found 7", "n3": "scratch full # now"}
    assert read_run_excluded(tmp_path) == known
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert lines == ["n1", "n2  # devices: found 7", "n3  # scratch full # now"]


def test_people_write_host_lists(path):
    path.write_text("# mine\n\nnode[08-10],login1 # noisy\n  node2\n")
    assert list(read_excluded(path)) == ["node08", "node09", "node10", "login1", "node2"]
    with pytest.raises(ConfigError, match="cannot be read"):
        read_excluded(path.with_name("missing"))


@pytest.mark.parametrize("line", ["n[1", "-rf", "$(reboot)", "a b", "n1;ls", "\x1b[2J", "../x"])
def test_what_is_no_host_is_refused(path, line):
    path.write_text(f"n1\n{line}\n")
    with pytest.raises(ConfigError, match="line 2") as refused:
        read_excluded(path)
    assert str(refused.value).isprintable()
    with pytest.raises(ConfigError):
        add_excluded(path.with_name("other"), {line: "bad"})
    assert not path.with_name("other").exists()


KNOWN = {
    "node1": ("c1.example.org", "10.0.0.1"),
    "node2": ("c2.example.org", "10.0.0.2"),
    "node3.far.org": ("node3", "10.0.1.3"),
    "node3.near.org": ("node3", "10.0.0.3"),
    "c1": ("odd", "10.0.0.4"),
}
"""Hosts of a machine, with their names on the network and their addresses, as sinfo names them."""


@pytest.mark.parametrize(
    ("name", "excluded"),
    [
        ("node1", "node1"),
        ("NODE1", "node1"),
        ("node1.example.org", "node1"),
        ("c1.example.org", "node1"),
        ("c2", "node2"),
        ("c1", "c1"),  # its own name, although node1 is c1 on the network
        ("10.0.0.2", "node2"),
        ("node3.far.org", "node3.far.org"),
        ("node3", "node3.far.org node3.near.org"),
        ("odd.example.org", "c1"),
    ],
)
def test_a_host_is_excluded_by_any_of_its_names(caplog, name, excluded):
    kept = without_excluded(list(KNOWN), [name], KNOWN)
    assert [host for host in KNOWN if host not in kept] == excluded.split()
    assert not caplog.records


@pytest.mark.parametrize("name", ["node7", "c2.example.com", "10", "node3.else.org", "example"])
def test_a_name_that_no_host_has_is_warned_of(caplog, name):
    caplog.set_level(logging.WARNING)
    assert without_excluded(["node1", "node2"], [name], KNOWN) == ("node1", "node2")
    (record,) = caplog.records
    assert record.getMessage() == (f"exclude.hosts names {name!r}, but no host has that name.")


def test_where_only_the_hosts_of_a_job_are_known_a_name_may_be_that_of_another(caplog):
    """PBS names no others; nodes may be listed with their domain."""
    hosts = ["x1.site.org", "x2.site.org"]
    assert without_excluded(hosts, {"x1": "slow", "x9": ""}) == ("x2.site.org",)
    (message,) = caplog.messages
    assert message == "exclude.hosts names 'x9', but no host of this job has that name."


def test_a_host_of_another_job_is_no_unknown_one(caplog):
    assert without_excluded(["node1"], ["node2", "c2.example.org"], KNOWN) == ("node1",)
    assert not caplog.records
