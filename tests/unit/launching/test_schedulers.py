"""What Slurm and PBS print about batch jobs is understood, whatever a site prints beside it.

Lines of Slurm are as 22.05 printed them on virtual hosts; reasons are those of squeue(1).
"""

import pytest

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.scheduler_commands import CommandFailed
from hydragnn_hpo.launching.schedulers import parse_submitted, parse_time
from hydragnn_hpo.launching.transports.pbs_batch import Pbs
from hydragnn_hpo.launching.transports.slurm_batch import Slurm

GREETINGS = (
    "123\n",
    "   Welcome\n-------------\n123\n",
    "You have 42 of 1000 hours.\n123\nHave a nice day\n",
    "\x1b[32mok\x1b[0m\n\x1b[1m123\x1b[0m\n",
    "Submitted batch job 123\n",
    "Submitted batch job 123 on cluster frontier\n",
    "123;frontier\r\n",
    "7\n123",
)


@pytest.mark.parametrize("output", GREETINGS)
def test_the_number_of_a_job_is_the_last_line_that_is_one(output):
    assert parse_submitted(output, []) == ["123"]
    assert parse_submitted(output, [1, 2]) == ["123_1", "123_2"]


@pytest.mark.parametrize("output", ["", "  Welcome\n", "job 123 of yours", "12 3\n", "error: 5x\n"])
def test_no_number_is_taken_from_within_a_sentence(output):
    with pytest.raises(JobError, match="is no number of a batch job"):
        parse_submitted(output, [])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("10:59", 659), ("1:00:00", 3600), ("2-03:04:05", 183845), ("0:00", 0)),
        *(("UNLIMITED", None), ("INVALID", None), ("", None), ("90", None)),
    ],
)
def test_times_of_schedulers_are_read(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    ("line", "state", "words"),
    [
        ("PENDING|Priority", "queued", "Priority"),
        ("PENDING|Dependency", "queued", "Dependency"),
        ("PENDING|JobHeldUser", "held", "its user holds it"),
        ("PENDING|JobHeldAdmin", "held", "an administrator holds it"),
        ("SPECIAL_EXIT|None", "held", "Slurm holds it"),
        ("PENDING|launch failed requeued held", "held", "Slurm holds it"),
        ("PENDING|PartitionConfig", "queued", "will never start as requested: its partition does"),
        ("PENDING|PartitionTimeLimit", "queued", "will never start as requested: more time than"),
        ("PENDING|PartitionNodeLimit", "queued", "will never start as requested: more or fewer"),
        ("PENDING|QOSMaxWallDurationPerJobLimit", "queued", "will never start as requested"),
        ("PENDING|AssocMaxNodePerJobLimit", "queued", "will never start as requested"),
        ("PENDING|BadConstraints", "queued", "will never start as requested: no hosts have"),
        ("PENDING|DependencyNeverSatisfied", "queued", "will never start as requested"),
        ("PENDING|AssocGrpNodeLimit", "queued", "AssocGrpNodeLimit"),
        ("PENDING|ReqNodeNotAvail, UnavailableNodes:node1", "queued", "down, drained or reserved"),
        ("PENDING|PartitionDown", "queued", "waits for an administrator: its partition is down"),
        ("RUNNING|None", "running", ""),
        ("COMPLETING|None", "running", ""),
        ("SUSPENDED|None", "suspended", "its processes are stopped"),
        ("FAILED|NonZeroExitCode", "ended", "failed"),
        ("CANCELLED|JobHeldUser", "ended", "cancelled"),
        ("TIMEOUT|TimeLimit", "ended", "timed out"),
        ("NODE_FAIL|None", "ended", "lost with its hosts"),
        ("OUT_OF_MEMORY|OutOfMemory", "ended", "its memory was full"),
    ],
)
def test_a_state_and_its_reason_are_told_in_words(line, state, words):
    (entry,) = Slurm().parse_states(f"12|{line}\n").values()
    assert entry.state == state
    assert words in entry.reason


def test_lines_of_a_greeting_are_no_jobs():
    output = "  Welcome | to | us\n12|PENDING|Priority\nCLUSTER: virt\n| 5 | x |\nbye\n"
    assert list(Slurm().parse_states(output)) == ["12"]


def test_what_slurm_granted_and_whose_job_it_is_are_read():
    line = "1|RUNNING|None|batch|deflt|11:00|2|500M|hydragnn-hpo:abc\n"
    (entry,) = Slurm().parse_states(line).values()
    assert entry.mark == "hydragnn-hpo:abc"
    assert entry.granted == {
        **{"--partition": "batch", "--account": "deflt", "--time": "11:00"},
        **{"--nodes": "2", "--mem": "500M"},
    }


def forgotten():
    """Return the failure of a squeue that is asked for a job which ended minutes ago."""
    errors = "slurm_load_jobs error: Invalid job id specified"
    return CommandFailed(f"'squeue' fails ({errors}): see it.", reason="", output="", errors=errors)


def test_what_the_queue_has_forgotten_is_looked_up_in_the_accounting():
    def run(program, *_):
        if program == "squeue":
            raise forgotten()
        return "Welcome\n7|FAILED|3:0\n8_1|CANCELLED by 1000|0:0\n9|TIMEOUT|0:15\n"

    entries = Slurm().query(["7", "8_1", "9"], run)

    assert {job: entry.reason for job, entry in entries.items()} == {
        **{"7": "failed with exit code 3", "8_1": "cancelled", "9": "timed out"},
    }


def test_without_accounting_a_forgotten_job_is_unknown():
    def run(*_):
        raise forgotten()

    assert Slurm().query(["7"], run) == {}


QSTAT = """\
Job Id: 9.s
    job_state = {state}
    Resource_List.walltime = 02:00:00
    Variable_List = PBS_O_HOME=/home/me,PBS_O_WORKDIR=/lustre/me/runs/all
\toys/jobs,PBS_O_HOST=login
"""


@pytest.mark.parametrize(
    ("state", "name", "words"),
    [
        ("H\n    Hold_Types = u", "held", "qrls releases it"),
        ("H\n    Hold_Types = s\n    depend = afterany:8.s@s", "queued", ""),
        ("S", "suspended", "stopped"),
        ("R", "running", ""),
        ("F\n    Exit_status = 3", "ended", "failed with exit code 3"),
        ("F\n    Exit_status = 271", "ended", "cancelled or timed out"),
        ("F", "ended", "cancelled"),
    ],
)
def test_states_of_pbs_are_told_in_words(state, name, words):
    (entry,) = Pbs().parse_states(QSTAT.format(state=state)).values()
    assert entry.state == name
    assert words in entry.reason
    assert entry.granted["-l walltime"] == "02:00:00"
    assert entry.mark == "/lustre/me/runs/alloys/jobs"


@pytest.mark.parametrize("scheduler", [Slurm(), Pbs()])
def test_jobs_are_found_by_their_name_and_their_run(scheduler):
    answers = {
        "squeue": "7|RUNNING|None|b|a|1:00|1|0|mine\n8|PENDING|Priority|b|a|1:00|1|0|other\n",
        "qselect": "Welcome\n9.s\n",
        "qstat": QSTAT.format(state="Q"),
    }
    calls = []

    def run(*argv):
        calls.append(argv)
        return answers[argv[0]]

    marks = {"mine", "/lustre/me/runs/alloys/jobs"}
    assert scheduler.find("hpo-alloys", marks, run) in (["7"], ["9.s"])
    assert scheduler.find("hpo-alloys", {"none"}, run) == []
    assert any("hpo-alloys" in word for word in calls[0])
