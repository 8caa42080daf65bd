"""Joules of counters in made-up trees: wrapping, several packages, none."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hydragnn_hpo.training import energy as module
from hydragnn_hpo.training.energy import PARTS, REGIONS, Energy, FileCounter, find_counters

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


class Powercap:
    """Zones as Linux shows them, flat."""

    def __init__(self, root):
        self.root = root

    def zone(self, folder, name, uj, largest=262_143_328_850):
        path = self.root / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / "name").write_text(f"{name}\n")
        (path / "energy_uj").write_text(f"{uj}\n")
        (path / "max_energy_range_uj").write_text(f"{largest}\n")


@pytest.fixture
def powercap(tmp_path):
    return Powercap(tmp_path / "powercap")


def find(tmp_path, device=CPU, whole_host=True):
    return find_counters(
        device, whole_host=whole_host, cray=tmp_path / "cray", powercap=tmp_path / "powercap"
    )


def spent(energy, region, part):
    return energy.take_joules()[REGIONS.index(region), PARTS.index(part)].item()


def test_packages_and_memories_are_counted_once(tmp_path, powercap):
    for folder, name in (
        ("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "package-1"), ("intel-rapl:2", "psys"),
    ):  # fmt: skip
        powercap.zone(folder, name, 1_000_000)
    energy = Energy(find(tmp_path))
    assert [c.name for c in energy.counters] == [
        "intel-rapl:0/energy_uj", "intel-rapl:0:1/energy_uj", "intel-rapl:1/energy_uj",
    ]  # fmt: skip
    powercap.zone("intel-rapl:0", "package-0", 3_500_000)
    powercap.zone("intel-rapl:1", "package-1", 2_000_000)
    powercap.zone("intel-rapl:0:1", "dram", 1_250_000)
    energy.count("val")
    result = energy.take_joules()
    assert result[REGIONS.index("val"), PARTS.index("cpu")] == pytest.approx(2.5 + 1.0)
    assert result[REGIONS.index("val"), PARTS.index("memory")] == pytest.approx(0.25)
    assert result.sum() == pytest.approx(3.75)


def test_a_counter_that_begins_again_goes_on(tmp_path, powercap):
    """From 9 of 10 J to 2: 3 J. Twice."""
    powercap.zone("intel-rapl:0", "package-0", 9_000_000, largest=10_000_000)
    energy = Energy(find(tmp_path))
    for _ in range(2):
        powercap.zone("intel-rapl:0", "package-0", 2_000_000, largest=10_000_000)
        energy.count("train")
        assert spent(energy, "train", "cpu") == pytest.approx(3.0)
        powercap.zone("intel-rapl:0", "package-0", 9_000_000, largest=10_000_000)
        energy.count("train")
        assert spent(energy, "train", "cpu") == pytest.approx(7.0)


def test_crays_counters_are_taken_before_the_processors(tmp_path, powercap):
    powercap.zone("intel-rapl:0", "package-0", 1)
    cray = tmp_path / "cray"
    cray.mkdir()
    for name, joules in (("energy", 100), ("accel0_energy", 10), ("accel1_energy", 20)):
        (cray / name).write_text(f"{joules} J 1700000000000000 us\n")
    (cray / "accel0_power").write_text("90 W\n")
    energy = Energy(find(tmp_path, GPU))
    assert [(c.name, c.part) for c in energy.counters] == [
        ("cray/energy", "host"),
        ("cray/accel0_energy", "accelerator"),
        ("cray/accel1_energy", "accelerator"),
    ]
    (cray / "energy").write_text("160 J\n")
    (cray / "accel1_energy").write_text("25 J\n")
    energy.count("checkpoint")
    result = energy.take_joules()[REGIONS.index("checkpoint")]
    assert dict(zip(PARTS, result.tolist(), strict=True)) == {
        "host": 60.0, "cpu": 0.0, "memory": 0.0, "accelerator": 5.0,
    }  # fmt: skip


def test_only_one_rank_of_a_host_reads_the_hosts_counters(tmp_path, powercap):
    powercap.zone("intel-rapl:0", "package-0", 1)
    assert find(tmp_path, whole_host=False) == []


def test_what_is_missing_or_forbidden_is_left_out(tmp_path, powercap, monkeypatch):
    assert find(tmp_path) == []
    powercap.zone("intel-rapl:0", "package-0", 1)
    powercap.zone("intel-rapl:1", "package-1", 1)
    (tmp_path / "powercap" / "intel-rapl:1" / "energy_uj").write_text("")
    read = Path.read_text

    def refuse(path, *words, **more):
        if path.parent.name == "intel-rapl:0" and path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read(path, *words, **more)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert find(tmp_path) == []
    assert find(tmp_path, GPU) == [], "no GPU, no library"


def test_a_counter_that_goes_away_counts_no_more(tmp_path):
    path = tmp_path / "energy"
    path.write_text("5")
    energy = Energy([FileCounter(path, "host")])
    path.write_text("7")
    energy.count("train")
    path.unlink()
    energy.count("train")
    assert spent(energy, "train", "host") == pytest.approx(2.0)


def nvidia():
    total = iter([1000, 1000, 4500])
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId_v2=lambda bus: f"handle of {bus.decode()}",
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(total),
    )


def amd():
    ticks = iter([0, 0, 2_000_000])
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
    energy = Energy(find(tmp_path, GPU, whole_host=False))
    assert [c.name.partition("/")[2] for c in energy.counters] == ["0000:c1:00.0"]
    energy.count("train")
    assert spent(energy, "train", "accelerator") == pytest.approx(joules)
