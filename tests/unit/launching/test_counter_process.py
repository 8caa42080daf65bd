"""The process that reads a host's counters may hang, end, or be asked to hurry; nothing waits."""

import os
import time
from pathlib import Path

import pytest
from counter_trees import cray
from processes import is_alive, until

from hydragnn_hpo.launching import counter_process
from hydragnn_hpo.launching.counter_process import ROOT, CounterProcess


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setenv(ROOT, str(tmp_path))
    cray(tmp_path, energy=1000, accel0_energy=100)
    return tmp_path


@pytest.fixture
def sampling(monkeypatch):
    # nothing hangs that only waits for a core
    monkeypatch.setattr(counter_process, "_SLACK_SECONDS", 600.0)
    sampling = CounterProcess()
    yield sampling
    sampling.end()
    until(lambda: sampling.receive(time.monotonic()) or not sampling._killed, "end")


def taken(sampling, what=lambda sample: True):
    def look():
        sampling.receive(time.monotonic())
        return (taken_sample := sampling.take()) and what(taken_sample) and taken_sample

    return until(look, "sample")


def test_what_was_not_taken_is_in_the_next(tree, sampling):
    sampling.begin(0.1, time.monotonic())
    taken(sampling)
    for risen in (10, 20, 30):
        cray(tree, energy=1000 + risen, accel0_energy=100)
        time.sleep(0.2)
        sampling.receive(time.monotonic())

    def last_rise_was_seen():
        sampling.receive(time.monotonic())
        return sampling._pending and sampling._pending.rest == 30.0

    until(last_rise_was_seen, "all of it")
    taken_sample = taken(sampling)
    assert taken_sample.seconds > 0.3
    assert (taken_sample.rest, taken_sample.cards, taken_sample.parts) == (
        30.0,
        ((("0",), 0.0),),
        ("host",),
    )


def test_it_takes_one_at_once_on_request(tree, sampling):
    sampling.begin(3600.0, time.monotonic())
    time.sleep(0.5)
    sampling.hurry()
    assert 0.9 < taken(sampling).seconds < 1800.0


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_one_that_is_off_or_cannot_start_tells_nothing(sampling, monkeypatch, seconds):
    def refuse(*_, **__):
        assert seconds > 0.0
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(counter_process.subprocess, "Popen", refuse)
    sampling.begin(seconds, time.monotonic())
    sampling.hurry()
    sampling.receive(time.monotonic())
    assert sampling.socket is None
    assert sampling.take() is None


def test_one_that_hangs_in_a_driver_is_replaced_and_then_given_up(tree, sampling, monkeypatch):
    energy = tree / "sys/cray/pm_counters/energy"
    energy.unlink()
    os.mkfifo(energy)  # reading blocks for ever, as a file of a broken device does
    monkeypatch.setattr(counter_process, "_SLACK_SECONDS", 0.3)
    sampling.begin(0.1, time.monotonic())
    seen = set()

    def given_up():
        sampling.receive(time.monotonic())
        if sampling.socket is not None:
            seen.add(sampling._process.pid)
        return sampling.socket is None

    until(given_up, "end")
    assert len(seen) == counter_process._STARTS
    assert until(lambda: not any(map(is_alive, seen)), "all gone")


def test_it_ends_with_its_agent(tree, sampling):
    sampling.begin(0.1, time.monotonic())
    pid = sampling._process.pid
    until(lambda: Path(f"/proc/{pid}/comm").read_text() == "hpo-counters\n", "name")
    sampling.socket.close()
    assert until(lambda: not is_alive(pid), "end")
    sampling.socket = None
