"""The process that reads counters: it may hang, end, or be asked to hurry; nobody waits for it."""

import os
import time
from pathlib import Path

import pytest
from counter_trees import cray, proc
from processes import is_alive, until

from hydragnn_hpo.launching import counter_process as module
from hydragnn_hpo.launching.counter_process import ROOT, CounterProcess


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setenv(ROOT, str(tmp_path))
    cray(tmp_path, energy=1000, accel0_energy=100)
    proc(tmp_path, user=100, idle=100)
    return tmp_path


@pytest.fixture
def sampling(monkeypatch):
    monkeypatch.setattr(module, "_SLACK_SECONDS", 600.0)  # nobody hangs who only waits for a core
    sampling = CounterProcess()
    yield sampling
    sampling.end()
    until(lambda: sampling.receive(time.monotonic()) or not sampling._killed, "end")


def taken(sampling, what=lambda told: True):
    def look():
        sampling.receive(time.monotonic())
        return (told := sampling.take()) and what(told) and told

    return until(look, "sample")


def test_samples_come_again_and_again(tree, sampling):
    sampling.begin(0.1, time.monotonic())
    assert taken(sampling)["rest"] == 0.0
    cray(tree, energy=1700, accel0_energy=100)
    told = taken(sampling, lambda told: told["rest"])
    assert (told["rest"], told["cards"], told["parts"]) == (700.0, [[("0",), 0.0]], ("host",))


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
    told = taken(sampling)
    assert told["seconds"] > 0.3
    assert told["rest"] == 30.0


def test_it_takes_one_at_once_when_it_is_asked(tree, sampling):
    sampling.begin(3600.0, time.monotonic())
    time.sleep(0.5)
    sampling.hurry()
    assert 0.9 < taken(sampling)["seconds"] < 1800.0


def test_off_is_off(sampling):
    sampling.begin(0.0, time.monotonic())
    sampling.hurry()
    sampling.receive(time.monotonic())
    assert sampling.channel is None
    assert sampling.take() is None


def test_one_that_hangs_in_a_driver_is_replaced_and_then_given_up(tree, sampling, monkeypatch):
    energy = tree / "sys/cray/pm_counters/energy"
    energy.unlink()
    os.mkfifo(energy)  # reading blocks for ever, as a file of a broken device does
    monkeypatch.setattr(module, "_SLACK_SECONDS", 0.3)
    sampling.begin(0.1, time.monotonic())
    seen = set()

    def given_up():
        sampling.receive(time.monotonic())
        if sampling.channel is not None:
            seen.add(sampling._process.pid)
        return sampling.channel is None

    until(given_up, "end")
    assert len(seen) == module._STARTS
    assert until(lambda: not any(map(is_alive, seen)), "all gone")


def test_it_ends_with_its_agent(tree, sampling):
    sampling.begin(0.1, time.monotonic())
    pid = sampling._process.pid
    until(lambda: Path(f"/proc/{pid}/comm").read_text() == "hpo-counters\n", "name")
    sampling.channel.close()
    assert until(lambda: not is_alive(pid), "end")
    sampling.channel = None


def test_a_host_that_cannot_start_it_goes_without(sampling, monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(module.subprocess, "Popen", refuse)
    sampling.begin(0.1, time.monotonic())
    sampling.hurry()
    sampling.receive(time.monotonic())
    assert sampling.channel is None
    assert sampling.take() is None
