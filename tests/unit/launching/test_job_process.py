"""A job on its agent: when its ranks are signalled and how it is told."""

import errno
import os
import signal

import pytest

from hydragnn_hpo.launching.job_process import JobProcess
from hydragnn_hpo.launching.protocol import JobEnded, RankStart, Rendezvous, StartJob


@pytest.fixture
def job(tmp_path):
    watch, meet = tmp_path / "metrics.jsonl", Rendezvous("10.0.0.1", 20001, "hsn0")
    ranks = tuple(RankStart(rank, rank, (), {}, (), {}) for rank in range(2))
    files = (str(tmp_path / "log"), str(watch))
    return JobProcess(StartJob("j", "m:f", {"large": "x"}, *files, ("a:0", "a:1"), meet, ranks))


def test_a_log_that_cannot_be_opened_is_noticed_before_any_rank_is_forked(job, tmp_path):
    (tmp_path / "log").mkdir()
    with pytest.raises(IsADirectoryError, match="log"):
        job.begin()


def test_a_log_whose_file_server_is_away_is_left_to_its_ranks(job, monkeypatch):
    def away(*_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "open", away)
    job.begin()


def signals(job, *times):
    return [job.due_signal(now) for now in times]


def test_a_job_that_goes_well_is_never_signalled(job):
    job.end_rank(0, 0, now=10.0)

    assert signals(job, 11.0, 69.0) == [None, None]
    assert not job.ended
    job.end_rank(1, 0, now=20.0)
    assert job.ended
    assert job.result() == JobEnded("j", {0: 0, 1: 0}, signal_sent=False, first=0, error=None)


def test_a_rank_that_hangs_in_its_exit_is_ended_a_minute_after_its_peer(job):
    job.end_rank(0, 0, now=10.0)

    assert signals(job, 69.9, 70.0, 71.9, 72.0) == [None, signal.SIGTERM, None, signal.SIGKILL]


def test_peers_of_a_failed_rank_get_two_seconds_twice(job):
    job.end_rank(1, 3, now=10.0)

    times = (11.9, 12.0, 12.1, 13.9, 14.0, 14.1)
    term, kill = signal.SIGTERM, signal.SIGKILL
    assert signals(job, *times) == [None, term, None, None, kill, None]
    assert job.result().first == 1


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


def test_what_was_written_before_is_skipped(job, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"old": 1}\n')

    job.begin()

    assert job.tail.offset == len('{"old": 1}\n')


def test_ranks_are_given_time_when_a_peer_on_another_host_failed(job):
    job.peer_ended(3, 10.0)

    term, kill = signal.SIGTERM, signal.SIGKILL
    assert signals(job, 11.9, 12.0, 13.9, 14.0) == [None, term, None, kill]
    assert job.first is None


def test_a_job_is_described_by_what_a_successor_must_know(job, tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}\n{}\n")
    job.begin()
    job.pids, job.announced = {0: 11, 1: 12}, True

    known = job.describe()

    assert (known.slots, known.pids, known.forked) == (("a:0", "a:1"), (11, 12), True)
    assert (known.first_offset, known.meet) == (6, Rendezvous("10.0.0.1", 20001, "hsn0"))
