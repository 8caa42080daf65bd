"""One head's figures: the interplay of calibrated, conformal and raw."""

from dataclasses import replace

import numpy as np
import pytest

from hydragnn_hpo.ensemble.calibrate import Calibration
from hydragnn_hpo.ensemble.conformal import GRID, key
from hydragnn_hpo.ensemble.uncertainty_figures import (
    HeadOnLabels,
    compute_curves,
    compute_figures,
    compute_strata_figures,
)

KNOWN = Calibration(
    a=4.0, b=0.0 + 1e-12, quantiles={key(q): 10 * q for q in GRID}, spread99=1.0, rows=4, groups=4
)


def predicted(errors: list[float], spread: float = 0.5, width: int = 1) -> HeadOnLabels:
    rows = len(errors) // width
    truth = np.array(errors).reshape(rows, width)
    column = np.full((rows, 1), spread)
    return HeadOnLabels(truth, 0 * truth, column, 0 * column, np.full(rows, "all"))


def test_figures_by_hand() -> None:
    """Sigma is 1: half of the 90 % interval is 9, of the 50 % one 5; raw they are z / 2."""
    figures = compute_figures(predicted([1.0, -6.0, 8.0, 10.0]), KNOWN)
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


def test_components_of_a_vector_are_values() -> None:
    figures = compute_figures(predicted([1.0, -6.0, 8.0, 10.0, 0.0, 0.0], width=3), KNOWN)
    assert figures["rows"] == 2
    assert figures["coverage90"] == pytest.approx(5 / 6)


def test_a_predicted_variance_counts_in_both() -> None:
    found = replace(predicted([1.0, 2.0]), noise=np.full((2, 1), 0.75))
    assert found.raw.ravel() == pytest.approx([1.0, 1.0])
    assert found.sigma(replace(KNOWN, c=4.0)).ravel() == pytest.approx([2.0, 2.0])


def test_the_conformal_area_is_zero_where_the_curve_is_the_diagonal() -> None:
    """Errors at 0.5, 1, 1.5 ... 10 are reached at 5 %, 10 %, ...: one more value each."""
    errors = [0.5 * k for k in range(1, 21)]
    figures = compute_figures(predicted(errors), KNOWN)
    assert figures["area_conformal"] == pytest.approx(0.0, abs=1e-9)
    assert figures["area"] > 0.3


def test_kinds_have_intervals_of_their_own() -> None:
    tables = {"large": {key(q): 100 * q for q in GRID}}
    found = replace(predicted([1.0, 8.0, 12.0, 20.0]), stratum=np.array(["s", "s", "large", "s"]))
    kinds = np.array(["x", "x", "y", "y"])
    parts = compute_strata_figures(found, replace(KNOWN, tables=tables), kinds)
    assert {name: part["rows"] for name, part in parts.items()} == {"x": 2, "y": 2}
    assert parts["x"]["coverage90"] == 1.0
    assert parts["y"]["coverage90"] == 0.5
    assert parts["y"]["mae"] == 16.0


def test_curves_hold_what_is_drawn() -> None:
    rng = np.random.default_rng(0)
    curves = compute_curves(predicted(rng.normal(size=400).tolist()), KNOWN)
    assert curves["calibration"]["level"] == list(GRID)
    assert len(curves["conformal"]["covered"]) == len(GRID)
    assert len(curves["bins"]["sigma"]) == 10
    assert curves["sparsification"]["taken"][0] == 0.0
    assert curves["sparsification"]["sigma"][0] == pytest.approx(1.0)
    # All sigmas are equal: whoever is taken away, the rest is as good as before.
    assert curves["sparsification"]["sigma"] == pytest.approx([1.0] * 100)


def test_members_that_agree_have_no_raw_likelihood() -> None:
    figures = compute_figures(predicted([1.0, 2.0], spread=0.0), replace(KNOWN, b=1.0))
    assert figures["raw_nll"] == np.inf
    assert np.isfinite(figures["nll"])
    assert figures["raw_crps"] == pytest.approx(1.5)
