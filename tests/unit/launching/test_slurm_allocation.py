"""What Slurm says about our allocation is understood."""

import math
import time

import pytest

from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching import scheduler_commands, slurm_allocation
from hydragnn_hpo.launching.scheduler_commands import SchedulerCommand, run_scheduler
from hydragnn_hpo.launching.slurm_allocation import (
    Allocation,
    find_unusable_hosts,
    parse_ended_tasks,
)


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Put commands first on PATH that answer as Slurm does."""

    def put(**answers_by_command):
        for name, text in answers_by_command.items():
            (tmp_path / f"{name}.txt").write_text(text)
            tool = tmp_path / name
            tool.write_text(f"#!/bin/sh\ncat {tmp_path}/{name}.txt\n")
            tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    put(srun="", sinfo="")
    return put


def test_an_allocation_has_hosts_an_address_and_an_end(answers, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    answers(squeue="RUNNING|n[1-3]|2026-11-21T19:00:00\n", scontrol="x NodeAddr=10.1.2.3 y\n")

    result = Allocation.find({"SLURM_JOB_ID": "17"}, most=2)

    assert (result.job, result.hosts, result.address) == ("17", ("n1", "n2"), "10.1.2.3")
    assert result.ends_at == 1795287600.0  # date -ud 2026-11-21T19:00 +%s
    monkeypatch.undo()
    time.tzset()


def test_hosts_that_are_left_alone_are_not_counted(answers):
    answers(squeue="RUNNING|n[1-4]|NONE\n", scontrol="NodeAddr=n2\n")
    given = {"SLURM_JOB_ID": "17"}

    assert Allocation.find(given, 2, without=("n1", "n3")).hosts == ("n2", "n4")
    with pytest.raises(ConfigError, match="all 4 hosts are excluded"):
        Allocation.find(given, without=("n1", "n2", "n3", "n4"))
    assert slurm_allocation.without_excluded([], {"n1"}) == (), "hosts may be still unknown"


def test_hosts_are_left_alone_by_their_names_on_the_network(answers):
    answers(
        squeue="RUNNING|n[1-2]|NONE\n",
        scontrol="NodeAddr=n2\n",
        sinfo="Welcome to the machine\nn1|c1.site.org|10.0.0.1\nn1|c1.site.org|10.0.0.1\n"
        "n2|c2.site.org|10.0.0.2\n",
    )
    for name in ("c1", "c1.site.org", "10.0.0.1", "n1.site.org"):
        assert Allocation.find({"SLURM_JOB_ID": "17"}, without=[name]).hosts == ("n2",), name


def test_a_task_with_the_number_of_its_array_knows_its_own_hosts(answers):
    """As Slurm 22.05 answers for the last task of an array that it starts."""
    answers(
        squeue="RUNNING|n1|2026-11-21T19:00:00|102\nRUNNING|n2|2026-11-21T19:00:00|101\n",
        scontrol="NodeAddr=n\n",
    )
    assert Allocation.find({"SLURM_JOB_ID": "101"}).hosts == ("n2",)
    assert Allocation.find({"SLURM_JOB_ID": "102"}).hosts == ("n1",)


@pytest.mark.parametrize(
    ("listing", "error", "sentence"),
    [
        ("", ConfigError, "Slurm job 17 has ended"),
        ("PENDING||N/A\n", ConfigError, "Slurm job 17 is pending"),
        ("maintenance today\n", JobError, "squeue tells no state and hosts of job 17"),
        ("RUNNING||NONE|17\n", JobError, "squeue tells no state and hosts of job 17"),
    ],
)
def test_an_allocation_that_is_over_or_not_begun_is_refused(answers, listing, error, sentence):
    """squeue knows a job for some minutes more, and says nothing of it."""
    answers(squeue=listing, scontrol="NodeAddr=n1\n")
    with pytest.raises(error, match=sentence):
        Allocation.find({"SLURM_JOB_ID": "17"})
    with pytest.raises(ConfigError, match="this is no Slurm allocation"):
        Allocation.find({})


def test_the_environment_knows_the_end_best(answers):
    answers(squeue="RUNNING|n1|NONE\n", scontrol="NodeAddr=n1\n")

    assert Allocation.find({"SLURM_JOB_ID": "17"}).ends_at == math.inf
    given = {"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": "12345"}
    assert Allocation.find(given).ends_at == 12345.0


@pytest.fixture
def flaky(tmp_path, monkeypatch):
    """Put a squeue first on PATH that fails some times, with a word of its own."""
    calls_file = tmp_path / "asked"

    def put(failures, word):
        tool = tmp_path / "squeue"
        tool.write_text(
            f"#!/bin/sh\necho >> {calls_file}\n[ $(wc -l < {calls_file}) -gt {failures} ] && "
            f"echo 'RUNNING|n1|NONE' && exit\necho '{word}' >&2; exit 1\n"
        )
        tool.chmod(0o755)
        return calls_file

    monkeypatch.setattr(scheduler_commands, "_PAUSES", (0.0, 0.0, 0.0))
    return put


def test_a_campaign_begins_although_slurm_is_away_for_a_moment(answers, flaky):
    answers(scontrol="NodeAddr=n1\n")
    flaky(2, "slurm_load_jobs error: Socket timed out on send/recv operation")
    given = {"SLURM_JOB_ID": "17"}
    assert Allocation.find(given).hosts == ("n1",)
    calls_file = flaky(9, "slurm_load_jobs error: Unable to contact slurm controller")
    calls_file.unlink()
    with pytest.raises(JobError, match="Unable to contact slurm controller"):
        Allocation.find(given)
    assert len(calls_file.read_text().splitlines()) == 4
    calls_file.unlink()
    with pytest.raises(JobError, match="Unable to contact"):
        Allocation.find(given, run_query=run_scheduler)
    assert len(calls_file.read_text().splitlines()) == 1


def test_a_job_that_slurm_has_forgotten_is_not_queried_again(answers, flaky):
    calls_file = flaky(9, "slurm_load_jobs error: Invalid job id specified")
    with pytest.raises(ConfigError, match="Slurm job 17 has ended"):
        Allocation.find({"SLURM_JOB_ID": "17"})
    assert len(calls_file.read_text().splitlines()) == 1


def test_hosts_that_are_down_get_no_step(answers):
    answers(sinfo="n1|allocated\nn2|down*\nn3|mixed*\nn4|draining\nn5|down\n")

    assert find_unusable_hosts(["n1"]) == {"n2": "down*", "n3": "mixed*", "n5": "down"}


def test_a_long_answer_is_read_without_waiting_for_it(answers):
    """A pipe holds 64 KiB, and a command that fills one does not end until it is read."""
    states = "".join(f"n{number}|allocated\n" for number in range(10_000))
    answers(sinfo=states)
    command = SchedulerCommand("sinfo")
    while (output := command.output()) is None:
        time.sleep(0.01)
    command.close()
    assert output == states


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("22:02:10|17|1:30", 90),  # SLURM_TIME_FORMAT=relative, as 22.05 printed it
        ("tomorr 22:02|17|1-00:00:00", 86_400),
        ("N/A|17|2:00:00", 7200),
        ("2026-11-21T19:00:00|17|-0:10", 0),
        ("NONE|17|UNLIMITED", math.inf),
        ("INVALID|17|UNLIMITED", math.inf),
    ],
)
def test_the_end_is_the_time_that_is_left(answers, line, seconds):
    answers(squeue=f"RUNNING|n1|{line}\n", scontrol="NodeAddr=n1\n")
    before = time.time()
    end = Allocation.find({"SLURM_JOB_ID": "17"}).ends_at
    assert before + seconds <= end <= time.time() + seconds


@pytest.mark.parametrize(
    ("environment", "longest", "ends_in"),
    [
        ({"HYDRAGNN_HPO_REQUESTED_END": "12345"}, 3600.0, None),
        ({}, 3600.0, 3600.0),
        ({}, math.inf, math.inf),
    ],
)
def test_an_end_that_cannot_be_read_is_as_requested_with_a_warning(
    answers, caplog, environment, longest, ends_in
):
    answers(squeue="RUNNING|n1|Sat 22:02|17|INVALID\n", scontrol="NodeAddr=n1\n")
    before = time.time()
    end = Allocation.find({"SLURM_JOB_ID": "17", **environment}, longest=longest).ends_at
    if ends_in is None:
        assert end == 12345.0
    else:
        assert before + ends_in <= end <= time.time() + ends_in
    (record,) = caplog.records
    assert "does not tell when this job ends (squeue: Sat 22:02 INVALID)" in record.getMessage()
    assert ("nothing drains it" in record.getMessage()) == (end == math.inf)


def test_greetings_around_an_answer_are_no_answer(answers):
    greeting = "  Welcome | to | us\n\n"
    answers(squeue=f"{greeting}RUNNING|n[1-2]|N/A|17|1:00\nbye\n", scontrol="NodeAddr=n1\n")
    assert Allocation.find({"SLURM_JOB_ID": "17"}).hosts == ("n1", "n2")


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ("RUNNING|17\n", None),
        ("Welcome\nSUSPENDED|17\n", None),
        ("CANCELLED|17\n", "has ended (cancelled)"),
        ("TIMEOUT|17\n", "has ended (timed out)"),
        ("COMPLETING|17\n", "has ended"),
        ("COMPLETED|18\nRUNNING|17\n", None),
        ("", None),
        (JobError("'squeue' gives no answer: see it."), None),
    ],
)
def test_an_allocation_that_is_gone_is_told_from_one_of_which_nothing_is_known(answer, end):
    assert slurm_allocation.find_job_end(answer) == end


def test_srun_says_which_host_lost_its_task_and_the_task_says_why():
    """As srun 22.05 prints it, with ``--label``; ends of several tasks share a line."""
    output = """\
srun: cluster configuration lacks support for cpu binding
 0: slurmstepd-node1: error: execve(): /no/such/python: No such file or directory
srun: error: node1: task 0: Exited with exit code 2
 3: agent: ready.
srun: error: node[2,4]-ib: tasks 1-2: Killed
 1: one
 1: two.
srun: error: Unable to confirm allocation for job 7: Invalid job id specified
srun: error: n;5: task 5: Killed
"""
    assert parse_ended_tasks(output.splitlines()) == {
        "node1": "exited with exit code 2: slurmstepd-node1: error: execve(): /no/such/python: "
        "No such file or directory",
        "node2-ib": "killed: two",
        "node4-ib": "killed",
    }
