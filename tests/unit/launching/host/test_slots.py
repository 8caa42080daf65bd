"""Slots: what a computer can run ranks on."""

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.host import slots
from hydragnn_hpo.launching.host.devices import Device
from hydragnn_hpo.launching.host.layout import Layout, share_cores


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
    assert share_cores([4, 5, 6, 7, 8], count) == shares


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


def laid_out(wanted, names, cores, *, lanes=1, memory_mb=0):
    devices = [Device(name, "CUDA_VISIBLE_DEVICES") for name in names]
    seats = slots.find_seats(
        Layout(), wanted, host="here", lanes=lanes, cores=cores, devices=devices
    )
    return slots.lay_out(seats, host="here", memory_mb=memory_mb)


def test_without_gpus_every_core_is_a_slot():
    found = laid_out(0, [], [2, 3])

    assert [slot.name for slot in found] == ["here:0", "here:1"]
    assert [slot.cores for slot in found] == [(2,), (3,)]
    assert {(slot.device, slot.visible) for slot in found} == {("cpu", "")}


def test_every_gpu_is_a_slot_that_sees_only_itself():
    found = laid_out(0, ["2", "3"], [0, 1, 2, 3])

    assert [slot.visible for slot in found] == ["2", "3"]
    assert [slot.cores for slot in found] == [(0, 1), (2, 3)]
    assert {slot.device for slot in found} == {"cuda:0"}


def test_more_slots_than_gpus_share_them():
    assert [s.visible for s in laid_out(3, ["0", "1"], [0, 1])] == [
        "0",
        "1",
        "0",
    ]


def test_a_negative_number_of_slots_is_refused():
    with pytest.raises(ConfigError, match="-1 slots were asked for"):
        slots.detect_slots(-1)


def test_lanes_put_slots_of_one_gpu_side_by_side_and_share_its_memory():
    found = laid_out(0, ["0", "1"], range(8), lanes=2, memory_mb=65536)

    assert [slot.visible for slot in found] == ["0", "0", "1", "1"]
    assert [slot.cores for slot in found] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert {slot.memory_mb for slot in found} == {65536 // 2 - 512}


def test_who_has_a_gpu_alone_has_no_limit():
    found = laid_out(3, ["0", "1"], range(3), memory_mb=1000)

    assert [(slot.visible, slot.memory_mb) for slot in found] == [("0", 250), ("1", 0), ("0", 250)]


@pytest.mark.parametrize(("count", "share"), [(1, 0), (2, 8192 - 512), (16, 512)])
def test_slots_of_a_host_share_its_memory(count, share):
    found = laid_out(count, [], range(16), memory_mb=16384)

    assert {slot.memory_mb for slot in found} == {share}


def test_an_unknown_memory_is_no_limit():
    assert laid_out(4, [], [0])[0].memory_mb == 0
