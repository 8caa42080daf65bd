"""Where the time of an epoch goes, who is slow, and what the record says of it."""

import contextlib
import itertools
import logging
import time
from itertools import pairwise

import numpy as np
import pytest
import torch

from hydragnn_hpo.energy_counters import Count, Reading
from hydragnn_hpo.training import timers as module
from hydragnn_hpo.training.ddp import Ranks, allreduce_tensors
from hydragnn_hpo.training.energy import PARTS, REGIONS, Energy
from hydragnn_hpo.training.timers import (
    SENT,
    TIMED,
    EpochTimers,
    Stragglers,
    busy_seconds,
    summarize_epoch,
)


def rising():
    """Return a reader of a counter of joules that rises by 10 whenever it is read."""
    total = itertools.count(0.0, 10.0)
    return lambda: Reading({"clock": Count(next(total), "host")})


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_regions_add_up_and_start_again(clock):
    meter = EpochTimers()
    for seconds in (1.0, 2.0):
        with meter.region("data"):
            clock[0] += seconds
    with contextlib.suppress(ValueError), meter.region("forward"):
        clock[0] += 4.0
        raise ValueError("counted nevertheless")
    meter.add("exposed", 0.5)
    assert (meter.phase, meter.moves) == ("forward", 3)
    assert meter.take_seconds() == {"data": 3.0, "forward": 4.0, "exposed": 0.5}
    assert meter.take_seconds() == {}


def test_a_ranks_own_seconds_are_those_in_which_it_waits_for_nobody():
    seconds = {"data": 1.0, "forward": 2.0, "backward": 7.0, "update": 0.5, "look": 9.0}
    assert busy_seconds(seconds) == 10.5
    assert busy_seconds({**seconds, "exposed": 4.0}) == 6.5


def summed(rows, world):
    """Sum what ranks give, by hand: rank r was r + 1 times as long in everything."""
    regions = np.array(rows) * sum(range(1, world + 1))
    ranks = np.array([[(r + 1) * (rows[0] + rows[1]), 1000.0 + r] for r in range(world)])
    joules = np.zeros((len(REGIONS), len(PARTS)))
    return {"regions": regions, "ranks": ranks, "joules": joules}


def test_a_record_says_means_over_ranks_and_who_was_slowest():
    rows = [0.5, 1.0, 1.5, 0.25, 0.5, 0.25, 2.0, 0.5]
    assert len(rows) == len(TIMED) + len(SENT)
    record = summarize_epoch(summed(rows, 3), 3)
    assert record["data_seconds"] == 1.0
    assert record["backward_seconds"] == 3.0
    assert record["checkpoint_seconds"] == 0.5
    assert record["data_share"] == 0.5 / 4.0
    assert record["communication_seconds"] == 4.0
    assert record["hidden_share"] == 0.75
    assert record["slowest_rank"] == 2
    assert record["imbalance"] == pytest.approx(3 / 2)
    assert record["peak_bytes"] == 1002
    assert "energy" not in record, "there is no counter"


def test_what_nothing_measured_is_left_out():
    alone = summarize_epoch(summed([1.0] * 8, 1), 1)
    assert not {"imbalance", "slowest_rank", "hidden_share", "exposed_seconds"} & set(alone)
    unheard = summarize_epoch(summed([1.0] * 6 + [0.0, 0.0], 2), 2)
    assert not {"communication_seconds", "exposed_seconds", "hidden_share"} & set(unheard)


def test_joules_are_reported_by_region():
    meter = EpochTimers(energy=Energy(rising()))
    for region in ("train", "train", "val", "checkpoint"):
        meter.count_energy(region)
    alone = Ranks(0, 1, torch.device("cpu"))
    record = summarize_epoch(allreduce_tensors(alone, meter.local_sums(alone)), 1)
    assert record["energy"] == {"train": {"host": 20.0}, "val": {"host": 10.0},
                                "checkpoint": {"host": 10.0}}  # fmt: skip
    assert meter.counters == ["clock"]


def test_a_straggler_is_named_once_after_three_epochs_running(caplog):
    stragglers = Stragglers()
    slow = np.array([1.0, 1.0, 1.0, 5.0])
    even = np.array([2.0, 2.0, 2.0, 2.0])
    actual = [stragglers.slow(each) for each in (slow, slow, even, slow, slow, slow, slow)]
    assert actual == [[], [], [], [], [], [(3, 2.5)], []]
    with caplog.at_level(logging.WARNING):
        again = Stragglers()
        for _ in range(5):
            again.warn(slow)
    assert [r.message for r in caplog.records] == [
        "rank 3 has needed 2.5 times as long as the mean of all ranks for 3 epochs: "
        "look at its host, or at what shares it."
    ]


def test_milliseconds_make_no_straggler():
    stragglers = Stragglers()
    assert [stragglers.slow(np.array([0.001, 0.4])) for _ in range(5)] == [[]] * 5


def test_epochs_say_where_their_time_went(train, monkeypatch):
    monkeypatch.setattr(module, "find_counters", lambda *_, **__: rising())
    reads = itertools.count()  # each look at the clock takes a second, and nothing else
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(reads)))
    trainer = train()
    regions = []
    spent = trainer.parts.meter.count_energy
    trainer.parts.meter.count_energy = lambda region: (regions.append(region), spent(region))
    trainer.run(2, lambda: "go")
    assert [r for r, after in pairwise(regions) if after == "val"] == ["train", "train"]
    first, second = (r for r in trainer.records if r["record"] == "epoch")
    for record in (first, second):
        inside = sum(record[f"{name}_seconds"] for name in TIMED if name != "checkpoint")
        assert 0.3 * record["train_seconds"] < inside <= record["train_seconds"] * 1.001
        assert min(record[f"{name}_seconds"] for name in ("forward", "backward", "update")) > 0
        assert record["peak_bytes"] > 50e6, "Python and torch alone take more"
        assert record["energy"]["val"] == {"host": 10.0}
    assert first["graphs_per_second"] == pytest.approx(24 / first["train_seconds"])


def test_the_rest_of_an_epoch_counts_its_own_graphs(train, tmp_path):
    """24 graphs in steps of 7, 7, 7 and 3: after one step 17 are left."""
    requests = iter(["interrupt"])
    first = train()
    first.run(2, lambda: next(requests, "go"), tmp_path)
    assert first.progress.step == 1
    second = train()
    assert second.resume(tmp_path)
    second.run(1, lambda: "go", tmp_path)
    (record,) = (r for r in second.records if r["record"] == "epoch")
    assert record["graphs_per_second"] == pytest.approx(17 / record["train_seconds"])
