"""How commands of schedulers are called: their environment, their time limit, their failures."""

import json
import os
import sys

import pytest
from processes import until

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.scheduler_commands import (
    CommandFailed,
    run_scheduler,
    select_environment,
)
from hydragnn_hpo.launching.slurm_allocation import step_environment

OPTIONS = """\
SBATCH_ACCOUNT SBATCH_TIMELIMIT SBATCH_REQUEUE SBATCH_EXPORT SQUEUE_PARTITION SQUEUE_FORMAT
SQUEUE_USERS SINFO_PARTITION SINFO_FORMAT SCANCEL_STATE SCANCEL_INTERACTIVE SACCT_FEDERATION
SCONTROL_ALL SRUN_CPUS_PER_TASK SRUN_EXPORT_ENV SALLOC_ACCOUNT SLURM_TIME_FORMAT SLURM_BITSTR_LEN
SLURM_WORKING_DIR SLURM_HINT SLURM_EXCLUSIVE SLURM_CPUS_PER_TASK SLURM_MEM_PER_CPU SLURM_STEP_ID
SLURM_NTASKS SLURM_UNBUFFEREDIO SBCAST_EXCLUDE PBS_DPREFIX PBS_QSTAT_EXECONLY PMI_RANK
PMIX_NAMESPACE HYDRA_HOST_FILE MPIEXEC_TIMEOUT PALS_HOSTFILE"""
"""Read as options, or set for another job or step: manual pages of Slurm 22.05, PBS and hydra."""

READ_BY_SCHEDULERS = tuple(OPTIONS.split())

REACH = ("SLURM_CONF", "SLURM_CLUSTERS", "PBS_CONF_FILE", "PBS_SERVER", "HYDRA_IFACE")
OF_OTHERS = ("PATH", "HOME", "PMIX_MCA_gds", "OMPI_MCA_btl", "UCX_TLS", "SLURMY", "MY_SBATCH_X")


@pytest.fixture
def program(tmp_path):
    """Write a program in Python; gives its path."""

    def write(text):
        path = tmp_path / "squeue"
        path.write_text(f"#!{sys.executable} -IS\nimport json, os, sys, time\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


def test_a_command_gets_no_option_of_the_environment(program):
    everything = dict.fromkeys((*READ_BY_SCHEDULERS, *REACH, *OF_OTHERS), "x")
    command = program("print(json.dumps(dict(os.environ)))")

    given = json.loads(run_scheduler(command, environment=everything | {"LC_ALL": "de_DE"}))

    assert {name: given.get(name) for name in (*REACH, *OF_OTHERS)} == dict.fromkeys(
        (*REACH, *OF_OTHERS), "x"
    )
    assert [name for name in READ_BY_SCHEDULERS if name in given] == []
    assert given["LC_ALL"] == "C", "what it says does not depend on a language"


def test_a_step_keeps_what_describes_its_job_and_no_option():
    of_the_job = ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_ARRAY_TASK_ID", "PBS_NODEFILE")
    ours = dict.fromkeys((*READ_BY_SCHEDULERS, *of_the_job, "SLURM_MPI_TYPE"), "1")
    read_by_srun = {name for name in READ_BY_SCHEDULERS if not name.startswith("PBS_")}
    kept = step_environment(ours, 5.0)
    assert set(kept) & read_by_srun == set()
    assert {*of_the_job, "SLURM_MPI_TYPE", "HYDRAGNN_HPO_END"} <= set(kept)
    assert select_environment(kept, keep=("SLURM_", "PBS_")) == kept


def test_a_failure_is_a_sentence_with_the_last_line_and_keeps_what_was_printed(program):
    said = "sys.stdout.write('7|RUNNING|None'); sys.exit('greetings\\nInvalid job id specified.')"
    with pytest.raises(CommandFailed) as failed:
        run_scheduler(program(said), "--jobs=7")
    assert "fails (Invalid job id specified): see what" in str(failed.value)
    assert (failed.value.output, failed.value.names_no_job) == ("7|RUNNING|None", True)
    with pytest.raises(JobError, match=r"'/none' gives no answer \(No such file"):
        run_scheduler("/none")


def test_a_command_that_does_not_end_is_ended_with_what_it_started(program, tmp_path):
    pids = tmp_path / "pids"
    text = f"""
import subprocess
child = subprocess.Popen(['sleep', '600'])
open({str(pids)!r}, 'w').write(str(child.pid))
child.wait()"""
    with pytest.raises(JobError, match="gives no answer in time"):
        run_scheduler(program(text), seconds=3.0)
    pid = pids.read_text()
    until(lambda: not os.path.exists(f"/proc/{pid}") or "Z" in state(pid), "the end of its child")


def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2]
