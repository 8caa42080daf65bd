"""Prices against what unlike trials once took: twelve of six convs, recorded by a benchmark."""

import json
import math
import statistics
from pathlib import Path

import pytest

from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.placement.cost_model import CostModel

RECORD = Path(__file__).parents[2] / "benchmarks/results/prices.json"


def off(estimate, was):
    return abs(math.log(estimate / was))


@pytest.fixture(scope="module")
def stats():
    return json.loads(RECORD.read_text())["measured"]["stats"]


@pytest.fixture(scope="module")
def took():
    """(trial, seconds per epoch, peak bytes): six convs small, then the same large."""
    trials = json.loads(RECORD.read_text())["measured"]["trials"]
    made = [(TrialConfig.model_validate(t["config"]), t["seconds"], t["bytes"]) for t in trials]
    assert len(made) == 12
    return made


@pytest.mark.parametrize("first", [0, 1])
def test_seconds_of_trials_that_were_not_seen(stats, took, first):
    """Of each conv the small or the large trial is seen, the other one predicted."""
    costs = CostModel(stats)
    seen = [took[n + 6 * ((n + first) % 2)] for n in range(6)]
    rest = [trial for trial in took if trial not in seen]
    alike = statistics.median(seconds for _, seconds, _ in seen)
    for trial, seconds, _ in seen:
        costs.observe(trial, 1, seconds)
    errors = [off(costs.price(trial).epoch_seconds(1), seconds) for trial, seconds, _ in rest]
    assert statistics.median(errors) < 0.2
    assert max(errors) < 0.7
    assert statistics.median(errors) < statistics.median(off(alike, t) for _, t, _ in rest) / 3
    for (trial, *_), error in zip(rest, errors, strict=True):
        assert error < 4 * costs.price(trial).sigma, f"{trial.trial}: was surer than it may be"


def test_formula_knows_what_is_large(stats, took):
    """Before anything ran: one factor for this machine's speed, and each is within twice of it."""
    costs = CostModel(stats)
    ratios = [seconds / costs.price(trial).epoch_seconds(1) for trial, seconds, _ in took]
    middle = statistics.median(ratios)
    assert max(off(middle, ratio) for ratio in ratios) < math.log(2.0)


def test_memory(stats, took):
    """Within 15 % before anything ran, within 10 % after half of them."""
    costs = CostModel(stats)
    assert max(off(costs.price(trial).memory(1), size) for trial, _, size in took) < 0.15
    for trial, _, size in took[::2]:
        costs.observe_memory(trial, 1, size)
    assert max(off(costs.price(trial).memory(1), size) for trial, _, size in took[1::2]) < 0.1
