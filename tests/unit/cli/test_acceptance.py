"""Comparisons of an acceptance: two trainings, and a campaign's journal of a few lines."""

import math
import sys

import numpy as np
import pytest

from hydragnn_hpo.cli.acceptance import (
    EQUAL_MAE,
    check_campaign,
    compare_results,
    errors_apart,
    same_bits,
)
from hydragnn_hpo.layout import RunDir

END = {"outcome": "stopped", "objective": 0.5, "score": [0.5], "reached": 5}
HOSTS = ("a", "b")


def at(time, kind, **values):
    return {"event": kind, "time": time, "epoch": 1, **values}


def placed(time, trial, slots, attempt=1):
    return at(time, "placed", trial=trial, attempt=attempt, width=len(slots), slots=slots)


def journal(*, second="b:0", end=END):
    """Two trials, each 8 of 10 seconds in training; one ends well, one as told."""
    yield at(0.0, "opened", units={}, slots=["a:0", "b:0"])
    for name in ("t0", "t1"):
        yield at(0.0, "proposed", trial=name, values={}, until=5)
    yield placed(10.0, "t0", ["a:0"])
    yield placed(10.0, "t1", [second])
    for name in ("t0", "t1"):
        yield at(11.0, "first_step", trial=name, seconds=1.0)
    for name in ("t0", "t1"):
        fields = {"objective": 0.5, "best_objective": 0.5, "seconds": 8.0, "width": 1}
        yield at(19.0, "epoch", trial=name, reached=5, **fields)
    yield at(20.0, "ended", trial="t0", **END)
    yield at(20.0, "ended", trial="t1", **end)


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


def test_bits_are_bits():
    one = {"a": np.array([1.0, 0.0])}
    assert same_bits(one, {"a": np.array([1.0, 0.0])})
    assert not same_bits(one, {"a": np.array([1.0, -0.0])})
    assert not same_bits(one, {"a": np.array([1.0, np.nextafter(0.0, 1.0)])})
    assert not same_bits(one, {"a": one["a"].astype(np.float32)})
    assert not same_bits(one, {"b": one["a"]})


@pytest.mark.parametrize(
    ("allowed", "apart", "state"),
    [
        (EQUAL_MAE, 0.9e-5, "ok"),
        (EQUAL_MAE, 1.1e-5, "wrong"),
        (EQUAL_MAE, math.inf, "wrong"),
        (0.0, 0.0, "ok"),
        (0.0, sys.float_info.min, "wrong"),
    ],
)
def test_errors_may_be_apart_by_rounding_where_placement_changed(allowed, apart, state):
    assert compare_results("c", apart, allowed, cure="", hosts=HOSTS).state == state


@pytest.fixture
def run(tmp_path):
    made = RunDir(tmp_path)
    for name in ("t0", "t1"):
        made.trial(name).attempt(1).mkdir(parents=True)
        (made.trial(name).attempt(1) / "result.json").write_text("{}")
    return made


def states(findings):
    return {finding.check: finding.state for finding in findings}


def test_a_good_campaign_is_ok(run):
    findings = check_campaign(list(journal()), HOSTS, run)
    assert set(states(findings).values()) == {"ok"}
    assert findings[0].observed == "2 of 2 that began"


def test_a_host_without_trials_is_named(run):
    findings = check_campaign(list(journal(second="a:1")), HOSTS, run)
    (idle,) = (finding for finding in findings if finding.check == "hosts with trials")
    assert (idle.state, idle.hosts, idle.observed) == ("wrong", ("b",), "1 of 2")


def test_a_result_that_is_gone_is_missed(run):
    (run.trial("t0").attempt(1) / "result.json").unlink()
    findings = check_campaign(list(journal()), HOSTS, run)
    (kept,) = (finding for finding in findings if finding.check == "results kept")
    assert kept.state == "wrong"
    assert "t0" in kept.observed


@pytest.mark.parametrize(("reason", "state"), [("bug", "wrong"), ("diverged", "ok")])
def test_a_trial_that_fails_is_reported_but_not_one_that_diverges(run, reason, state):
    end = {"outcome": "failed", "reason": reason, "message": "a reason"}
    assert states(check_campaign(list(journal(end=end)), HOSTS, run))["results kept"] == state


def test_a_campaign_that_placed_nothing_is_wrong(run):
    findings = check_campaign([at(0.0, "opened", units={}, slots=["a:0"])], HOSTS, run)
    check_states = states(findings)
    assert check_states["trials at a rung"] == check_states["hosts with trials"] == "wrong"
