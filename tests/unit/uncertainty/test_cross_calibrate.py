"""From the nets that did not see a structure to all nets: made errors whose size is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import polygamma

from hydragnn_hpo.uncertainty.calibrate import calibrate, compute_moments
from hydragnn_hpo.uncertainty.cross_calibrate import (
    MOST_CHANCE,
    MOST_DOF,
    CrossDesign,
    NetVariances,
    OutOfFold,
    UnseenRows,
    _invert_trigamma,
    calibrate_cross,
    cap_unusual,
    fit_spread_prior,
    measure_variances,
)
from hydragnn_hpo.uncertainty.error_factors import RowFeatures, mark_elements

FREEDOM = 6


def draw(rng, count, *, configurations, folds, share, noise, data=0.0):
    """Predictions, [C, K, n, 1], truth, [n, 1], and the variance of each net at each structure.

    ``share`` of it is due to the seed of a net, the rest to its configuration; ``data`` times as
    much more is due to the structures of its fold, alike for the nets of a fold.
    """
    variance = FREEDOM / rng.chisquare(FREEDOM, count)
    each = np.sqrt(variance)[:, None]
    own = rng.normal(size=(configurations, 1, count, 1)) * math.sqrt(1 - share)
    seed = rng.normal(size=(configurations, folds, count, 1)) * math.sqrt(share)
    fold = rng.normal(size=(1, folds, count, 1)) * math.sqrt(data)
    common = 0.3 * rng.normal(size=(count, 1))
    return each * (own + seed + fold + common), noise * rng.normal(size=(count, 1)), variance


def draw_heavy(rng, count, **settings):
    """Predictions and truth, one in twenty of which is thirty times as far from them."""
    predictions, truth, _ = draw(rng, count, **settings)
    return predictions, truth * np.where(rng.random((count, 1)) < 0.05, 30.0, 1.0)


def all_nets(weights, folds):
    """Shares of the nets, [C, K], where all are kept."""
    return np.outer(weights, np.full(folds, 1.0 / folds))


def design_of(predictions, weights, shares=None):
    """The design whose variances are measured on these predictions."""
    shares = all_nets(weights, predictions.shape[1]) if shares is None else shares
    parts = measure_variances(predictions, shares)
    nets = predictions.reshape(-1, *predictions.shape[2:])
    return CrossDesign(shares, parts, compute_moments(nets, shares.ravel()).spread)


def out_of_fold(predictions, truth, weights):
    """One net of each configuration, as for structures that only these have not seen."""
    moments = compute_moments(predictions[:, 0], weights)
    left = 1.0 - np.square(weights).sum()
    rows = np.arange(len(truth))
    measured = np.square(moments.spread) / left if left > 0 else np.zeros_like(truth)
    none = np.zeros((len(rows), 1))
    kinds = np.full(len(rows), "all")
    residual, singles = truth - moments.mean, truth - predictions[:, 0]
    known = OutOfFold(residual, measured, none, rows, kinds, singles=singles)
    return known, moments


@pytest.mark.parametrize(
    ("configurations", "folds", "share", "data", "noise"),
    [
        (2, 5, 0.5, 0.0, 0.5),
        (3, 5, 0.7, 0.0, 0.1),
        (2, 5, 0.0, 0.0, 0.5),
        (2, 2, 0.7, 0.5, 0.5),
        (4, 10, 0.7, 0.0, 0.1),
        (2, 5, 0.7, 2.0, 0.5),
        (2, 5, 0.5, 1.0, 2.0),
        (1, 5, 1.0, 1.0, 1.0),
    ],
)
def test_intervals_of_all_nets_cover_what_they_claim(configurations, folds, share, data, noise):
    rng = np.random.default_rng(0)
    settings = {"configurations": configurations, "folds": folds, "share": share, "noise": noise}
    settings["data"] = data
    weights = np.full(configurations, 1.0 / configurations)
    predictions, truth, _ = draw(rng, 4000, **settings)
    known, few = out_of_fold(predictions, truth, weights)
    design = design_of(draw(rng, 1000, **settings)[0], weights)
    fitted = calibrate_cross(known, design, 1.0)
    naive = calibrate(
        known.residual, few.spread, group=known.group, largest=few.spread[:, 0], scale=1.0
    )
    predictions, truth, _ = draw(rng, 40_000, **settings)
    shares = np.repeat(weights / folds, folds)
    moments = compute_moments(predictions.reshape(-1, *truth.shape), shares)
    sigma = fitted.sigma(moments.spread)
    errors = np.abs(truth - moments.mean)
    covered = float((errors <= fitted.half_width(sigma)).mean())
    # One net per fold says nothing of structures: the typical gain is a careful one.
    assert covered == pytest.approx(0.9, abs=0.015 if configurations > 1 else 0.035)
    if configurations > 1:
        assert float(np.square(errors / sigma).mean()) == pytest.approx(1.0, abs=0.15)
    without = naive.half_width(naive.sigma(moments.spread))
    if share:
        assert float((errors <= without).mean()) > covered + 0.02, "few nets err more than all"
        assert fitted.half_width(sigma).mean() < without.mean()


@pytest.mark.parametrize("signal", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("data", [0.0, 0.5])
def test_factors_do_not_count_what_the_spread_of_all_nets_tells(signal, data):
    """Everything is three times as large in half of the rows, which contain lithium.

    Two nets tell little of it, so the factors have to; ten nets tell most of it. Without a signal
    the predictions are their errors.
    """
    rng = np.random.default_rng(0)
    weights = np.full(2, 0.5)

    def draw_rows(count):
        settings = {"configurations": 2, "folds": 5, "share": 0.7, "noise": 0.5, "data": data}
        predictions, truth, _ = draw(rng, count, **settings)
        lithium = rng.random(count) < 0.5
        common = signal * rng.normal(size=(count, 1))
        scale = np.where(lithium, 3.0, 1.0)[:, None]
        elements = mark_elements(np.where(lithium, 3, 11), np.arange(count), count)
        return scale * (predictions + common), scale * (truth + common), lithium, elements

    predictions, truth, _, elements = draw_rows(4000)
    known, few = out_of_fold(predictions, truth, weights)
    known = replace(known, features=RowFeatures(elements, few.mean[:, 0]))
    predictions, _, _, elements = draw_rows(2000)
    design = design_of(predictions, weights)
    moments = compute_moments(predictions.reshape(-1, 2000, 1), np.full(10, 0.1))
    unseen = UnseenRows(
        variance=design.unbiased_variance(predictions),
        spread=moments.spread,
        noise=0.0,
        group=np.arange(2000),
        features=RowFeatures(elements, moments.mean[:, 0]),
        values=np.tensordot(weights, predictions, 1)[..., 0],
    )
    assert (unseen.chance > MOST_CHANCE) == (signal == 0.0)
    predictions, truth, lithium, elements = draw_rows(40_000)
    moments = compute_moments(predictions.reshape(-1, 40_000, 1), np.full(10, 0.1))
    errors = np.abs(truth - moments.mean)
    held = {}
    for name, each in {"less": replace(design, unseen=unseen), "twice": design}.items():
        fitted = calibrate_cross(known, each, 1.0)
        sigma = fitted.sigma(moments.spread, factor=fitted.factor(elements, moments.mean))
        inside = (errors <= fitted.half_width(sigma))[:, 0]
        held[name] = [inside[lithium].mean(), inside[~lithium].mean()]
    assert held["less"] == pytest.approx([0.9, 0.9], abs=0.045 if signal == 1.0 else 0.025)
    assert held["twice"][0] > held["twice"][1] + 0.08


def test_the_parts_of_the_variance_are_what_was_drawn():
    rng = np.random.default_rng(1)
    weights = np.array([0.7, 0.3])
    share = 0.6
    data = 0.5
    folds = 5
    predictions, _, _ = draw(
        rng, 100_000, configurations=2, folds=folds, share=share, noise=0.0, data=data
    )
    parts = measure_variances(predictions, all_nets(weights, folds))
    squares = float(np.square(weights).sum())
    others = 1 - 1 / folds
    expected = np.array(
        [
            (data + squares * share) * others,
            (1 - squares) * (1 - share + share / folds),
            (1 - squares) * share * others,
        ]
    )
    shares = np.array([parts.folds, parts.configurations, parts.rest])
    assert shares == pytest.approx(expected / expected.sum(), abs=0.015)
    assert shares.sum() == pytest.approx(1.0)


def test_the_mean_of_all_nets_errs_less_by_the_spread_of_the_folds():
    rng = np.random.default_rng(6)
    weights = np.array([0.7, 0.3])
    predictions, truth, _ = draw(
        rng, 500, configurations=2, folds=5, share=0.6, noise=1.0, data=1.0
    )
    of_folds = np.tensordot(weights, predictions, 1)
    better = np.square(truth - of_folds.mean(axis=0))
    less = np.square(truth - of_folds).mean(axis=0) - better
    assert less == pytest.approx(of_folds.var(axis=0), rel=1e-9)


def covered(rng, count, weights, *, far=1.0, **settings):
    """Share of new values that 90 % intervals hold, made of ``count`` structures.

    V is measured on a fifth as many others; on one of them nets are ``far`` times as far apart.
    """
    predictions, truth, _ = draw(rng, count, **settings)
    known, _ = out_of_fold(predictions, truth, weights)
    others = draw(rng, count // 5, **settings)[0]
    others[..., 0, :] *= far
    fitted = calibrate_cross(known, design_of(others, weights), 1.0)
    predictions, truth, _ = draw(rng, 5_000, **settings)
    shares = all_nets(weights, settings["folds"]).ravel()
    moments = compute_moments(predictions.reshape(-1, *truth.shape), shares)
    half = fitted.half_width(fitted.sigma(moments.spread))
    return float((np.abs(truth - moments.mean) <= half).mean())


@pytest.mark.parametrize("far", [1.0, 300.0])
def test_one_structure_far_from_all_others_changes_no_interval(far):
    """Nets differ by hundreds on it: with plain means over structures intervals held a tenth."""
    settings = {"configurations": 2, "folds": 5, "share": 0.7, "noise": 0.5, "data": 1.0}
    rngs = map(np.random.default_rng, range(20))
    shares = [covered(rng, 1000, np.full(2, 0.5), far=far, **settings) for rng in rngs]
    assert np.mean(shares) == pytest.approx(0.9, abs=0.02)
    assert np.min(shares) > 0.7


@pytest.mark.parametrize("count", [400, 4000])
def test_where_few_errors_rule_the_mean_square_intervals_hold_too_much_not_too_little(count):
    """One structure in twenty errs thirty times as much: V is little of the mean sigma^2.

    By the mean square alone they held 95 %, and the quantiles tell of a part of the rest. Counted
    as a larger share where quantiles are small, as it was once, V took half of the width where
    errors of real data have still heavier tails, and intervals of 90 % held 68 to 80.
    """
    settings = {"configurations": 2, "folds": 5, "share": 0.5, "noise": 0.5, "data": 1.0}
    weights = np.full(2, 0.5)
    shares = []
    for seed in range(4000 // count):
        rng = np.random.default_rng(seed)
        predictions, truth = draw_heavy(rng, count, **settings)
        known, _ = out_of_fold(predictions, truth, weights)
        others, _ = draw_heavy(rng, 1000, **settings)
        fitted = calibrate_cross(known, design_of(others, weights), 1.0)
        predictions, truth = draw_heavy(rng, 20_000, **settings)
        moments = compute_moments(predictions.reshape(-1, *truth.shape), np.full(10, 0.1))
        half = fitted.half_width(fitted.sigma(moments.spread))
        shares.append(float((np.abs(truth - moments.mean) <= half).mean()))
    assert 0.91 <= np.mean(shares) < 0.94


KEPT = {
    "four of ten": [[1, 0, 1, 0, 0], [0, 1, 0, 1, 0]],
    "one of each": [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]],
    "those of a fold": [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0]],
    "seven of ten": [[1, 1, 1, 0, 1], [0, 1, 0, 1, 1]],
}


@pytest.mark.parametrize("kept", KEPT)
def test_intervals_of_some_of_the_nets_cover_what_they_claim(kept):
    """The nets of a fold alone gain nothing; without the measured gain they held 82 %."""
    rng = np.random.default_rng(9)
    weights = np.array([0.6, 0.4])
    shares = np.array(KEPT[kept], dtype=float)
    shares *= (weights / shares.sum(axis=1))[:, None]
    settings = {"configurations": 2, "folds": 5, "share": 0.5, "noise": 0.5, "data": 1.0}
    predictions, truth, _ = draw(rng, 4000, **settings)
    known, _ = out_of_fold(predictions, truth, weights)
    design = design_of(draw(rng, 1000, **settings)[0], weights, shares)
    assert (design.weights, design.folds) == (pytest.approx(weights), 5)
    fitted = calibrate_cross(known, design, 1.0)
    predictions, truth, _ = draw(rng, 40_000, **settings)
    moments = compute_moments(predictions.reshape(-1, *truth.shape), shares.ravel())
    sigma = fitted.sigma(moments.spread)
    errors = np.abs(truth - moments.mean)
    assert float((errors <= fitted.half_width(sigma)).mean()) == pytest.approx(0.9, abs=0.02)
    assert float(np.square(errors / sigma).mean()) == pytest.approx(1.0, abs=0.2)


def test_the_largest_variances_count_as_the_smallest_of_them():
    values = np.r_[np.arange(1.0, 100.0), 1e9]  # the 95 % quantile of 100 values lies at 95.05
    capped = cap_unusual(values)
    assert capped[:95] == pytest.approx(values[:95])
    assert capped[95:] == pytest.approx(95.05)


def test_what_the_mean_of_some_nets_gains():
    """Of a single fold nothing; and the spread of two nets of unlike folds by hand."""
    predictions = np.random.default_rng(10).normal(size=(2, 3, 4000, 1))
    own_fold = measure_variances(predictions, np.array([[0.5, 0.0, 0.0], [0.5, 0.0, 0.0]]))
    assert own_fold.gain == pytest.approx(0.0, abs=0.05)
    pair = measure_variances(predictions, np.array([[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]]))
    # All six differ by chance alone: the spread of two is 1/2, of six 5/6 of a net's variance.
    assert pair.spread == pytest.approx(0.5 / (5 / 6), abs=0.03)
    whole = measure_variances(predictions, all_nets(np.array([0.5, 0.5]), 3))
    assert (whole.spread, whole.gain) == pytest.approx((1.0, 1.0))


def test_one_configuration_has_a_constant_sigma():
    rng = np.random.default_rng(2)
    predictions, truth, _ = draw(rng, 500, configurations=1, folds=5, share=1.0, noise=1.0)
    known, _ = out_of_fold(predictions, truth, np.ones(1))
    fitted = calibrate_cross(known, design_of(predictions, np.ones(1)), 1.0)
    assert fitted.a == 0.0
    less = measure_variances(predictions, all_nets(np.ones(1), 5)).typical
    assert fitted.b == pytest.approx(float(np.square(known.residual).mean()) - less, rel=1e-6)
    assert less == pytest.approx(0.8 * 1.5, rel=0.3), "(1 - 1/K) times the mean variance, trimmed"


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


@pytest.mark.parametrize(("share", "data"), [(0.7, 0.0), (0.5, 0.5)])
def test_intervals_made_of_few_structures_hold_nearly_what_they_claim(share, data):
    """With 150 the relation of two nets' spread to their errors is lost in noise.

    With V from the spread of each structure's nets, they held 86 and 83 %. Quantiles of so few
    errors take off 1 % more than the mean square would.
    """
    settings = {"configurations": 2, "folds": 5, "share": share, "noise": 0.5, "data": data}
    rngs = map(np.random.default_rng, range(20))
    shares = [covered(rng, 150, np.full(2, 0.5), **settings) for rng in rngs]
    assert np.mean(shares) == pytest.approx(0.9, abs=0.045)


@pytest.mark.parametrize(
    ("weights", "dof"), [((0.5, 0.5), 1.0), ((0.8, 0.2), 1.0), ((0.25,) * 4, 3.0), ((1.0,), 0.0)]
)
def test_any_two_nets_have_one_degree_of_freedom(weights, dof):
    shares = all_nets(np.array(weights), 5)
    design = CrossDesign(shares, NetVariances(0.4, 0.3, 0.3, 1.0), np.ones(1))
    assert design.few_dof(1) == pytest.approx(dof)
    assert design.few_dof(3) == pytest.approx(3 * dof)


def test_the_inverse_of_the_trigamma_function():
    for value in (1e-4, 0.3, 1.0, math.pi**2 / 6, 50.0):
        assert float(polygamma(1, _invert_trigamma(value))) == pytest.approx(value, rel=1e-8)
