"""Whether reading, feeding or computing is the bottleneck; nothing is written or learned."""

import pytest
import torch

from hydragnn_hpo.training import io_benchmark as module
from hydragnn_hpo.training.io_benchmark import IoBenchmark, measure_trainer, split_seconds


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "FEWEST", 4)


class Clock:
    """Goes on by a little whenever it is read, and by what ``slow`` costs."""

    now = 0.0

    def perf_counter(self):
        self.now += 1e-4
        return self.now

    def slow(self, function, seconds):
        def run(*words, **more):
            self.now += seconds
            return function(*words, **more)

        return run


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_what_a_way_leaves_out_costs_the_difference():
    parts = split_seconds({"real": 10.0, "cached": 6.0, "synthetic": 5.5})
    assert parts == {"computing": 5.5, "feeding": 0.5, "reading and batching": 4.0}
    assert split_seconds({"cached": 5.0, "synthetic": 5.5}) == {"computing": 5.5, "feeding": 0.0}


@pytest.mark.parametrize("bottleneck", ["reading and batching", "computing"])
def test_what_is_slow_is_found(train, monkeypatch, clock, bottleneck):
    trainer = train()
    part, name = {
        "computing": (trainer.stepper, "take_step"),
        "reading and batching": (trainer.micro, "make_ahead"),
    }[bottleneck]
    monkeypatch.setattr(part, name, clock.slow(getattr(part, name), 0.06))
    result = measure_trainer(trainer, ("real", "cached", "synthetic"))
    assert result.bottleneck == bottleneck
    assert 0.06 <= result.parts[bottleneck] + 1e-3 < 0.07
    assert 6 / 0.07 < result.graphs_per_second["real"] < 6 / 0.06, "24 graphs in 4 steps"
    assert result.sentence.startswith(f"The bottleneck is {bottleneck}: ")


def test_nothing_is_learned_counted_or_recorded(train):
    trainer = train(ema=0.9, heads={"energy": {"loss": "mse"}, "charge": {}})
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    result = measure_trainer(trainer, ("real", "cached", "synthetic"))
    assert result.steps == 12
    assert set(result.seconds) == {"real", "cached", "synthetic"}
    assert all(torch.equal(value, before[n]) for n, value in trainer.model.state_dict().items())
    assert trainer.progress.step == 0
    assert trainer.records == []


def test_time_is_limited(train, monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 0.3)
    monkeypatch.setattr(module, "FEWEST", 10**6)
    assert 0 < measure_trainer(train(), ("synthetic",)).steps < 10**6


def test_the_sentence_names_the_largest_part():
    parts = {"computing": 1.0, "feeding": 3.0, "reading and batching": 0.0}
    benchmark = IoBenchmark(2, 9, {"real": 4.0}, {"real": 1.0}, parts)
    assert benchmark.sentence.startswith("The bottleneck is feeding: 75% of a step. ")
    assert benchmark.to_plain()["bottleneck"] == "feeding"
