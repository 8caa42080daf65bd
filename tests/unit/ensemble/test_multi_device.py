"""Members divided among devices: by cost, and without a change of what they say."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_hpo.data.batch_sampler import balance_load
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.ensemble.engine import EagerEngine, device_of
from hydragnn_hpo.ensemble.inference import (
    Ensemble,
    MultiDeviceEngine,
    devices_of,
    load_ensemble,
)
from hydragnn_hpo.errors import ConfigError


def test_the_longest_goes_first_to_who_is_done_first():
    """Graham's own example, jobs 5 5 4 4 3 3 3 on three: 11 where 9 is possible."""
    places = balance_load([5, 5, 4, 4, 3, 3, 3], 3)
    assert sorted(itertools.chain(*places)) == list(range(7))
    loads = [sum([5, 5, 4, 4, 3, 3, 3][n] for n in place) for place in places]
    assert max(loads) == 11


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6), st.integers(1, 3))
def test_never_above_four_thirds_of_the_best(costs, places):
    def longest(chosen) -> float:
        loads = np.zeros(places)
        np.add.at(loads, list(chosen), costs)
        return float(loads.max())

    best = min(map(longest, itertools.product(range(places), repeat=len(costs))))
    result = max(sum(costs[n] for n in place) for place in balance_load(costs, places))
    assert result <= (4 / 3 - 1 / (3 * places)) * best * (1 + 1e-12)


def test_members_on_two_devices_say_what_they_say_on_one(built_zip):
    graphs = open_store(built_zip.parent / "data/toy.bp")
    one = Ensemble.load(built_zip)
    two = Ensemble.load(built_zip)
    measured = load_ensemble("cpu,cpu", built_zip)
    cost = {"t0001": 5, "t0002": 5, "t0003": 4, "t0004": 4, "t0005": 3, "t0006": 3}

    def timer(engine, *_):
        assert isinstance(engine, EagerEngine)
        return cost[engine.members[0].trial]

    two.engine = engine = MultiDeviceEngine(two.members, ["cpu", "cpu"], timer=timer)
    names = engine.divide(graphs, np.arange(5))
    assert {tuple(each) for each in names} == {
        ("t0001", "t0003", "t0005"),
        ("t0002", "t0004", "t0006"),
    }
    assert isinstance(measured.engine, MultiDeviceEngine)
    assert measured.engine.engines == (), "members are divided at the first batch"
    alone = one.predict(graphs)
    for spread in (two.predict(graphs), measured.predict(graphs), measured.predict(graphs)):
        assert spread.trust == alone.trust
        for name, head in alone.heads.items():
            for part in ("mean", "std", "std_epistemic", "lo90", "hi90"):
                actual = getattr(spread.heads[name], part)
                wanted = getattr(head, part)
                np.testing.assert_allclose(actual, wanted, rtol=1e-9, atol=1e-12)
    assert len(measured.engine.engines) == 2


def test_auto_is_the_device_of_a_slot_else_an_accelerator_else_the_processor(monkeypatch):
    monkeypatch.delenv("HYDRAGNN_HPO_DEVICE", raising=False)

    def result(kind):
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: kind)
        return devices_of("auto")

    assert result(None) == ["cpu"]
    assert result(torch.device("cuda")) == ["cuda:0"]
    assert result(torch.device("mps")) == ["cpu"], "it has no fp64"
    monkeypatch.setenv("HYDRAGNN_HPO_DEVICE", "cuda:3")
    assert result(torch.device("cuda")) == ["cuda:3"]


@pytest.mark.parametrize("named", ["cuda:99", "gpu", "", "cpu,", "cpu,gpu", "meta", "cuda:x"])
def test_a_device_that_is_not_here_is_a_sentence(named):
    with pytest.raises(ConfigError, match=r"^device '.*': .*; choose cpu") as exc_info:
        devices_of(named)
    assert "\n" not in str(exc_info.value)


def test_several_devices_where_one_is_wanted_are_refused():
    assert device_of("cpu") == "cpu"
    with pytest.raises(ConfigError, match="device cpu,cpu: names 2 devices; name only one"):
        device_of("cpu,cpu")
