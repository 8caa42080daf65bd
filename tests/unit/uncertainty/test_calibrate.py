"""The affine map and its intervals: known parameters come back, kinds have their own."""

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for
from hydragnn_hpo.uncertainty.calibrate import (
    LEVELS,
    PRIOR_GROUPS,
    Calibration,
    Strata,
    calibrate,
    choose_strata,
    compute_moments,
    conformal_quantiles,
    conformal_tables,
    fit_variance,
    group_weights,
    groups_for,
    key,
    size_strata,
)
from hydragnn_hpo.uncertainty.uncertainty_scores import nll

A, B, C = 4.0, 0.09, 0.5


def synthetic(
    seed: int, rows: int, *, width: int = 1, a: float = A, c: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Residuals, spreads, and the variances that members predict: c is the share of these."""
    rng = np.random.default_rng(seed)
    spread = rng.gamma(2.0, 0.2, (rows, 1))
    noise = rng.gamma(2.0, 0.5, (rows, 1))
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
    result = fitted(residual, spread, noise if c else 0.0)
    assert result.a == pytest.approx(A, rel=0.1 if c else 0.05)
    assert result.b == pytest.approx(B, rel=0.2 if c else 0.08)
    assert result.c == pytest.approx(c, rel=0.1)


def test_a_spread_that_means_nothing_is_not_believed():
    residual, spread, _ = synthetic(8, 20_000, a=0.0)
    result = fitted(residual, spread)
    assert result.a < 0.05
    assert result.b == pytest.approx(B, rel=0.1)


def test_a_predicted_variance_is_used_where_members_agree():
    residual, _, noise = synthetic(2, 2_000, c=C)
    result = fitted(residual, None, noise)
    assert result.a == 0.0
    assert result.c > 0.3


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
    spread = rng.gamma(2.0, 0.2, (rows, 1)) + 1e-3
    noise = rng.gamma(2.0, 0.1, (rows, 1))
    residual = factor * rng.standard_t(tail, (rows, 1)) * np.sqrt(spread**2 + noise)
    result = fitted(residual, spread, noise)
    before = nll(residual, np.sqrt(spread**2 + noise))
    assert nll(residual, result.sigma(spread, noise)) <= before + 1e-6


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
    alone = np.arange(2000)
    large = unit * spread[:, 0]
    other = calibrate(unit * residual, unit * spread, group=alone, largest=large, scale=unit)
    assert other.a == pytest.approx(plain.a, rel=1e-3)
    assert other.b == pytest.approx(plain.b * unit**2, rel=1e-3)
    assert other.quantiles["0.9"] == pytest.approx(plain.quantiles["0.9"], rel=1e-3)


@pytest.mark.parametrize(
    ("level", "groups"),
    # The fewest n with ceil((n + 1) level) <= n, counted by hand.
    [(0.5, 1), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)],
)
def test_fewest_groups_by_hand(level, groups):
    assert groups_for(level) == groups


def test_pooled_groups_by_hand():
    """Nine groups: eight of one score 1 .. 8, one of two scores 0.5 and 9, half each.

    Level 0.5 asks for 10 * 0.5 = 5: 0.5 gives 0.5, then 1 .. 5 give 5.5. Level 0.9 asks for
    9: all of it, the score 9.
    """
    scores = np.array([9.0, 0.5, 1, 2, 3, 4, 5, 6, 7, 8])
    weight, groups = group_weights(group := np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 8]))
    assert groups == 9
    assert weight.tolist() == [0.5, 0.5, 1, 1, 1, 1, 1, 1, 1, 1]
    result = conformal_quantiles(scores, group)
    assert result["0.5"] == 5.0
    assert result["0.9"] == 9.0


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


def test_the_fewest_groups_of_a_guarantee_by_hand():
    """The rank ceil((n + 1) level) is at most n: 5 of 6, 9 of 10, 19 of 20, 99 of 100."""
    levels = {0.5: 1, 0.8: 4, 0.9: 9, 0.95: 19, 0.99: 99}
    assert {level: groups_for(level) for level in levels} == levels
    for level, groups in levels.items():
        known = fitted(*synthetic(6, 20))
        enough = replace(known, groups=groups)
        few = replace(known, groups=groups - 1)
        assert enough.guaranteed(level)
        assert not few.guaranteed(level)


def test_one_member_gives_the_constant_and_a_perfect_fit_keeps_it_above_zero():
    residual, _, _ = synthetic(7, 500)
    calibration = fitted(residual)
    assert (calibration.a, calibration.c) == (0.0, 0.0)
    assert calibration.b == pytest.approx(float(np.square(residual).mean()))
    assert fitted(np.zeros((50, 1))).b > 0.0


def test_the_99th_percentile_is_of_structures():
    residual, spread, _ = synthetic(9, 200)
    result = calibrate(residual, spread, group=np.arange(200), largest=np.arange(101.0), scale=1.0)
    assert result.spread99 == pytest.approx(99.0)


def make_peer(level: float) -> Any:
    """MAPIE's conformal intervals of a model that was trained elsewhere.

    Its input has the columns mean and sigma.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mapie.conformity_scores import ResidualNormalisedScore
        from mapie.regression import SplitConformalRegressor
        from sklearn.base import BaseEstimator, RegressorMixin

    class Column(RegressorMixin, BaseEstimator):
        def __init__(self, column: int = 0) -> None:
            self.column = column
            self.n_features_in_ = 2

        def fit(self, x: np.ndarray, y: np.ndarray) -> "Column":
            return self

        def predict(self, x: np.ndarray) -> np.ndarray:
            return np.asarray(x)[:, self.column]

    score = ResidualNormalisedScore(residual_estimator=Column(1), prefit=True, sym=True)
    return SplitConformalRegressor(Column(0), confidence_level=level, conformity_score=score)


@pytest.mark.parametrize("rows", [37, 400])
@pytest.mark.parametrize("level", LEVELS)
def test_mapie_makes_the_same_intervals(rows, level):
    """Split conformal on |residual| / sigma, with the same sigma."""
    rng = np.random.default_rng(rows)
    mean = rng.normal(size=rows + 50)
    sigma = rng.gamma(2.0, 0.5, rows + 50) + 0.1
    truth = mean + sigma * rng.standard_t(3, rows + 50)
    known = slice(0, rows)
    new = slice(rows, None)
    peer = make_peer(level)
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


def slow_tables(
    scores: np.ndarray, group: np.ndarray, stratum: np.ndarray
) -> dict[str, dict[str, float]]:
    """Compute ``conformal_tables`` with loops, and the variance of scales by bisection."""
    means = {
        name: {
            g: scores[(stratum == name) & (group == g)].mean() for g in set(group[stratum == name])
        }
        for name in sorted(set(stratum))
    }
    centre = {name: np.mean(list(of.values())) for name, of in means.items()}
    squares = [(m / centre[name] - 1) ** 2 for name, of in means.items() for m in of.values()]
    relative = sum(squares) / (len(squares) - len(means))
    logs = {name: math.log(centre[name]) for name in means}

    def middle(between: float) -> tuple[float, float]:
        weight = {name: 1 / (relative / len(of) + between) for name, of in means.items()}
        at = sum(weight[n] * logs[n] for n in logs) / sum(weight.values())
        return at, sum(weight[n] * (logs[n] - at) ** 2 for n in logs)

    low, high = 0.0, 100.0
    for _ in range(200):
        half = (low + high) / 2
        low, high = (half, high) if middle(half)[1] > len(means) - 1 else (low, half)
    between = low
    (at, _) = middle(low)

    def scale(values: list[float]) -> float:
        if not values:
            return math.exp(at)
        share = between / (between + relative / len(values))
        return math.exp(at + share * (math.log(np.mean(values)) - at))

    rescaled = np.array(
        [
            score / scale([m for g, m in means[name].items() if g != own])
            for score, own, name in zip(scores, group, stratum, strict=True)
        ]
    )
    every = len(set(group))
    tables = {}
    prior = min(PRIOR_GROUPS, every)
    for name, of in means.items():
        weight = np.array(
            [
                prior / every / (group == g).sum()
                + (stratum[row] == name) / ((group == g) & (stratum == name)).sum().clip(1)
                for row, g in enumerate(group)
            ]
        )
        order = np.argsort(rescaled)
        reached = np.cumsum(weight[order])
        tables[name] = {
            key(level): scale(list(of.values()))
            * rescaled[order][reached >= (len(of) + prior + 1) * level - 1e-9][0]
            for level in LEVELS
        }
    return tables


def test_tables_are_those_of_a_slow_implementation():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 60, 400)
    stratum = np.array(["H", "C", "Fe"])[rng.integers(0, 3, 400)]
    rare = group < 4  # Zn is in four groups alone
    stratum[rare & (rng.random(400) < 0.5)] = "Zn"
    factor = np.select([stratum == "H", stratum == "Fe"], [0.5, 3.0], 1.0)
    scores = factor * np.abs(rng.standard_t(5, 400))
    tables = conformal_tables(scores, group, stratum)
    slow = slow_tables(scores, group, stratum)
    assert set(tables) == {"H", "C", "Fe", "Zn"}
    for name, table in slow.items():
        assert {level: tables[name][level] for level in table} == pytest.approx(table, rel=1e-6)


ELEMENTS = {
    "H": (0.5, 0.45),
    "C": (1.0, 0.35),
    "O": (1.3, 0.15),
    "Fe": (2.5, 0.04),
    "Zn": (2.0, 0.01),
}
"""Scale of the errors of an element, and its share of the atoms."""


def atoms_of(seed: int, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return errors, groups and elements of atoms, ten in each group, of up to three elements."""
    rng = np.random.default_rng(seed)
    scales, shares = np.array(list(ELEMENTS.values())).T
    own = np.array([rng.choice(len(shares), 3, p=shares) for _ in range(groups)])
    element = own[np.arange(groups)[:, None], rng.integers(0, 3, (groups, 10))].ravel()
    residual = rng.normal(size=10 * groups) * scales[element]
    return residual[:, None], np.repeat(np.arange(groups), 10), np.array(list(ELEMENTS))[element]


def coverages(groups: int, draws: int) -> tuple[dict[str, float], dict[str, float], float]:
    """Return the mean coverage of each element by its own and by all intervals, and of all."""
    residual, group, element = atoms_of(10_000, 5000)
    apart, alike = [], []
    for seed in range(draws):
        error, own, kind = atoms_of(seed, groups)
        known = fitted(error, kind=kind, group=own)
        sigma = known.sigma(np.zeros((len(element), 1)))
        apart.append(np.abs(residual) <= known.half_width(sigma, 0.9, element))
        alike.append(np.abs(residual) <= known.half_width(sigma))
    weight, _ = group_weights(group)
    marginal = float(weight @ np.mean(apart, axis=0)[:, 0] / weight.sum())
    by_element = [
        {name: float(np.mean(np.array(some)[:, element == name])) for name in ELEMENTS}
        for some in (apart, alike)
    ]
    return by_element[0], by_element[1], marginal


def test_each_element_is_covered_where_all_together_are_not():
    own, of_all, marginal = coverages(groups=300, draws=8)
    for name, share in own.items():
        assert 0.87 <= share <= 0.93, name
    for name in ("H", "O", "Fe", "Zn"):
        assert not 0.87 <= of_all[name] <= 0.93, name
    assert of_all["Fe"] < 0.6
    assert marginal == pytest.approx(0.9, abs=0.01)


def test_rare_elements_borrow_from_all_and_coverage_stays():
    """With 40 groups Zn is in one or two, and in none of some draws."""
    own, of_all, marginal = coverages(groups=40, draws=25)
    assert own["Fe"] > of_all["Fe"] + 0.15
    assert own["Zn"] > of_all["Zn"]
    assert 0.89 <= marginal <= 0.93  # one more group of 40 is assumed to be endless


def test_strata_that_are_alike_share_their_intervals():
    rng = np.random.default_rng(4)
    scores = np.abs(rng.normal(size=3000))
    stratum = np.array(["a", "b", "c", "d"])[rng.integers(0, 4, 3000)]
    stratum = stratum.astype("U4")
    stratum[:3] = "rare"
    tables = conformal_tables(scores, np.arange(3000), stratum)
    pooled = conformal_quantiles(scores, np.arange(3000))["0.9"]
    assert [tables[name]["0.9"] for name in "abcd"] == pytest.approx([pooled] * 4, rel=0.05)
    assert tables["rare"]["0.9"] == pytest.approx(pooled, rel=0.1)


def test_components_of_vectors_are_covered_by_element():
    error, group, element = atoms_of(0, 300)
    rng = np.random.default_rng(0)
    vectors = np.abs(error) * rng.normal(size=(len(error), 3))
    known = fitted(vectors[:1500], kind=element[:1500], group=group[:1500])
    sigma = known.sigma(np.zeros((1500, 1)))
    inside = np.abs(vectors[1500:]) <= known.half_width(sigma, 0.9, element[1500:])
    for name in ("H", "C", "O", "Fe"):
        assert 0.85 <= inside[element[1500:] == name].mean() <= 0.95, name


def test_a_stratum_never_seen_uses_the_intervals_of_all():
    residual, kind = two_kinds(2, 800)
    known = fitted(residual, kind=kind)
    half = known.half_width(np.ones((1, 1)), 0.8, np.array(["never seen"]))
    assert half.item() == known.quantiles["0.8"]


def test_groups_count_not_values():
    """200 values of one kind are copies of 2 groups: its wide errors hardly count."""
    rng = np.random.default_rng(3)
    scores = np.abs(rng.normal(size=1000))
    group = np.arange(1000)
    kind = np.where(group < 200, "copies", "many")
    scores[:200] *= 3.0
    as_groups = conformal_tables(scores, group, kind)["copies"]["0.9"]
    as_copies = conformal_tables(scores, np.where(group < 200, group % 2, group), kind)
    assert as_copies["copies"]["0.9"] < 0.9 * as_groups


@pytest.mark.parametrize("scores", [np.zeros(40), np.r_[np.zeros(20), np.ones(20)]])
def test_exact_predictions_have_finite_intervals(scores):
    kind = np.repeat(["exact", "other"], 20)
    tables = conformal_tables(scores, np.arange(40), kind)
    values = np.array([list(table.values()) for table in tables.values()])
    assert np.isfinite(values).all()
    assert (np.diff(values, axis=1) >= 0).all()


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


def test_strata_are_chosen_from_elements_and_sizes():
    minerals = columns("MgO", "NaCl", "FeS2", "CuAu")
    chosen = choose_strata(minerals, np.arange(4))
    assert chosen == Strata("chemistry", atoms="element")
    assert chosen.of_rows(minerals, np.array([1, 2]), node=True).tolist() == [
        *("Na", "Cl"),
        *("Fe", "S", "S"),
    ]
    kinds = chosen.of_rows(minerals, np.array([1, 2]), node=False).tolist()
    assert kinds == ["halogen", "chalcogen"]
    molecules = columns("CH4", "C2H6", "C3H8", "CH4O")
    assert choose_strata(molecules, np.arange(4)) == Strata("size", (6, 8), "element")


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
