"""What sources read from made-up trees, counted by hand, and joules between two readings."""

import sys
from types import SimpleNamespace

import pytest
from counter_trees import cray, gpu, put, rapl

from hydragnn_hpo import energy_counters as counters
from hydragnn_hpo.energy_counters import Count, joules_between

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
