"""What sources read from made-up trees, counted by hand, and joules between two readings.

The process that reads may hang, end, or be asked to hurry; nothing waits for it.
"""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from counter_trees import cray, gpu, put, rapl
from processes import is_alive, until

from hydragnn_hpo.launching import counters
from hydragnn_hpo.launching.counters import (
    ROOT,
    Count,
    CounterProcess,
    CounterSample,
    CounterSampler,
    Reading,
    joules_between,
    merge_samples,
    sample_between,
)

PCI = ("c1", "c6", "c9", "ce", "d1", "d6", "d9", "de")
"""Buses of a Frontier host's dies, in their order."""


def energies(reading):
    return {name: count.joules for name, count in reading.counts.items()}


def covered(reading):
    return {name: count.devices for name, count in reading.counts.items() if count.devices}


def frontier(root):
    """A host of four modules with two dies each, of which the second counts nothing."""
    for number, bus in enumerate(PCI):
        gpu(root, number, f"0000:{bus}:00.0", gpu_busy_percent=number)
    modules = {f"accel{number}_energy": 100 * number for number in range(4)}
    cray(root, energy=9000, cpu_energy=700, memory_energy=300, **modules)


def test_a_cray_module_counts_for_both_of_its_dies(tmp_path):
    frontier(tmp_path)
    reading = counters.cray(tmp_path)()
    assert energies(reading) == {
        "cray/energy": 9000.0, "cray/cpu_energy": 700.0, "cray/memory_energy": 300.0,
        "cray/accel0_energy": 0.0, "cray/accel1_energy": 100.0,
        "cray/accel2_energy": 200.0, "cray/accel3_energy": 300.0,
    }  # fmt: skip
    assert covered(reading) == {
        "cray/accel0_energy": ("0", "1"), "cray/accel1_energy": ("2", "3"),
        "cray/accel2_energy": ("4", "5"), "cray/accel3_energy": ("6", "7"),
    }  # fmt: skip
    assert {count.life for count in reading.counts.values()} == {"1778580757634187"}


def test_a_cray_host_with_one_device_per_module(tmp_path):
    cray(tmp_path, energy=12044825101, power=724, accel0_energy=2869283299, accel1_energy=1)
    reading = counters.cray(tmp_path)()
    assert energies(reading)["cray/energy"] == 12044825101.0
    assert covered(reading) == {"cray/accel0_energy": ("0",), "cray/accel1_energy": ("1",)}


@pytest.mark.parametrize("content", ["", "garbage", "724 W 7810213855886 us", "-5 J 1 us", "5"])
def test_what_is_no_energy_is_no_number(tmp_path, content):
    folder = cray(tmp_path, energy=5, accel0_energy=7)
    source = counters.cray(tmp_path)
    put(folder / "energy", content)
    assert energies(source()) == {"cray/accel0_energy": 7.0}
    (folder / "accel0_energy").unlink()
    assert source().counts == {}


def test_packages_hold_their_cores(tmp_path):
    rapl(tmp_path, "intel-rapl:0", "package-0", 1_500_000)
    rapl(tmp_path, "intel-rapl:0:0", "core", 900_000)
    rapl(tmp_path, "intel-rapl:0:1", "dram", 250_000, 65_532_610_987)
    rapl(tmp_path, "intel-rapl:1", "psys", 9_000_000)
    result = counters.rapl(tmp_path)().counts
    assert {name: (c.joules, c.part, c.wraps) for name, c in result.items()} == {
        "rapl/intel-rapl:0": (1.5, "cpu", 262143.32885),
        "rapl/intel-rapl:0:1": (0.25, "memory", 65532.610987),
    }


def test_a_denied_counter_is_named_for_whoever_we_are(tmp_path, monkeypatch):
    zone = rapl(tmp_path, "intel-rapl:0", "package-0", 1)

    def deny(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.read_bytes", deny)
    notes = counters.rapl(tmp_path)().notes
    assert notes == (f"{zone / 'energy_uj'} may only be read by root",)


def test_gpus_are_numbered_by_address_and_screens_are_none(tmp_path):
    files = {"energy1_input": 5_000_000, "temp1_input": 61_000}
    gpu(tmp_path, 1, "0000:c1:00.0", gpu_busy_percent=93, **files)
    gpu(tmp_path, 0, "0000:c6:00.0", energy1_input=7_500_000, gpu_busy_percent=0)
    gpu(tmp_path, 2, "0000:01:00.0", vendor="0x1a03")
    reading = counters.drm(tmp_path)()
    assert energies(reading) == {"drm/0": 5.0, "drm/1": 7.5}
    assert reading.devices == {
        "0": {"busy": 0.93, "celsius": 61.0},
        "1": {"busy": 0.0},
    }


def test_a_die_that_counts_nothing_is_counted_by_the_one_before(tmp_path):
    for number, energy in enumerate((4_000_000, 0, 6_000_000, 0)):
        gpu(tmp_path, number, f"0000:{PCI[number]}:00.0", energy1_input=energy)
    reading = counters.drm(tmp_path)()
    assert energies(reading) == {"drm/0": 4.0, "drm/2": 6.0}
    assert covered(reading) == {"drm/0": ("0", "1"), "drm/2": ("2", "3")}


class FakeNvml:
    """Two GPUs; the second one knows no energy, as before Volta."""

    nvmlInit = staticmethod(lambda: None)
    nvmlDeviceGetCount = staticmethod(lambda: 2)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda number: number)
    nvmlDeviceGetUUID = staticmethod(lambda handle: (b"GPU-a", "GPU-b")[handle])
    nvmlDeviceGetUtilizationRates = staticmethod(lambda _: SimpleNamespace(gpu=97, memory=40))
    nvmlDeviceGetTemperature = staticmethod(lambda _, sensor: (66, None)[sensor])
    # a power limit; heat
    nvmlDeviceGetCurrentClocksThrottleReasons = staticmethod(lambda gpu: (0x04, 0x40 | 0x04)[gpu])

    @staticmethod
    def nvmlDeviceGetTotalEnergyConsumption(handle):
        if handle == 1:
            raise RuntimeError("Not Supported")
        return 1_234_567


def test_nvml_is_read_where_its_driver_is(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert counters.nvml(tmp_path)().counts == {}
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    reading = counters.nvml(tmp_path)()
    assert energies(reading) == {"nvml/0": 1234.567}
    assert covered(reading) == {"nvml/0": ("0", "GPU-a")}
    gauges = {"busy": 0.97, "celsius": 66.0}
    assert reading.devices == {"0": gauges | {"throttled": 0.0}, "1": gauges | {"throttled": 1.0}}


def test_a_library_that_fails_has_no_numbers(tmp_path, monkeypatch):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert counters.nvml(tmp_path)().counts == {}


def test_amdsmi_counts_what_no_file_counts(tmp_path, monkeypatch):
    ticks = {0: 2_000_000, 1: 0}
    smi = SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: [0, 1],
        amdsmi_get_energy_count=lambda handle: {
            "energy_accumulator": ticks[handle], "counter_resolution": 15.3, "timestamp": 1,
        },
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    assert counters.amdsmi(tmp_path)().counts == {}
    device = gpu(tmp_path, 0, "0000:c1:00.0")
    gpu(tmp_path, 1, "0000:c6:00.0")
    reading = counters.amdsmi(tmp_path)()
    assert energies(reading) == {"amdsmi/0": pytest.approx(30.6)}
    assert covered(reading) == {"amdsmi/0": ("0", "1")}
    put(device / "hwmon/hwmon3/energy1_input", 5)
    assert counters.amdsmi(tmp_path)().counts == {}
    (device / "hwmon/hwmon3/energy1_input").unlink()
    cray(tmp_path, accel0_energy=5)
    assert counters.amdsmi(tmp_path)().counts == {}


def test_all_sources_of_a_host_are_put_together(tmp_path):
    """Slots name devices in the numbers of the host, whatever hides some of them."""
    nothing = counters.all_sources(tmp_path)()
    assert (nothing.counts, nothing.devices, nothing.notes) == ({}, {}, ())
    frontier(tmp_path)
    rapl(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    reading = counters.all_sources(tmp_path)()
    assert next(iter(reading.counts)) == "cray/energy"
    assert "rapl/intel-rapl:0" in reading.counts
    assert reading.devices == {str(n): {"busy": pytest.approx(0.01 * n)} for n in range(8)}


def readings(*moments):
    """Readings of counters: name -> (joules, part, more)."""
    return [
        Reading({name: Count(j, part, *more) for name, (j, part, *more) in moment.items()})
        for moment in moments
    ]


def sample(before, now, seconds=30.0):
    first, second = readings(before, now)
    return sample_between(first, second, seconds, known=first.counts | second.counts)


def test_a_counter_wraps_once_and_never_twice():
    before = Count(262_000.0, "cpu", wraps=262_143.0)
    now = Count(857.0, "cpu", wraps=262_143.0)
    assert joules_between(before, now, 30.0) == pytest.approx(1000.0)
    # In 263 s at 1000 W it may have come round and further, with whatever it shows now.
    assert joules_between(before, now, 263.0) is None
    assert joules_between(now, before, 263.0) is None


def test_a_counter_that_began_again_has_no_number():
    assert joules_between(Count(5.0, "card"), Count(7.0, "card"), 1.0) == 2.0
    assert joules_between(Count(5.0, "card"), Count(3.0, "card"), 1.0) is None
    assert joules_between(Count(5.0, "host", life="a"), Count(70.0, "host", life="b"), 1.0) is None
    assert joules_between(None, Count(3.0, "card"), 1.0) is None
    assert joules_between(Count(3.0, "card"), None, 1.0) is None


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
