"""Samples of a host between two readings, counted by hand."""

import pytest

from hydragnn_hpo.energy_counters import (
    Count,
    CounterSample,
    CounterSampler,
    Reading,
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
