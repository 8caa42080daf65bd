"""One job on several hosts: its parts become one again."""

from pathlib import Path

import pytest

from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.job_table import JobTracker
from hydragnn_hpo.launching.protocol import JobEnded, KnownJob, Rendezvous


def slots(*names):
    return tuple(Slot(n.split(":")[0], int(n.split(":")[1]), (), "cpu") for n in names)


@pytest.fixture
def work():
    """Ranks 0 and 2 on b, rank 1 on a, rank 3 on c."""
    chosen = slots("b:0", "a:3", "b:1", "c:0")
    return JobTracker.of(Job("j", "train", 4, {}, Path("log"), None, chosen))


def ended(first=None, error=None, signal_sent=False, **codes):
    by_rank = {int(rank[1:]): code for rank, code in codes.items()}
    return JobEnded("j", by_rank, signal_sent, first, error)


def test_codes_stand_in_the_order_of_ranks(work):
    work.note_ended("c", ended(r3=3, first=3))
    work.note_ended("b", ended(r0=0, r2=-15, first=2, signal_sent=True))
    assert not work.finished
    work.note_ended("a", ended(r1=1, first=1, error="a sentence."))

    assert work.finished
    assert work.result() == {
        "codes": [0, 1, -15, 3], "signal_sent": True, "first": 3, "error": "a sentence.", "away": []
    }  # fmt: skip
    assert [work.worst(host) for host in "abc"] == [1, -15, 3]


def test_who_ended_first_is_who_was_reported_first(work):
    work.note_first(2)
    work.note_first(1)
    work.note_ended("a", ended(r1=1, first=1))

    assert work.first == 2


def test_an_end_that_is_reported_twice_counts_once(work):
    work.note_ended("a", ended(r1=1))
    work.note_ended("a", ended(r1=0))
    work.lose("a")

    assert work.codes == {1: 1}


def test_ranks_that_started_and_ended_before_our_first_message_stay_ended(work):
    work.note_ended("a", ended(r1=1))
    work.note_started("a", [11])

    assert work.parts["a"].state == "ended"
    assert work.hosts_in("waiting") == ["b", "c"]


def test_a_host_that_was_cut_off_was_away(work):
    """Its agent ended the ranks: that is no fault of theirs, nor of the program."""
    work.note_ended("a", JobEnded("j", {1: -9}, False, None, "host a was cut off.", cut_off=True))
    work.note_ended("c", ended(r3=-15))

    assert work.away == ["a"]


def test_an_adopted_job_has_started_where_its_ranks_were_forked():
    same = ("j", ("b:0", "a:3"), Rendezvous("10.0.0.1", 20007, "hsn0"))
    of_a = KnownJob(*same, watch=None, first_offset=0, pids=(11,), forked=True)
    of_b = KnownJob(*same, watch="/m.jsonl", first_offset=42, pids=(None,), forked=False)

    work = JobTracker.adopt(of_a)
    work.note_found("a", of_a)
    assert work.hosts_in("waiting") == ["b"]
    work.note_found("b", of_b)

    assert (work.watch, work.offset) == (Path("/m.jsonl"), 42)
    assert (work.hosts_in("started"), work.hosts_in("sent")) == (["a"], ["b"])
    assert not work.all_started
