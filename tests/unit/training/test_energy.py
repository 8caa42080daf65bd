"""Joules of a training's regions from counters in made-up trees: which ranks read which counter."""

import sys
from types import SimpleNamespace

import pytest
import torch
from counter_trees import cray, put, rapl

from hydragnn_hpo.training import energy as module
from hydragnn_hpo.training.energy import PARTS, REGIONS, Energy, find_counters

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


def find(tmp_path, device=CPU, whole_host=True):
    return Energy(find_counters(device, whole_host=whole_host, root=tmp_path))


def spent(energy, region):
    """Count what was spent since the last time; gives the joules of each part."""
    energy.count(region)
    joules = energy.take_joules()[REGIONS.index(region)]
    return {name: value for name, value in zip(PARTS, joules.tolist(), strict=True) if value}


def test_packages_and_memories_are_counted_once(tmp_path):
    for zone, name in (
        ("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "package-1"), ("intel-rapl:2", "psys"),
    ):  # fmt: skip
        rapl(tmp_path, zone, name, 1_000_000)
    energy = find(tmp_path)
    assert energy.counters == ["rapl/intel-rapl:0", "rapl/intel-rapl:0:1", "rapl/intel-rapl:1"]
    rapl(tmp_path, "intel-rapl:0", "package-0", 3_500_000)
    rapl(tmp_path, "intel-rapl:1", "package-1", 2_000_000)
    rapl(tmp_path, "intel-rapl:0:1", "dram", 1_250_000)
    assert spent(energy, "val") == pytest.approx({"cpu": 2.5 + 1.0, "memory": 0.25})
    assert spent(energy, "train") == {}


def test_crays_counters_are_taken_before_the_processors(tmp_path):
    rapl(tmp_path, "intel-rapl:0", "package-0", 1)
    cray(tmp_path, energy=100, accel0_energy=10, accel1_energy=20, accel0_power=90)
    energy = find(tmp_path, GPU)
    assert energy.counters == ["cray/energy", "cray/accel0_energy", "cray/accel1_energy"]
    cray(tmp_path, energy=160, accel1_energy=25)
    assert spent(energy, "checkpoint") == {"host": 60.0, "accelerator": 5.0}


def test_only_one_rank_of_a_host_reads_the_hosts_counters(tmp_path):
    rapl(tmp_path, "intel-rapl:0", "package-0", 1)
    assert find(tmp_path, whole_host=False).counters == []


def test_what_is_missing_is_left_out(tmp_path):
    assert find(tmp_path).counters == []
    assert find(tmp_path, GPU).counters == [], "no GPU, no library"
    folder = rapl(tmp_path, "intel-rapl:0", "package-0", 1)
    put(folder / "energy_uj", "")
    assert find(tmp_path).counters == []


def test_a_counter_that_goes_away_counts_no_more(tmp_path):
    folder = cray(tmp_path, energy=5)
    energy = find(tmp_path)
    cray(tmp_path, energy=7)
    assert spent(energy, "train") == {"host": 2.0}
    (folder / "energy").unlink()
    assert spent(energy, "train") == {}


def nvidia():
    total = iter([1000, 4500])
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId_v2=lambda bus: f"handle of {bus.decode()}",
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(total),
    )


def amd():
    ticks = iter([0, 2_000_000])
    return SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handle_from_bdf=lambda bus: bus,
        amdsmi_get_energy_count=lambda handle: {
            "energy_accumulator": next(ticks), "counter_resolution": 15.3, "timestamp": 1,
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "library", "hip", "joules"),
    [("pynvml", nvidia, None, 3.5), ("amdsmi", amd, "6.4", 30.6)],
)
def test_a_gpu_is_found_by_its_address(tmp_path, monkeypatch, name, library, hip, joules):
    monkeypatch.setattr(module, "bus_of", lambda _: "0000:c1:00.0")
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setitem(sys.modules, name, library())
    energy = find(tmp_path, GPU, whole_host=False)
    assert [each.partition("/")[2] for each in energy.counters] == ["0000:c1:00.0"]
    assert spent(energy, "train") == {"accelerator": pytest.approx(joules)}
