"""A job on its agent: when its ranks are signalled and how it is told."""

import errno
import os
import signal

import pytest

from hydragnn_hpo.launching.job_process import JobProcess
from hydragnn_hpo.launching.protocol import JobEnded, RankStart, Rendezvous, StartJob


@pytest.fixture
def job(tmp_path):
    watch = tmp_path / "metrics.jsonl"
    meet = Rendezvous("10.0.0.1", 20001, "hsn0")
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


def test_a_job_that_goes_well_ends_with_its_last_rank(job):
    job.end_rank(0, 0, now=10.0)
    assert not job.ended
    job.end_rank(1, 0, now=20.0)
    assert job.ended
    assert job.result() == JobEnded("j", {0: 0, 1: 0}, signal_sent=False, first=0, error=None)


TERM, KILL = signal.SIGTERM, signal.SIGKILL
ENDINGS = {
    "a rank hangs in its exit": (
        lambda job: job.end_rank(0, 0, now=10.0),
        {11.0: None, 69.9: None, 70.0: TERM, 71.9: None, 72.0: KILL},
    ),
    "a peer failed": (
        lambda job: job.end_rank(1, 3, now=10.0),
        {11.9: None, 12.0: TERM, 12.1: None, 13.9: None, 14.0: KILL, 14.1: None},
    ),
    "a peer on another host failed": (
        lambda job: job.peer_ended(3, 10.0),
        {11.9: None, 12.0: TERM, 13.9: None, 14.0: KILL},
    ),
    "it is stopped": (
        lambda job: job.stop(5.0, 10.0),
        {10.0: TERM, 14.9: None, 15.0: KILL},
    ),
}


@pytest.mark.parametrize(("happens", "expected"), ENDINGS.values(), ids=ENDINGS)
def test_ranks_are_requested_to_end_and_then_killed(job, happens, expected):
    happens(job)

    assert {now: job.due_signal(now) for now in expected} == expected


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


def test_ranks_whose_end_was_not_seen_get_one_code(job):
    job.peer_ended(3, 9.0)
    assert job.first is None, "it was on another host"
    job.end_rank(1, 3, now=10.0)
    assert job.result().first == 1

    job.lose_ranks(-9)

    assert job.codes == {0: -9, 1: 3}
    assert job.ended


def test_a_job_is_described_by_what_a_successor_must_know(job, tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}\n{}\n")
    job.begin()
    job.pids = {0: 11, 1: 12}
    job.announced = True

    assert job.tail.offset == 6, "what was written before is skipped"
    known = job.describe()

    assert (known.slots, known.pids, known.forked) == (("a:0", "a:1"), (11, 12), True)
    assert (known.first_offset, known.meet) == (6, Rendezvous("10.0.0.1", 20001, "hsn0"))
