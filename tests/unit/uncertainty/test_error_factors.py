"""Factors of sigma: errors that differ by element and predicted value, of sizes that are known."""

from dataclasses import replace

import numpy as np
import pytest
from ase.data import atomic_numbers, chemical_symbols

from hydragnn_hpo.uncertainty.calibrate import Calibration, calibrate, group_weights
from hydragnn_hpo.uncertainty.error_factors import (
    LARGEST,
    ErrorFactors,
    RowFeatures,
    fit_factors,
    mark_elements,
    predicted_size,
)

SCALES = {"H": 1.0, "C": 1.3, "N": 0.8, "O": 1.0, "F": 0.7, "S": 1.5}
"""How much larger errors are with an element."""


def draw(rng, rows, *, slope=0.0, scales=SCALES):
    """Errors of structures of three elements, [n, 1], their features, and how wide they are, [n].

    ``slope``: of the logarithm of the width by the predicted value, from -1 to 1.
    """
    numbers = np.array([atomic_numbers[name] for name in scales])
    chosen = np.stack([rng.choice(len(numbers), 3, replace=False) for _ in range(rows)])
    value = rng.uniform(-1.0, 1.0, rows)
    width = np.array(list(scales.values()))[chosen].prod(axis=1) * np.exp(slope * value)
    elements = mark_elements(numbers[chosen].ravel(), np.repeat(np.arange(rows), 3), rows)
    return width[:, None] * rng.normal(size=(rows, 1)), RowFeatures(elements, value), width


def fitted(error, features, group=None):
    """Fit factors, and return also the factors of rows by fits without their groups."""
    group = np.arange(len(error)) if group is None else group
    score = np.abs(error).mean(axis=1)
    return fit_factors(features, score, group_weights(group)[0], group)


def calibrated(error, features):
    """Calibrate where members do not spread at all."""
    none = np.zeros((len(error), 1))
    group = np.arange(len(error))
    return calibrate(error, none, group=group, largest=none[:, 0], scale=1.0, features=features)


def test_elements_are_marked_once_for_each_row_that_contains_them():
    numbers = np.array([8, 1, 1, 6, 6, 118])
    row = np.array([0, 0, 0, 2, 2, 2])
    marked = mark_elements(numbers, row, 4).toarray()
    wanted = np.zeros((4, len(chemical_symbols)))
    for number, place in zip(numbers, row, strict=True):
        wanted[place, number] = 1.0
    np.testing.assert_array_equal(marked, wanted)


def test_known_widths_come_back():
    error, features, width = draw(np.random.default_rng(0), 20_000, slope=0.3)
    result, own = fitted(error, features)
    ratio = np.log(result.of_rows(features)[:, 0] / width)
    assert np.std(ratio) < 0.03
    assert np.std(np.log(own / width)) < 0.04
    between = result.elements["S"] / result.elements["F"]
    assert between == pytest.approx(SCALES["S"] / SCALES["F"], rel=0.05)
    ends = result.at_values[-1] / result.at_values[0]
    assert ends == pytest.approx(np.exp(0.3 * (result.values[-1] - result.values[0])), rel=0.08)


def test_what_another_sigma_tells_by_itself_is_taken_off():
    rng = np.random.default_rng(7)
    error, features, _ = draw(rng, 20_000, slope=0.3)
    result, _ = fitted(error, features)
    _, unseen, width = draw(rng, 5000, slope=0.3)
    half = 0.5 * np.log(width) + 0.1 * rng.normal(size=5000) + 3.0  # it knows half of it
    left = result.without(unseen, half, np.ones(5000)).of_rows(unseen)[:, 0]
    assert np.std(np.log(left) - 0.5 * np.log(width)) < 0.04  # a constant apart
    nothing = result.without(unseen, np.full(5000, 2.0), np.ones(5000))
    np.testing.assert_allclose(nothing.of_rows(unseen), result.of_rows(unseen), rtol=1e-6)


def test_factors_of_rows_are_the_product_of_those_of_what_they_contain():
    known = ErrorFactors({"H": 1.2, "O": 0.5}, (0.0, 2.0), (1.0, 4.0))
    numbers = np.array([1, 8, 1, 6])
    row = np.array([0, 0, 1, 2])
    features = RowFeatures(mark_elements(numbers, row, 3), np.array([1.0, -5.0, 9.0]))
    # halfway between 1 and 4 in logarithms is 2; carbon has no factor, and 4 is above the largest
    wanted = [1.2 * 0.5 * 2.0, 1.2 * 1.0, LARGEST]
    assert known.of_rows(features)[:, 0] == pytest.approx(wanted)


def test_few_labels_change_nothing():
    rng = np.random.default_rng(1)
    error, features, _ = draw(rng, 19)
    none, own = fitted(error, features)
    assert none is None
    assert (own == 1.0).all()
    error, features, _ = draw(rng, 100, scales=dict.fromkeys(SCALES, 1.0))
    result, own = fitted(error, features)
    assert np.std(np.log(result.of_rows(features))) < 0.15
    assert np.std(np.log(own)) < 0.15


def test_the_factor_of_a_labelled_row_does_not_know_its_group():
    error, features, _ = draw(np.random.default_rng(2), 300)
    group = np.arange(300) // 3
    chosen = group == 17
    _, before = fitted(error, features, group)
    _, after = fitted(np.where(chosen[:, None], 50.0 * error, error), features, group)
    np.testing.assert_array_equal(before[chosen], after[chosen])
    assert (before != after).sum() > 150


def test_a_value_without_errors_is_not_promised_to_have_none():
    error, features, _ = draw(np.random.default_rng(3), 2000)
    error[features.value < 0.0] *= 1e-6
    result, own = fitted(error, features)
    assert result.of_rows(features).min() == pytest.approx(1.0 / LARGEST)
    assert own.min() == pytest.approx(1.0 / LARGEST)


def test_errors_of_nothing_have_factors_that_a_file_can_hold():
    error, features, _ = draw(np.random.default_rng(8), 3000)
    none, own = fitted(0.0 * error, features)
    assert none.of_rows(features) == pytest.approx(1.0)
    assert own == pytest.approx(1.0)
    fluorine = features.elements[:, [9]].toarray()[:, 0] > 0
    result, _ = fitted(np.where(fluorine[:, None], 0.0, error), features)
    assert result.are_sound
    assert result.elements["F"] < 0.1 < 0.3 < result.elements["H"]


def test_intervals_hold_for_each_element_and_value():
    rng = np.random.default_rng(4)
    known, features, _ = draw(rng, 4000, slope=0.6)
    error, other, _ = draw(rng, 40_000, slope=0.6)
    fit = calibrated(known, features)
    plain = replace(fit, factors=None, quantiles=calibrated(known, None).quantiles)
    held = {}
    for name, each in {"with": fit, "without": plain}.items():
        factor = each.factors.of_rows(other) if each.factors else np.ones((40_000, 1))
        sigma = each.sigma(np.zeros((40_000, 1)), factor=factor)
        inside = (np.abs(error) <= each.half_width(sigma))[:, 0]
        parts = [other.elements[:, [atomic_numbers[s]]].toarray()[:, 0] > 0 for s in SCALES]
        parts += [other.value < -0.5, other.value > 0.5]
        held[name] = [inside[part].mean() for part in parts]
        assert inside.mean() == pytest.approx(0.9, abs=0.012)
    assert max(abs(share - 0.9) for share in held["with"]) < 0.025
    assert max(abs(share - 0.9) for share in held["without"]) > 0.06


def test_vectors_that_are_turned_have_the_same_size_and_numbers_keep_their_sign():
    vectors = np.random.default_rng(5).normal(size=(9, 3))
    turn, _ = np.linalg.qr(np.random.default_rng(6).normal(size=(3, 3)))
    np.testing.assert_allclose(predicted_size(vectors @ turn), predicted_size(vectors))
    np.testing.assert_array_equal(predicted_size(vectors[:, :1]), vectors[:, 0])


def test_a_calibration_without_factors_multiplies_by_1():
    plain = Calibration(1.0, 0.1, {"0.9": 1.6}, 1.0, 10, 10)
    elements = mark_elements(np.array([1]), np.array([0]), 1)
    assert plain.factor(elements, np.zeros((1, 1))).tolist() == [[1.0]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"elements": {"Qq": 1.0}},
        {"elements": {"X": 1.0}},
        {"elements": {"H": 0.0}},
        {"values": (), "at_values": ()},
        {"values": (1.0, 0.0)},
        {"values": (0.0, float("nan"))},
        {"at_values": (1.0,)},
        {"at_values": (1.0, float("inf"))},
    ],
)
def test_factors_of_a_file_that_cannot_be(wrong):
    sound = ErrorFactors({"H": 1.1}, (0.0, 1.0), (1.0, 2.0))
    assert sound.are_sound
    assert not replace(sound, **wrong).are_sound
