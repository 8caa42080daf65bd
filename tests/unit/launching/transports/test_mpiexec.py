"""Commands of mpiexec, and the hosts of a PBS job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.launcher_detection import rank_of_launcher
from hydragnn_hpo.launching.transports.mpiexec import (
    HERE,
    agent_flags,
    mpiexec_argv,
    pbs_hosts,
    write_host_file,
)


def test_one_mpiexec_is_for_all_hosts(tmp_path):
    """Their names are in a file: those of 10,000 hosts are too long for one argument."""
    path = tmp_path / "hosts"
    argv = mpiexec_argv("mpiexec", ("x1", "x2"), path, flags=("--cpu-bind=none",))
    assert argv == ["mpiexec", "-n", "2", "-ppn", "1", "-f", str(path), "--cpu-bind=none"]

    argv = mpiexec_argv("mpiexec", ("x1", "x1", "x2", "x2"), path)
    write_host_file(path, ("x1", "x1", "x2", "x2"))
    assert argv == ["mpiexec", "-n", "4", "-ppn", "2", "-f", str(path)]
    assert path.read_text() == "x1\nx2\n"


def test_on_this_computer_no_host_is_named(tmp_path):
    assert mpiexec_argv("mpiexec", (HERE, HERE), tmp_path) == ["mpiexec", "-n", "2"]


def test_unequal_shares_of_hosts_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="equally many ranks on each host, found .*'x1': 2"):
        mpiexec_argv("mpiexec", ("x1", "x1", "x2"), tmp_path)


names = st.sampled_from(["x1000c0s0b0n0", "x1000c0s0b0n1", "nid001", "or-condo-g05", ""])


@given(lines=st.lists(names), end=st.sampled_from(["\n", " \r\n"]))
def test_a_node_file_names_each_host_once_in_its_order(tmp_path_factory, lines, end):
    path = tmp_path_factory.mktemp("pbs") / "nodes"
    path.write_text("".join(line + end for line in lines))
    slowly = []
    for line in lines:
        if line and line not in slowly:
            slowly.append(line)

    assert pbs_hosts({"PBS_NODEFILE": str(path)}) == slowly


def test_a_node_file_with_what_can_be_no_host_is_refused(tmp_path):
    (tmp_path / "nodes").write_text("x1\n$(touch x)\n")
    with pytest.raises(ConfigError, match="is no name of a host"):
        pbs_hosts({"PBS_NODEFILE": str(tmp_path / "nodes")})


def test_a_node_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="gone .PBS_NODEFILE.: cannot be read .No such file"):
        pbs_hosts({"PBS_NODEFILE": str(tmp_path / "gone")})


@pytest.mark.parametrize(
    ("version", "flags"),
    [("HYDRA build details:", ("-disable-auto-cleanup",)), ("mpiexec (OpenRTE) 4.1.4", ())],
)
def test_options_of_hydra_are_for_hydra_alone(tmp_path, version, flags):
    program = tmp_path / "mpiexec"
    program.write_text(f'#!/bin/sh\necho "{version}"\n')
    program.chmod(0o755)

    assert agent_flags(str(program)) == flags
    assert agent_flags(str(tmp_path / "gone")) == ()


def test_a_rank_knows_its_number_from_any_launcher():
    assert rank_of_launcher({"PMI_RANK": "3", "PMI_SIZE": "4"}) == 3
    pals = {"PALS_RANKID": "2", "PMI_RANK": "2", "PMI_SIZE": "4", "RANK": "0", "WORLD_SIZE": "1"}
    assert rank_of_launcher(pals) == 2
    inside = {"SLURM_STEP_ID": "1", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}
    assert rank_of_launcher(inside) == 5
    with pytest.raises(ConfigError, match="must be started by srun or mpiexec"):
        rank_of_launcher({"RANK": "0", "WORLD_SIZE": "1"})
