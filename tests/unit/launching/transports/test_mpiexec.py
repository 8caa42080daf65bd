"""Commands of mpiexec, and the hosts of a PBS job."""

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.rank_environment import rank_of_launcher
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
    assert mpiexec_argv("mpiexec", (HERE, HERE), path) == ["mpiexec", "-n", "2"]
    with pytest.raises(ConfigError, match="equally many ranks on each host, found .*'x1': 2"):
        mpiexec_argv("mpiexec", ("x1", "x1", "x2"), path)


def test_a_node_file_names_each_host_once_in_its_order(tmp_path):
    path = tmp_path / "nodes"
    environment = {"PBS_NODEFILE": str(path)}
    with pytest.raises(ConfigError, match="nodes .PBS_NODEFILE.: cannot be read .No such file"):
        pbs_hosts(environment)
    path.write_text("nid002\nx1000c0s0b0n0 \r\n\nnid002\nnid001\nx1000c0s0b0n0\n")
    assert pbs_hosts(environment) == ["nid002", "x1000c0s0b0n0", "nid001"]
    path.write_text("x1\n$(touch x)\n")
    with pytest.raises(ConfigError, match="is no name of a host"):
        pbs_hosts(environment)


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
    with pytest.raises(ConfigError, match="neither srun nor mpiexec has started"):
        rank_of_launcher({"RANK": "0", "WORLD_SIZE": "1"})
