"""Commands to schedulers, and their answers.

Answers of Slurm are as 22.05 gave them, those of PBS as in the manual of PBS Professional.
"""

import pytest

from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching.submit.schedulers import Pbs, Queued, Slurm, checked_id, where_we_are

SQUEUE = "12|PENDING|Dependency\n11|RUNNING|None\n13_1|PENDING|Priority\n14|COMPLETING|None\n"

QSTAT = """\
Job Id: 1234.aurora-pbs-0001
    Job_Name = hpo-alloys
    job_state = Q
    comment = Not Running: Job would conflict with reservation or top job
    Variable_List = PBS_O_HOME=/home/me,
	job_state = R

Job Id: 1235.aurora-pbs-0001
    job_state = R

Job Id: 1236.aurora-pbs-0001
    job_state = H

Job Id: 1233.aurora-pbs-0001
    job_state = F
    Exit_status = 0
"""


def test_slurm_is_asked_with_arguments_alone():
    slurm = Slurm()
    assert slurm.submit("001.sh", None, None) == ["sbatch", "--parsable", "001.sh"]
    assert slurm.submit("001.sh", "7_2", 2) == [
        *("sbatch", "--parsable", "--dependency=afterany:7_2", "--array=2", "001.sh"),
    ]
    assert slurm.cancel(["7", "8"]) == ["scancel", "--state=PENDING", "7", "8"]


def test_what_slurm_answers_is_understood():
    slurm = Slurm()
    assert slurm.submitted("4711\n", []) == ["4711"]
    assert slurm.submitted("4711;frontier\n", [1, 2]) == ["4711_1", "4711_2"]
    assert slurm.states(SQUEUE) == {
        "12": Queued("queued", "Dependency"),
        "11": Queued("running"),
        "13_1": Queued("queued", "Priority"),
        "14": Queued("running"),
    }


def test_pbs_is_asked_with_arguments_alone():
    pbs = Pbs()
    assert pbs.submit("001.sh", None, None) == ["qsub", "001.sh"]
    assert pbs.submit("001.sh", "12.s", 3) == ["qsub", "-W", "depend=afterany:12.s", "001.sh"]
    assert pbs.ask(["12.s"]) == ["qstat", "-x", "-f", "12.s"]


def test_what_pbs_answers_is_understood():
    pbs = Pbs()
    assert pbs.submitted("1234.aurora-pbs-0001\n", []) == ["1234.aurora-pbs-0001"]
    assert pbs.states(QSTAT) == {
        "1234.aurora-pbs-0001": Queued(
            "queued", "Not Running: Job would conflict with reservation or top job"
        ),
        "1235.aurora-pbs-0001": Queued("running"),
        "1236.aurora-pbs-0001": Queued("queued"),
    }


@pytest.mark.parametrize("text", ["", "error", "12 13", "../12", "12/../x", "12;rm", "$(id)", "-1"])
def test_what_is_no_number_of_a_job_becomes_no_argument_and_no_file(text):
    with pytest.raises(JobError, match="is no number of a batch job"):
        checked_id(text)


def test_a_job_knows_itself():
    assert where_we_are({"SLURM_JOB_ID": "7"}) == ("slurm", "7")
    array = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "2"}
    assert where_we_are(array) == ("slurm", "8_2")
    assert where_we_are({"PBS_JOBID": "12.s"}) == ("pbs", "12.s")
    with pytest.raises(ConfigError, match="this is no batch job"):
        where_we_are({})
