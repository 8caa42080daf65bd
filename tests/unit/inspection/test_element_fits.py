"""Fits by the elements: growth with the structure, heavy tails; expected values by hand."""

import numpy as np
import pytest

from hydragnn_hpo.inspection.element_fits import (
    classify_growth,
    explained_variance,
    has_heavy_tails,
)

RANDOM = np.random.default_rng(5)

COUNTS = RANDOM.integers(0, 12, (60, 3)) + np.array([1.0, 0.0, 0.0])

SUMS = COUNTS @ np.array([-3.0, -5.5, 1.25])

NOISE = RANDOM.normal(0, 1, 60)

ONE = np.arange(1.0, 41.0)[:, None]


@pytest.mark.parametrize(
    ("values", "counts", "growth"),
    [
        (SUMS + 0.3 * NOISE, COUNTS, "extensive"),
        (SUMS / COUNTS.sum(axis=1) + 0.05 * NOISE, COUNTS, "intensive"),
        (5.0 + 0.1 * NOISE, COUNTS, "intensive"),
        (-3.5 * ONE[:, 0] + 0.05 * NOISE[:40], ONE, "extensive"),
        (10.0 * np.array([2.0, 4.0] * 20), np.array([[2.0], [4.0]] * 20), "extensive"),
        (NOISE, COUNTS, None),
        (NOISE, np.tile([3.0, 2.0], (60, 1)), None),
        (COUNTS[:11].sum(axis=1), COUNTS[:11], None),
    ],
    ids=["sum", "mean", "same", "element", "order", "noise", "alike", "few"],
)
def test_growth_with_the_number_of_atoms(values, counts, growth):
    assert classify_growth(values, counts) == growth


def test_tails_are_heavy_where_few_structures_differ_from_what_elements_explain():
    random = np.random.default_rng(1)
    weights = random.dirichlet(np.ones(3), 400)
    explained = weights @ np.array([1.0, -2.0, 4.0])
    normal = random.normal(size=400)
    laplace = random.laplace(size=400)
    few = np.where(np.arange(400) < 16, 3.0, 0.1 * normal)
    for rest, heavy in ((normal, False), (laplace, False), (few, True), (0.0 * few, False)):
        assert has_heavy_tails(explained + rest, weights) == heavy
    assert not has_heavy_tails(few[:11], weights[:11]), "too few to tell"


def test_explained_is_judged_on_rows_that_were_not_fitted():
    weights = np.array([[1.0], [1.0], [2.0], [2.0], [3.0], [3.0]])
    fit = np.array([True, False] * 3)
    perfect = explained_variance(2.0 * weights[:, 0], weights, fit)
    assert perfect == pytest.approx(1.0, abs=1e-5)
    crossed = explained_variance(np.array([1.0, -1.0, 2.0, -2.0, 3.0, -3.0]), weights, fit)
    # fitted slope 1, held out -1, -2, -3: residuals 2, 4, 6 against a variance of 2/3 times 3
    assert crossed == pytest.approx(1.0 - (4 + 16 + 36) / 2.0, abs=1e-3)
