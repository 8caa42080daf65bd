"""Far from each other, and uncertain."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.ensemble.descriptors import farthest_first, mean_distance, standardize


def cover(points: np.ndarray, centers: list[int]) -> float:
    """Give how far the farthest point is from its nearest centre."""
    return max(min(float(np.linalg.norm(p - points[c])) for c in centers) for p in points)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 3))
def test_with_equal_scores_it_covers_at_most_twice_as_wide_as_the_best(
    seed: int, count: int, wanted: int
) -> None:
    points = np.random.default_rng(seed).normal(size=(count, 2))
    found = farthest_first(points, np.ones(count), wanted)
    wanted = min(wanted, count)
    best = min(cover(points, list(some)) for some in itertools.combinations(range(count), wanted))
    assert cover(points, found.rows.tolist()) <= 2.0 * best + 0.01


def test_it_begins_with_the_best_and_goes_far() -> None:
    points = np.array([[0.0], [0.1], [5.0], [10.0]])
    found = farthest_first(points, np.array([1.0, 2.0, 1.0, 1.0]), 3)
    # 0.1 has the best score; 10 is 9.9 from it, 5 is then 4.9 from both.
    assert found.rows.tolist() == [1, 3, 2]
    assert found.distances[1:] == pytest.approx([9.9, 4.9])


def test_a_far_but_known_point_does_not_win() -> None:
    points = np.array([[0.0], [4.0], [10.0]])
    assert farthest_first(points, np.array([1.0, 0.9, 0.1]), 2).rows.tolist() == [0, 1]


def test_what_is_the_same_is_picked_once() -> None:
    points = np.array([[0.0], [0.0], [1.0], [1.0 + 1e-6], [2.0]])
    found = farthest_first(points, np.array([5.0, 4.0, 3.0, 2.0, 1.0]), 5)
    assert sorted(found.rows.tolist()) == [0, 2, 4]
    assert found.duplicates == 2


def test_no_points_are_no_choice() -> None:
    found = farthest_first(np.zeros((0, 2)), np.zeros(0), 3)
    assert (len(found.rows), found.duplicates) == (0, 0)


def test_two_random_points_are_about_the_root_of_two_apart() -> None:
    points = standardize(np.random.default_rng(0).normal(3.0, 50.0, (400, 30)))
    squares = np.square(points[:, None] - points[None]).sum(axis=-1)
    # Mean over ordered pairs of distinct points of |x - y|^2: 2 n / (n - 1) times the variances.
    assert squares.sum() / (400 * 399) == pytest.approx(2.0 * 400 / 399)


def test_what_never_changes_tells_nothing() -> None:
    assert not standardize(np.full((5, 3), 7.0)).any()
    features = np.array([[1.0, 0.0], [1.0, 2.0]])
    assert standardize(features).tolist() == [[-1.0], [1.0]]


def test_mean_distance_of_three_points() -> None:
    assert mean_distance(np.array([[0.0], [1.0], [3.0]])) == pytest.approx((1 + 3 + 2) / 3)
    assert mean_distance(np.zeros((1, 2))) == 0.0
