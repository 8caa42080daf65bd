"""The course of the learning rate, by hand."""

import math

import pytest
import torch

from hydragnn_hpo.config.trial_config import TrainConfig
from hydragnn_hpo.training.optim import LearningRateSchedule


def course(total, config, graphs_per_step=32.0):
    schedule = LearningRateSchedule(config, total, graphs_per_step)
    return [schedule.rate(step) for step in range(total)]


def test_cosine_by_hand():
    config = TrainConfig(learning_rate=0.2, warmup=0.1)
    rates = course(100, config)
    assert rates[:10] == pytest.approx([0.02 * k for k in range(1, 11)])
    assert rates[10] == pytest.approx(0.2)
    assert rates[55] == pytest.approx(0.2 * (0.01 + 0.99 / 2)), "half-way down"
    assert rates[25] == pytest.approx(0.2 * (0.01 + 0.99 * (1 + math.cos(math.pi / 6)) / 2))
    assert LearningRateSchedule(config, 100, 1).rate(100) == pytest.approx(0.002), "ends at 1 %"
    assert LearningRateSchedule(config, 100, 1).rate(250) == pytest.approx(0.002), "and stays there"
    assert rates[10:] == sorted(rates[10:], reverse=True)
    other = TrainConfig(learning_rate=0.2, warmup=0.0, final_rate=0.25)
    assert LearningRateSchedule(other, 10, 1).rate(10) == pytest.approx(0.05)


def test_constant_stays_at_its_peak():
    config = TrainConfig(learning_rate=0.2, warmup=0.25, schedule="constant")
    assert course(8, config) == pytest.approx([0.1, *[0.2] * 7])


@pytest.mark.parametrize("kind", ["cosine", "one_cycle", "plateau", "constant"])
@pytest.mark.parametrize("total", [1, 2, 3])
def test_no_warm_up_and_hardly_any_step(kind, total):
    config = TrainConfig(learning_rate=0.2, warmup=0.0, schedule=kind)
    rates = course(total, config)
    assert rates[0] == pytest.approx(0.2 / 25 if kind == "one_cycle" else 0.2)
    assert all(0.002 <= rate <= 0.2 for rate in rates)


def test_one_cycle_is_torchs():
    """torch counts to the last step, ours to the one after it, as our cosine does."""
    total, rise = 40, 12
    config = TrainConfig(learning_rate=0.3, warmup=0.3, schedule="one_cycle", final_rate=0.02)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.3, total_steps=total + 1, pct_start=(rise + 1) / (total + 1),
        div_factor=25.0, final_div_factor=1 / 25 / 0.02, cycle_momentum=False,
    )  # fmt: skip
    expected = []
    for _ in range(total):
        expected.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    assert course(total, config) == pytest.approx(expected, rel=1e-12)
    assert expected[0] == pytest.approx(0.012)
    assert expected[rise] == pytest.approx(0.3)


def test_plateau_by_hand():
    config = TrainConfig(
        learning_rate=0.8, warmup=0.1, schedule="plateau", plateau_epochs=2, plateau_factor=0.5,
        final_rate=0.2,
    )  # fmt: skip
    schedule = LearningRateSchedule(config, 100, 32)
    rates = []
    objectives = [5.0, 4.0, 4.0, 4.5, 3.0, 3.1, 3.2, 3.3, 2.9, 2.9, 2.9, 3.0, 3.0, 3.0]
    for objective in objectives:
        schedule.after_epoch(objective)
        rates.append(schedule.rate(50))
    # No better than the best twice: after the 4th, 7th, 11th and 13th; the floor is 0.2 * 0.8.
    expected = [0.8] * 3 + [0.4] * 3 + [0.2] * 4 + [0.16] * 4
    assert rates == pytest.approx(expected)
    assert LearningRateSchedule(config, 100, 32).rate(4) == pytest.approx(0.4), (
        "half of the warm-up"
    )


@pytest.mark.parametrize(
    ("way", "batch", "factor"),
    [("none", 512, 1.0), ("sqrt", 512, 4.0), ("linear", 512, 16.0), ("linear", 8, 0.25)],
)
def test_peak_grows_with_the_batch(way, batch, factor):
    config = TrainConfig(
        learning_rate=0.1, scale_rate=way, rate_batch=32, global_batch=batch, schedule="constant"
    )
    assert course(40, config, batch)[-1] == pytest.approx(0.1 * factor)


def test_budgets_scale_by_the_mean_number_of_graphs(train):
    """24 graphs of 1 to 6 atoms; the steps of an epoch follow from the budget."""
    trainer = train(
        global_batch=None, batch_atoms=24, scale_rate="linear", rate_batch=2, learning_rate=0.1
    )
    steps = len(trainer.parts.order.steps(0))
    assert steps > 1
    assert trainer.parts.schedule.peak == pytest.approx(0.1 * (24 / steps) / 2)
