"""Host lists: what Slurm writes is read, and what we write Slurm reads."""

import os
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
    assert compress_hosts(["a", "b1", "b2-ib", "b3-ib"]) == "a,b1,b2-ib,b3-ib"
    assert compress_hosts([f"n{number:05d}" for number in range(65_537)]) == "n[00000-65535,65536]"


HELD = [
    "node1-ib node2-ib",
    "node1.cluster.example.org node2.cluster.example.org",
    "node1.site2 node1.site3 node1.site4",
    "nid000001 nid000002 nid001024",
    "n8 n9 n10 n11",
    "n08 n09 n10 n11",
    "n8 n09 n10",
    "n009 n9 n09",
    "n98 n99 n100 n101",
    "n098 n099 n100",
    "n3 n1 n2",
    "n1 n3 n5 n7 n9",
    "n0 n00 n000",
    "n1 n1 n2",
    "login",
    "login node1 node2 login2",
    "cpu1 cpu2 gpu1 gpu2 fat1",
    "gpu-a100-01 gpu-a100-02 gpu-h100-01",
    "r1n1 r1n2 r2n1 r2n2",
    "r1n1 r2n1 r1n2 r2n2",
    "r01c02s03n04 r01c02s03n05",
    "x1000c0s0b0n0 x1000c0s0b0n1 x1000c0s0b1n0 x1001c7s7b1n1",
    "x3001c0s7b0n0-hsn0 x3001c0s7b0n1-hsn0",
    "or-condo-g05 or-condo-g07 or-condo-g08",
    "1 2 3",
    "10a 11a 12a",
    "a_1 a_2 a_3",
    "_n1 _n2",
    "a1b2 a1b3 a1b",
    "n1a n2a n3",
    "n1-ib n2 n3-ib n4",
    "node1.a node1.b node2",
    "n999999999 n1000000000",
    "n0000000000000000000000001 n0000000000000000000000002",
    "n123456789012345678 n123456789012345679",
    "n65535 n65536 n65537",
    "sh03-01n01 sh03-01n02 sh03-02n01",
    "ip-10-0-0-9 ip-10-0-0-10 ip-10-0-1-1",
    "queue1-dy-c5xlarge-1 queue1-dy-c5xlarge-2 queue1-st-c5xlarge-1",
    "N1 n2 n3",
]
"""Hosts of 40 allocations, named as on real machines and as on nobody's."""


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory):
    """Return what ``scontrol show`` answers, which asks no controller about lists."""
    if shutil.which("scontrol") is None:
        pytest.skip("no scontrol")
    conf = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\n")

    def show(*words):
        return subprocess.run(
            ["scontrol", "show", *words],
            env={"SLURM_CONF": str(conf), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()

    return show


@pytest.mark.parametrize("names", HELD)
def test_slurm_reads_what_we_write_and_we_what_slurm_writes(scontrol, names):
    hosts = names.split()
    assert scontrol("hostnames", compress_hosts(hosts)) == hosts
    assert expand_hosts(*scontrol("hostlist", ",".join(hosts))) == hosts
