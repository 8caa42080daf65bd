"""The state is a fold: what each event means for a trial."""

import pytest

from hydragnn_hpo.campaign.state import fold


def event(kind, time=0.0, **values):
    return {"event": kind, "time": time, "epoch": 1, **values}


def proposed(name):
    return event("proposed", trial=name, values={"model.conv": "egnn"}, until=4)


def placed(name, time=0.0, attempt=1, slots=("local:0",)):
    return event("placed", time, trial=name, attempt=attempt, width=len(slots), slots=list(slots))


def ended(name, outcome, time=5.0, **values):
    return event("ended", time, trial=name, outcome=outcome, **values)


@pytest.mark.parametrize("reason", ["host_lost", "stale"])
def test_a_checkpoint_in_mid_epoch_is_a_new_one(reason):
    def attempt(reached, step):
        saved = event("checkpoint", trial="a", reached=reached, step=step)
        return [placed("a"), saved, ended("a", "interrupted", reason=reason)]

    onward = fold([proposed("a"), *attempt(0, 5), *attempt(0, 9), *attempt(1, 12)])
    assert (onward.trials["a"].restarts, onward.trials["a"].epoch) == (1, 1)
    stuck = fold([proposed("a"), *attempt(1, 12), *attempt(1, 12), *attempt(1, 12)])
    assert (stuck.trials["a"].restarts, stuck.trials["a"].epoch) == (3, 1)


def test_furthest_trained_ranks_first_then_lowest_objective():
    events = []
    for name, objective in (("a", 0.3), ("b", 0.2), ("c", 0.25)):
        events += [proposed(name), placed(name), ended(name, "stopped", objective=objective)]
    events += [event("promoted", trials=["c", "a"], until=8)]
    events += [placed("c", attempt=2), ended("c", "completed", objective=0.24, reached=8)]
    state = fold(events)
    assert state.trials["a"].status == "queued"
    assert [t.name for t in state.ranked()] == ["c", "b"]


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ({}, (2.0, 1.0)),
        ({"score": 0.3}, (2.0, 1.0)),
        ({"score": -7.0}, ()),
        ({"score": [0.3, 9.0]}, ()),
        ({"val_mae": {"gap": None, "energy": 2.0}}, ()),
    ],
)
def test_errors_of_heads_are_compared_where_they_are_the_objective(told, known):
    result = {"objective": 0.3, "val_mae": {"gap": 1.0, "energy": 2.0}, **told}
    events = [proposed("a"), placed("a"), ended("a", "stopped", **result)]
    assert fold(events).results[4][0].errors == known
    scores = {"a": {"4": -7.0}}
    [row] = fold([*events, event("objective_changed", scores=scores)]).results[4]
    assert (row.objective, row.errors) == (-7.0, ())


def test_bugs_are_counted_by_what_they_say_at_last():
    def bug(name, message):
        return [proposed(name), placed(name), ended(name, "failed", reason="bug", message=message)]

    state = fold(
        [
            *bug("a", "Traceback ...\n  line 3\nKeyError: 'x'"),
            *bug("b", "Traceback ...\n  line 70\nKeyError: 'x'"),
            *bug("c", "Traceback ...\n  line 3\nKeyError: 'y'"),
        ]
    )
    assert [state.count_equal_failures(state.trials[name]) for name in "abc"] == [2, 2, 1]


def test_a_promoted_trial_that_is_dropped_rests_where_it_was():
    state = fold(
        [
            proposed("a"),
            placed("a"),
            ended("a", "stopped", objective=0.3),
            event("promoted", trials=["a"], until=8),
            event("rested", trial="a"),
        ]
    )
    trial = state.trials["a"]
    assert (trial.status, trial.until, trial.score) == ("stopped", 4, 0.3)
    assert state.promoted[4] == {"a"}


def test_a_trial_that_a_rule_ended_counts_as_the_worst_of_its_rung():
    state = fold([proposed("a"), placed("a"), ended("a", "stopped", objective=0.3, reason="curve")])
    assert state.results[4][0].objective is None
    assert [t.name for t in state.ranked()] == ["a"], "it has a result all the same"


def test_a_retried_failure_counts_once_at_its_rung():
    state = fold(
        [
            proposed("a"),
            placed("a"),
            ended("a", "failed", reason="diverged"),
            event("retried", trial="a"),
            placed("a", attempt=2),
            ended("a", "stopped", objective=0.3),
        ]
    )
    assert [tuple(rested)[:2] for rested in state.results[4]] == [("a", 0.3)]


def test_a_width_that_a_trial_was_to_yield_for_is_forgotten_when_it_ends_before():
    events = [proposed("t0"), placed("t0"), event("asked", trial="t0", reason="resized", width=4)]
    assert (
        fold([*events, ended("t0", "interrupted", reason="resized")]).trials["t0"].requested_width
        == 4
    )
    rests = ended("t0", "stopped", objective=1.0, score=1.0, reached=2)
    assert fold([*events, rests]).trials["t0"].requested_width is None


def test_a_trial_cannot_help_that_its_controller_died():
    events = [proposed("t0")]
    for attempt, codes in ((1, []), (2, [-9]), (3, [])):
        events.append(placed("t0", attempt=attempt))
        events.append(ended("t0", "interrupted", reason="host_lost", codes=codes))
    assert fold(events).trials["t0"].restarts == 1
