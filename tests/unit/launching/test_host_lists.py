"""Host lists: what Slurm writes is read, and what we write Slurm reads."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.slurm_allocation import compress_hosts, expand_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ""),
        ("login", "login"),
        ("frontier[00012-00014,00100]", "frontier00012 frontier00013 frontier00014 frontier00100"),
        ("x1000c0s0b0n[0-1],nid00[1-3]", "x1000c0s0b0n0 x1000c0s0b0n1 nid001 nid002 nid003"),
        ("or-condo-g[05,07-08]", "or-condo-g05 or-condo-g07 or-condo-g08"),
        ("r[1-2]n[08-09]-ib,a", "r1n08-ib r1n09-ib r2n08-ib r2n09-ib a"),
        ("n[9-11]", "n9 n10 n11"),
    ],
)
def test_lists_of_real_machines_are_read(text, hosts):
    assert expand_hosts(text) == hosts.split()


@pytest.mark.parametrize(
    "text", ["a[1-2", "a]1[", "a[[1]]", "a[2-1]", "a[x]", "a[]", "a[1-9999999]"]
)
def test_what_is_no_list_is_reported(text):
    with pytest.raises(ConfigError, match="is no host list: write it as in"):
        expand_hosts(text)


@pytest.mark.parametrize(
    "host",
    ["-oProxyCommand", "a b", "$(x)", "`x`", "a'", 'a"', "a;b", "a/b", "a\nb", "..", "x" * 300],
)
def test_what_can_be_no_host_is_refused(host):
    with pytest.raises(ConfigError, match="is no name of a host"):
        expand_hosts(f"good,{host}")


def test_a_list_without_end_is_refused():
    with pytest.raises(ConfigError, match="names more than 1000000 hosts"):
        expand_hosts("a[0-9][0-999999]")


NUMBERS = st.sampled_from(["", "0", "1", "2", "8", "9", "10", "11", "08", "09", "009", "010"])
HOSTS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["a", "ab", "c"]),
    NUMBERS,
    st.sampled_from(["", "-a", "-b1", "-b2"]),
    st.sampled_from(["", "-ib"]),
)


@given(st.lists(HOSTS, max_size=30))
def test_what_is_written_is_read_again_in_order(hosts):
    assert expand_hosts(compress_hosts(hosts)) == hosts


def test_neighbours_are_written_as_ranges():
    hosts = [f"frontier{number:05d}" for number in (*range(12, 20), 100)]
    assert compress_hosts(hosts) == "frontier[00012-00019,00100]"
    assert compress_hosts([f"n{number}" for number in range(8, 12)]) == "n[8-11]"
    assert compress_hosts(["n8", "n09"]) == "n[8,09]"
    assert compress_hosts(["a", "b1", "b2-ib", "b3-ib"]) == "a,b1,b[2-3]-ib"


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="no scontrol")
def test_slurm_reads_it_the_same(tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\n")
    hosts = ["n08", "n09", "n10", "x1c0n1", "x1c0n2", "n[1]".replace("[1]", "7"), "login"]
    argv = ["scontrol", "show", "hostnames", compress_hosts(hosts)]
    done = subprocess.run(
        argv, env={"SLURM_CONF": str(conf), "PATH": "/usr/bin"}, capture_output=True
    )
    assert done.stdout.decode().split() == hosts
