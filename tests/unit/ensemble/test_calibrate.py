"""The affine map and its intervals: known parameters come back, kinds have their own."""

import warnings

import numpy as np
import pytest
from ase import Atoms
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.ensemble.calibrate import (
    FEWEST,
    LEVELS,
    Calibration,
    Strata,
    calibrate,
    compute_moments,
    conformal_quantiles,
    conformal_rank,
    fit_variance,
    group_weights,
    key,
    size_strata,
)
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for
from hydragnn_hpo.ensemble.uncertainty_scores import nll

A, B, C = 4.0, 0.09, 0.5


def synthetic(
    seed: int, rows: int, *, width: int = 1, a: float = A, c: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Residuals, spreads, and the variances that members predict: c is the share of these."""
    rng = np.random.default_rng(seed)
    spread, noise = rng.gamma(2.0, 0.2, (rows, 1)), rng.gamma(2.0, 0.5, (rows, 1))
    sigma = np.sqrt(a * spread**2 + c * noise + B)
    return rng.normal(size=(rows, width)) * sigma, spread, noise


def fitted(
    residual: np.ndarray,
    spread: np.ndarray | None = None,
    noise: np.ndarray | float = 0.0,
    kind: np.ndarray | str = "all",
    group: np.ndarray | None = None,
) -> Calibration:
    """Calibrate; without a spread there is none, without groups each row is one."""
    spread = np.zeros((len(residual), 1)) if spread is None else spread
    return calibrate(
        residual,
        spread,
        group=np.arange(len(residual)) if group is None else group,
        largest=spread[:, 0],
        scale=1.0,
        noise=noise,
        stratum=kind,
    )


@pytest.mark.parametrize(("width", "c"), [(1, 0.0), (3, 0.0), (1, C)])
def test_known_parameters_come_back(width, c):
    residual, spread, noise = synthetic(0, 20_000, width=width, c=c)
    found = fitted(residual, spread, noise if c else 0.0)
    assert found.a == pytest.approx(A, rel=0.1 if c else 0.05)
    assert found.b == pytest.approx(B, rel=0.2 if c else 0.08)
    assert found.c == pytest.approx(c, rel=0.1)


def test_a_spread_that_means_nothing_is_not_believed():
    residual, spread, _ = synthetic(8, 20_000, a=0.0)
    found = fitted(residual, spread)
    assert found.a < 0.05
    assert found.b == pytest.approx(B, rel=0.1)


def test_a_predicted_variance_is_used_where_members_agree():
    residual, _, noise = synthetic(2, 2_000, c=C)
    found = fitted(residual, None, noise)
    assert found.a == 0.0
    assert found.c > 0.3


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(10, 80),
    factor=st.floats(0.05, 20.0),
    tail=st.sampled_from([2, 5, 1000]),
)
def test_calibrated_is_never_less_likely_than_raw(seed, rows, factor, tail):
    """On the rows it is fitted on, whatever the law of the residuals."""
    rng = np.random.default_rng(seed)
    spread, noise = rng.gamma(2.0, 0.2, (rows, 1)) + 1e-3, rng.gamma(2.0, 0.1, (rows, 1))
    residual = factor * rng.standard_t(tail, (rows, 1)) * np.sqrt(spread**2 + noise)
    found = fitted(residual, spread, noise)
    before = nll(residual, np.sqrt(spread**2 + noise))
    assert nll(residual, found.sigma(spread, noise)) <= before + 1e-6


@pytest.mark.parametrize(("rows", "constant"), [(9, True), (10, False)])
def test_few_values_give_the_constant(rows, constant):
    known = np.arange(float(rows))[:, None]
    factors, b = fit_variance(known, 4.0 * known[:, 0] + 1e-3, np.ones(rows), 1e-6)
    assert (factors[0] == 0.0) == constant
    if constant:
        assert b == pytest.approx(4.0 * known.mean() + 1e-3)


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_the_unit_does_not_matter(unit):
    residual, spread, _ = synthetic(1, 2000)
    plain = fitted(residual, spread)
    alone, large = np.arange(2000), unit * spread[:, 0]
    other = calibrate(unit * residual, unit * spread, group=alone, largest=large, scale=unit)
    assert other.a == pytest.approx(plain.a, rel=1e-3)
    assert other.b == pytest.approx(plain.b * unit**2, rel=1e-3)
    assert other.quantiles["0.9"] == pytest.approx(plain.quantiles["0.9"], rel=1e-3)


@pytest.mark.parametrize(
    ("count", "level", "rank"),
    # ceil((n + 1) level), counted by hand.
    [(9, 0.9, 9), (8, 0.9, 9), (10, 0.9, 10), (19, 0.9, 18), (19, 0.95, 19), (3, 0.5, 2)],
)
def test_rank_by_hand(count, level, rank):
    assert conformal_rank(count, level) == rank


def test_pooled_groups_by_hand():
    """Nine groups: eight of one score 1 .. 8, one of two scores 0.5 and 9, half each.

    Level 0.5 asks for 10 * 0.5 = 5: 0.5 gives 0.5, then 1 .. 5 give 5.5. Level 0.9 asks for
    9: all of it, the score 9.
    """
    scores = np.array([9.0, 0.5, 1, 2, 3, 4, 5, 6, 7, 8])
    weight, groups = group_weights(group := np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 8]))
    assert groups == 9
    assert weight.tolist() == [0.5, 0.5, 1, 1, 1, 1, 1, 1, 1, 1]
    found = conformal_quantiles(scores, group)
    assert found["0.5"] == 5.0
    assert found["0.9"] == 9.0


def test_copies_of_a_molecule_count_once():
    """Rows that are there up to five times, in one group, weigh what one of them weighs."""
    residual, spread, _ = synthetic(11, 300)
    copies = np.random.default_rng(0).integers(1, 6, 300)
    group = np.repeat(np.arange(300), copies)

    once = fitted(residual, spread)
    grouped = fitted(np.repeat(residual, copies, 0), np.repeat(spread, copies, 0), group=group)
    ignored = fitted(np.repeat(residual, copies, 0), np.repeat(spread, copies, 0))

    assert (grouped.a, grouped.b) == pytest.approx((once.a, once.b), rel=1e-4)
    assert grouped.quantiles == pytest.approx(once.quantiles, rel=1e-4)
    assert (grouped.rows, grouped.groups, once.groups) == (len(group), 300, 300)
    assert ignored.a != pytest.approx(once.a, rel=1e-2)


def test_too_few_scores_fall_back_and_say_so():
    two = np.arange(2)
    assert conformal_quantiles(np.array([0.1, 0.2]), two)["0.9"] == pytest.approx(1.6448536)
    assert conformal_quantiles(np.array([0.1, 7.0]), two)["0.9"] == 7.0
    assert not fitted(*synthetic(6, 8)).guaranteed(0.9)
    assert fitted(*synthetic(6, 9)).guaranteed(0.9)


def test_one_member_gives_the_constant_and_a_perfect_fit_keeps_it_above_zero():
    residual, _, _ = synthetic(7, 500)
    calibration = fitted(residual)
    assert (calibration.a, calibration.c) == (0.0, 0.0)
    assert calibration.b == pytest.approx(float(np.square(residual).mean()))
    assert fitted(np.zeros((50, 1))).b > 0.0


def test_the_99th_percentile_is_of_structures():
    residual, spread, _ = synthetic(9, 200)
    found = calibrate(residual, spread, group=np.arange(200), largest=np.arange(101.0), scale=1.0)
    assert found.spread99 == pytest.approx(99.0)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mapie.conformity_scores import ResidualNormalisedScore
    from mapie.regression import SplitConformalRegressor
    from sklearn.base import BaseEstimator, RegressorMixin


class Column(RegressorMixin, BaseEstimator):
    """Answer with one column of the input: a model that was trained elsewhere."""

    def __init__(self, column: int = 0) -> None:
        self.column = column
        self.n_features_in_ = 2

    def fit(self, x: np.ndarray, y: np.ndarray) -> "Column":
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x)[:, self.column]


@pytest.mark.parametrize("rows", [37, 400])
@pytest.mark.parametrize("level", LEVELS)
def test_mapie_makes_the_same_intervals(rows, level):
    """Split conformal on |residual| / sigma, with the same sigma."""
    rng = np.random.default_rng(rows)
    mean, sigma = rng.normal(size=rows + 50), rng.gamma(2.0, 0.5, rows + 50) + 0.1
    truth = mean + sigma * rng.standard_t(3, rows + 50)
    known, new = slice(0, rows), slice(rows, None)
    score = ResidualNormalisedScore(residual_estimator=Column(1), prefit=True, sym=True)
    peer = SplitConformalRegressor(Column(0), confidence_level=level, conformity_score=score)
    x = np.stack((mean, sigma), axis=1)
    _, theirs = peer.conformalize(x[known], truth[known]).predict_interval(x[new])

    scores = np.abs(truth - mean)[known] / sigma[known]
    half = conformal_quantiles(scores, np.arange(rows))[key(level)] * sigma[new]

    np.testing.assert_allclose(theirs[:, 0, 0], mean[new] - half, rtol=1e-9)
    np.testing.assert_allclose(theirs[:, 1, 0], mean[new] + half, rtol=1e-9)


def two_kinds(seed: int, rows: int, few: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Residuals of two kinds, one ten times larger; ``few`` of a third, a hundred times."""
    rng = np.random.default_rng(seed)
    kind = np.array(["small", "large"])[rng.integers(0, 2, rows)]
    kind[:few] = "rare"
    factor = np.select([kind == "small", kind == "large"], [1.0, 10.0], 100.0)
    return (factor * rng.normal(size=rows))[:, None], kind


def test_each_kind_is_covered_by_intervals_of_its_own():
    residual, kind = two_kinds(0, 2000)
    known = fitted(residual, kind=kind)
    residual, kind = two_kinds(1, 20_000)
    sigma = known.sigma(np.zeros((20_000, 1)))
    alike = np.abs(residual) <= known.half_width(sigma)
    apart = np.abs(residual) <= known.half_width(sigma, 0.9, kind)
    for name in ("small", "large"):
        assert apart[kind == name].mean() == pytest.approx(0.9, abs=0.03)
    assert alike[kind == "small"].mean() > 0.99
    assert alike[kind == "large"].mean() < 0.85


def test_a_kind_with_few_groups_takes_the_intervals_of_all():
    residual, kind = two_kinds(2, 800, few=FEWEST - 1)
    known = fitted(residual, kind=kind)
    assert set(known.tables) == {"small", "large"}
    sigma = np.ones((2, 1))
    half = known.half_width(sigma, 0.8, np.array(["rare", "never seen"]))
    assert half.ravel().tolist() == [known.quantiles["0.8"]] * 2
    residual, kind = two_kinds(2, 800, few=FEWEST)
    assert "rare" in fitted(residual, kind=kind).tables


def test_groups_count_not_values():
    """200 values of one kind, but only 40 groups of it."""
    residual, kind = two_kinds(3, 1000)
    kind[:], kind[:200] = "many", "copies"
    group = np.arange(1000)
    group[:200] //= 5
    assert set(fitted(residual, kind=kind, group=group).tables) == {"many"}


def columns(*formulas: str) -> Columns:
    structures = []
    for formula in formulas:
        atoms = Atoms(formula)
        atoms.positions[:, 0] = 2.0 * np.arange(len(atoms))
        structures.append(atoms)
    return columns_of_atoms(structures, rules_for(3.0))


@pytest.mark.parametrize(
    ("formula", "name"),
    [
        ("CH4O", "organic"),
        ("MgO", "oxygen"),
        ("NaCl", "halogen"),
        ("TiON", "oxygen+pnictogen"),
        ("FeS2", "chalcogen"),
        ("CaCO3", "oxygen"),
        ("CuAu", "no anion"),
        ("TiC", "no anion"),
        ("LiH", "no anion"),
    ],
)
def test_chemistry_by_the_anions(formula, name):
    assert Strata("chemistry").names(columns("Fe", formula, "H2O")).tolist() == [
        "no anion",
        name,
        "oxygen",
    ]
    assert len(Strata("chemistry").names(columns())) == 0
    assert Strata().names(columns("Fe", formula)).tolist() == ["all", "all"]


def test_sizes_are_cut_in_thirds():
    strata = size_strata(np.array([2, 2, 3, 4, 5, 6, 10, 12, 40]))
    assert strata.edges == (3, 6)
    names = ["1 to 3 atoms", "4 to 6 atoms", "7 or more atoms"]
    assert strata.of_sizes(np.array([1, 3, 4, 6, 7, 900])).tolist() == [
        names[0], names[0], names[1], names[1], names[2], names[2],
    ]  # fmt: skip


def test_structures_of_one_size_are_one_kind():
    strata = size_strata(np.full(30, 5))
    assert strata.of_sizes(np.array([5, 9])).tolist() == ["1 or more atoms"] * 2


MEMBERS, ROWS, WIDTH = 7, 5, 3


@given(offset=st.sampled_from([0.0, 1e3, -1e6]), seed=st.integers(0, 2**31))
def test_streamed_moments_are_those_of_all(offset, seed):
    rng = np.random.default_rng(seed)
    values = offset + rng.normal(size=(MEMBERS, ROWS, WIDTH))
    weights = rng.uniform(0.1, 3.0, MEMBERS)
    weights[seed % MEMBERS] = 0.0
    noise = rng.uniform(0.0, 2.0, (MEMBERS, ROWS, 1))
    whole = compute_moments(values, weights, noise)
    share = (weights / weights.sum())[:, None, None]
    mean = (share * values).sum(axis=0)
    variance = (share * (values - mean) ** 2).sum(axis=0)
    # a variance of order 1 beside a mean of 1e6 is known to 1e6 ulps of the values, squared small
    close = {"rtol": 1e-12, "atol": 1e-12 * (1 + abs(offset))}
    np.testing.assert_allclose(whole.mean, mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(whole.variance, variance, **close)
    np.testing.assert_allclose(whole.spread[:, 0] ** 2, variance.mean(axis=1), **close)
    np.testing.assert_allclose(whole.noise, (share * noise).sum(axis=0), rtol=1e-12)
