"""Moments gathered in several places are those of all members together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_hpo.ensemble.moments import (
    Moments,
    compute_moments,
    force_deviation,
    largest_deviation,
)

MEMBERS, ROWS, WIDTH = 7, 5, 3


def gathered(rows: list[int], values: np.ndarray, weights: np.ndarray, noise: np.ndarray):
    moments = Moments()
    for member in rows:
        moments.add(values[member], weights[member], noise[member])
    return moments


@given(
    where=st.lists(st.integers(0, 3), min_size=MEMBERS, max_size=MEMBERS),
    order=st.permutations(range(4)),
    offset=st.sampled_from([0.0, 1e3, -1e6]),
    seed=st.integers(0, 2**31),
)
def test_parts_in_any_order_give_the_moments_of_all(where, order, offset, seed):
    rng = np.random.default_rng(seed)
    values = offset + rng.normal(size=(MEMBERS, ROWS, WIDTH))
    weights = rng.uniform(0.1, 3.0, MEMBERS)
    noise = rng.uniform(0.0, 2.0, (MEMBERS, ROWS, 1))
    whole = Moments()
    for place in order:
        part = [member for member in range(MEMBERS) if where[member] == place]
        whole.merge(gathered(part, values, weights, noise))
    share = (weights / weights.sum())[:, None, None]
    mean = (share * values).sum(axis=0)
    variance = (share * (values - mean) ** 2).sum(axis=0)
    np.testing.assert_allclose(whole.mean, mean, rtol=1e-12, atol=1e-12)
    # a variance of order 1 beside a mean of 1e6 is known to 1e6 ulps of the values, squared small
    np.testing.assert_allclose(whole.variance, variance, rtol=1e-12, atol=1e-12 * (1 + abs(offset)))
    np.testing.assert_allclose(whole.noise, (share * noise).sum(axis=0), rtol=1e-12)


def test_two_halves_by_hand():
    """Members 1 and 3 of weight 1, member 5 of weight 2: mean 3.5, variance 2.75."""
    first, second = Moments(), Moments()
    first.add(np.array([[1.0]]), 1.0)
    first.add(np.array([[3.0]]), 1.0)
    second.add(np.array([[5.0]]), 2.0)
    first.merge(second)
    assert first.mean[0, 0] == pytest.approx(3.5)
    assert first.variance[0, 0] == pytest.approx((6.25 + 0.25 + 2 * 2.25) / 4)
    assert (second.mean[0, 0], second.variance[0, 0]) == (5.0, 0.0)


def test_deviation_as_its_definition_says() -> None:
    """sqrt(<|f - <f>|^2>) of each atom, <> the mean over four members of equal weight."""
    forces = np.random.default_rng(0).normal(size=(4, 5, 3))
    found = force_deviation(compute_moments(forces, [1.0] * 4).variance)
    for atom in range(5):
        mean = sum(forces[m, atom] for m in range(4)) / 4
        squares = [float(((forces[m, atom] - mean) ** 2).sum()) for m in range(4)]
        np.testing.assert_allclose(found[atom], np.sqrt(sum(squares) / 4), rtol=1e-12)


def test_the_largest_of_each_structure() -> None:
    offsets = np.array([0, 2, 2, 5])
    found = largest_deviation(np.array([0.1, 0.4, 0.2, 0.9, 0.3]), offsets)
    assert found.tolist() == [0.4, 0.0, 0.9]
