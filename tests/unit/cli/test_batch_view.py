"""How batch jobs stand: what is on record counts first, then what the scheduler says."""

from dataclasses import replace

import pytest

from hydragnn_hpo.cli import batch_view
from hydragnn_hpo.cli.batch_view import course_of_jobs, job_lines, read_job_statuses
from hydragnn_hpo.launching.batch_jobs import BatchJob, JobRecords
from hydragnn_hpo.launching.schedulers import QueueEntry


def job(number, **changes):
    facts = {"scheduler": "slurm", "script": "001.sh", "hosts": 2, "link": 1, "jobs": 4}
    return BatchJob(id=str(number), submitted=float(number), **{**facts, **changes})


@pytest.fixture
def scheduler(monkeypatch):
    """Answer as told, and note what was asked."""
    requests = []

    def answers(known):
        def query_jobs(_, ids):
            requests.append(list(ids))
            return known

        monkeypatch.setattr(batch_view, "query_jobs", query_jobs)
        return requests

    return answers


@pytest.mark.parametrize(
    ("changes", "known", "draining", "state"),
    [
        ({}, {"1": QueueEntry("queued", "Priority")}, False, "queued"),
        ({"began": 1.0}, {"1": QueueEntry("running")}, False, "running"),
        ({"began": 1.0}, {"1": QueueEntry("running")}, True, "draining"),
        ({}, {"1": QueueEntry("queued")}, True, "queued"),
        ({"began": 1.0}, {}, False, "ended"),
        ({}, {}, False, "ended"),
        ({"ended": 2.0}, {"1": QueueEntry("running")}, False, "ended"),
        ({}, None, False, "unknown"),
    ],
)
def test_a_job_stands_as_record_and_scheduler_say(scheduler, changes, known, draining, state):
    scheduler(known)
    (result,) = read_job_statuses([job(1, **changes)], draining=draining)
    assert result.state == state


def test_a_job_that_never_came_to_its_end_is_distinguished_from_one_that_never_began(scheduler):
    scheduler({})
    lost, cancelled = read_job_statuses([job(1, began=1.0), job(2)])
    assert (lost.why, cancelled.why) == (
        "lost with its hosts, or cancelled",
        "cancelled before it began",
    )


def test_the_scheduler_is_queried_once_and_not_for_what_has_ended(scheduler):
    requests = scheduler({})
    read_job_statuses([job(1, ended=2.0, message="drained"), job(2), job(3)])
    assert requests == [["2", "3"]]


def test_without_a_controller_the_jobs_say_what_goes_on(scheduler):
    scheduler({"2": QueueEntry("queued", "Dependency")})
    jobs = read_job_statuses([job(1, ended=2.0, message="drained"), job(2)])
    assert course_of_jobs(jobs) == "not running, batch job 2 is queued"
    assert course_of_jobs(jobs[:1]) == "not running, no batch job is queued"


def test_of_many_ended_jobs_the_newest_are_shown(scheduler):
    scheduler({"7": QueueEntry("queued", "Priority")})
    jobs = [job(n, link=n, jobs=9, ended=9.0, message="drained", code=75) for n in range(1, 7)]
    lines = job_lines(read_job_statuses([*jobs, job(7, link=7, jobs=9)]))
    assert lines[0] == "2 earlier jobs ended"
    assert lines[1] == "job 3: ended (drained), 3 of at most 9, 2 hosts"
    assert lines[-1] == "job 7: queued (Priority), 7 of at most 9, 2 hosts"
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("changes", "known", "log", "why"),
    [
        ({}, {}, False, "cancelled before it began"),
        ({}, {}, True, "ended before 'run' began: see jobs/1.out"),
        ({}, "failed", True, "failed before 'run' began: see jobs/1.out"),
        ({}, "failed", False, "failed before it began"),
        ({}, "cancelled", False, "cancelled before it began"),
        ({"began": 1.0}, "cancelled", True, "cancelled"),
        ({"began": 1.0}, "timed out", True, "timed out: see jobs/1.out"),
        ({"began": 1.0}, "lost with its hosts", True, "lost with its hosts: see jobs/1.out"),
        ({"began": 1.0}, {}, True, "lost with its hosts, or cancelled"),
        ({"ended": 2.0, "message": "drained", "code": 75}, {}, True, "drained"),
        ({"ended": 2.0, "message": "taken back", "code": None}, {}, False, "taken back"),
        ({"ended": 2.0, "message": "failed", "code": 127}, {}, True, "failed: see jobs/1.out"),
    ],
)
def test_the_end_of_a_job_is_told_with_its_log(scheduler, tmp_path, changes, known, log, why):
    """``known``: how the scheduler says that it ended."""
    scheduler({"1": QueueEntry("ended", known)} if known else {})
    records = JobRecords(tmp_path)
    records.folder.mkdir()
    if log:
        (records.folder / "1.out").touch()
    (result,) = read_job_statuses([job(1, **changes)], records=records)
    assert (result.state, result.why) == ("ended", why)


@pytest.mark.parametrize(
    ("entry", "course"),
    [
        (QueueEntry("held", "its user holds it"), "is held"),
        (QueueEntry("suspended", "its processes are stopped"), "is suspended"),
    ],
)
def test_a_job_that_waits_for_a_person_is_told_from_others(scheduler, entry, course):
    scheduler({"1": entry})
    (result,) = read_job_statuses([job(1)])
    assert result.words == f"{entry.state} ({entry.reason})"
    assert course_of_jobs([result]) == f"not running, batch job 1 {course}"


def test_a_job_without_a_number_is_shown_with_the_command_to_look(scheduler, tmp_path):
    scheduler({})
    records = JobRecords(tmp_path)
    records.write_script("001.sh", "#SBATCH --job-name=hpo-alloys\n", "")
    records.reserve([replace(job(1), id="")])
    (line,) = job_lines(read_job_statuses([], records=records))
    assert line.startswith("job without a number: unknown (may be queued: look with 'squeue ")
    assert "--name=hpo-alloys" in line
