"""What trials say about accuracy, cost, memory and failures."""

import math
from types import SimpleNamespace

import pytest
from made_campaign import make_campaign

from hydragnn_hpo.campaign.journal import encode
from hydragnn_hpo.campaign.state import Trial
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.report.facts import Facts, read_facts
from hydragnn_hpo.report.observations import (
    TrialObservation,
    choose_targets,
    list_targets,
    observe_trials,
    target_values,
)

RUNGS = (3, 9, 27)


def begin(name, until=3, attempt=1):
    slots = ["h:0", "h:1"]
    return [
        {"event": "placed", "trial": name, "attempt": attempt, "until": until, "width": 2,
         "slots": slots},
        *[{"event": "epoch", "trial": name, "reached": n, "seconds": s, "width": 2,
           "objective": 1.0, "best_objective": 1.0} for n, s in ((1, 9.0), (2, 2.0), (3, 3.0))],
    ]  # fmt: skip


def end(name, outcome, reason=None, **more):
    return {"event": "ended", "trial": name, "attempt": 1, "outcome": outcome, "reason": reason,
            "score": None, "val_mae": {}, **more}  # fmt: skip


def observe_events(tmp_path, events):
    """Read what trials say of a journal in which these events follow the proposals."""
    run = make_campaign(tmp_path / "run", trials=12, rungs=RUNGS)
    lines = run.journal.read_bytes().splitlines(keepends=True)
    opened = next(line for line in lines if b'"opened"' in line)
    names = dict.fromkeys(e["trial"] for e in events if "trial" in e)
    values = {"model.conv": "painn"}
    first = [{"event": "proposed", "trial": n, "values": values, "until": 3} for n in names]
    stamped = [{"time": 1795000100.0 + n, "epoch": 1, **e} for n, e in enumerate(first + events)]
    run.journal.write_bytes(opened + b"".join(map(encode, stamped)))
    return observe_trials(read_facts(run))


def test_a_trial_says_what_it_reached_at_the_first_rung(tmp_path):
    (row,) = observe_events(
        tmp_path,
        [
            *begin("t0"),
            end("t0", "stopped", score=[0.5, 7.0], val_mae={"gap": 0.2}, peak_bytes=10, reached=3),
            {"event": "promoted", "trials": ["t0"], "until": 9, "last": False},
            *begin("t0", until=9),
            end("t0", "stopped", score=0.1, val_mae={"gap": 0.1}, peak_bytes=12, reached=9),
        ],
    )
    # The first of two goals; two slots, and the median of 9, 2, 3 seconds twice over; the most
    # memory of any attempt.
    assert row.measured == {
        **{"mae": 0.5, "mae.gap": 0.2, "cost": 6.0, "memory": 12.0, "failure": 0.0}
    }


def test_a_trial_that_a_rule_ended_says_nothing_about_accuracy(tmp_path):
    (row,) = observe_events(
        tmp_path, [*begin("t0"), end("t0", "stopped", "median", score=0.9, reached=2)]
    )
    assert "mae" not in row.measured
    assert row.measured["cost"] == 6.0


@pytest.mark.parametrize("reason", ["diverged", "out_of_memory", "bad_config", "bug"])
def test_failures_of_the_configuration_count(tmp_path, reason):
    (row,) = observe_events(tmp_path, [*begin("t0"), end("t0", "failed", reason)])
    assert row.measured == {"cost": 6.0, "failure": 1.0}


@pytest.mark.parametrize(
    "events", [[], [end("t0", "cancelled")], [end("t0", "interrupted", "host_lost")]]
)
def test_of_the_others_it_is_unknown_whether_they_fail(tmp_path, events):
    (row,) = observe_events(tmp_path, [*begin("t0"), *events])
    assert "failure" not in row.measured


def test_commands_cost_what_their_slots_were_held(tmp_path):
    placed, *_ = begin("t0")
    ended = {**end("t0", "completed", score=0.3, reached=3), "time": 1795000131.0}
    (row,) = observe_events(tmp_path, [{**placed, "time": 1795000101.0}, ended])
    assert row.measured["cost"] == 30.0 * 2 / 3


def test_targets_come_in_order_and_only_where_something_is_known():
    rows = [TrialObservation({}, {"failure": 0.0, "mae": 0.5, "mae.b": 1.0, "mae.a": 2.0})]
    assert [t.key for t in list_targets(rows, "weighted")] == ["mae", "mae.a", "mae.b", "failure"]
    assert list_targets([], "weighted") == []
    (target,) = list_targets([TrialObservation({}, {"mae": 0.5})], {"gap": 2.0})
    assert target.label == "objective (2 gap)"
    assert target_values([TrialObservation({}, {"mae": math.e})], target) == pytest.approx([1.0])


def test_an_unknown_head_is_one_sentence():
    rows = [TrialObservation({}, {"mae.gap": 1.0})]
    assert [t.key for t in choose_targets(rows, "weighted", ["mae.gap"])] == ["mae.gap"]
    assert choose_targets(rows, "weighted", ["mae", "cost"]) == []
    with pytest.raises(ConfigError, match="unknown head 'gab'. Did you mean 'gap'"):
        choose_targets(rows, "weighted", ["mae.gab"])
    with pytest.raises(ConfigError, match="no trial says anything about 'memory'"):
        choose_targets(rows, "weighted", ["memory"])
    with pytest.raises(RunError, match="no trial has come to rest"):
        choose_targets([], "weighted", ["mae"])


def test_fits_of_the_learning_curve_are_not_among_the_scored_trials():
    def trial(name, **more):
        made = Trial(name, {}, 3, status="completed", score=0.5, **more)
        return SimpleNamespace(name=name, trial=made)

    trials = [trial("t0"), trial("t1", parent="t0"), trial("t2", parent="t0", train_share=0.5)]
    facts = SimpleNamespace(trials={each.name: each for each in trials})
    assert [each.name for each, _ in Facts.scored_trials(facts)] == ["t0", "t1"]
