"""GPUs of a host: their numbers, their neighbours, and what an environment lets us use."""

import pytest

from hydragnn_hpo.launching import devices
from hydragnn_hpo.launching.devices import Device


def cards(variable):
    return [Device(str(number), variable) for number in range(4)]


def names(environment):
    return [card.name for card in devices.find_devices(environment)]


TWO_CARDS = """\
GPU 0: NVIDIA H200 (UUID: GPU-11111111-aaaa)
GPU 1: NVIDIA H200 (UUID: GPU-22222222-bbbb)
"""
MIG = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-11111111-aaaa)
  MIG 3g.20gb     Device  0: (UUID: MIG-cccc)
  MIG 3g.20gb     Device  1: (UUID: MIG-dddd)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-22222222-bbbb)
"""


def test_a_listing_of_cards_gives_their_numbers():
    assert devices.parse_nvidia(TWO_CARDS) == ["0", "1"]


def test_a_card_in_slices_gives_the_slices():
    assert devices.parse_nvidia(MIG) == ["MIG-cccc", "MIG-dddd", "1"]


def test_a_driver_that_finds_nothing_gives_nothing():
    assert devices.parse_nvidia("No devices found.\n") == []


@pytest.mark.parametrize(
    ("allowed", "kept"),
    [
        (None, ["0", "1", "2", "3"]),
        ("", []),
        ("2,3", ["2", "3"]),
        ("3, 1", ["3", "1"]),
        ("-1", []),
        ("1,-1,2", ["1"]),
        ("1,9,2", ["1"]),
        ("GPU-ab,MIG-cd", ["GPU-ab", "MIG-cd"]),
        ("nonsense", []),
    ],
)
def test_only_the_allowed_devices_are_kept_in_their_order(allowed, kept):
    assert [card.name for card in devices.visible(cards("HIP_VISIBLE_DEVICES"), allowed)] == kept


def test_a_setting_makes_no_gpu_where_there_is_none():
    assert devices.visible([], "GPU-ab") == []


def fake_kfd(folder, *simds):
    for number, simd in enumerate(simds):
        node = folder / str(number)
        node.mkdir()
        (node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simd}\nmem_banks_count 1")
    return folder


def test_amd_nodes_without_simd_units_are_processors(tmp_path):
    found = devices._amd("HIP_VISIBLE_DEVICES", fake_kfd(tmp_path, 0, 0, 256, 440))

    assert [device.name for device in found] == ["0", "1"]


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"HIP_VISIBLE_DEVICES": "3,1"}, ["3", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, ["2"]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, ["2", "3"]),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, ["3"]),
    ],
)
def test_amd_settings_are_respected(monkeypatch, environment, found):
    monkeypatch.setattr(devices, "_nvidia", list)
    monkeypatch.setattr(devices, "_amd", cards)

    assert names(environment) == found


def test_nvidia_is_asked_through_its_tool(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<END\n{TWO_CARDS}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert names({}) == ["0", "1"]
    assert names({"CUDA_VISIBLE_DEVICES": "1"}) == ["1"]


def test_a_tool_that_fails_is_no_gpu(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: x'; exit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(devices, "_amd", lambda variable: [])

    assert devices.find_devices({}) == []


def test_amd_tells_where_a_device_sits(tmp_path):
    node = tmp_path / "2"
    node.mkdir()
    place = 0xC1 << 8 | 0x02 << 3 | 1
    (node / "properties").write_text(f"simd_count 440\nlocation_id {place}\ndomain 1\n")

    (found,) = devices._amd("ROCR_VISIBLE_DEVICES", tmp_path)

    assert found == Device("0", "ROCR_VISIBLE_DEVICES", "0001:c1:02.1")


def test_nvidia_tells_where_a_device_sits():
    listing = "0, 00000000:07:00.0\n1, 00000001:0F:00.0\n"

    assert devices.parse_buses(listing) == {"0": "0000:07:00.0", "1": "0001:0f:00.0"}


def test_amd_devices_are_counted_in_the_order_of_the_driver(tmp_path):
    for number in (10, 2, 9):
        (tmp_path / str(number)).mkdir()
        text = f"simd_count 1\nlocation_id {number << 8}\n"
        (tmp_path / str(number) / "properties").write_text(text)

    assert [card.bus[5:7] for card in devices._amd("", tmp_path)] == ["02", "09", "0a"]


def tool(folder, text, monkeypatch):
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_the_smallest_card_counts(tmp_path, monkeypatch):
    tool(tmp_path, "printf '81559\\n40960\\n'", monkeypatch)
    assert devices.device_memory_mb(tmp_path) == 40960


def test_a_tool_that_fails_tells_nothing(tmp_path, monkeypatch):
    tool(tmp_path, "echo 'No devices were found'; exit 6", monkeypatch)
    assert devices.device_memory_mb(tmp_path) == 0


def test_cards_of_amd_are_asked_through_the_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for number, gib in enumerate((64, 64)):
        card = tmp_path / f"card{number}" / "device"
        card.mkdir(parents=True)
        (card / "mem_info_vram_total").write_text(f"{gib << 30}\n")

    assert devices.device_memory_mb(tmp_path) == 65536
