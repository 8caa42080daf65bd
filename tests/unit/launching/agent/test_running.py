"""A job on its agent: when its ranks are signalled and how it is told."""

import signal

import pytest

from hydragnn_hpo.launching.agent.running import Running


@pytest.fixture
def job(tmp_path):
    watch = tmp_path / "metrics.jsonl"
    order = {"job": "j", "ranks": [{"rank": 0}, {"rank": 1}], "width": 2, "watch": str(watch)}
    return Running(order, tmp_path / "lease")


def signals(job, *times):
    return [job.due_signal(now) for now in times]


def test_a_job_that_goes_well_is_never_signalled(job):
    job.end_rank(0, 0, now=10.0)

    assert signals(job, 11.0, 69.0) == [None, None]
    assert not job.ended
    job.end_rank(1, 0, now=20.0)
    assert job.ended
    assert job.result() == {
        "codes": {0: 0, 1: 0}, "signal_sent": False, "first": 0, "error": None
    }  # fmt: skip


def test_a_rank_that_hangs_in_its_exit_is_ended_a_minute_after_its_peer(job):
    job.end_rank(0, 0, now=10.0)

    assert signals(job, 69.9, 70.0, 71.9, 72.0) == [None, signal.SIGTERM, None, signal.SIGKILL]


def test_peers_of_a_failed_rank_get_two_seconds_twice(job):
    job.end_rank(1, 3, now=10.0)

    times = (11.9, 12.0, 12.1, 13.9, 14.0, 14.1)
    term, kill = signal.SIGTERM, signal.SIGKILL
    assert signals(job, *times) == [None, term, None, None, kill, None]
    assert job.result()["first"] == 1


def test_stop_is_sigterm_now_and_sigkill_after_the_grace(job):
    job.stop(5.0, 10.0)

    assert signals(job, 10.0, 14.9, 15.0) == [signal.SIGTERM, None, signal.SIGKILL]


def test_a_second_stop_may_hurry_but_not_delay(job):
    job.stop(60.0, 10.0)
    assert job.due_signal(10.0) == signal.SIGTERM

    job.stop(1.0, 11.0)
    job.stop(100.0, 11.0)

    assert signals(job, 11.5, 12.0) == [None, signal.SIGKILL]


def test_a_rank_that_fails_during_a_stop_does_not_shorten_it_to_nothing(job):
    job.stop(60.0, 10.0)
    assert job.due_signal(10.0) == signal.SIGTERM

    job.end_rank(0, -15, now=10.5)

    assert signals(job, 10.6, 14.4, 14.5) == [None, None, signal.SIGKILL]


def test_ranks_nobody_saw_end_get_one_code(job):
    job.end_rank(0, 3, now=10.0)

    job.lose_ranks(-9)

    assert job.codes == {0: 3, 1: -9}
    assert job.ended


def test_begin_makes_the_lease_and_skips_what_was_written_before(job, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"old": 1}\n')

    job.begin(until=1234.5)

    assert (tmp_path / "lease").stat().st_mtime == 1234.5
    assert job.tail.offset == len('{"old": 1}\n')


def test_ranks_are_given_time_when_a_peer_on_another_host_failed(job):
    job.peer_ended(3, 10.0)

    term, kill = signal.SIGTERM, signal.SIGKILL
    assert signals(job, 11.9, 12.0, 13.9, 14.0) == [None, term, None, kill]
    assert job.first is None


def test_an_agent_describes_a_job_without_what_is_large_or_private(job, tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}\n{}\n")
    job.order |= {"op": "start", "spec": {"large": "x"}, "meet": ["10.0.0.1", 20001, "hsn0"]}
    job.begin(until=0.0)
    job.pids, job.told = {0: 11, 1: 12}, True

    told = job.describe()

    assert (told["ranks"], told["pids"], told["started"]) == ([0, 1], [11, 12], True)
    assert (told["first_offset"], told["meet"]) == (6, ["10.0.0.1", 20001, "hsn0"])
    assert not {"spec", "op"} & set(told)
