"""Diversity: hand counts, and the identity of Krogh and Vedelsby for every weighting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_hpo.ensemble.building.diversity import diversity


@given(
    seed=st.integers(0, 10_000),
    members=st.integers(1, 7),
    rows=st.integers(1, 20),
    width=st.sampled_from([1, 3]),
)
def test_the_error_of_the_mix_is_the_mean_error_less_the_ambiguity(
    seed: int, members: int, rows: int, width: int
) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(rows, width))
    said = truth + rng.normal(size=(members, rows, width))
    weights = rng.dirichlet(np.ones(members))

    seen = diversity(said, truth, weights)

    slow = np.mean([np.sum((weights @ said[:, r] - truth[r]) ** 2) for r in range(rows)])
    assert seen.mse == pytest.approx(slow, rel=1e-9)
    assert seen.mse == pytest.approx(seen.mean_member_mse - seen.ambiguity, rel=1e-9, abs=1e-12)
    assert seen.ambiguity >= 0.0


def test_two_members_that_err_against_each_other() -> None:
    truth = np.zeros((4, 1))
    errors = np.array([1.0, -1.0, 1.0, -1.0])[:, None]
    seen = diversity(np.stack([errors, -errors]), truth, np.array([0.5, 0.5]))
    assert (seen.mse, seen.mean_member_mse, seen.ambiguity) == (0.0, 1.0, 1.0)
    assert seen.correlation == pytest.approx(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    assert seen.mean_correlation == pytest.approx(-1.0)


def test_the_correlation_is_numpys() -> None:
    rng = np.random.default_rng(3)
    truth, errors = rng.normal(size=(30, 1)), rng.normal(size=(4, 30, 1))
    seen = diversity(truth + errors, truth, np.full(4, 0.25))
    expected = np.corrcoef(errors[..., 0])
    np.testing.assert_allclose(seen.correlation, expected, atol=1e-12)
    assert seen.mean_correlation == pytest.approx(expected[np.triu_indices(4, 1)].mean())


def test_members_that_never_err_are_alike_and_one_alone_has_no_pair() -> None:
    truth = np.ones((3, 1))
    both = diversity(np.stack([truth, truth]), truth, np.array([0.5, 0.5]))
    assert both.correlation == [[1.0, 1.0], [1.0, 1.0]]
    assert diversity(truth[None], truth, np.ones(1)).mean_correlation is None
