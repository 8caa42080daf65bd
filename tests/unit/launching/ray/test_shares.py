"""What slots are worth to Ray, counted by hand."""

import pytest

from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.ray.shares import shares


def cpu_slots(host, count):
    return [Slot(host, index, (index,), "cpu") for index in range(count)]


def gpu_slots(host, devices):
    return [Slot(host, i, (), "cuda:0", device) for i, device in enumerate(devices)]


def test_slots_share_the_cpus_of_their_host():
    found = shares([*cpu_slots("a", 2), *cpu_slots("b", 4)], {"a": {"CPU": 64}, "b": {"CPU": 2}})
    assert found["a:1"] == {"CPU": pytest.approx(32)}
    assert found["b:3"] == {"CPU": pytest.approx(0.5)}


def test_a_gpu_is_whole_for_one_slot_and_shared_by_lanes():
    found = shares(gpu_slots("a", ["0", "1"]), {"a": {"CPU": 8, "GPU": 2}})
    assert found["a:0"] == {"CPU": pytest.approx(4), "GPU": pytest.approx(1)}
    found = shares(gpu_slots("a", ["0", "1", "0", "1"]), {"a": {"CPU": 8, "GPU": 2}})
    assert found["a:2"] == {"CPU": pytest.approx(2), "GPU": pytest.approx(0.5)}


def test_a_gpu_that_ray_does_not_know_is_not_asked_for():
    assert "GPU" not in shares(gpu_slots("a", ["0"]), {"a": {"CPU": 8, "GPU": 0}})["a:0"]


@pytest.mark.parametrize("count", [3, 7, 48, 50001])
def test_all_slots_of_a_host_fit_in_steps_that_ray_knows(count):
    found = shares(cpu_slots("a", count), {"a": {"CPU": 2}})["a:0"]["CPU"]
    assert found / 1e-4 == pytest.approx(round(found / 1e-4))
    assert found * count <= 2 + 1e-9 or found == pytest.approx(1e-4)
    assert found > 0
