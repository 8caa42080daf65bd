"""GPUs of a host: their numbers, their neighbours, and what an environment lets us use."""

import pytest

from hydragnn_hpo.launching import slots
from hydragnn_hpo.launching.slots import Device


def cards(variable):
    return [Device(str(number), variable) for number in range(4)]


def names(environment):
    return [card.name for card in slots.find_devices(environment)]


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


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        (TWO_CARDS, ["0", "1"]),
        (MIG, ["MIG-cccc", "MIG-dddd", "1"]),
        ("No devices found.\n", []),
    ],
    ids=["cards", "slices", "none"],
)
def test_a_listing_gives_the_names_of_cards_or_of_their_slices(listing, expected):
    assert slots.parse_nvidia(listing) == expected


@pytest.mark.parametrize(
    ("allowed", "kept"),
    [
        (None, ["0", "1", "2", "3"]),
        ("", []),
        ("2,3", ["2", "3"]),
        ("3, 1", ["3", "1"]),
        ("-1", []),
        ("1,-1,2", ["1"]),
        ("1,4,2", ["1"]),
        ("GPU-ab,MIG-cd", ["GPU-ab", "MIG-cd"]),
        ("nonsense", []),
    ],
)
def test_only_the_allowed_devices_are_kept_in_their_order(allowed, kept):
    assert [card.name for card in slots.visible(cards("HIP_VISIBLE_DEVICES"), allowed)] == kept
    assert slots.visible([], allowed) == [], "a setting makes no GPU"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"HIP_VISIBLE_DEVICES": "3,1"}, ["3", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, ["2"]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, ["2", "3"]),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, ["3"]),
    ],
)
def test_amd_settings_are_respected(monkeypatch, environment, expected):
    monkeypatch.setattr(slots, "_nvidia", list)
    monkeypatch.setattr(slots, "_amd", cards)

    assert names(environment) == expected


def tool(folder, text, monkeypatch):
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_nvidia_is_queried_through_its_tool(tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "_amd", lambda variable: [])
    tool(tmp_path, f"cat <<END\n{TWO_CARDS}END", monkeypatch)
    assert names({}) == ["0", "1"]
    assert names({"CUDA_VISIBLE_DEVICES": "1"}) == ["1"]
    tool(tmp_path, "echo 'GPU 0: x'; exit 9", monkeypatch)
    assert names({}) == [], "a tool that fails is no GPU"


def test_amd_devices_are_counted_and_placed_in_the_order_of_the_driver(tmp_path):
    """Nodes without SIMD units are processors."""
    places = {10: 0xC1 << 8 | 0x02 << 3 | 1, 2: 7 << 8, 9: 9 << 8}
    for number, place in places.items():
        (tmp_path / str(number)).mkdir()
        text = f"cpu_cores_count 0\nsimd_count {number - 2}\nlocation_id {place}\ndomain 1\n"
        (tmp_path / str(number) / "properties").write_text(text)

    assert slots._amd("ROCR_VISIBLE_DEVICES", tmp_path) == [
        Device("0", "ROCR_VISIBLE_DEVICES", "0001:09:00.0"),
        Device("1", "ROCR_VISIBLE_DEVICES", "0001:c1:02.1"),
    ]


def test_nvidia_tells_where_a_device_sits():
    listing = "0, 00000000:07:00.0\n1, 00000001:0F:00.0\n"

    assert slots.parse_buses(listing) == {"0": "0000:07:00.0", "1": "0001:0f:00.0"}


@pytest.mark.parametrize(
    ("text", "memory_mb"),
    [("printf '81559\\n40960\\n'", 40960), ("echo 'No devices were found'; exit 6", 0)],
)
def test_the_smallest_card_counts(tmp_path, monkeypatch, text, memory_mb):
    tool(tmp_path, text, monkeypatch)
    assert slots.device_memory_mb(tmp_path) == memory_mb


def test_cards_of_amd_are_queried_through_the_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for number, gib in enumerate((64, 128)):
        card = tmp_path / f"card{number}" / "device"
        card.mkdir(parents=True)
        (card / "mem_info_vram_total").write_text(f"{gib << 30}\n")

    assert slots.device_memory_mb(tmp_path) == 65536
