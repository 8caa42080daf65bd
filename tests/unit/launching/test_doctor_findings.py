"""What a finding says is safe on a terminal, and the worst state counts."""

import json

import pytest

from hydragnn_hpo.launching.doctor_findings import Finding, clean, find_outliers, worst


def test_nothing_that_moves_a_terminal_is_kept():
    hostile = "node1\x1b[2J\x07\nrm\u202e\x9b31m"
    finding = Finding("a\tcheck", "wrong", hostile, hostile, hostile, (hostile,))
    for text in (finding.check, finding.found, finding.expected, finding.cure, *finding.hosts):
        assert text.isprintable()
    assert clean("node1\x1b[2J") == "node1?[2J"


def test_a_long_answer_is_cut():
    assert len(Finding("check", "ok", "x" * 10_000).found) == 400


@pytest.mark.parametrize(
    ("states", "expected"),
    [([], "ok"), (["ok", "unknown"], "unknown"), (["slow", "ok", "wrong"], "wrong")],
)
def test_the_worst_state_counts(states, expected):
    assert worst(Finding("check", state, "") for state in states) == expected


def test_findings_are_plain_data():
    finding = Finding("check", "slow", "1 GB/s", hosts=("a", "b"), figure=1.0)
    plain = json.loads(json.dumps(finding.to_plain()))
    assert plain == {
        "check": "check",
        "state": "slow",
        "found": "1 GB/s",
        "expected": "",
        "cure": "",
        "hosts": ["a", "b"],
        "figure": 1.0,
    }


@pytest.mark.parametrize(
    ("values", "slow"),
    [
        ([10, 10, 10, 3], [3]),
        ([10, 11, 9, 10, 2, 1], [4, 5]),
        ([10, 9, 8, 7, 6, 5, 4], []),  # spread is usual there
        ([10, 3, 10], []),  # too few for a majority
        ([10, 10, 10, 10, 6], []),  # not by a factor
        ([0, 0, 0, 0], []),
    ],
)
def test_slow_is_far_behind_the_median(values, slow):
    named = {str(k): float(value) for k, value in enumerate(values)}
    assert list(find_outliers(named, 2.0, low_is_bad=True)) == [str(k) for k in slow]


def test_long_times_are_bad_where_times_are_compared():
    assert list(find_outliers({"a": 1.0, "b": 1.0, "c": 1.1, "d": 5.0}, 3.0, low_is_bad=False)) == [
        "d"
    ]
