"""When one batch job follows another, and when a chain ends; the rules are those of README.md."""

from dataclasses import replace

import pytest

from hydragnn_hpo.launching.submit.chain import begin_chain_job, end_chain_job
from hydragnn_hpo.launching.submit.records import BatchJob


def job(link=1, jobs=4, began=None, progress=0):
    return BatchJob(
        id=str(link),
        scheduler="slurm",
        script="001.sh",
        hosts=1,
        link=link,
        jobs=jobs,
        submitted=float(link),
        began=began,
        progress=progress,
    )


def test_a_job_is_followed_up_to_the_last():
    assert begin_chain_job([], job(1), progress=0, finished=False).followed
    last = begin_chain_job([], job(4), progress=9, finished=False)
    assert (last.goes_on, last.followed, last.said) == (
        *(True, False, "job 4 of 4, the last one of its chain"),
    )
    assert not begin_chain_job([], job(1, jobs=1), progress=0, finished=False).followed


def test_a_finished_campaign_is_not_followed():
    assert not begin_chain_job([], job(2), progress=9, finished=True).followed


def test_two_lost_jobs_that_got_nowhere_end_the_chain():
    lost = [job(1, began=1.0, progress=5), job(2, began=2.0, progress=5)]
    decided = begin_chain_job(lost, job(3), progress=5, finished=False)
    assert (decided.goes_on, decided.followed) == (False, False)
    assert decided.said == "jobs 1 and 2 got nowhere: the chain ends here"
    assert begin_chain_job(lost, job(3), progress=6, finished=False).goes_on
    assert begin_chain_job(lost[:1], job(2), progress=5, finished=False).goes_on, (
        "one may be bad luck"
    )


@pytest.mark.parametrize(
    ("code", "now", "goes_on"),
    [(0, 9, False), (1, 9, False), (2, 9, False), (75, 5, False), (75, 6, True), (137, 6, True)],
)
def test_a_job_that_could_not_be_taken_back_knows_it_by_the_records(code, now, goes_on):
    before = replace(job(1, began=1.0, progress=5), ended=2.0, code=code, said="so")
    own = replace(job(2), after="1")
    decided = begin_chain_job([before], own, progress=now, finished=False)
    assert (decided.goes_on, decided.followed) == (goes_on, goes_on)
    other = replace(own, after="another's")
    assert begin_chain_job([before], other, progress=now, finished=False).goes_on


@pytest.mark.parametrize("code", [75, 137, 143, 255])
def test_after_progress_the_next_job_goes_on(code):
    decided = end_chain_job(job(progress=3), code=code, progress=4, finished=False, followed=True)
    assert (decided.take_back, decided.follow, decided.code) == (False, False, 0)


@pytest.mark.parametrize("code", [75, 137])
def test_without_progress_the_chain_ends_with_a_sentence(code):
    decided = end_chain_job(job(progress=3), code=code, progress=3, finished=False, followed=True)
    assert (decided.take_back, decided.take_back_all, decided.code) == (True, False, code)
    assert "without a finished epoch" in decided.said


@pytest.mark.parametrize("code", [1, 2])
def test_what_another_job_would_not_cure_ends_the_chain(code):
    decided = end_chain_job(job(), code=code, progress=9, finished=False, followed=True)
    assert (decided.take_back, decided.take_back_all, decided.code) == (True, False, code)


def test_a_finished_campaign_takes_all_jobs_back():
    decided = end_chain_job(job(), code=0, progress=9, finished=True, followed=True)
    assert (decided.take_back, decided.take_back_all, decided.code) == (True, True, 0)


def test_one_of_several_allocations_may_end_before_the_campaign():
    decided = end_chain_job(job(), code=0, progress=9, finished=False, followed=True)
    assert (decided.take_back, decided.take_back_all) == (True, False)


def test_a_successor_that_was_refused_is_asked_for_again():
    decided = end_chain_job(job(), code=75, progress=9, finished=False, followed=False)
    assert decided.follow


def test_the_last_job_says_what_to_do():
    decided = end_chain_job(job(4), code=75, progress=9, finished=False, followed=False)
    assert (decided.follow, decided.code) == (False, 75)
    assert "submit again to go on" in decided.said
