"""How far two trainings are from each other; expected numbers are counted by hand."""

import math

import numpy as np
import pytest

from hydragnn_hpo.campaign.acceptance.comparing import (
    equal_width,
    errors_apart,
    resumed,
    same_bits,
    weights_apart,
)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ({"a": 0.5}, {"a": 0.5}, 0.0),
        ({"a": 1.0, "b": 4.0}, {"a": 1.0, "b": 5.0}, 0.2),  # 1 of the larger, 5
        ({"a": 0.0}, {"a": 0.0}, 0.0),
        ({"a": 1.0}, {"b": 1.0}, math.inf),
        ({}, {}, math.inf),
    ],
)
def test_errors_are_compared_head_by_head(one, other, apart):
    assert errors_apart(one, other) == apart


def test_weights_are_measured_by_the_largest_of_their_tensor():
    one = {"a": np.array([0.0, 2.0]), "b": np.array([100.0])}
    other = {"a": np.array([0.5, 2.0]), "b": np.array([101.0])}
    assert weights_apart(one, other) == 0.25
    assert weights_apart(one, one) == 0.0
    assert weights_apart(one, {"a": one["a"]}) == math.inf
    assert weights_apart({"a": np.ones(2)}, {"a": np.ones(3)}) == math.inf
    assert weights_apart({"a": np.ones(0)}, {"a": np.ones(0)}) == 0.0


def test_bits_are_bits():
    one = {"a": np.array([1.0, 0.0])}
    assert same_bits(one, {"a": np.array([1.0, 0.0])})
    assert not same_bits(one, {"a": np.array([1.0, -0.0])})
    assert not same_bits(one, {"a": np.array([1.0, np.nextafter(0.0, 1.0)])})
    assert not same_bits(one, {"a": one["a"].astype(np.float32)})
    assert not same_bits(one, {"b": one["a"]})


@pytest.mark.parametrize(
    ("errors", "state"), [(0.9e-5, "ok"), (1.1e-5, "wrong"), (math.inf, "wrong")]
)
def test_placement_may_change_an_error_by_rounding_alone(errors, state):
    assert equal_width("one rank, two hosts", errors, 1.0, ("a", "b")).state == state


def test_going_on_is_exact_where_sums_are():
    assert resumed(True, 0.0, exact=True, hosts=()).state == "ok"
    assert resumed(False, 0.0, exact=True, hosts=()).state == "wrong"
    assert resumed(False, 0.9e-6, exact=False, hosts=()).state == "ok"
    assert resumed(False, 1.1e-6, exact=False, hosts=()).state == "wrong"
