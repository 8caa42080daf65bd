"""From the nets that did not see a structure to all nets: made errors whose size is known."""

import math

import numpy as np
import pytest
from scipy.special import polygamma

from hydragnn_hpo.ensemble.calibrate import calibrate, compute_moments
from hydragnn_hpo.ensemble.cross_calibrate import (
    MOST_DOF,
    CrossDesign,
    OutOfFold,
    _invert_trigamma,
    calibrate_cross,
    estimate_seed_share,
    fit_spread_prior,
)

FREEDOM = 6


def draw(rng, count, *, configurations, folds, share, noise):
    """Predictions, [C, K, n, 1], truth, [n, 1], and the variance of each net at each structure."""
    variance = FREEDOM / rng.chisquare(FREEDOM, count)
    each = np.sqrt(variance)[:, None]
    own = rng.normal(size=(configurations, 1, count, 1)) * math.sqrt(1 - share)
    seed = rng.normal(size=(configurations, folds, count, 1)) * math.sqrt(share)
    common = 0.3 * rng.normal(size=(count, 1))
    return each * (own + seed + common), noise * rng.normal(size=(count, 1)), variance


def out_of_fold(predictions, truth, weights):
    """One net of each configuration, as for structures that only these have not seen."""
    moments = compute_moments(predictions[:, 0], weights)
    left = 1.0 - np.square(weights).sum()
    rows = np.arange(len(truth))
    measured = np.square(moments.spread) / left if left > 0 else np.zeros_like(truth)
    known = OutOfFold(truth - moments.mean, measured, 0.0, rows, rows, np.full(len(rows), "all"))
    return known, moments


@pytest.mark.parametrize(
    ("configurations", "folds", "share", "noise"),
    [(2, 5, 0.5, 0.5), (3, 5, 0.7, 0.1), (2, 5, 0.0, 0.5), (2, 2, 0.7, 0.5), (4, 10, 0.7, 0.1)],
)
def test_intervals_of_all_nets_cover_what_they_claim(configurations, folds, share, noise):
    rng = np.random.default_rng(0)
    settings = {"configurations": configurations, "folds": folds, "share": share, "noise": noise}
    weights = np.full(configurations, 1.0 / configurations)
    predictions, truth, _ = draw(rng, 4000, **settings)
    known, few = out_of_fold(predictions, truth, weights)
    fitted = calibrate_cross(known, CrossDesign(weights, folds, share), 4000, 1.0)
    naive = calibrate(
        known.residual, few.spread, group=known.group, largest=few.spread[:, 0], scale=1.0
    )
    predictions, truth, _ = draw(rng, 40_000, **settings)
    shares = np.repeat(weights / folds, folds)
    moments = compute_moments(predictions.reshape(-1, *truth.shape), shares)
    sigma, errors = fitted.sigma(moments.spread), np.abs(truth - moments.mean)
    covered = float((errors <= fitted.half_width(sigma)).mean())
    assert covered == pytest.approx(0.9, abs=0.015)
    assert float(np.square(errors / sigma).mean()) == pytest.approx(1.0, abs=0.15)
    without = naive.half_width(naive.sigma(moments.spread))
    if share:
        assert float((errors <= without).mean()) > covered + 0.02, "few nets err more than all"
        assert fitted.half_width(sigma).mean() < without.mean()


def test_the_spread_of_all_nets_is_what_the_design_says():
    rng = np.random.default_rng(1)
    weights = np.array([0.7, 0.3])
    design = CrossDesign(weights, 5, 0.6)
    predictions, truth, variance = draw(
        rng, 200_000, configurations=2, folds=5, share=0.6, noise=0.0
    )
    moments = compute_moments(predictions.reshape(-1, *truth.shape), np.repeat(weights / 5, 5))
    known, few = out_of_fold(predictions, truth, weights)
    assert float(moments.variance.mean() / variance.mean()) == pytest.approx(
        design.spread, rel=0.02
    )
    assert float(known.variance.mean() / variance.mean()) == pytest.approx(1.0, rel=0.02)
    less = float((np.square(few.mean) - np.square(moments.mean)).mean() / variance.mean())
    assert less == pytest.approx(design.gain, rel=0.05)


def test_one_configuration_has_a_constant_sigma():
    rng = np.random.default_rng(2)
    predictions, truth, _ = draw(rng, 500, configurations=1, folds=5, share=1.0, noise=1.0)
    known, _ = out_of_fold(predictions, truth, np.ones(1))
    fitted = calibrate_cross(known, CrossDesign(np.ones(1), 5, 1.0), 500, 1.0)
    assert fitted.a == 0.0
    assert fitted.b == pytest.approx(float(np.square(known.residual).mean()), rel=1e-6)


@pytest.mark.parametrize("dof", [1.0, 9.0])
def test_the_prior_of_variances_is_found(dof):
    rng = np.random.default_rng(3)
    variance = 0.25 * FREEDOM / rng.chisquare(FREEDOM, 100_000)
    measured = variance * rng.chisquare(dof, 100_000) / dof
    prior = fit_spread_prior(measured, dof, np.ones(100_000))
    assert prior.dof == pytest.approx(FREEDOM, rel=0.1)
    assert prior.variance == pytest.approx(0.25, rel=0.03)
    factor, constant = prior.share(dof)
    shrunk = factor * measured + constant
    bins = np.array_split(np.argsort(measured), 4)
    for rows in bins:  # what is expected of a structure is what structures like it have
        assert shrunk[rows].mean() == pytest.approx(variance[rows].mean(), rel=0.06)


def test_a_prior_never_holds_that_all_structures_are_alike():
    rng = np.random.default_rng(4)
    measured = rng.chisquare(3, 50_000) / 3 * 0.5
    assert fit_spread_prior(measured, 3.0, np.ones(50_000)).dof == pytest.approx(MOST_DOF)
    none = fit_spread_prior(np.zeros(5), 3.0, np.ones(5))
    assert (none.variance, none.share(3.0)) == (0.0, (0.0, 0.0))


@pytest.mark.parametrize("seed", range(5))
def test_few_structures_still_give_a_sigma_that_follows_the_spread(seed):
    """With 150 structures the relation of two nets' spread to their errors is lost in noise."""
    rng = np.random.default_rng(seed)
    settings = {"configurations": 2, "folds": 5, "share": 0.7, "noise": 0.5}
    weights = np.full(2, 0.5)
    predictions, truth, _ = draw(rng, 150, **settings)
    known, _ = out_of_fold(predictions, truth, weights)
    fitted = calibrate_cross(known, CrossDesign(weights, 5, 0.7), 150, 1.0)
    assert fitted.a > 0.0
    predictions, truth, _ = draw(rng, 20_000, **settings)
    moments = compute_moments(predictions.reshape(-1, *truth.shape), np.full(10, 0.1))
    inside = np.abs(truth - moments.mean) <= fitted.half_width(fitted.sigma(moments.spread))
    assert float(inside.mean()) == pytest.approx(0.9, abs=0.08)


@pytest.mark.parametrize(
    ("weights", "dof"), [((0.5, 0.5), 1.0), ((0.8, 0.2), 1.0), ((0.25,) * 4, 3.0), ((1.0,), 0.0)]
)
def test_any_two_nets_have_one_degree_of_freedom(weights, dof):
    design = CrossDesign(np.array(weights), 5, 0.5)
    assert design.few_dof(1) == pytest.approx(dof)
    assert design.few_dof(3) == pytest.approx(3 * dof)


def test_the_inverse_of_the_trigamma_function():
    for value in (1e-4, 0.3, 1.0, math.pi**2 / 6, 50.0):
        assert float(polygamma(1, _invert_trigamma(value))) == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_what_a_seed_does_is_told_from_what_a_configuration_does(share):
    rng = np.random.default_rng(5)
    predictions, _, _ = draw(rng, 50_000, configurations=3, folds=5, share=share, noise=0.0)
    seen = np.arange(5)[:, None] != rng.integers(0, 5, 50_000)[None, :]
    weights = np.array([0.5, 0.3, 0.2])
    assert estimate_seed_share(predictions, weights, seen) == pytest.approx(share, abs=0.03)
    assert estimate_seed_share(predictions[:1], np.ones(1), seen) == 1.0
    two = seen[:2]
    two = np.stack([two[0], ~two[0]])
    assert estimate_seed_share(predictions[:, :2], weights, two) == 0.5
