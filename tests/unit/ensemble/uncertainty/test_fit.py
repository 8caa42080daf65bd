"""The affine map: known parameters come back, and nothing known is made worse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.ensemble.uncertainty.calibrate import Calibration, calibrate
from hydragnn_hpo.ensemble.uncertainty.fit import fit_variance
from hydragnn_hpo.ensemble.uncertainty.scores import nll

A, B, C = 4.0, 0.09, 0.5


def heteroscedastic(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Residuals, spreads, and the variances that members predict: each has a share."""
    rng = np.random.default_rng(seed)
    spread, noise = rng.gamma(2.0, 0.2, (rows, 1)), rng.gamma(2.0, 0.5, (rows, 1))
    return rng.normal(size=(rows, 1)) * np.sqrt(A * spread**2 + C * noise + B), spread, noise


def test_the_share_of_a_predicted_variance_comes_back() -> None:
    residual, spread, noise = heteroscedastic(0, 20_000)
    found = fitted(residual, spread, noise)
    assert found.a == pytest.approx(A, rel=0.1)
    assert found.c == pytest.approx(C, rel=0.1)
    assert found.b == pytest.approx(B, rel=0.2)


def test_without_predicted_variances_their_factor_is_zero() -> None:
    residual, spread, _ = heteroscedastic(1, 500)
    assert fitted(residual, spread, np.zeros((500, 1))).c == 0.0


def test_a_predicted_variance_is_used_where_members_agree() -> None:
    residual, spread, noise = heteroscedastic(2, 5_000)
    found = fitted(residual, 0 * spread, noise)
    assert found.a == 0.0
    assert found.c > 0.3


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(10, 80),
    factor=st.floats(0.05, 20.0),
    tail=st.sampled_from([2, 5, 1000]),
)
def test_calibrated_is_never_less_likely_than_raw(
    seed: int, rows: int, factor: float, tail: int
) -> None:
    """On the rows it is fitted on, whatever the law of the residuals."""
    rng = np.random.default_rng(seed)
    spread, noise = rng.gamma(2.0, 0.2, (rows, 1)) + 1e-3, rng.gamma(2.0, 0.1, (rows, 1))
    residual = factor * rng.standard_t(tail, (rows, 1)) * np.sqrt(spread**2 + noise)
    found = fitted(residual, spread, noise)
    before = nll(residual, np.sqrt(spread**2 + noise))
    assert nll(residual, found.sigma(spread, noise)) <= before + 1e-6


def test_few_values_give_the_constant() -> None:
    factors, b = fit_variance(np.arange(9.0)[:, None], np.full(9, 4.0), np.ones(9), 1e-6)
    assert factors.tolist() == [0.0]
    assert b == pytest.approx(4.0)


def fitted(residual: np.ndarray, spread: np.ndarray, noise: np.ndarray) -> Calibration:
    alone = np.arange(len(residual))
    return calibrate(residual, spread, group=alone, largest=spread[:, 0], scale=1.0, noise=noise)
