"""Batch jobs: requests, commands of schedulers and their output, records, chains.

Output of Slurm is as 22.05 printed it, that of PBS as in the manual of PBS Professional.
"""

import os
import stat
from dataclasses import replace

import pytest
from fake_schedulers import FakeScheduler

from hydragnn_hpo.errors import ConfigError, JobError, StorageError
from hydragnn_hpo.launching import batch_jobs
from hydragnn_hpo.launching.batch_jobs import (
    BATCH_JOB,
    BatchJob,
    JobRecords,
    cancel_own_batch_job,
    check_batch_request,
    decide_end,
    decide_start,
    find_own_job,
    in_batch_job,
    parse_walltime,
)
from hydragnn_hpo.launching.schedulers import QueueEntry, check_job_id, parse_submitted
from hydragnn_hpo.launching.transports.pbs_batch import Pbs
from hydragnn_hpo.launching.transports.slurm_batch import Slurm


def job(name="1", **changes):
    facts = {"scheduler": "slurm", "script": "001.sh", "hosts": 2, "link": 1, "jobs": 4}
    return BatchJob(id=name, submitted=1.0, **{**facts, **changes})


def link(number, **changes):
    return job(str(number), link=number, **changes)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2:00", 7200), ("0:01:30", 90), ("48:00:00", 172800), ("12:34:56", 45296)],
)
def test_wall_times_are_hours_minutes_and_perhaps_seconds(text, seconds):
    assert parse_walltime(text) == seconds
    for other in ("", "2", "2:60", "0:00", "1-00:00", "-1:00", "2:00\n", "1:2:3"):
        with pytest.raises(ConfigError, match="write hours and minutes"):
            parse_walltime(other)


@pytest.mark.parametrize("text", ["30:00", "10:00", "90:00", "05:00", "0120:30"])
def test_what_schedulers_read_as_minutes_is_not_taken_for_hours(text):
    """sbatch(1): "minutes:seconds"; a job of 30 hours would wait for days, or be refused."""
    with pytest.raises(ConfigError, match=f"write {text}:00 for hours, or 0:{text} for minutes"):
        parse_walltime(text)


def test_what_fits_is_taken(batch_request, profile):
    check_batch_request(batch_request(), profile(), "slurm")
    check_batch_request(
        batch_request(hosts=10, seconds=3600), profile(hosts=10, wall_hours=1.0), "slurm"
    )
    check_batch_request(batch_request(hosts=1), profile(), "local")
    check_batch_request(batch_request(seconds=600), profile({"drain_seconds": 300}), "slurm")


@pytest.mark.parametrize(
    ("options", "machine", "says"),
    [
        ({}, {"batch": {"scheduler": "none"}}, "takes no batch jobs"),
        ({"hosts": 11}, {"hosts": 10}, "asks for 11 hosts, machine 'generic-slurm' has 10"),
        ({"hosts": 6, "allocations": 2}, {"hosts": 10}, "asks for 12 hosts"),
        ({"hosts": 2}, {"backend": "local"}, "the backend 'local' uses one host"),
        ({"allocations": 2}, {"backend": "mpiexec"}, "by the backend 'slurm' alone"),
        ({"seconds": 7200}, {"wall_hours": 1.5}, "at most 1.5 hours"),
        (
            {"seconds": 7200},
            {"limits": ({"hosts": 4, "wall_hours": 1.0},)},
            "gives 1 hosts at most 1 hours",
        ),
        ({"account": None}, {"batch": {"account_needed": True}}, "name yours with --account"),
        ({"seconds": 599}, {"batch": {"drain_seconds": 300}}, "ask for at least 10 minutes"),
        ({"account": "a b"}, {}, "--account is 'a b'"),
        ({"account": "$(touch x)"}, {}, "--account is"),
        ({"queue": "q\n#SBATCH --uid=0"}, {}, "--queue is"),
        ({"queue": "--uid=0"}, {}, "--queue is"),
        ({"after": "1,singleton;x"}, {}, "--after is"),
    ],
)
def test_what_does_not_is_refused_in_a_sentence(batch_request, profile, options, machine, says):
    made = profile(**machine)
    with pytest.raises(ConfigError) as refused:
        check_batch_request(batch_request(**options), made, made.backend)
    assert says in str(refused.value)


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


def test_what_slurm_answers_is_understood():
    assert parse_submitted("4711\n", []) == ["4711"]
    assert parse_submitted("4711;frontier\n", [1, 2]) == ["4711_1", "4711_2"]
    assert Slurm().parse_states(SQUEUE) == {
        "12": QueueEntry("queued", "Dependency"),
        "11": QueueEntry("running"),
        "13_1": QueueEntry("queued", "Priority"),
        "14": QueueEntry("running"),
    }


def test_what_pbs_answers_is_understood():
    assert parse_submitted("1234.aurora-pbs-0001\n", []) == ["1234.aurora-pbs-0001"]
    why = "Not Running: Job would conflict with reservation or top job"
    assert Pbs().parse_states(QSTAT) == {
        "1234.aurora-pbs-0001": QueueEntry("queued", why),
        "1235.aurora-pbs-0001": QueueEntry("running"),
        "1236.aurora-pbs-0001": QueueEntry("queued"),
        "1233.aurora-pbs-0001": QueueEntry("ended", "its script ended"),
    }


@pytest.mark.parametrize("text", ["", "error", "12 13", "../12", "12/../x", "12;rm", "$(id)", "-1"])
def test_what_is_no_number_of_a_job_becomes_no_argument_and_no_file(text):
    with pytest.raises(JobError, match="is no number of a batch job"):
        check_job_id(text)


def test_a_job_knows_itself():
    assert find_own_job({"SLURM_JOB_ID": "7"}) == ("slurm", "7", None)
    array = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "2"}
    assert find_own_job(array) == ("slurm", "8_2", 2)
    assert find_own_job({"PBS_JOBID": "12.s"}) == ("pbs", "12.s", None)
    with pytest.raises(ConfigError, match="this is no batch job"):
        find_own_job({})


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PBS_JOBID"])
def test_only_what_our_script_has_started_is_in_a_batch_job_of_ours(name):
    assert in_batch_job({name: "7", BATCH_JOB: "7"})
    assert not in_batch_job({name: "7"}), "salloc, or a script of somebody's own"
    assert not in_batch_job({name: "8", BATCH_JOB: "7"}), "handed on to another job"
    assert not in_batch_job({BATCH_JOB: "7"})
    assert not in_batch_job({name: "", BATCH_JOB: ""})


@pytest.fixture
def schedulers(tmp_path, monkeypatch):
    fake = FakeScheduler(tmp_path / "bin", monkeypatch, "scancel", "qdel")
    fake.stands(j7="RUNNING", j8="PENDING")
    return fake


ARRAY = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}


@pytest.mark.parametrize(
    ("job_environment", "command"),
    [
        ({"SLURM_JOB_ID": "7", BATCH_JOB: "7"}, ["scancel", "7"]),
        ({"SLURM_JOB_ID": "7", BATCH_JOB: "7", **ARRAY}, ["scancel", "7_2"]),
        (
            {"PBS_JOBID": "7.pbs-0001", BATCH_JOB: "7.pbs-0001"},
            ["qdel", "-W", "force", "7.pbs-0001"],
        ),
    ],
)
def test_a_process_cancels_its_own_job_and_no_other(schedulers, job_environment, command):
    """The last task of an array carries the number of the whole array, so the task is named."""
    environment = {**os.environ, **job_environment}
    assert cancel_own_batch_job(environment) == command[-1]
    assert schedulers.calls == [command]


@pytest.mark.parametrize(
    "job_environment",
    [{}, {"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "7; rm -rf", BATCH_JOB: "7; rm -rf"}],
)
def test_a_process_outside_of_our_jobs_cancels_none(schedulers, job_environment):
    assert cancel_own_batch_job({"PATH": os.environ["PATH"], **job_environment}) is None
    assert not schedulers.was_called


@pytest.mark.parametrize("behaviour", ["exit 1", "exec sleep 600", None])
def test_a_job_that_cannot_be_cancelled_is_none(schedulers, monkeypatch, behaviour):
    monkeypatch.setattr(batch_jobs, "CANCEL_SECONDS", 0.2)
    (schedulers.folder / "scancel").unlink()
    if behaviour:
        (schedulers.folder / "scancel").write_text(f"#!/bin/bash\n{behaviour}\n")
        (schedulers.folder / "scancel").chmod(0o755)
    path = f"{schedulers.folder}:/nowhere" if behaviour is None else os.environ["PATH"]
    environment = {"PATH": path, "SLURM_JOB_ID": "7", BATCH_JOB: "7"}
    assert cancel_own_batch_job(environment) is None


def test_scripts_are_numbered_and_readable_by_their_owner_alone(tmp_path):
    records = JobRecords(tmp_path)
    assert (records.jobs(), records.next_script()) == ([], "001.sh")
    assert list(tmp_path.iterdir()) == []
    records.write_script("003.sh", "#!/bin/bash\n", "name = 'x'\n")
    path = records.folder / "003.sh"
    campaign = records.campaign_path("003.sh")
    assert campaign.name == "003.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(records.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(campaign.stat().st_mode) == 0o600
    (records.folder / "009-mine.sh").touch()
    assert records.next_script() == "004.sh", "copies do not count"


def test_a_job_is_what_its_facts_say(tmp_path):
    records = JobRecords(tmp_path)
    records.write_script("001.sh", "", "")
    records.record("7", "began", time=3.0, progress=5, host="n1")
    assert records.jobs() == [], "it began before it was written down"
    records.add(job("7"))
    records.add(job("8_2", after="7", link=2, task=2))
    records.record("7", "ended", time=4.0, code=75, said="drained")

    first, second = records.jobs()

    assert (first.id, first.began, first.progress, first.ended) == ("7", 3.0, 5, 4.0)
    assert (first.code, first.message) == (75, "drained")
    assert (second.id, second.after, second.task, second.began) == ("8_2", "7", 2, None)
    assert records.find("8_2") == second
    assert records.find("9") is None


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', '"x"', "{}", '{"scheduler": "lsf"}'])
def test_a_record_of_somebody_else_is_a_sentence(tmp_path, text):
    records = JobRecords(tmp_path)
    records.write_script("001.sh", "", "")
    (records.folder / "7.submitted.json").write_text(text)
    with pytest.raises(StorageError, match=r"7\.\*\.json: do not say .*; remove them"):
        records.jobs()


def test_a_job_is_followed_up_to_the_last():
    assert decide_start([], link(1), progress=0, finished=False).queues_next
    assert not decide_start([], link(2), progress=9, finished=True).queues_next
    last = decide_start([], link(4), progress=9, finished=False)
    assert (last.runs, last.queues_next) == (True, False)
    assert last.message == "job 4 of 4, the last one of its chain"
    assert not decide_start([], link(1, jobs=1), progress=0, finished=False).queues_next


def test_two_lost_jobs_that_got_nowhere_end_the_chain():
    lost = [link(1, began=1.0, progress=5), link(2, began=2.0, progress=5)]
    decided = decide_start(lost, link(3), progress=5, finished=False)
    assert (decided.runs, decided.queues_next) == (False, False)
    assert decided.message == "jobs 1 and 2 got nowhere: the chain ends here"
    assert decide_start(lost, link(3), progress=6, finished=False).runs
    assert decide_start(lost[:1], link(2), progress=5, finished=False).runs, "one may be bad luck"


@pytest.mark.parametrize(
    ("code", "now", "goes_on"),
    [(0, 9, False), (1, 9, False), (2, 9, False), (75, 5, False), (75, 6, True), (137, 6, True)],
)
def test_a_job_that_could_not_be_taken_back_knows_it_by_the_records(code, now, goes_on):
    before = replace(link(1, began=1.0, progress=5), ended=2.0, code=code, message="so")
    own = replace(link(2), after="1")
    decided = decide_start([before], own, progress=now, finished=False)
    assert (decided.runs, decided.queues_next) == (goes_on, goes_on)
    unbegun = replace(before, began=None)
    assert decide_start([unbegun], own, progress=now, finished=False).runs, "it failed early"
    other = replace(own, after="another's")
    assert decide_start([before], other, progress=now, finished=False).runs


@pytest.mark.parametrize(
    ("code", "own", "progress", "followed", "cancels", "queues_next", "left", "message"),
    [
        (75, link(1, progress=3), 4, True, "none", False, 0, ""),
        (255, link(1, progress=3), 4, True, "none", False, 0, ""),
        (75, link(1, progress=3), 3, True, "next", False, 75, "without a finished epoch"),
        (137, link(1, progress=3), 3, True, "next", False, 137, "without a finished epoch"),
        (1, link(1), 9, True, "next", False, 1, ""),
        (2, link(1), 9, True, "next", False, 2, ""),
        (0, link(1), 9, True, "next", False, 0, ""),
        (75, link(3), 9, False, "none", True, 75, ""),
        (75, link(4), 9, False, "none", False, 75, "submit again to go on"),
    ],
)
def test_the_end_of_a_job_decides_about_the_next(
    code, own, progress, followed, cancels, queues_next, left, message
):
    """After progress it goes on; what another job would not cure, or did not, ends the chain."""
    decided = decide_end(own, code=code, progress=progress, finished=False, followed=followed)
    assert (decided.cancels, decided.queues_next, decided.code) == (cancels, queues_next, left)
    assert message in decided.message
    finished = decide_end(own, code=0, progress=progress, finished=True, followed=followed)
    assert (finished.cancels, finished.code) == ("all", 0)


ANSWERS = {
    "no text": "head -c 5000 /dev/urandom | tr -d 0-9",
    "another table": "echo '1 2 3'; echo 'JOBID PARTITION NAME'",
    "a page": "echo '<html><body>502 Bad Gateway</body></html>'",
    "a long line": "head -c 100000 /dev/zero | tr '\\0' x",
    "a failure": "head -c 5000 /dev/urandom >&2; exit 3",
    "nothing, for long": "sleep 600",
    "a question": "read answer; sleep 600",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_whatever_a_scheduler_answers_is_no_answer_and_one_sentence(
    tmp_path, monkeypatch, scheduler, answer
):
    for program in ("sbatch", "squeue", "qsub", "qstat", "scancel", "qdel"):
        (tmp_path / program).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / program).chmod(0o700)
    (tmp_path / "jobs").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(batch_jobs, "QUERY_SECONDS", 0.5)
    monkeypatch.setattr(batch_jobs, "SUBMIT_SECONDS", 0.5)
    assert batch_jobs.query_jobs(scheduler, ["7711234"]) is None
    job = BatchJob("", scheduler, "001.sh", hosts=1, link=1, jobs=1, submitted=0.0)
    with pytest.raises(JobError) as caught:
        batch_jobs.submit_jobs(JobRecords(tmp_path), job)
    assert len(str(caught.value)) <= 300
    waiting = replace(job, id="7711234")
    with pytest.raises(JobError, match="gives no answer, so 7711234 stay queued"):
        batch_jobs.cancel_queued_jobs(JobRecords(tmp_path), [waiting])


# -- submissions whose number cannot be read -------------------------------------------

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=hpo-alloys
#SBATCH --nodes=2
#SBATCH --time=01:00:00
#SBATCH --comment=hydragnn-hpo:abc
#SBATCH --account=mat123
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Give a fake Slurm, and records with a script."""
    fake = FakeScheduler(tmp_path / "bin", monkeypatch, "sbatch", "squeue", "scancel", "sacct")
    monkeypatch.setattr(batch_jobs, "QUERY_SECONDS", batch_jobs.SUBMIT_SECONDS)
    fake.records = JobRecords(tmp_path)
    fake.records.write_script("001.sh", SCRIPT, "")
    return fake


FIRST = BatchJob("", "slurm", "001.sh", hosts=2, link=1, jobs=5, submitted=0.0)


@pytest.mark.parametrize("greeting", ["welcome\n", "", "You have used\n77\nhours\n"])
def test_a_job_whose_number_is_not_read_is_found_by_name_and_comment(slurm, greeting):
    (slurm.folder / "greetings").write_text(greeting)
    assert batch_jobs.submit_jobs(slurm.records, FIRST) == ["101"]
    assert slurm.records.find("101").jobs == 5
    assert slurm.records.reserved() == []
    second = replace(FIRST, link=2, after="101")
    assert batch_jobs.submit_jobs(slurm.records, second) == ["102"]
    assert slurm.records.find("102").link == 2


def test_tasks_whose_number_is_not_read_are_found_each(slurm):
    (slurm.records.folder / "001.sh").write_text(SCRIPT + "#SBATCH --array=1-2\n")
    (slurm.folder / "greetings").write_text("welcome")
    assert batch_jobs.submit_jobs(slurm.records, FIRST, range(1, 3)) == ["101_1", "101_2"]
    assert [job.task for job in slurm.records.jobs()] == [1, 2]


def test_a_job_that_is_not_found_may_be_queued_and_is_not_forgotten(slurm):
    (slurm.folder / "greetings").write_text("welcome")
    (slurm.folder / "squeue").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(JobError, match="may be queued; look with 'squeue --name=hpo-alloys'"):
        batch_jobs.submit_jobs(slurm.records, FIRST)
    (job,) = slurm.records.reserved()
    assert (job.script, job.link, job.jobs, job.hosts) == ("001.sh", 1, 5, 2)
    with pytest.raises(JobError, match="another submission has begun"):
        batch_jobs.submit_jobs(slurm.records, FIRST)
    assert len(slurm.calls) == 1, "nothing is queued twice"
    assert batch_jobs.settle_submissions(slurm.records, forget=True) == [job]


@pytest.mark.parametrize(
    ("error", "reserved"),
    [
        ("sbatch: error: Invalid account", 0),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv", 1),
    ],
)
def test_what_is_refused_is_not_reserved_but_what_broke_off_is(slurm, error, reserved):
    """Slurm may have queued a job whose number it could not send back."""
    (slurm.folder / "refuse").write_text(error)
    (slurm.folder / "squeue").unlink()
    with pytest.raises(JobError):
        batch_jobs.submit_jobs(slurm.records, FIRST)
    assert len(slurm.records.reserved()) == reserved


def test_a_submission_that_is_known_to_nobody_is_forgotten_on_request(slurm):
    """Whoever submitted was ended between the record and the scheduler."""
    assert slurm.records.reserve([FIRST])
    assert batch_jobs.settle_submissions(slurm.records) == slurm.records.reserved() != []
    assert batch_jobs.settle_submissions(slurm.records, forget=True) == []
    assert slurm.records.reserved() == []


def test_a_script_is_submitted_by_one_of_two(slurm):
    batch_jobs.submit_jobs(slurm.records, FIRST)
    assert not slurm.records.reserve([FIRST]), "the other one has just done it"
    assert slurm.records.reserved() == []
    assert slurm.records.reserve([replace(FIRST, link=2)])
    assert not slurm.records.reserve([replace(FIRST, link=2)])


def test_what_the_scheduler_has_is_compared_with_the_request(slurm, monkeypatch):
    """It has whole minutes, and its own words where nothing was requested."""
    ids = batch_jobs.submit_jobs(slurm.records, FIRST)
    assert batch_jobs.compare_with_request(slurm.records, FIRST, ids) == []
    (slurm.folder / "options").write_text(
        '{"101": {"j": "hpo-alloys", "a": "other", "l": "1:00", "D": "2", "P": "debug"}}'
    )
    account, time = batch_jobs.compare_with_request(slurm.records, FIRST, ids)
    assert account.startswith("batch job 101 has --account other, and mat123 was requested")
    assert time.startswith("batch job 101 has --time 1:00, and 01:00:00 was requested")
    (slurm.folder / "squeue").unlink()
    assert batch_jobs.compare_with_request(slurm.records, FIRST, ids) == []


@pytest.mark.parametrize(
    ("option", "requested", "granted", "agree"),
    [
        ("--time", "00:10:30", "11:00", True),
        ("--time", "00:10:00", "1:00", False),
        ("--time", "24:00:00", "1-00:00:00", True),
        ("--mem", "0", "0", True),
        ("--mem", "64G", "65536M", True),
        ("--mem", "0", "500M", False),
        ("--partition", "debug,batch", "batch", True),
        ("--partition", "batch", "short", False),
        ("--nodes", "2", "3", False),
        ("--account", "Mat123", "mat123", True),
        ("-l walltime", "01:00:00", "", True),
    ],
)
def test_options_agree_as_schedulers_write_them(option, requested, granted, agree):
    assert batch_jobs._agree(option, requested, granted) == agree


def test_a_chain_whose_next_job_was_cancelled_says_so():
    own = link(1, progress=3)
    decided = decide_end(own, code=75, progress=4, finished=False, followed=True, cancelled=True)
    assert (decided.queues_next, decided.cancels, decided.code) == (False, "none", 75)
    assert decided.message == "drained; the next job was cancelled: submit again to go on"


def test_only_what_the_scheduler_still_has_is_alive(slurm):
    batch_jobs.submit_jobs(slurm.records, FIRST)
    slurm.stands(j101="RUNNING", j102="CANCELLED")
    jobs = [replace(FIRST, id="101"), replace(FIRST, id="102"), replace(FIRST, id="103")]
    assert batch_jobs.select_alive(jobs) == jobs[:1]
    assert batch_jobs.select_alive([replace(jobs[0], ended=2.0)]) == []
    (slurm.folder / "squeue").unlink()
    assert batch_jobs.select_alive(jobs) == jobs, "nobody knows"
