"""Selection against brute force over all draws, and its floor."""

import itertools

import numpy as np
import pytest

from hydragnn_hpo.ensemble.select import ScoredHead, greedy, loss, top_k


def heads_of(seed: int, candidates: int, rows: int = 12) -> list[ScoredHead]:
    rng = np.random.default_rng(seed)
    heads = []
    for width, weight in ((1, 0.75), (3, 0.25)):
        truth = rng.normal(size=(rows, width))
        heads.append(ScoredHead(truth + rng.normal(size=(candidates, rows, width)), truth, weight))
    return heads


def best_of_all_draws(heads: list[ScoredHead], draws: int) -> float:
    """Look at every multiset of candidates of this size."""
    candidates = len(heads[0].predictions)
    losses = []
    for drawn in itertools.combinations_with_replacement(range(candidates), draws):
        losses.append(loss(heads, np.bincount(drawn, minlength=candidates) / draws))
    return min(losses)


@pytest.mark.parametrize("seed", range(6))
def test_two_draws_over_two_candidates_equal_brute_force_from_the_best_single(seed: int) -> None:
    heads = heads_of(seed, candidates=2)

    weights = greedy(heads, rounds=2, floor=1)

    # With two candidates every mix of two draws contains the best single or doubles the other.
    assert loss(heads, weights) == pytest.approx(
        min(best_of_all_draws(heads, 1), best_of_all_draws(heads, 2)), abs=1e-12
    )


@pytest.mark.parametrize("seed", range(6))
def test_each_draw_is_the_best_that_brute_force_finds(seed: int) -> None:
    heads, candidates = heads_of(seed, candidates=5), 5
    drawn: list[int] = []
    seen = []
    for _ in range(6):
        mixes = [np.bincount([*drawn, c], minlength=candidates) for c in range(candidates)]
        losses = [loss(heads, mix / mix.sum()) for mix in mixes]
        drawn.append(int(np.argmin(losses)))
        seen.append((min(losses), mixes[drawn[-1]]))
    expected = min(seen, key=lambda pair: pair[0])[1]

    weights = greedy(heads, rounds=6, floor=1)

    np.testing.assert_allclose(weights, expected / expected.sum(), atol=1e-15)


def test_a_candidate_that_is_always_right_still_gets_company() -> None:
    heads = heads_of(0, candidates=7)
    for head in heads:
        head.predictions[3] = head.truth

    alone, together = greedy(heads, rounds=24, floor=1), greedy(heads, rounds=24)

    assert alone[3] == 1.0
    assert np.count_nonzero(together) >= 4
    assert together.argmax() == 3
    assert together.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(("candidates", "members"), [(1, 1), (2, 2), (3, 3)])
def test_fewer_candidates_than_the_floor_are_all_taken(candidates: int, members: int) -> None:
    weights = greedy(heads_of(1, candidates), rounds=24)
    assert np.count_nonzero(weights) == members


def test_the_floor_is_reached_even_with_fewer_rounds() -> None:
    assert np.count_nonzero(greedy(heads_of(2, candidates=6), rounds=1)) == 4


def test_ties_go_to_the_earlier_candidate() -> None:
    heads = heads_of(3, candidates=6)
    for head in heads:
        head.predictions[:] = head.predictions[0]

    np.testing.assert_array_equal(greedy(heads, rounds=9), [0.25, 0.25, 0.25, 0.25, 0, 0])
    np.testing.assert_array_equal(top_k([0.5, 0.3, 0.3, 0.3], 2), [0, 0.5, 0.5, 0])


def test_top_k_takes_all_where_there_are_fewer() -> None:
    np.testing.assert_array_equal(top_k([0.5, 0.3], 5), [0.5, 0.5])


def test_greedy_on_sel_is_not_worse_than_the_best_single_where_it_is_free() -> None:
    heads = heads_of(4, candidates=8)
    single = min(loss(heads, np.eye(8)[c]) for c in range(8))
    assert loss(heads, greedy(heads, rounds=24, floor=1)) <= single


def test_a_heavier_head_decides() -> None:
    truth = np.zeros((4, 1))
    first = np.stack([truth, truth + 1.0])
    second = np.stack([truth + 1.0, truth])
    light, heavy = ScoredHead(first, truth, 0.1), ScoredHead(second, truth, 0.9)
    np.testing.assert_array_equal(greedy([light, heavy], rounds=1, floor=1), [0, 1])
