"""Regressions against slow ones, on what they can know, and on what they cannot."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from hydragnn_hpo.ensemble.regressions import (
    PENALTIES,
    Rows,
    apply_weights,
    fit_ridge,
    fit_softmax,
)

NONE = Rows(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((0, 0)))


def numbers(count: int, seed: int, values: int = 3) -> Rows:
    """Rows of linear values of five features, with a constant and some noise."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, 5)) * [1.0, 2.0, 0.1, 1.0, 3.0]
    labels = features @ np.arange(5 * values).reshape(5, values) + np.arange(values)
    return Rows(features, labels + 0.5 * random.normal(size=labels.shape), 0.0 * labels)


@pytest.mark.parametrize("count", [40, 4], ids=["more rows than features", "fewer"])
@pytest.mark.parametrize("constant", [True, False])
def test_all_values_have_the_penalty_that_predicts_the_other_rows_best(
    count: int, constant: bool
) -> None:
    train = numbers(count, 0)
    val = numbers(30, 1)
    mean = constant * train.features.mean(axis=0)
    middle = constant * train.values.mean(axis=0)
    centred = train.features - mean
    scale = np.square(centred).sum() / 5
    tried = []
    for penalty in PENALTIES:  # one value after the other, as least squares with rows of penalties
        damped = np.concatenate([centred, np.sqrt(penalty * scale) * np.eye(5)])
        labels = np.concatenate([train.values - middle, np.zeros((5, 3))])
        weights = np.stack([np.linalg.lstsq(damped, one)[0] for one in labels.T], axis=1)
        errors = val.values - middle - (val.features - mean) @ weights
        tried.append((np.abs(errors).sum(), weights))
    best = min(tried, key=lambda one: one[0])[1]
    got = fit_ridge(train, val, constant=constant).weights
    np.testing.assert_allclose(got[:-1], best, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(got[-1], middle - mean @ best, rtol=1e-6, atol=1e-8)


def turning(count: int, seed: int) -> tuple[Rows, np.ndarray]:
    """Vectors that are sums of three others, without noise."""
    features = np.random.default_rng(seed).normal(size=(count, 3, 3))
    weights = np.array([[2.0], [-1.0], [0.5]])
    labels = (features @ weights)[..., 0]
    return Rows(features, labels, 0.0 * labels), weights


def test_components_share_weights_and_have_no_constant() -> None:
    train, weights = turning(20, 0)
    got = fit_ridge(train, turning(9, 1)[0]).weights
    np.testing.assert_allclose(got, weights, rtol=1e-5)
    shifted = Rows(train.features, train.values, train.values - 1.0)
    assert got.shape == fit_ridge(shifted, NONE).weights.shape == (3, 1)


def test_axes_do_not_choose_the_penalty() -> None:
    train, val = (turning(12, seed)[0] for seed in (0, 1))
    noisy = [
        Rows(r.features, r.values + np.random.default_rng(k).normal(size=r.values.shape), r.start)
        for k, r in enumerate((train, val))
    ]
    turn, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))
    turned = [
        Rows(np.einsum("xy,ryd->rxd", turn, r.features), r.values @ turn.T, r.start) for r in noisy
    ]
    np.testing.assert_allclose(fit_ridge(*turned).weights, fit_ridge(*noisy).weights, rtol=1e-8)


def classes(count: int, seed: int) -> tuple[Rows, np.ndarray]:
    """Three classes drawn from probabilities that a softmax of two features and a start gives."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, 2))
    start = np.log(np.array([[0.2, 0.3, 0.5]])) + 0.0 * features[:, :1]
    weights = np.array([[2.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    probability = softmax(start + features @ weights, axis=1)
    drawn = [random.choice(3, p=one) for one in probability]
    return Rows(features, np.eye(3)[drawn], start), probability


def test_classes_have_the_smallest_penalized_log_loss() -> None:
    (train, _) = classes(60, 0)
    penalty = PENALTIES[-1]
    centred = train.features - train.features.mean(axis=0)
    scale = np.square(centred).sum() / 2

    def cost(flat: np.ndarray) -> float:
        weights = flat.reshape(3, 3)
        logs = log_softmax(train.start + centred @ weights[:-1] + weights[-1], axis=1)
        damping = penalty * scale * np.square(weights[:-1]).sum() + np.square(weights[-1]).sum()
        return float(0.5 * damping - (train.values * logs).sum())

    slow = minimize(cost, np.zeros(9), method="BFGS", options={"gtol": 1e-7}).x.reshape(3, 3)
    got = fit_softmax(train, Rows(*(part[:0] for part in train))).weights
    np.testing.assert_allclose(got[:-1], slow[:-1], atol=1e-3)
    assert np.abs(slow).max() > 0.02


def test_true_probabilities_are_learned() -> None:
    (train, _), (val, _), (test, probability) = (classes(1500, seed) for seed in range(3))
    got = softmax(
        test.start + apply_weights(test.features, fit_softmax(train, val).weights), axis=1
    )
    assert np.abs(got - probability).mean() < 0.02  # 1 / sqrt(1500) = 0.026 per parameter


def test_noise_leaves_the_start_and_a_class_without_rows_a_probability() -> None:
    random = np.random.default_rng(0)
    rows = [classes(300, seed)[0] for seed in range(2)]
    noise = [Rows(random.normal(size=(300, 2)), r.values, r.start) for r in rows]
    added = apply_weights(noise[0].features, fit_softmax(*noise).weights)
    assert np.abs(added - added.mean(axis=0)).max() < 0.2
    two = [r._replace(values=np.eye(3)[random.integers(2, size=300)]) for r in rows]
    logits = two[0].start + apply_weights(two[0].features, fit_softmax(*two).weights)
    rare = softmax(logits, axis=1)[:, 2]  # the third class never occurs
    assert 1e-5 < rare.min() < rare.max() < 0.02


@pytest.mark.parametrize("fit", [fit_ridge, fit_softmax])
def test_the_other_rows_are_fitted_too_where_they_chose_the_penalty(fit) -> None:
    train, val = (classes(80, seed)[0] for seed in range(2))
    once = fit(train, val)
    again = fit(train, val, refit=True)
    assert np.abs(once.weights - again.weights).max() > 1e-3
    assert once.error == again.error > 0.0
    few = Rows(*(part[:1] for part in train))
    assert not fit(few, val).weights.any()
