"""Temperature, sets and scores of classes, against formulas and counts by hand."""

import math

import numpy as np
import pytest

from hydragnn_hpo.uncertainty.class_probabilities import (
    area_under_curve,
    as_probabilities,
    calibrate_classes,
    calibrate_probabilities,
    cap_probabilities,
    class_sets,
    class_std,
    fit_temperature,
    log_losses,
    mean_area_under_curve,
    score_classes,
    temper,
)

ONE_HOT = np.eye(3)


def draw(count, temperature, seed=0):
    """Draw labels from probabilities, and say the probabilities sharpened by a temperature."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 1.5, (count, 3))
    true = temper(np.exp(logits), 1.0)
    labels = ONE_HOT[[rng.choice(3, p=row) for row in true]]
    return temper(true, 1.0 / temperature), labels


def test_the_log_loss_by_hand():
    probabilities = np.array([[0.5, 0.25, 0.25], [0.1, 0.9, 0.0]])
    truth = ONE_HOT[[0, 2]]
    expected = [math.log(2.0), -math.log(1e-12)]
    np.testing.assert_allclose(log_losses(probabilities, truth), expected)


def test_a_temperature_of_two_takes_roots():
    np.testing.assert_allclose(temper(np.array([[0.8, 0.2]]), 2.0), [[2 / 3, 1 / 3]])


def test_the_temperature_undoes_overconfidence():
    probabilities, truth = draw(4000, 3.0)
    fitted = fit_temperature(probabilities, truth, np.ones(len(probabilities)))
    assert fitted == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("groups", [1, 14, 138])
def test_nothing_is_surer_than_so_many_groups_can_say(groups):
    """The rule of succession: after n of n, the next has it with (n + 1) / (n + 2)."""
    truth = ONE_HOT[np.arange(groups) % 3]
    sure = np.abs(truth - 1e-9)
    known = calibrate_classes(sure, truth, group=np.arange(groups), largest=np.ones(groups))
    cap = (groups + 1) / (groups + 2)
    assert temper(sure, known.temperature).max(axis=1).mean() <= cap + 1e-6 or groups == 1
    new = np.array([[1.0, 0.0, 0.0], [0.0, 1 - 1e-40, 1e-40], [0.4, 0.35, 0.25], [np.nan] * 3])
    probability = calibrate_probabilities(new, known)
    np.testing.assert_allclose(probability[:2].max(axis=1), cap)
    np.testing.assert_allclose(probability[:3].sum(axis=1), 1.0)
    assert probability[:3].argmax(axis=1).tolist() == [0, 1, 0]
    assert (probability[:3] > 0).all()
    assert np.isnan(probability[3]).all()
    low, high = class_sets(probability[:3], known, 0.5)
    assert (high.sum(axis=1) >= 1).all()
    assert log_losses(probability[:1], ONE_HOT[[0]])[0] >= math.log(1 / cap) - 1e-12


def test_the_others_share_in_proportion_what_the_cap_takes_away():
    """With 8 groups the cap is 0.9: from 0.95, 0.04, 0.01 to 0.9, 0.08, 0.02."""
    capped = cap_probabilities(np.array([[0.95, 0.04, 0.01], [0.9, 0.06, 0.04]]), 8)
    np.testing.assert_allclose(capped, [[0.9, 0.08, 0.02], [0.9, 0.06, 0.04]])


def test_copies_in_a_group_make_nothing_surer():
    truth = ONE_HOT[np.repeat([0, 1, 2], 50)]
    sure = np.abs(truth - 1e-9)
    known = calibrate_classes(sure, truth, group=np.repeat([0, 1, 2], 50), largest=np.ones(150))
    assert calibrate_probabilities(sure, known).max() == pytest.approx(4 / 5)


def test_sets_hold_the_class_of_new_groups_as_often_as_promised():
    probabilities, truth = draw(3000, 2.0, seed=1)
    known = calibrate_classes(
        probabilities[:1000], truth[:1000], group=np.arange(1000), largest=np.ones(1000)
    )
    new = temper(probabilities[1000:], known.temperature)
    for level in (0.5, 0.8, 0.9, 0.95):
        low, high = class_sets(new, known, level)
        held = (high * truth[1000:]).sum(axis=1).mean()
        assert level - 0.03 < held <= 1.0
        assert high.sum(axis=1).min() >= 1
        assert ((low <= high) & np.isin(low, (0.0, 1.0))).all()
        assert (low.sum(axis=1) == (high.sum(axis=1) == 1)).all()


def test_few_groups_give_all_classes():
    probabilities, truth = draw(4, 1.0)
    known = calibrate_classes(probabilities, truth, group=np.arange(4), largest=np.ones(4))
    assert not known.guaranteed(0.9)
    assert class_sets(probabilities, known, 0.9)[1].all()


def test_the_area_counts_pairs():
    """Of the six pairs of a positive and a negative one, four are in order and one is a tie."""
    score = np.array([0.9, 0.6, 0.4, 0.6, 0.5])
    positive = np.array([True, True, False, False, False])
    pairs = [(p > n) + 0.5 * (p == n) for p in score[positive] for n in score[~positive]]
    assert area_under_curve(score, positive) == pytest.approx(np.mean(pairs))
    assert math.isnan(area_under_curve(score, np.ones(5, dtype=bool)))
    binary = np.stack((1 - score, score), axis=1)
    truth = np.stack((~positive, positive), axis=1).astype(float)
    assert mean_area_under_curve(binary, truth) == pytest.approx(np.mean(pairs))


def test_scores_by_hand():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1]])
    truth = ONE_HOT[[0, 1]]
    figures = score_classes(probabilities, truth, np.array([0.5, 0.25, 0.25]))
    assert figures["accuracy"] == 0.5
    assert figures["mae"] == pytest.approx(-(math.log(0.7) + math.log(0.3)) / 2)
    assert figures["mean_baseline_mae"] == pytest.approx((math.log(2) + math.log(4)) / 2)
    brier = (0.09 + 0.04 + 0.01 + 0.36 + 0.49 + 0.01) / 2
    assert figures["rmse"] == pytest.approx(math.sqrt(brier))
    assert figures["ece"] == pytest.approx(abs(0.65 - 0.5))  # one bin
    np.testing.assert_allclose(class_std(probabilities)[:, 0], [math.sqrt(0.21), math.sqrt(0.24)])


def test_linear_models_become_probabilities():
    np.testing.assert_allclose(
        as_probabilities(np.array([[1.2, -0.2]])), [[1.2 / 1.21, 0.01 / 1.21]]
    )
