"""Selection against brute force over all draws, and its floor."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.ensemble.building.select import (
    ScoredHead,
    Terms,
    greedy,
    loss,
    per_head,
    priced,
    top_k,
)


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

    weights = greedy(heads, Terms(2, floor=1))

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

    weights = greedy(heads, Terms(6, floor=1))

    np.testing.assert_allclose(weights, expected / expected.sum(), atol=1e-15)


def test_a_candidate_that_is_always_right_still_gets_company() -> None:
    heads = heads_of(0, candidates=7)
    for head in heads:
        head.predictions[3] = head.truth

    alone, together = greedy(heads, Terms(24, floor=1)), greedy(heads, Terms(24))

    assert alone[3] == 1.0
    assert np.count_nonzero(together) >= 4
    assert together.argmax() == 3
    assert together.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(("candidates", "members"), [(1, 1), (2, 2), (3, 3)])
def test_fewer_candidates_than_the_floor_are_all_taken(candidates: int, members: int) -> None:
    weights = greedy(heads_of(1, candidates), Terms(24))
    assert np.count_nonzero(weights) == members


def test_the_floor_is_reached_even_with_fewer_rounds() -> None:
    assert np.count_nonzero(greedy(heads_of(2, candidates=6), Terms(1))) == 4


def test_ties_go_to_the_earlier_candidate() -> None:
    heads = heads_of(3, candidates=6)
    for head in heads:
        head.predictions[:] = head.predictions[0]

    np.testing.assert_array_equal(greedy(heads, Terms(9)), [0.25, 0.25, 0.25, 0.25, 0, 0])
    np.testing.assert_array_equal(top_k([0.5, 0.3, 0.3, 0.3], 2), [0, 0.5, 0.5, 0])


def test_top_k_takes_all_where_there_are_fewer() -> None:
    np.testing.assert_array_equal(top_k([0.5, 0.3], 5), [0.5, 0.5])


def test_greedy_on_sel_is_not_worse_than_the_best_single_where_it_is_free() -> None:
    heads = heads_of(4, candidates=8)
    single = min(loss(heads, np.eye(8)[c]) for c in range(8))
    assert loss(heads, greedy(heads, Terms(24, floor=1))) <= single


def test_a_heavier_head_decides() -> None:
    truth = np.zeros((4, 1))
    first = np.stack([truth, truth + 1.0])
    second = np.stack([truth + 1.0, truth])
    light, heavy = ScoredHead(first, truth, 0.1), ScoredHead(second, truth, 0.9)
    np.testing.assert_array_equal(greedy([light, heavy], Terms(1, floor=1)), [0, 1])


def obvious_greedy(heads: list[ScoredHead], terms: Terms) -> np.ndarray:
    """Draw by looking at every candidate and writing every rule out."""
    candidates, drawn, seen = len(heads[0].predictions), list[int](), []
    costs = terms.costs or [1.0] * candidates
    floor = min(terms.floor, candidates)
    for _ in range(max(terms.rounds, floor)):
        scores = {}
        for c in range(candidates):
            members = {*drawn, c}
            if len(set(drawn)) < floor and c in drawn:
                continue
            if terms.most is not None and len(members) > max(terms.most, floor):
                continue
            mix = np.bincount([*drawn, c], minlength=candidates) / (len(drawn) + 1)
            doublings = np.log2(sum(costs[m] for m in members))
            scores[c] = loss(heads, mix) * (1 + terms.price) ** doublings
        drawn.append(min(scores, key=lambda c: (scores[c], c)))
        if len(set(drawn)) >= floor:
            seen.append((scores[drawn[-1]], np.bincount(drawn, minlength=candidates) / len(drawn)))
    return min(seen, key=lambda pair: pair[0])[1]


@given(
    seed=st.integers(0, 10_000),
    rounds=st.integers(1, 9),
    floor=st.integers(1, 5),
    most=st.none() | st.integers(1, 6),
    price=st.sampled_from([0.0, 0.01, 0.1, 1.0]),
    costs=st.lists(st.floats(0.5, 50.0), min_size=6, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_greedy_equals_a_slow_obvious_loop(
    seed: int, rounds: int, floor: int, most: int | None, price: float, costs: list[float]
) -> None:
    heads, terms = heads_of(seed, candidates=6), Terms(rounds, floor, most, price, costs)
    np.testing.assert_allclose(greedy(heads, terms), obvious_greedy(heads, terms), atol=1e-15)


def test_a_price_of_one_percent_pays_one_percent_of_the_loss_for_half_the_cost() -> None:
    assert priced(1.01, cost=5.0, price=0.01) == pytest.approx(priced(1.0, cost=10.0, price=0.01))
    assert priced(1.01**3, cost=1.0, price=0.01) == pytest.approx(priced(1.0, cost=8.0, price=0.01))
    assert priced(0.7, cost=1e12, price=0.0) == 0.7


def test_a_price_prefers_the_cheap_one_of_two_that_are_nearly_as_good() -> None:
    truth = np.zeros((4, 1))
    said = np.stack([truth + 1.0, truth + 1.005, truth + 1.02])
    heads = [ScoredHead(said, truth, 1.0)]
    costs = [8.0, 4.0, 1.0]

    def alone(price: float) -> int:
        return int(greedy(heads, Terms(1, floor=1, price=price, costs=costs)).argmax())

    # Halving the cost loses 0.5 %; three halvings lose 2 %, so 0.66 % each.
    assert [alone(0.0), alone(0.003), alone(0.0055), alone(0.02)] == [0, 0, 1, 2]


@pytest.mark.parametrize("seed", range(4))
def test_each_head_weighs_the_members_by_its_own_loss_alone(seed: int) -> None:
    heads = heads_of(seed, candidates=7)
    members = np.array([True, False, True, True, True, False, True])

    found = per_head(heads, members, Terms(10))

    for head, weights in zip(heads, found, strict=True):
        kept = ScoredHead(head.predictions[members], head.truth, 1.0)
        np.testing.assert_allclose(weights[members], obvious_greedy([kept], Terms(10)), atol=1e-15)
        assert not weights[~members].any()
        assert np.count_nonzero(weights) >= 4
    assert not np.array_equal(*found)
