"""Samples of a host between two readings, counted by hand.

The process that reads may hang, end, or be asked to hurry; nothing waits for it.
"""

import os
import time
from pathlib import Path

import pytest
from counter_trees import cray
from processes import is_alive, until

from hydragnn_hpo.energy_counters import Count, Reading
from hydragnn_hpo.launching import counters
from hydragnn_hpo.launching.counters import (
    ROOT,
    CounterProcess,
    CounterSample,
    CounterSampler,
    merge_samples,
    sample_between,
)


def readings(*moments):
    """Readings of counters: name -> (joules, part, more)."""
    return [
        Reading({name: Count(j, part, *more) for name, (j, part, *more) in moment.items()})
        for moment in moments
    ]


def sample(before, now, seconds=30.0):
    first, second = readings(before, now)
    return sample_between(first, second, seconds, known=first.counts | second.counts)


CRAY = {
    "cray/energy": (1000.0, "host"),
    "cray/cpu_energy": (100.0, "cpu"),
    "cray/accel0_energy": (10.0, "card", ("0", "1")),
    "cray/accel1_energy": (20.0, "card", ("2", "3")),
    "rapl/intel-rapl:0": (50.0, "cpu", (), 65_532.0),
    "nvml/0": (1.0, "card", ("0",)),
}


def later(**risen):
    return {
        name: (joules + risen.get(name.partition("/")[2], 0.0), *more)
        for name, (joules, *more) in CRAY.items()
    }


@pytest.mark.parametrize(
    ("missing", "parts", "rest", "cards", "joules"),
    [
        ("", ("host",), 4000.0, ((("0", "1"), 3000.0), (("2", "3"), 2000.0)), 9000.0),
        ("cray/accel1_energy", ("host",), 9000.0, (), 9000.0),
        ("cray/energy", (), None, (), None),
    ],
)
def test_the_energy_of_a_cray_host_holds_all_others(missing, parts, rest, cards, joules):
    """A card without a number stays in the whole; a whole is not put together from parts."""
    now = later(energy=9000.0, cpu_energy=1500.0, accel0_energy=3000.0, accel1_energy=2000.0)
    now.pop(missing, None)
    result = sample(CRAY, now)
    assert (result.parts, result.rest, result.cards) == (parts, rest, cards)
    assert result.joules == joules


def test_cards_are_never_more_than_their_host():
    result = sample(CRAY, later(energy=4990.0, accel0_energy=3000.0, accel1_energy=2000.0))
    assert result.rest == 0.0


INTEL = {
    "rapl/intel-rapl:0": (10.0, "cpu", (), 65_532.0),
    "rapl/intel-rapl:1": (20.0, "cpu", (), 65_532.0),
    "rapl/intel-rapl:0:0": (5.0, "memory", (), 65_532.0),
    "nvml/0": (100.0, "card", ("0", "GPU-a")),
}


@pytest.mark.parametrize(
    ("missing", "parts", "rest"),
    [("", ("cpu", "memory", "card"), 21.0), ("rapl/intel-rapl:1", ("memory", "card"), 7.0)],
)
def test_parts_are_added_where_nothing_counts_the_whole(missing, parts, rest):
    """Of two packages both count, or none."""
    now = {name: (joules + 7.0, *more) for name, (joules, *more) in INTEL.items()}
    now.pop(missing, None)
    result = sample(INTEL, now)
    assert (result.parts, result.rest) == (parts, rest)
    assert result.cards == ((("0", "GPU-a"), 7.0),)
    assert result.joules == rest + 7.0


def test_nothing_counted_is_unknown_and_not_zero():
    assert sample({}, {}).joules is None


def test_a_counter_that_was_seen_once_is_missed_for_ever():
    moments = iter(readings(INTEL, {"nvml/0": INTEL["nvml/0"]}, INTEL, INTEL))
    clock = iter((0.0, 30.0, 60.0, 90.0))
    sampler = CounterSampler(lambda: next(moments), lambda: next(clock))
    assert sampler.sample().rest is None
    assert sampler.sample().rest is None  # it came back, from nobody knows where
    assert sampler.sample().rest == 0.0


def test_each_note_is_reported_once():
    moments = iter(Reading(notes=notes) for notes in ((), ("a",), ("a", "b"), ("a", "b")))
    sampler = CounterSampler(lambda: next(moments), lambda: 0.0)
    assert [sampler.sample().notes for _ in range(3)] == [("a",), ("b",), ()]


def test_what_could_not_be_reported_is_in_the_next():
    first = CounterSample(30.0, ("host",), 100.0, ((("0",), 5.0),), {"0": {"busy": 0.1}})
    second = CounterSample(31.0, ("host",), 200.0, ((("0",), 6.0),), {"0": {"busy": 0.9}})
    both = merge_samples(first, second)
    assert (both.seconds, both.rest, both.cards) == (61.0, 300.0, ((("0",), 11.0),))
    assert both.devices == {"0": {"busy": 0.9}}
    assert merge_samples(None, second) == second
    other = CounterSample(31.0, ("cpu",), 200.0)
    assert merge_samples(first, other) == other


def test_a_sample_is_written_with_the_digits_that_mean_something():
    counter_sample = CounterSample(30.00049, ("host",), 1.0006, ((("0",), 2.99951),))
    assert counter_sample.rounded() == CounterSample(30.0, ("host",), 1.001, ((("0",), 3.0),))
    assert CounterSample(1.0).rounded() == CounterSample(1.0)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setenv(ROOT, str(tmp_path))
    cray(tmp_path, energy=1000, accel0_energy=100)
    return tmp_path


@pytest.fixture
def sampling(monkeypatch):
    monkeypatch.setattr(counters, "_SLACK_SECONDS", 600.0)  # nobody hangs who only waits for a core
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

    monkeypatch.setattr(counters.subprocess, "Popen", refuse)
    sampling.begin(seconds, time.monotonic())
    sampling.hurry()
    sampling.receive(time.monotonic())
    assert sampling.socket is None
    assert sampling.take() is None


def test_one_that_hangs_in_a_driver_is_replaced_and_then_given_up(tree, sampling, monkeypatch):
    energy = tree / "sys/cray/pm_counters/energy"
    energy.unlink()
    os.mkfifo(energy)  # reading blocks for ever, as a file of a broken device does
    monkeypatch.setattr(counters, "_SLACK_SECONDS", 0.3)
    sampling.begin(0.1, time.monotonic())
    seen = set()

    def given_up():
        sampling.receive(time.monotonic())
        if sampling.socket is not None:
            seen.add(sampling._process.pid)
        return sampling.socket is None

    until(given_up, "end")
    assert len(seen) == counters._STARTS
    assert until(lambda: not any(map(is_alive, seen)), "all gone")


def test_it_ends_with_its_agent(tree, sampling):
    sampling.begin(0.1, time.monotonic())
    pid = sampling._process.pid
    until(lambda: Path(f"/proc/{pid}/comm").read_text() == "hpo-counters\n", "name")
    sampling.socket.close()
    assert until(lambda: not is_alive(pid), "end")
    sampling.socket = None
