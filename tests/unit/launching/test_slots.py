"""Seats of a host: what its profile says against what is there, and cores near devices."""

import logging

import pytest

from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching import slots
from hydragnn_hpo.launching.profile_adapter import layout_of
from hydragnn_hpo.launching.slots import Device, Layout, near, share_cores, share_near, sort_by_core

GCDS = [Device(str(number), "ROCR_VISIBLE_DEVICES") for number in range(8)]
FRONTIER_MASKS = {
    0: 0xFE000000000000, 1: 0xFE00000000000000, 2: 0xFE0000, 3: 0xFE000000,
    4: 0xFE, 5: 0xFE00, 6: 0xFE00000000, 7: 0xFE0000000000,
}  # fmt: skip
"""GCD -> mask with the first core of each L3 reserved: the table of the Frontier user guide."""


def seats(layout, *, cores=range(64), devices=GCDS, wanted=0, lanes=1):
    return slots.find_seats(
        layout, wanted, host="h", lanes=lanes, cores=tuple(cores), devices=devices
    )


@pytest.mark.parametrize("name", ["frontier", "lumi"])
def test_every_gcd_has_the_mask_of_the_guide(name):
    results = slots.lay_out(seats(layout_of(find_profile(name))), host="h")

    masks = {int(slot.visible): sum(1 << core for core in slot.cores) for slot in results}
    assert masks == FRONTIER_MASKS
    assert [slot.index for slot in results] == list(range(8))
    assert {(slot.device, slot.variable) for slot in results} == {
        ("cuda:0", "ROCR_VISIBLE_DEVICES")
    }


def test_slots_keep_their_numbers_where_a_device_is_missing(caplog):
    results = seats(layout_of(find_profile("frontier")), devices=GCDS[:5])

    assert [seat.index for seat in results] == [0, 1, 2, 3, 4]
    assert len(caplog.records) == 1
    assert "devices 5,6,7 are not there" in caplog.text


def test_a_host_without_the_devices_of_its_profile_is_not_used():
    with pytest.raises(ConfigError, match="host h has no cuda device, its profile names 8"):
        seats(layout_of(find_profile("frontier")), devices=[])


def test_cores_that_are_not_ours_are_reported_once_and_none_is_left_empty(caplog):
    some = seats(layout_of(find_profile("frontier")), cores=[*range(1, 60), 63])
    assert some[1].cores == (57, 58, 59, 63)
    assert len(caplog.records) == 1
    caplog.clear()

    none = seats(layout_of(find_profile("frontier")), cores=[0, 1])
    assert [seat.cores for seat in none] == [(0,), (1,)] * 4
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING


def test_lanes_divide_the_cores_of_their_seat():
    two = seats(layout_of(find_profile("frontier")), wanted=2)
    assert [seat.cores for seat in two] == [tuple(range(49, 56)), tuple(range(57, 64))]

    results = seats(layout_of(find_profile("frontier")), lanes=2)
    assert [seat.index for seat in results] == list(range(16))
    assert results[0].cores == (49, 50, 51)
    assert results[1].cores == (52, 53, 54, 55)
    assert [seat.device.name for seat in results[:4]] == ["0", "0", "1", "1"]


def test_devices_that_are_named_by_ids_are_taken_in_their_order():
    ids = [Device(name, "CUDA_VISIBLE_DEVICES") for name in ("GPU-b", "GPU-a")]
    results = seats(Layout(slots=2, accelerator="cuda"), devices=ids)
    assert [seat.device.name for seat in results] == ["GPU-b", "GPU-a"]


def test_tiles_of_intel_are_used_although_no_tool_lists_them():
    results = seats(layout_of(find_profile("aurora")), cores=range(104), devices=[])
    assert [seat.device.name for seat in results] == [str(number) for number in range(12)]


def test_a_profile_of_processors_hides_gpus(monkeypatch):
    monkeypatch.setattr(slots, "find_devices", lambda *_: GCDS)

    assert {s.device for s in slots.detect_slots(2, layout=Layout(accelerator="cpu"))} == {"cpu"}
    with pytest.raises(ConfigError, match="-1 slots were asked for"):
        slots.detect_slots(-1)


# -- found, not told -------------------------------------------------------------------


def test_devices_divide_the_cores_of_their_domain():
    shares = share_near([[4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7]], range(8))

    assert shares == [(4, 5), (0, 1, 2, 3), (6, 7)]
    assert share_near([[0, 1], [2, 3], [0, 1]], range(4)) == [(0,), (2, 3), (1,)]


@pytest.mark.parametrize("unclear", [[[0, 1], []], [[0, 1], [1, 2]], [[0], [0]]])
def test_where_domains_are_unclear_shares_are_equal(unclear):
    assert share_near(unclear, range(4)) == [(0, 1), (2, 3)]


def fake_bus(folder, **lists):
    for name, cores in lists.items():
        (folder / name).mkdir()
        (folder / name / "local_cpulist").write_text(f"{cores}\n")
    return folder


def test_a_device_is_near_the_cores_that_the_kernel_says(tmp_path):
    tree = fake_bus(tmp_path, gpu0="0-3,8-11", gpu1="")

    assert near("gpu0", [9, 1, 4, 8], tree) == [9, 1, 8]
    assert near("gpu1", [0, 1], tree) == []
    assert near("nobody", [0, 1], tree) == []
    assert near("", [0, 1], tree) == []


def test_threads_of_one_core_are_side_by_side(tmp_path):
    for core in range(4):
        (tmp_path / f"cpu{core}" / "topology").mkdir(parents=True)
        path = tmp_path / f"cpu{core}" / "topology" / "thread_siblings_list"
        path.write_text(f"{core % 2},{core % 2 + 2}\n")

    assert sort_by_core([0, 1, 2, 3], tmp_path) == [0, 2, 1, 3]
    assert sort_by_core([3, 7], tmp_path) == [3, 7]


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
    results = laid_out(0, [], [2, 3])

    assert [slot.name for slot in results] == ["here:0", "here:1"]
    assert [slot.cores for slot in results] == [(2,), (3,)]
    assert {(slot.device, slot.visible) for slot in results} == {("cpu", "")}
    assert results[0].memory_mb == 0, "an unknown memory is no limit"


@pytest.mark.parametrize(
    ("wanted", "lanes", "names", "cores", "memory_mb"),
    [
        (0, 1, ["2", "3"], [(0, 1, 2, 3), (4, 5, 6, 7)], [0, 0]),
        (3, 1, ["2", "3", "2"], [(0, 1), (2, 3, 4), (5, 6, 7)], [32256, 0, 32256]),
        (0, 2, ["2", "2", "3", "3"], [(0, 1), (2, 3), (4, 5), (6, 7)], [32256] * 4),
    ],
)
def test_slots_see_one_gpu_and_share_its_memory(wanted, lanes, names, cores, memory_mb):
    """Who has one alone has no limit; lanes of one are side by side."""
    results = laid_out(wanted, ["2", "3"], range(8), lanes=lanes, memory_mb=65536)

    assert [slot.visible for slot in results] == names
    assert [slot.cores for slot in results] == cores
    assert [slot.memory_mb for slot in results] == memory_mb
    assert {slot.device for slot in results} == {"cuda:0"}


@pytest.mark.parametrize(("count", "share"), [(1, 0), (2, 8192 - 512), (16, 512)])
def test_slots_of_a_host_share_its_memory(count, share):
    results = laid_out(count, [], range(16), memory_mb=16384)

    assert {slot.memory_mb for slot in results} == {share}
