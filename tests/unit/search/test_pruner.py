"""Stopping rules against plain loops, exact curves and made-up campaigns."""

import functools
import math
import random
import statistics

import numpy as np
import pytest
from counting import calls

from hydragnn_hpo.config.search_config import SearchConfig
from hydragnn_hpo.search.pruner import (
    EXPONENTS,
    PEERS,
    CurveRule,
    LearningCurve,
    MedianRule,
    TrialPruner,
)


def search(**values):
    return SearchConfig(trials=20, rungs=(10, 40), **values)


def feed(rule, trial, objectives):
    for epoch, objective in enumerate(objectives, start=1):
        rule.observe(trial, epoch, objective)


def test_the_median_rule_by_hand():
    rule = MedianRule(grace=2)
    # Running averages after two epochs: 2, 3, 4, 5, 6; their median is 4.
    for number, last in enumerate((1.0, 3.0, 5.0, 7.0, 9.0)):
        feed(rule, f"t{number}", [3.0, last])
    feed(rule, "good", [9.0, 4.0])
    feed(rule, "bad", [9.0, 4.5])
    assert rule.verdict("good", 10) is None
    # "good" averages 6.5: the median of six, without "bad" itself, is (4 + 5) / 2 = 4.5.
    assert rule.verdict("bad", 10) is None
    feed(rule, "worse", [9.0, 5.5])
    verdict = rule.verdict("worse", 10)
    # Others: 2 3 4 5 6 6.5 6.75: the fourth is 5.
    assert verdict == (
        "after 2 epochs its best objective 5.5 is worse than 5, the median of 7 others' running "
        "averages"
    )


def slowly(curves, trial, epoch):
    """Say again whether the median rule ends a trial, from whole curves."""
    others = [
        statistics.mean(ys[:epoch])
        for name, ys in curves.items()
        if name != trial and len(ys) >= epoch
    ]
    if len(others) < PEERS:
        return False
    return min(curves[trial][:epoch]) > statistics.median(others)


def test_the_median_rule_agrees_with_a_plain_loop():
    generator = random.Random(2)
    rule = MedianRule(grace=3)
    curves = {}
    verdicts = []
    for _ in range(1500):
        trial = f"t{generator.randrange(30)}"
        curve = curves.setdefault(trial, [])
        curve.append(round(generator.random() * 3 + int(trial[1:]) / 10, 1))
        rule.observe(trial, len(curve), curve[-1])
        expected = 3 <= len(curve) < 60 and slowly(curves, trial, len(curve))
        verdicts.append(expected)
        assert (rule.verdict(trial, 60) is not None) == expected
    assert 50 < sum(verdicts) < 1450


@pytest.mark.parametrize("rule", [MedianRule(grace=2), CurveRule(grace=2, rungs=(9,), keep=1)])
def test_epochs_repeated_after_an_interruption_change_nothing(rule):
    for number in range(8):
        feed(rule, f"t{number}", [1.0] * 9)
    feed(rule, "late", [5.0, 4.9, 4.8, 4.7, 4.7])
    before = rule.verdict("late", 9)
    assert before is not None
    feed(rule, "late", [0.0, 0.0, 0.0])
    for objective in (math.nan, -math.inf):
        rule.observe("late", 6, objective)
    assert rule.verdict("late", 9) == before


def test_nobody_is_judged_in_its_days_of_grace_or_at_its_rung():
    rule = MedianRule(grace=4)
    for number in range(8):
        feed(rule, f"t{number}", [1.0] * 6)
    for epochs, judged in ((3, False), (4, True), (5, True)):
        feed(rule, "bad", [9.0] * epochs)
        assert (rule.verdict("bad", 6) is not None) == judged
    assert rule.verdict("bad", 5) is None
    assert rule.verdict("unknown", 5) is None


@pytest.mark.parametrize("exponent", EXPONENTS[::3])
def test_an_exact_power_law_is_drawn_on(exponent):
    curve = LearningCurve()
    for epoch in range(1, 13):
        curve.add(epoch, 0.2 + 0.9 * (epoch + 1) ** -exponent)
    assert curve.lowest(40) == pytest.approx(0.2 + 0.9 * 41**-exponent, rel=1e-4)


def test_the_fit_agrees_with_weighted_least_squares():
    generator = random.Random(8)
    curve = LearningCurve()
    epochs = np.arange(1, 21)
    noisy = [0.3 + 1.2 * (e + 1) ** -0.7 + generator.gauss(0, 0.02) for e in epochs]
    best = np.minimum.accumulate(noisy)
    for epoch, objective in zip(epochs, noisy, strict=True):
        curve.add(int(epoch), objective)
    fits = []
    for exponent in EXPONENTS:
        shape = (epochs + 1.0) ** -exponent
        slope, level = np.polyfit(shape, best, 1, w=np.sqrt(epochs))
        misfit = np.sum(epochs * (best - level - slope * shape) ** 2) / epochs.sum() * 20
        fits.append((misfit, level + slope * 41.0**-exponent))
    noise = min(fits)[0] / (20 - 3)
    likely = [end for misfit, end in fits if misfit <= min(fits)[0] + 4 * noise]
    assert curve.lowest(40) == pytest.approx(min(likely) - 2 * math.sqrt(noise), rel=1e-6)


def test_a_short_curve_says_nothing():
    curve = LearningCurve()
    for epoch in (1, 2, 3):
        assert curve.lowest(40) is None
        curve.add(epoch, 1.0 / epoch)
    assert curve.lowest(40) is None
    curve.add(4, 0.25)
    assert curve.lowest(40) is not None


def power(level, epochs, generator, noise=0.01):
    return [level + 0.8 * (e + 1) ** -0.9 + generator.gauss(0, noise) for e in range(1, epochs + 1)]


def test_the_curve_rule_ends_those_without_hope_and_no_winner():
    generator = random.Random(1)
    rule = CurveRule(grace=6, rungs=(40,), keep=4)
    for number in range(10):  # the fourth comes to 0.39
        feed(rule, f"done{number}", power(0.3 + 0.02 * number, 40, generator))
    ended = {}
    for level in [0.01 * step for step in range(10, 90, 2)]:
        for epoch, objective in enumerate(power(level, 40, generator), start=1):
            rule.observe(f"{level:.2f}", epoch, objective)
            reason = rule.verdict(f"{level:.2f}", 40)
            if reason:
                ended[level] = (epoch, reason)
                break
    # The winners are the four lowest, 0.10 to 0.16; whoever ends within 0.05 of them may err.
    assert min(ended) > 0.16
    assert {level for level in ended if level >= 0.6} == {0.01 * step for step in range(60, 90, 2)}
    assert statistics.median(epoch for epoch, _ in ended.values()) < 15
    assert "where 4 others came to" in ended[0.88][1]


def test_the_curve_rule_waits_for_others_at_the_rung():
    rule = CurveRule(grace=3, rungs=(10, 40), keep=2)
    feed(rule, "t0", [0.1] * 10)
    feed(rule, "bad", [9.0] * 5)
    assert rule.verdict("bad", 10) is None
    feed(rule, "t1", [0.1] * 10)
    assert rule.verdict("bad", 10) is not None
    assert rule.verdict("bad", 40) is None


def test_who_is_ahead_already_is_not_drawn_on():
    rule = CurveRule(grace=3, rungs=(100,), keep=1)
    feed(rule, "t0", [0.75] * 100)
    curve = LearningCurve()
    for epoch, objective in enumerate([0.9] * 39 + [0.7], start=1):
        rule.observe("t1", epoch, objective)
        curve.add(epoch, objective)
    # The step came too late for the fit to believe it.
    reached = curve.lowest(100)
    assert reached is not None
    assert reached > 0.75
    assert rule.verdict("t1", 100) is None


def test_a_campaign_without_a_rule_ends_nobody():
    rule = TrialPruner(search())
    assert all(
        rule.observe(f"t{n}", e, 1.0 * n, until=10) is None for n in range(9) for e in (6, 7)
    )


@pytest.mark.parametrize("kind", ["median", "curve"])
def test_an_epoch_is_judged_by_a_few_calls_however_many_are_known(kind):
    """A loop over all trials, or all epochs, would be hundreds."""
    rule = TrialPruner(SearchConfig(trials=200, rungs=(50, 100), stop_rule=kind))
    generator = random.Random(6)
    curves = [power(generator.random(), 100, generator) for _ in range(200)]

    def judge(epoch):
        for number, curve in enumerate(curves):
            rule.observe(f"t{number}", epoch, curve[epoch - 1], until=50 if epoch < 50 else 100)

    for epoch in range(1, 101):
        assert calls(functools.partial(judge, epoch)) / len(curves) < 50
