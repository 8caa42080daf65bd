"""Slots: what a computer can run ranks on."""

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching import slots

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
    assert slots.parse_nvidia(TWO_CARDS) == ["0", "1"]


def test_a_card_in_slices_gives_the_slices():
    assert slots.parse_nvidia(MIG) == ["MIG-cccc", "MIG-dddd", "1"]


def test_a_driver_that_finds_nothing_gives_nothing():
    assert slots.parse_nvidia("No devices found.\n") == []


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
    assert slots.visible(["0", "1", "2", "3"], allowed) == kept


def test_a_setting_makes_no_gpu_where_there_is_none():
    assert slots.visible([], "GPU-ab") == []


def fake_kfd(folder, *simds):
    for number, simd in enumerate(simds):
        node = folder / str(number)
        node.mkdir()
        (node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simd}\nmem_banks_count 1")
    return folder


def test_amd_nodes_without_simd_units_are_processors(tmp_path):
    assert slots._amd(fake_kfd(tmp_path, 0, 0, 256, 440)) == ["0", "1"]


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"HIP_VISIBLE_DEVICES": "3,1"}, ["3", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, ["2"]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, ["0", "1"]),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, ["1"]),
    ],
)
def test_amd_settings_are_respected(monkeypatch, environment, found):
    monkeypatch.setattr(slots, "_nvidia", list)
    monkeypatch.setattr(slots, "_amd", lambda: ["0", "1", "2", "3"])

    assert slots.find_devices(environment) == found


def test_nvidia_is_asked_through_its_tool(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<END\n{TWO_CARDS}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert slots.find_devices({}) == ["0", "1"]
    assert slots.find_devices({"CUDA_VISIBLE_DEVICES": "1"}) == ["1"]


def test_a_tool_that_fails_is_no_gpu(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: x'; exit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slots, "_amd", list)

    assert slots.find_devices({}) == []


@pytest.mark.parametrize(
    ("count", "shares"),
    [
        (1, [(4, 5, 6, 7, 8)]),
        (2, [(4, 5), (6, 7, 8)]),
        (5, [(4,), (5,), (6,), (7,), (8,)]),
        (7, [(4,), (5,), (6,), (7,), (8,), (4,), (5,)]),
    ],
)
def test_cores_are_split_or_taken_in_turn(count, shares):
    assert slots.share_cores([4, 5, 6, 7, 8], count) == shares


@pytest.mark.parametrize(
    ("quota", "start", "kept"),
    [
        (float("inf"), 3, (0, 1, 2, 3)),
        (8.0, 3, (0, 1, 2, 3)),
        (1.5, 0, (0, 1)),
        (2.0, 3, (0, 3)),
        (0.2, 6, (2,)),
    ],
)
def test_a_containers_quota_limits_the_cores(quota, start, kept):
    assert slots.allowed_cores([0, 1, 2, 3], quota, start=start) == kept


def test_without_gpus_every_core_is_a_slot():
    found = slots.lay_out(0, [], cores=[2, 3], host="here")

    assert [slot.name for slot in found] == ["here:0", "here:1"]
    assert [slot.cores for slot in found] == [(2,), (3,)]
    assert {(slot.device, slot.visible) for slot in found} == {("cpu", "")}


def test_every_gpu_is_a_slot_that_sees_only_itself():
    found = slots.lay_out(0, ["2", "3"], cores=[0, 1, 2, 3], host="here")

    assert [slot.visible for slot in found] == ["2", "3"]
    assert [slot.cores for slot in found] == [(0, 1), (2, 3)]
    assert {slot.device for slot in found} == {"cuda:0"}


def test_more_slots_than_gpus_share_them():
    assert [s.visible for s in slots.lay_out(3, ["0", "1"], cores=[0, 1], host="here")] == [
        "0",
        "1",
        "0",
    ]


def test_a_negative_number_of_slots_is_refused():
    with pytest.raises(ConfigError, match="-1 slots were asked for"):
        slots.detect_slots(-1)


def test_lanes_put_slots_of_one_gpu_side_by_side_and_share_its_memory():
    found = slots.lay_out(0, ["0", "1"], cores=range(8), host="here", lanes=2, memory_mb=65536)

    assert [slot.visible for slot in found] == ["0", "0", "1", "1"]
    assert [slot.cores for slot in found] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert {slot.memory_mb for slot in found} == {65536 // 2 - 512}


def test_who_has_a_gpu_alone_has_no_limit():
    found = slots.lay_out(3, ["0", "1"], cores=range(3), host="here", memory_mb=1000)

    assert [(slot.visible, slot.memory_mb) for slot in found] == [("0", 250), ("1", 0), ("0", 250)]


@pytest.mark.parametrize(("count", "share"), [(1, 0), (2, 8192 - 512), (16, 512)])
def test_slots_of_a_host_share_its_memory(count, share):
    found = slots.lay_out(count, [], cores=range(16), host="here", memory_mb=16384)

    assert {slot.memory_mb for slot in found} == {share}


def test_an_unknown_memory_is_no_limit():
    assert slots.lay_out(4, [], cores=[0], host="here")[0].memory_mb == 0
