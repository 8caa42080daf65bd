"""The price of a trial: by hand, and corrected by what ran."""

import pytest

from hydragnn_hpo.config.counting import forward_flops
from hydragnn_hpo.config.sizes import mean_degree
from hydragnn_hpo.config.trial import TrialConfig, TrialDataConfig
from hydragnn_hpo.placement.cost import (
    BACKWARD,
    FLOPS_PER_SECOND,
    STEP_SECONDS,
    CostModel,
    efficiency,
)

STATS = {
    "train_nodes": 1000,
    "splits": {"train": 90},
    "degree": {"3.0": 4.0, "4.0": 10.0, "10.0": 150.0, "4.5": 14.0},
}


def config(conv="egnn", batch=32, features=16):
    return TrialConfig(
        data={"store": "x"},
        model={"conv": conv, "features": features, "cutoff": 4.0},
        heads={"e": {}},
        training={"global_batch": batch},
    )


def test_efficiency_by_hand():
    assert efficiency(1) == 1.0
    assert efficiency(2) == pytest.approx(1 / 1.12)
    assert efficiency(4) == pytest.approx(1 / 1.36)
    assert 2 * efficiency(2) < 4 * efficiency(4), "more ranks are never slower"


@pytest.mark.parametrize(
    ("cutoff", "expected"),
    [
        (3.0, 4.0),
        (4.0, 10.0),
        (4.5, 14.0),
        (3.5, 10.0 * (3.5 / 4.0) ** 3),
        (1.5, 4.0 / 8.0),
        (5.0, 150.0 / 8.0),
        (10.0, 150.0),
        (12.0, 150.0),
    ],
)
def test_mean_degree_between_what_is_known(cutoff, expected):
    assert mean_degree(STATS, cutoff) == pytest.approx(expected)


def test_first_price_by_hand():
    trial = config()
    flops = BACKWARD * forward_flops(trial.model, 1000, 1000 * 10.0)
    compute, steps = flops / FLOPS_PER_SECOND, 3 * STEP_SECONDS
    expected = compute + steps
    costs = CostModel(STATS)
    assert costs.raw(trial) == pytest.approx(expected)
    assert costs.epoch_seconds(trial) == pytest.approx(expected)
    assert costs.epoch_seconds(trial, 4) == pytest.approx(compute * 1.36 / 4 + steps)


def test_smaller_batches_mean_more_steps():
    costs = CostModel(STATS)
    more = costs.raw(config(batch=1)) - costs.raw(config(batch=90))
    assert more == pytest.approx(89 * STEP_SECONDS)


def test_several_data_sets_cost_what_is_drawn_of_them():
    """90 graphs of 1000 nodes once, and 30 draws, three passes, of 10 graphs of 50 nodes."""
    sets = [{"train": 90, "train_nodes": 1000}, {"train": 10, "train_nodes": 50}]
    trial = config().model_copy(
        update={"data": tuple(TrialDataConfig(store="x", ratio=r) for r in (3.0, 1.0))}
    )
    nodes, steps = 1000 + 3 * 50, 4  # 120 graphs in steps of 32
    flops = BACKWARD * forward_flops(trial.model, nodes, nodes * 10.0)
    costs = CostModel({**STATS, "sets": sets})
    assert costs.raw(trial) == pytest.approx(flops / FLOPS_PER_SECOND + steps * STEP_SECONDS)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_what_was_measured_is_predicted(width):
    costs = CostModel(STATS)
    costs.learn(config(), width, 7.0)
    assert costs.epoch_seconds(config(), width) == pytest.approx(7.0)
    # Twice the ranks share the arithmetic, not what each step costs beside it.
    plain = CostModel(STATS)
    ratio = plain.raw(config(), 2 * width) / plain.raw(config(), width)
    assert costs.epoch_seconds(config(), 2 * width) == pytest.approx(7.0 * ratio)
    assert 0.5 < ratio < 1.0


def test_one_measurement_gone_wrong_changes_little():
    costs, trial = CostModel(STATS), config()
    true = 3.0 * costs.raw(trial)
    for seconds in (true, true, 100 * true):
        costs.learn(trial, 1, seconds)
    assert costs.epoch_seconds(trial) == pytest.approx(true)


def test_each_conv_learns_for_itself_and_lends_to_those_unseen():
    costs = CostModel(STATS)
    costs.learn(config("egnn"), 1, 2.0 * costs.raw(config("egnn")))
    costs.learn(config("painn"), 1, 6.0 * costs.raw(config("painn")))
    for conv, factor in (("egnn", 2.0), ("painn", 6.0), ("schnet", 4.0)):
        trial = config(conv, features=48)
        assert costs.epoch_seconds(trial) == pytest.approx(factor * costs.raw(trial))
