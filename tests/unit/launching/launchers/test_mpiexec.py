"""Commands for mpiexec."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.launchers.keeper import rank_of
from hydragnn_hpo.launching.launchers.mpiexec import Mpiexec, hosts_of


def job_on(*names):
    slots = tuple(Slot(name.split(":")[0], int(name[-1]), (0,), "cpu") for name in names)
    return Job("j", "command", len(slots), {}, Path("/j/log"), Path("/j/lease"), None, slots)


@pytest.fixture
def nodefile(tmp_path):
    path = tmp_path / "nodes"
    path.write_text("x1\nx1\nx2\n\nx2\nx3\n")
    return path


def test_on_this_computer_no_host_is_named():
    launcher = Mpiexec(slots=2, environment={}, program="mpiexec")
    assert launcher.here
    argv = launcher.render(job_on("local:0", "local:1"), ("a", "b c"), Path("/h")).argv
    assert argv == ("mpiexec", "-n", "2", "a", "b c")


def test_hosts_of_a_pbs_job_are_named(nodefile):
    assert hosts_of(nodefile.read_text()) == ["x1", "x2", "x3"]
    environment = {"PBS_NODEFILE": str(nodefile)}
    launcher = Mpiexec(slots=2, hosts=2, environment=environment, program="mpiexec")
    assert not launcher.here
    assert [slot.name for slot in launcher.slots] == ["x1:0", "x1:1", "x2:0", "x2:1"]
    job = job_on("x1:0", "x1:1", "x2:0", "x2:1")
    argv = launcher.render(job, ("a",), Path("/h")).argv
    assert argv == ("mpiexec", "-n", "4", "-ppn", "2", "-hosts", "x1,x2", "a")


@given(st.lists(st.sampled_from(["x1000c0s0b0n0", "x1000c0s0b0n1", "nid001", "or-condo-g05", ""])))
def test_a_node_file_names_each_host_once_in_its_order(lines):
    slowly = []
    for line in lines:
        if line and line not in slowly:
            slowly.append(line)

    assert hosts_of("\n".join(lines)) == slowly
    assert hosts_of("".join(f" {line}\r\n" for line in lines)) == slowly


def test_a_node_file_with_what_can_be_no_host_is_refused():
    with pytest.raises(ConfigError, match="is no name of a host"):
        hosts_of("x1\n$(touch x)\n")


def test_hosts_that_are_left_alone_get_no_slots(nodefile):
    environment = {"PBS_NODEFILE": str(nodefile)}
    found = Mpiexec(
        slots=1, hosts=1, without={"x1": "slow"}, environment=environment, program="mpiexec"
    )
    assert [slot.host for slot in found.slots] == ["x2"]


def test_unequal_shares_of_hosts_are_refused(nodefile):
    launcher = Mpiexec(slots=2, environment={"PBS_NODEFILE": str(nodefile)}, program="mpiexec")
    with pytest.raises(ConfigError, match="equally many ranks on each host, found .*'x1': 2"):
        launcher.render(job_on("x1:0", "x1:1", "x2:0"), ("a",), Path("/h"))


def test_a_node_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="gone .PBS_NODEFILE.: cannot be read .No such file"):
        Mpiexec(environment={"PBS_NODEFILE": str(tmp_path / "gone")}, program="mpiexec")


def test_the_first_variable_that_is_set_tells_the_rank():
    assert rank_of("PMI_RANK,PMIX_RANK", {"PMIX_RANK": "3"}) == 3
    assert rank_of("PMI_RANK,PMIX_RANK", {"PMIX_RANK": "3", "PMI_RANK": "1"}) == 1
    with pytest.raises(SystemExit, match="none of A,B is set: this is to be started by srun"):
        rank_of("A,B", {"SLURM_PROCID": "0"})
