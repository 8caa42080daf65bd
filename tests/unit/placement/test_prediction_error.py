"""Predicted against actual, from a journal."""

import math

import pytest

from hydragnn_hpo.placement.prediction_error import (
    TrialPrediction,
    compare_with_prediction,
    typical_error,
)


def placed(trial, attempt, until, seconds, width=1):
    return {"event": "placed", "trial": trial, "attempt": attempt, "until": until,
            "width": width, "predicted_seconds": seconds}  # fmt: skip


def epochs(trial, *seconds):
    return [{"event": "epoch", "trial": trial, "seconds": each} for each in seconds]


def ended(trial, outcome="stopped"):
    return {"event": "ended", "trial": trial, "outcome": outcome}


def test_first_attempts_of_trials_that_ended():
    events = [
        {"event": "opened"},
        placed("a", 1, 10, 20.0, width=2),
        placed("b", 1, 5, 5.0),
        *epochs("a", 3.0, 4.0, 9.0),
        *epochs("b", 1.5),
        placed("still", 1, 10, 10.0),
        *epochs("still", 1.0),
        placed("silent", 1, 10, 10.0),
        ended("silent", "failed"),
        ended("b"),
        ended("a", "interrupted"),
        placed("a", 2, 10, 999.0),
        *epochs("a", 100.0),
        ended("a"),
    ]
    rows = compare_with_prediction(events)
    assert rows == [TrialPrediction("b", 1, 1.0, 1.5), TrialPrediction("a", 2, 2.0, 4.0)]
    assert [row.ratio for row in rows] == [1.5, 2.0]
    assert typical_error(rows) == pytest.approx((math.log(1.5) + math.log(2.0)) / 2)


def test_nothing_ended():
    assert compare_with_prediction([]) == []
    assert typical_error([]) is None
