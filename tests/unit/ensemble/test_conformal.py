"""Conformal intervals: those of MAPIE, one set for each kind of structure, a whole curve."""

import warnings

import numpy as np
import pytest

from hydragnn_hpo.ensemble.calibrate import Calibration, calibrate
from hydragnn_hpo.ensemble.conformal import FEWEST, GRID, LEVELS, conformal_quantiles, key

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
def test_mapie_makes_the_same_intervals(rows: int, level: float) -> None:
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


def fitted(residual: np.ndarray, kind: np.ndarray | str = "all") -> Calibration:
    rows = len(residual)
    flat = np.zeros((rows, 1))
    return calibrate(
        residual, flat, group=np.arange(rows), largest=flat[:, 0], scale=1.0, stratum=kind
    )


def test_each_kind_is_covered_by_intervals_of_its_own() -> None:
    known = fitted(*two_kinds(0, 2000))
    residual, kind = two_kinds(1, 20_000)
    sigma = known.sigma(np.zeros((20_000, 1)))
    alike = np.abs(residual) <= known.half_width(sigma)
    apart = np.abs(residual) <= known.half_width(sigma, 0.9, kind)
    for name in ("small", "large"):
        assert apart[kind == name].mean() == pytest.approx(0.9, abs=0.03)
    assert alike[kind == "small"].mean() > 0.99
    assert alike[kind == "large"].mean() < 0.85


def test_a_kind_with_few_groups_takes_the_intervals_of_all() -> None:
    residual, kind = two_kinds(2, 800, few=FEWEST - 1)
    known = fitted(residual, kind)
    assert set(known.tables) == {"small", "large"}
    sigma = np.ones((2, 1))
    half = known.half_width(sigma, 0.8, np.array(["rare", "never seen"]))
    assert half.ravel().tolist() == [known.quantiles["0.8"]] * 2
    residual, kind = two_kinds(2, 800, few=FEWEST)
    assert "rare" in fitted(residual, kind).tables


def test_groups_count_not_values() -> None:
    """200 values of one kind, but only 40 groups of it."""
    residual, kind = two_kinds(3, 1000)
    kind[:], kind[:200] = "many", "copies"
    group = np.arange(1000)
    group[:200] //= 5
    flat = np.zeros((1000, 1))
    known = calibrate(residual, flat, group=group, largest=flat[:, 0], scale=1.0, stratum=kind)
    assert set(known.tables) == {"many"}


def test_one_kind_needs_no_table() -> None:
    residual, _ = two_kinds(4, 200)
    assert fitted(residual, "all").tables == {}


def test_the_grid_gives_a_rising_curve() -> None:
    """19 levels; they hold what they promise also where the law is far from Gaussian."""
    rng = np.random.default_rng(5)
    residual = np.where(rng.random((3000, 1)) < 0.9, 1e-3, 1.0) * rng.normal(size=(3000, 1))
    known = fitted(residual[:1500])
    assert known.levels == GRID
    assert set(LEVELS) <= set(GRID)
    widths = [known.quantiles[f"{level:g}"] for level in GRID]
    assert widths == sorted(widths)
    sigma = known.sigma(np.zeros((1500, 1)))
    for level in GRID:
        inside = np.abs(residual[1500:]) <= known.half_width(sigma, level)
        assert inside.mean() == pytest.approx(level, abs=0.05)
