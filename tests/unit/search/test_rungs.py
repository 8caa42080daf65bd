"""Who trains on: hand counts, a plain loop, and whole campaigns played through."""

import random
from collections.abc import Callable

import pytest

from hydragnn_hpo.search.rungs import (
    CORRELATION,
    Promotion,
    RungResult,
    expect_pair,
    promote_asynchronously,
    promote_finalists,
    promote_synchronously,
    rank_results,
)


def rested(*objectives, first=0):
    return [RungResult(f"t{i}", y) for i, y in enumerate(objectives, start=first)]


NINE = [0.1 * i for i in range(9)]
THREE = [0.3, 0.1, 0.2]
SIX = [0.5, 0.1, 0.3, 0.2, 0.4, 0.6]


@pytest.mark.parametrize(
    ("objectives", "gone", "expected"),
    [
        ([[0.5, 0.1]], [], [("t1", 0)]),
        ([[0.1, 0.5]], [{"t0"}], []),
        ([SIX], [], [("t1", 0), ("t3", 0)]),
        ([SIX], [{"t1"}], [("t3", 0)]),
        # t0 was best of three and keeps its seat; now t3 and t4 are the best two of six.
        ([[0.5, 0.6, 0.7, 0.1, 0.2, 0.9]], [{"t0"}], [("t3", 0), ("t4", 0)]),
        ([[0.5, None, None]], [], [("t0", 0)]),
        ([[None, None, None]], [], []),
        ([NINE, THREE], [{"t0", "t1", "t2"}], [("t1", 1)]),
        ([NINE, THREE], [], [("t1", 1), ("t0", 0), ("t1", 0), ("t2", 0)]),
    ],
    ids=[
        "first",
        "no better",
        "third",
        "gone",
        "early",
        "failed",
        "all failed",
        "second rung",
        "highest first",
    ],
)
def test_the_best_third_goes_on_at_once(objectives, gone, expected):
    results = [*(rested(*each) for each in objectives), []]
    promoted = [*gone, *(set() for _ in results)][: len(results)]
    promotions = promote_asynchronously(results, promoted, reduction=3)
    assert [(p.trial, p.from_rung) for p in promotions] == expected
    assert all(p.to_rung == p.from_rung + 1 for p in promotions)


def test_one_rung_promotes_nobody():
    results = [rested(0.3, 0.1, 0.2)]
    assert promote_asynchronously(results, [set()], reduction=2) == []
    assert promote_synchronously(results, [set()], reduction=2, finalists=2) == []
    assert promote_finalists(results, [set()], finalists=3) == []


def test_who_is_out_of_patience_passes_on_without_training():
    def second_rung(patience_ends_at):
        tired = RungResult("t2", patience_ends_at, final=True)
        first = [*rested(0.5, 0.6), tired, *rested(0.9, 0.9, 0.9, first=3)]
        results = [first, [RungResult("t0", 0.4), RungResult("t9", 0.5)], []]
        return promote_asynchronously(results, [{"t0", "t9"}, set(), set()], reduction=3)

    # It makes the second rung one of three, of whom one may go on; it may be that one itself.
    assert second_rung(0.45) == [Promotion("t0", 1, 2)]
    assert second_rung(0.1) == []


def test_several_goals_are_promoted_from_the_front():
    points = [(0.1, 9.0), (0.2, 8.0), (0.9, 0.9), (0.3, 9.5), (0.95, 8.5), (0.99, 9.9)]
    results = [[RungResult(f"t{i}", point) for i, point in enumerate(points)], []]
    promotions = promote_asynchronously(results, [set(), set()], reduction=2)
    assert {promotion.trial for promotion in promotions} == {"t0", "t1", "t2"}


ENERGY = (1.0, 4.0)
LIKE_IT = (1.05, 4.1)
EDGES = (3.0, 2.0)
"""Errors of two heads: of a net, of one like it, and of one that is better at the second head."""


@pytest.mark.parametrize(
    ("other", "second"),
    [(EDGES, "t3"), ((3.0, 3.9), "t1"), ((), "t1"), ((2.0,), "t1"), ((0.99, 3.99), "t1")],
    ids=["specialist", "worse", "not known", "other heads", "alike"],
)
def test_the_second_place_is_for_what_adds_most_to_the_best(other, second):
    kinds = zip((0.1, 0.2, 0.3, 0.4), (ENERGY, LIKE_IT, LIKE_IT, other), strict=True)
    results = [RungResult(f"t{i}", y, errors=errors) for i, (y, errors) in enumerate(kinds)]
    ranked = [one.trial for one in rank_results([results[3], *results[:3]])]
    assert ranked[:2] == ["t0", second]
    assert ranked[2:] == [f"t{i}" for i in range(1, 4) if f"t{i}" != second]
    promoted = promote_asynchronously([results, []], [set(), set()], reduction=2)
    assert [one.trial for one in promoted] == ["t0", second]
    together = promote_synchronously([results, []], [set(), set()], reduction=3, finalists=2)
    assert [one.trial for one in together] == ["t0", second]


@pytest.mark.parametrize("other", [(0.7, 5.0), (1.3, 1.3), (1.0, 3.0), (8.0, 0.0)])
def test_two_nets_err_as_with_the_best_weights_of_correlated_errors(other):
    best = (1.0, 2.0)
    steps = 20_000
    expected = []
    for a, b in zip(best, other, strict=True):
        squares = [
            (w * a) ** 2 + ((1 - w) * b) ** 2 + 2 * CORRELATION * w * (1 - w) * a * b
            for w in (step / steps for step in range(steps + 1))
        ]
        expected.append(min(squares) ** 0.5 / a)
    assert expect_pair(best, other) == pytest.approx(sum(expected) / 2, abs=1e-6)


def test_together_waits_until_all_rest_and_then_takes_as_many_as_needed():
    results = [rested(0.5, 0.1, 0.3, 0.2, 0.4, 0.6, 0.7, 0.8), [], []]
    nobody: list[set[str]] = [set(), set(), set()]
    promotions = promote_synchronously(results, nobody, reduction=2, finalists=2)
    assert [p.trial for p in promotions] == ["t1", "t3", "t2", "t4"]
    assert {(p.from_rung, p.to_rung) for p in promotions} == {(0, 1)}
    promotions = promote_synchronously(results, nobody, reduction=4, finalists=3)
    assert [p.trial for p in promotions] == ["t1", "t3", "t2"]

    second = [
        RungResult("t1", 0.05),
        RungResult("t3", None),
        RungResult("t2", 0.03),
        RungResult("t4", 0.09),
    ]
    gone = [{"t1", "t2", "t3", "t4"}, set(), set()]
    promotions = promote_synchronously([results[0], second, []], gone, reduction=2, finalists=2)
    assert promotions == [Promotion("t2", 1, 2), Promotion("t1", 1, 2)]
    # With two rungs the finalists go on at once.
    promotions = promote_synchronously(
        [rested(0.5, 0.1, None, 0.2), []], [set(), set()], reduction=3, finalists=2
    )
    assert promotions == [Promotion("t1", 0, 1), Promotion("t3", 0, 1)]


@pytest.mark.parametrize(
    "finish",
    [promote_finalists, lambda *args, **rest: promote_synchronously(*args, reduction=2, **rest)],
)
def test_a_finalist_that_failed_is_replaced(finish: Callable[..., list[Promotion]]):
    results = [rested(0.5, 0.1, 0.3, 0.2), [RungResult("t1", None), RungResult("t3", 0.15)]]
    promotions = finish(results, [{"t1", "t3"}, set()], finalists=2)
    assert promotions == [Promotion("t2", 0, 1)]


def test_the_tail_takes_the_furthest_first():
    results = [rested(0.01, 0.1, 0.3, 0.2), [RungResult("t2", 0.25), RungResult("t1", 0.9)], []]
    gone = [{"t1", "t2"}, set(), set()]
    promotions = promote_finalists(results, gone, finalists=3)
    assert promotions == [Promotion("t2", 1, 2), Promotion("t1", 1, 2), Promotion("t0", 0, 2)]


def test_the_tail_ends():
    full = [rested(0.5, 0.1, 0.3), [RungResult("t1", 0.05), RungResult("t2", 0.2)]]
    assert promote_finalists(full, [{"t1", "t2"}, set()], finalists=2) == []
    few = [rested(0.5, None), [RungResult("t0", 0.4)]]
    assert promote_finalists(few, [{"t0"}, set()], finalists=6) == []
    cancelled = [rested(0.5, 0.1), []]
    assert promote_finalists(cancelled, [{"t1"}, set()], finalists=1) == [Promotion("t0", 0, 1)]


def test_in_the_tail_who_is_out_of_patience_holds_a_seat():
    first = [RungResult("t0", 0.1, final=True), *rested(0.2, 0.3, first=1)]
    assert promote_finalists([first, []], [set(), set()], finalists=2) == [Promotion("t1", 0, 1)]
    after = [RungResult("t1", 0.15)]
    assert promote_finalists([first, after], [{"t1"}, set()], finalists=2) == []


def slowly(results, promoted, reduction):
    """Say again who may go on, one trial at a time: how many at its rung are better?"""
    promotions = set()
    for rung in range(len(results) - 1):
        for place, one in enumerate(results[rung]):
            if one.objective is None or one.trial in promoted[rung]:
                continue
            ahead = [
                other
                for index, other in enumerate(results[rung])
                if other.objective is not None and (other.objective, index) < (one.objective, place)
            ]
            if not ahead or len(ahead) + 1 <= len(results[rung]) // reduction:
                promotions.add(Promotion(one.trial, rung, rung + 1))
    return promotions


class Played:
    """A campaign in which trials come to their rungs in any order."""

    def __init__(self, seed, rungs=3, reduction=3, trials=40, finalists=4, mode="asynchronous"):
        self.generator = random.Random(seed)
        self.reduction, self.finalists, self.mode = reduction, finalists, mode
        self.results = [[] for _ in range(rungs)]
        self.promoted = [set() for _ in range(rungs)]
        self.waiting = [(f"t{i}", 0) for i in range(trials)]
        self.running, self.log = [], []

    def decide(self):
        idle = not self.waiting and not self.running
        if self.mode == "together":
            if not idle:
                return []
            size = {"reduction": self.reduction, "finalists": self.finalists}
            return promote_synchronously(self.results, self.promoted, **size)
        promotions = promote_asynchronously(self.results, self.promoted, reduction=self.reduction)
        assert set(promotions) == slowly(self.results, self.promoted, self.reduction)
        if idle and not promotions:
            return promote_finalists(self.results, self.promoted, finalists=self.finalists)
        return promotions

    def turn(self):
        for going in self.decide():
            assert going.trial not in self.promoted[going.from_rung]
            self.promoted[going.from_rung].add(going.trial)
            self.waiting.append((going.trial, going.to_rung))
            self.log.append(going)
        while self.waiting and len(self.running) < 5:
            self.running.append(self.waiting.pop(0))
        if self.running:
            trial, rung = self.running.pop(self.generator.randrange(len(self.running)))
            objective = None if self.generator.random() < 0.1 else self.generator.random()
            self.results[rung].append(RungResult(trial, objective))
        return bool(self.running or self.waiting)

    def play(self):
        turns = 0
        while self.turn() or self.decide():
            turns += 1
            assert turns < 1000
        return self


@pytest.mark.parametrize("mode", ["asynchronous", "together"])
@pytest.mark.parametrize("rungs", [1, 2, 3, 4])
def test_campaigns_end_with_their_finalists(rungs, mode):
    for seed in range(8):
        played = Played(seed, rungs=rungs, mode=mode).play()
        arrived = [r for r in played.results[-1] if r.objective is not None]
        assert len(arrived) >= 4
        starts = [(p.trial, p.from_rung) for p in played.log]
        assert len(set(starts)) == len(starts)
