"""How batch jobs stand: what is on record counts first, then what the scheduler says."""

import pytest

from hydragnn_hpo.cli import batch_view
from hydragnn_hpo.cli.batch_view import course_of_jobs, job_lines, read_job_statuses
from hydragnn_hpo.launching.batch_jobs import BatchJob, QueueEntry


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
