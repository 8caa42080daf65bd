"""What a finding says is safe on a terminal, and the worst state counts."""

import json

import pytest

from hydragnn_hpo.launching.doctor.finding import Finding, clean, worst


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
