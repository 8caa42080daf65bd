"""Joules between two readings: each once, and none that is not sure."""

import pytest

from hydragnn_hpo.launching.host.counters.reading import Count, Reading
from hydragnn_hpo.launching.host.counters.sample import Sample, Sampler, between, joined, passed


def readings(*moments):
    """Readings of counters: name -> (joules, part, more)."""
    return [
        Reading({name: Count(j, part, *more) for name, (j, part, *more) in moment.items()})
        for moment in moments
    ]


def sample(before, now, seconds=30.0):
    first, second = readings(before, now)
    return between(first, second, seconds, known=first.counts | second.counts)


def test_a_counter_wraps_once_and_never_twice():
    before, now = Count(262_000.0, "cpu", wraps=262_143.0), Count(857.0, "cpu", wraps=262_143.0)
    assert passed(before, now, 30.0) == pytest.approx(1000.0)
    # In 263 s at 1000 W it may have come round and further, with whatever it shows now.
    assert passed(before, now, 263.0) is None
    assert passed(now, before, 263.0) is None


def test_a_counter_that_began_anew_has_no_number():
    assert passed(Count(5.0, "card"), Count(7.0, "card"), 1.0) == 2.0
    assert passed(Count(5.0, "card"), Count(3.0, "card"), 1.0) is None
    assert passed(Count(5.0, "host", life="a"), Count(70.0, "host", life="b"), 1.0) is None
    assert passed(None, Count(3.0, "card"), 1.0) is None
    assert passed(Count(3.0, "card"), None, 1.0) is None


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


def test_the_energy_of_a_cray_host_holds_all_others():
    now = later(energy=9000.0, cpu_energy=1500.0, accel0_energy=3000.0, accel1_energy=2000.0)
    found = sample(CRAY, now)
    assert found.parts == ("host",)
    assert found.cards == ((("0", "1"), 3000.0), (("2", "3"), 2000.0))
    assert found.rest == 4000.0
    assert found.joules == 9000.0


def test_a_card_without_a_number_stays_in_the_whole():
    now = later(energy=9000.0, accel0_energy=3000.0, accel1_energy=2000.0)
    del now["cray/accel1_energy"]
    found = sample(CRAY, now)
    assert (found.rest, found.cards, found.joules) == (9000.0, (), 9000.0)


def test_a_whole_without_a_number_is_not_put_together_from_parts():
    now = later(energy=9000.0, accel0_energy=3000.0)
    del now["cray/energy"]
    found = sample(CRAY, now)
    assert (found.parts, found.rest, found.cards, found.joules) == ((), None, (), None)


def test_cards_are_never_more_than_their_host():
    found = sample(CRAY, later(energy=4990.0, accel0_energy=3000.0, accel1_energy=2000.0))
    assert found.rest == 0.0


INTEL = {
    "rapl/intel-rapl:0": (10.0, "cpu", (), 65_532.0),
    "rapl/intel-rapl:1": (20.0, "cpu", (), 65_532.0),
    "rapl/intel-rapl:0:0": (5.0, "memory", (), 65_532.0),
    "nvml/0": (100.0, "card", ("0", "GPU-a")),
}


def test_parts_are_added_where_nothing_counts_the_whole():
    now = {name: (joules + 7.0, *more) for name, (joules, *more) in INTEL.items()}
    found = sample(INTEL, now)
    assert found.parts == ("cpu", "memory", "card")
    assert found.rest == 21.0
    assert found.cards == ((("0", "GPU-a"), 7.0),)
    assert found.joules == 28.0


def test_of_two_packages_both_count_or_none():
    now = {name: (joules + 7.0, *more) for name, (joules, *more) in INTEL.items()}
    del now["rapl/intel-rapl:1"]
    found = sample(INTEL, now)
    assert found.parts == ("memory", "card")
    assert found.rest == 7.0


def test_nothing_counted_is_unknown_and_not_zero():
    assert sample({}, {}).joules is None


def test_a_counter_that_was_seen_once_is_missed_for_ever():
    moments = iter(readings(INTEL, {"nvml/0": INTEL["nvml/0"]}, INTEL, INTEL))
    clock = iter((0.0, 30.0, 60.0, 90.0))
    sampler = Sampler(lambda: next(moments), lambda: next(clock))
    assert sampler.look().rest is None
    assert sampler.look().rest is None  # it came back, from nobody knows where
    assert sampler.look().rest == 0.0


def test_notes_of_the_first_look_are_told():
    first, second, third = readings({}, {}, {})
    first.notes.append("root only")
    moments, clock = iter((first, second, third)), iter((0.0, 1.0, 2.0))
    sampler = Sampler(lambda: next(moments), lambda: next(clock))
    assert sampler.look().notes == ("root only",)
    assert sampler.look().notes == ()


def test_what_could_not_be_told_is_in_the_next():
    first = Sample(30.0, ("host",), 100.0, ((("0",), 5.0),), {"busy": 0.1})
    second = Sample(31.0, ("host",), 200.0, ((("0",), 6.0),), {"busy": 0.9})
    both = joined(first, second)
    assert (both.seconds, both.rest, both.cards) == (61.0, 300.0, ((("0",), 11.0),))
    assert both.gauges == {"busy": 0.9}
    assert joined(None, second) == second
    other = Sample(31.0, ("cpu",), 200.0)
    assert joined(first, other) == other


def test_a_sample_goes_over_the_line_and_back():
    told = Sample(30.0, ("host",), 100.0, ((("0", "1"), 5.5),), {"busy": 0.5}, {"0": {"busy": 1.0}})
    assert Sample.of_plain(told.to_plain()) == told
