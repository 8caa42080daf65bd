"""Scores against integrals, hand counts, and a toolbox that others wrote."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from hydragnn_hpo.uncertainty import uncertainty_scores
from hydragnn_hpo.uncertainty.calibrate import GRID, Calibration, key
from hydragnn_hpo.uncertainty.uncertainty_scores import (
    HeadOnLabels,
    compute_curves,
    compute_distance_figures,
    compute_figures,
    compute_strata_figures,
    norm_errors,
    spearman,
    spearman_error,
)


def sample(rows: int = 3000, factor: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Errors of the size that sigma says, times a factor."""
    rng = np.random.default_rng(seed)
    sigma = rng.gamma(2.0, 0.3, rows) + 0.05
    return factor * sigma * rng.normal(size=rows), sigma


@pytest.mark.parametrize(("error", "sigma"), [(0.0, 1.0), (0.7, 0.2), (-1.3, 2.0)])
def test_crps_is_its_integral(error, sigma):
    """CRPS is the integral of (F(x) - [x >= truth])^2; the mean is 0 here, the truth ``error``."""
    ends = (min(0.0, error) - 9 * sigma, max(0.0, error) + 9 * sigma)
    below, _ = quad(lambda x: norm.cdf(x, scale=sigma) ** 2, ends[0], error)
    above, _ = quad(lambda x: norm.sf(x, scale=sigma) ** 2, error, ends[1])
    actual = uncertainty_scores.crps(np.array([error]), np.array([sigma]))
    assert actual == pytest.approx(below + above, rel=1e-7)
    assert uncertainty_scores.crps(np.array([0.5, -1.0]), np.zeros(2)) == 0.75, "sigma is 0"


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
def test_the_toolbox_agrees(factor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from uncertainty_toolbox import metrics as toolbox
    error, sigma = sample(2000, factor)
    mean = np.zeros(2000)
    assert uncertainty_scores.crps(error, sigma) == pytest.approx(
        toolbox.crps_gaussian(mean, sigma, error)
    )
    assert uncertainty_scores.nll(error, sigma) == pytest.approx(
        toolbox.nll_gaussian(mean, sigma, error)
    )
    spread = uncertainty_scores.gaussian_scores(error[:, None], sigma[:, None])["sharpness"]
    assert spread == pytest.approx(toolbox.sharpness(sigma))
    area = toolbox.miscalibration_area(mean, sigma, error, vectorized=True)
    # The toolbox draws its curve through 100 points, ours is exact.
    assert uncertainty_scores.miscalibration_area(error, sigma) == pytest.approx(area, abs=2e-3)


def test_miscalibration_area_by_hand():
    """Two values that every interval holds, and two that none does.

    The curve is 0.5 throughout: two triangles of height and width 0.5, 0.125 each.
    """
    error = np.array([0.0, 0.0, 1e9, 1e9])
    sigma = np.ones(4)
    assert uncertainty_scores.miscalibration_area(error, sigma) == pytest.approx(0.25)
    # One value at the median of |z|: 0 up to 0.5, then 1: again two triangles of 0.125.
    one = np.array([norm.ppf(0.75)])
    assert uncertainty_scores.miscalibration_area(one, np.ones(1)) == pytest.approx(0.25)
    with np.errstate(divide="ignore"):  # never inside
        assert uncertainty_scores.miscalibration_area(np.ones(5), np.zeros(5)) == pytest.approx(0.5)


def test_lines_cross_the_diagonal_by_hand():
    """Covered 0.3 at 0.25 and 0.7 at 0.75: gaps 0, 0.05, -0.05, 0.

    Two triangles of width 0.25 and height 0.05, and between them two of width 0.25.
    """
    area = uncertainty_scores.line_area(np.array([0.25, 0.75]), np.array([0.3, 0.7]))
    assert area == pytest.approx(4 * 0.5 * 0.25 * 0.05)


def test_gaussian_coverage_by_hand():
    """|z| of 0.5, 1, 2: the 50 % interval ends at 0.674, the 90 % one at 1.645."""
    error = np.array([0.5, -1.0, 2.0])
    levels = np.array([0.5, 0.9, 0.99])
    actual = uncertainty_scores.gaussian_coverage(error, np.ones(3), levels)
    assert actual == pytest.approx([1 / 3, 2 / 3, 1.0])
    end = np.array([norm.ppf(0.75)])  # belongs to the interval
    assert uncertainty_scores.gaussian_coverage(end, np.ones(1), np.array([0.5])) == [1.0]


def test_ence_by_hand():
    """Two bins of ten: sigma 1 with errors of 2, sigma 4 with errors of 3."""
    sigma = np.repeat([1.0, 4.0], 10)
    error = np.repeat([2.0, -3.0], 10)
    assert uncertainty_scores.ence(error, sigma) == pytest.approx((1.0 + 0.25) / 2)


def test_sparsification_by_hand():
    """Errors 1, 2, 3 with the smallest taken away first: means 2, 2.5, 3, relative to 2."""
    curve = uncertainty_scores.sparsification(np.array([1.0, -2.0, 3.0]), np.array([3.0, 2.0, 1.0]))
    assert curve == pytest.approx([1.0, 1.25, 1.5])


def test_ause_of_the_oracle_is_zero_and_of_a_constant_the_whole_area():
    error, _ = sample(500)
    assert uncertainty_scores.ause(error, np.abs(error)) == pytest.approx(0.0, abs=1e-12)
    oracle = uncertainty_scores.sparsification(error, np.abs(error))
    assert uncertainty_scores.ause(error, np.ones(500)) == pytest.approx((1.0 - oracle).mean())


def test_equal_sigmas_leave_in_any_order():
    error, sigma = sample(60)
    tied = np.round(sigma, 1)
    order = np.random.default_rng(3).permutation(60)
    assert uncertainty_scores.ause(error, tied) == pytest.approx(
        uncertainty_scores.ause(error[order], tied[order])
    )


def test_rank_correlation_of_a_constant_has_no_value():
    assert np.isnan(uncertainty_scores.spearman(np.array([1.0, 2.0]), np.ones(2)))
    assert uncertainty_scores.spearman(np.array([1.0, -2.0, 3.0]), np.array([0.1, 0.2, 0.3])) == 1.0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), unit=st.floats(1e-3, 1e3), rows=st.integers(1, 300))
def test_the_unit_changes_what_has_one(seed, unit, rows):
    error, sigma = sample(rows, 1.5, seed)
    one, other = (
        uncertainty_scores.gaussian_scores(f * error[:, None], f * sigma[:, None])
        for f in (1.0, unit)
    )
    for name in ("crps", "sharpness"):
        assert other[name] == pytest.approx(unit * one[name], rel=1e-6)
    for name in ("ence", "area", "ause"):
        assert other[name] == pytest.approx(one[name], rel=1e-6, abs=1e-9)
    assert other["nll"] == pytest.approx(one["nll"] + np.log(unit), rel=1e-6, abs=1e-6)
    assert 0.0 <= one["area"] <= 0.5
    assert one["ause"] >= -1e-12


KNOWN = Calibration(
    a=4.0, b=0.0 + 1e-12, quantiles={key(q): 10 * q for q in GRID}, spread99=1.0, rows=4, groups=4
)


def predicted(errors: list[float], spread: float = 0.5, width: int = 1) -> HeadOnLabels:
    rows = len(errors) // width
    truth = np.array(errors).reshape(rows, width)
    column = np.full((rows, 1), spread)
    stratum = np.full(rows, "all")
    factor = np.ones((rows, 1))
    return HeadOnLabels(truth, 0 * truth, column, 0 * column, stratum, factor)


def test_figures_by_hand():
    """Sigma is 1: half of the 90 % interval is 9, of the 50 % one 5; raw they are z / 2."""
    figures = compute_figures(predicted([1.0, -6.0, 8.0, 10.0]), KNOWN, 0.0)
    assert figures["rows"] == 4
    assert figures["mae"] == 6.25
    assert figures["rmse"] == pytest.approx(np.sqrt(201 / 4))
    assert (figures["coverage50"], figures["width50"]) == (0.25, pytest.approx(10.0))
    assert (figures["coverage90"], figures["width90"]) == (0.75, pytest.approx(18.0))
    assert figures["sharpness"] == pytest.approx(1.0)
    assert figures["raw_sharpness"] == pytest.approx(0.5)
    assert figures["raw_coverage90"] == 0.0
    assert figures["raw_coverage95"] == 0.0
    assert figures["raw_width90"] == pytest.approx(1.6448536)


def test_components_of_a_vector_are_values():
    figures = compute_figures(predicted([1.0, -6.0, 8.0, 10.0, 0.0, 0.0], width=3), KNOWN, 0.0)
    assert figures["rows"] == 2
    assert figures["coverage90"] == pytest.approx(5 / 6)


@pytest.mark.parametrize("shape", ["vector", "tensor"])
def test_the_norm_of_the_error_is_that_of_the_whole(shape):
    """Errors (3, 0, 4) and (2, 3, 6) have the norms 5 and 7, their components the mean 3.

    Of nine components, those of (2, 3, 6), (-2, -3, -6) and (1, 0, 0) have the norm
    sqrt(49 + 49 + 1), and a single -2 has 2.
    """
    if shape == "vector":
        errors = predicted([3.0, 0.0, -4.0, 2.0, -3.0, 6.0], width=3)
        norm, component = 6.0, 3.0
    else:
        first = [2.0, 3.0, 6.0, -2.0, -3.0, -6.0, 1.0, 0.0, 0.0]
        second = [0.0] * 8 + [-2.0]
        errors = predicted(first + second, width=9)
        norm = (np.sqrt(99) + 2) / 2
        component = 25 / 18
    assert norm_errors(errors, shape) == {"norm_error": pytest.approx(norm)}
    assert compute_figures(errors, KNOWN, 0.0)["mae"] == pytest.approx(component)
    assert norm_errors(errors, "spectrum") == {}


def test_a_predicted_variance_counts_in_both():
    result = replace(predicted([1.0, 2.0]), noise=np.full((2, 1), 0.75))
    assert result.raw.ravel() == pytest.approx([1.0, 1.0])
    assert result.sigma(replace(KNOWN, c=4.0)).ravel() == pytest.approx([2.0, 2.0])


def test_the_conformal_area_is_zero_where_the_curve_is_the_diagonal():
    """Errors at 0.5, 1, 1.5 ... 10 are reached at 5 %, 10 %, ...: one more value each."""
    errors = [0.5 * k for k in range(1, 21)]
    figures = compute_figures(predicted(errors), KNOWN, 0.0)
    assert figures["area_conformal"] == pytest.approx(0.0, abs=1e-9)
    assert figures["area"] > 0.3


def test_kinds_have_intervals_of_their_own():
    tables = {"large": {key(q): 100 * q for q in GRID}}
    result = replace(predicted([1.0, 8.0, 12.0, 20.0]), stratum=np.array(["s", "s", "large", "s"]))
    kinds = np.array(["x", "x", "y", "y"])
    parts = compute_strata_figures(result, replace(KNOWN, tables=tables), kinds)
    assert {name: part["rows"] for name, part in parts.items()} == {"x": 2, "y": 2}
    assert parts["x"]["coverage90"] == 1.0
    assert parts["y"]["coverage90"] == 0.5
    assert parts["y"]["mae"] == 16.0


def test_curves_hold_what_is_drawn():
    rng = np.random.default_rng(0)
    curves = compute_curves(predicted(rng.normal(size=400).tolist()), KNOWN)
    assert curves["calibration"]["level"] == list(GRID)
    assert len(curves["conformal"]["covered"]) == len(GRID)
    assert len(curves["bins"]["sigma"]) == 10
    assert curves["sparsification"]["taken"][0] == 0.0
    assert curves["sparsification"]["sigma"][0] == pytest.approx(1.0)
    # All sigmas are equal: whoever is taken away, the rest is as good as before.
    assert curves["sparsification"]["sigma"] == pytest.approx([1.0] * 100)


def test_members_that_agree_have_no_raw_likelihood():
    figures = compute_figures(predicted([1.0, 2.0], spread=0.0), replace(KNOWN, b=1.0), 0.0)
    assert figures["raw_nll"] == np.inf
    assert np.isfinite(figures["nll"])
    assert figures["raw_crps"] == pytest.approx(1.5)


def test_the_error_of_a_rank_correlation_is_that_of_leaving_groups_out():
    """Against a jackknife that ranks again, and Fisher's formula for independent values."""
    random = np.random.default_rng(0)
    by = random.normal(size=400)
    error = np.abs(by + random.normal(size=400))
    each = np.arange(400)
    rho = spearman(error, by)
    fisher = np.sqrt((1 + rho**2 / 2) / (400 - 3)) * (1 - rho**2)
    assert spearman_error(error, by, each) == pytest.approx(fisher, rel=0.35)
    for group in (each % 40, each // 10):
        left = [spearman(error[group != k], by[group != k]) for k in range(40)]
        slow = np.sqrt(39 / 40 * np.sum((np.array(left) - np.mean(left)) ** 2))
        assert spearman_error(error, by, group) == pytest.approx(slow, rel=0.05)
    ten = np.repeat(np.arange(40), 10)
    alike = spearman_error(error[::10].repeat(10), by[::10].repeat(10), ten)
    assert alike > 2.5 * spearman_error(error, by, each)  # 40 values, not 400
    assert math.isnan(spearman_error(error, by, each % 2))


def test_errors_against_distance_stand_in_bins_of_equal_count():
    distance = np.arange(40.0)
    figures = compute_distance_figures(2.0 * distance, distance, np.arange(40))
    assert figures["spearman"] == pytest.approx(1.0)
    assert figures["distance"] == [4.5, 14.5, 24.5, 34.5]
    assert figures["mae"] == [9.0, 29.0, 49.0, 69.0]
