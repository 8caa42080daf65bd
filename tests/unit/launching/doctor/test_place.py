"""Where we are, what is started there, and what schedulers say."""

import json
import shlex

import pytest

from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.doctor.examine import is_on_site, order_for, sample_of
from hydragnn_hpo.launching.doctor.expected import plugin_names
from hydragnn_hpo.launching.doctor.order import Order
from hydragnn_hpo.launching.doctor.outliers import behind
from hydragnn_hpo.launching.doctor.place import (
    Place,
    devices_given,
    find_place,
    scheduler_finding,
)

SLURM_JOB = """JobId=1 JobName=j0
   NodeList=node[1-4] NumNodes=4
   JOB_GRES=gpu:30
     Nodes=node[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:8(IDX:0-7)
     Nodes=node3 CPU_IDs=0-7 Mem=0 GRES=gpu:mi250x:7(IDX:0-6),nic:2(CNT:2)
     Nodes=node4 CPU_IDs=0-7 Mem=0 GRES=
"""


def test_what_slurm_gave_is_read_host_by_host():
    assert devices_given(SLURM_JOB) == {"node1": 8, "node2": 8, "node3": 7, "node4": 0}
    assert devices_given("Nodes=node[1-2] CPU_IDs=0-7 Mem=0 GRES=") == {}
    assert devices_given("what is this") == {}


def test_a_step_has_one_task_per_host_and_one_argument_for_the_order():
    hosts = ("n1", "n2", "n3")
    order = Order("x", "/a b/$(c)'\n", slots=("0",))
    argv = Place("slurm", hosts, "17", {"n2": "down"}).argv(order, ("--gpus-per-node=8",))
    assert "--gpus-per-node=8" in argv
    assert argv[0] == "srun"
    assert "--jobid=17" in argv
    assert "--nodelist=n[1,3]" in argv
    assert "--ntasks=2" in argv
    assert json.loads(argv[-1])["folder"] == "/a b/$(c)'\n"
    assert shlex.split(shlex.join(argv)) == argv


def test_hosts_of_a_pbs_job_are_reached_by_mpiexec(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("x1\nx1\nx2\nx3\n")
    place = find_place({"PBS_NODEFILE": str(nodes), "PBS_JOBID": "9.pbs"}, 2)
    assert (place.kind, place.hosts, place.job) == ("pbs", ("x1", "x2"), "9.pbs")
    argv = place.argv(Order("x", "/f"))
    assert argv[1:7] == ["-n", "2", "-ppn", "1", "-hosts", "x1,x2"]
    with pytest.raises(ConfigError, match="cannot be read"):
        find_place({"PBS_NODEFILE": str(tmp_path / "gone")})


def test_a_laptop_is_one_host():
    place = find_place({})
    assert (place.kind, len(place.hosts)) == ("here", 1)
    assert place.argv(Order("x", "/f"))[-2] == "hydragnn_hpo.launching.doctor.probe"


def test_what_a_scheduler_means_is_said():
    here, there = Place("here", ("a",)), Place("slurm", ("a",), "17")
    laptop, frontier = find_profile(), find_profile("frontier")
    said = {
        ("laptop", ""): scheduler_finding(here, {}, laptop),
        ("laptop", "slurm"): scheduler_finding(here, {"Slurm": "slurm 24.05"}, laptop),
        ("login", ""): scheduler_finding(here, {}, frontier),
        ("login", "slurm"): scheduler_finding(here, {"Slurm": "slurm 24.05"}, frontier),
        ("job", "slurm"): scheduler_finding(there, {"Slurm": "slurm 24.05"}, frontier),
    }
    states = {key: finding.state for key, finding in said.items()}
    assert states.pop(("login", "")) == "wrong"
    assert set(states.values()) == {"ok"}
    assert "nothing is lost" in said["laptop", ""].found
    assert "--machine" in said["laptop", "slurm"].cure
    assert said["job", "slurm"].found == "slurm 24.05, job 17"


def test_a_login_host_is_not_asked_for_what_it_has_not(tmp_path):
    profile, here = find_profile("frontier"), Place("here", ("login1",))
    assert not is_on_site(profile, here)
    order = order_for(profile, here, tmp_path, {})
    assert (order.slots, order.interfaces, order.libraries) == ((), (), ())
    inside = order_for(profile, Place("slurm", ("a",)), tmp_path, {})
    assert inside.slots[0] == "49-55"
    assert "hsn0" in inside.interfaces
    assert "librccl-net.so" in inside.libraries


def test_the_plugin_has_the_names_that_nccl_tries():
    """docs.nvidia.com/deeplearning/nccl, NCCL_NET_PLUGIN."""
    frontier, laptop = find_profile("frontier"), find_profile()
    assert plugin_names(laptop, {}) == ()
    assert plugin_names(laptop, {"NCCL_NET_PLUGIN": "foo"})[:2] == ("foo", "libnccl-net-foo.so")
    assert (
        plugin_names(frontier, {"NCCL_NET_PLUGIN": "/a/librccl-net.so"})[0] == "/a/librccl-net.so"
    )


def test_a_sample_is_spread_over_all_hosts():
    hosts = [f"n{k}" for k in range(8192)]
    chosen = sample_of(hosts)
    assert chosen == tuple(hosts[512 * k] for k in range(16))
    assert sample_of(hosts[:3]) == ("n0", "n1", "n2")


@pytest.mark.parametrize(
    ("values", "slow"),
    [
        ([10, 10, 10, 3], [3]),
        ([10, 11, 9, 10, 2, 1], [4, 5]),
        ([10, 9, 8, 7, 6, 5, 4], []),  # spread is usual there
        ([10, 3, 10], []),  # too few for a majority
        ([10, 10, 10, 10, 6], []),  # not by a factor
        ([0, 0, 0, 0], []),
    ],
)
def test_slow_is_far_behind_the_median(values, slow):
    named = {str(k): float(value) for k, value in enumerate(values)}
    assert list(behind(named, 2.0, low_is_bad=True)) == [str(k) for k in slow]


def test_long_times_are_bad_where_times_are_compared():
    assert list(behind({"a": 1.0, "b": 1.0, "c": 1.1, "d": 5.0}, 3.0, low_is_bad=False)) == ["d"]
