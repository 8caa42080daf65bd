"""Bars of a journal, by hand."""

from hydragnn_hpo.campaign.accounting import bars_of
from hydragnn_hpo.placement.simulated import Bar


def at(time, kind, trial="t0", epoch=1, **values):
    return {"event": kind, "time": float(time), "epoch": epoch, "trial": trial, **values}


def placed(time, *slots, trial="t0", until=4, epoch=1):
    return at(time, "placed", trial, epoch, until=until, slots=list(slots), width=len(slots))


def test_an_attempt_starts_and_trains():
    events = [
        placed(100, "a:0", "a:1"),
        at(103, "first_step", seconds=3.0),
        at(110, "ended", outcome="stopped"),
    ]
    slots = ("a:0", "a:1")
    assert bars_of(events) == [
        Bar("t0@4", slots, 0.0, 3.0, "start-up"),
        Bar("t0@4", slots, 3.0, 10.0, "training"),
    ]


def test_what_came_after_the_last_checkpoint_of_an_interrupted_attempt_is_lost():
    events = [
        placed(10, "a:0"),
        at(11, "first_step", seconds=1.0),
        at(15, "checkpoint"),
        at(18, "ended", outcome="interrupted", reason="host_lost"),
        placed(20, "a:0"),
        at(21, "first_step", seconds=1.0),
        at(30, "checkpoint"),
        at(31, "ended", outcome="interrupted", reason="paused"),
    ]
    assert [(bar.start, bar.end, bar.what) for bar in bars_of(events)] == [
        (0.0, 1.0, "start-up"),
        (1.0, 5.0, "training"),
        (5.0, 8.0, "lost"),
        (10.0, 11.0, "start-up"),
        (11.0, 21.0, "training"),
    ]


def test_without_a_first_step_all_is_starting_and_an_epoch_stands_for_one():
    events = [
        placed(0, "a:0"),
        at(5, "ended", outcome="failed"),
        placed(5, "a:0", trial="t1"),
        at(9, "epoch", "t1", seconds=3.0),
        at(12, "ended", "t1", outcome="stopped"),
    ]
    assert [(bar.trial, bar.start, bar.end, bar.what) for bar in bars_of(events)] == [
        ("t0@4", 0.0, 5.0, "start-up"),
        ("t1@4", 5.0, 6.0, "start-up"),
        ("t1@4", 6.0, 12.0, "training"),
    ]


def test_a_dead_controller_is_followed_to_where_it_was_last_heard_of():
    events = [
        placed(0, "a:0"),
        at(1, "first_step", seconds=1.0),
        at(7, "epoch", seconds=6.0),
        at(100, "ended", epoch=2, outcome="interrupted", reason="host_lost"),
    ]
    assert [(bar.start, bar.end, bar.what) for bar in bars_of(events)][1:] == [(1.0, 7.0, "lost")]


def test_an_adopted_attempt_runs_through():
    events = [
        placed(0, "a:0"),
        at(1, "first_step", seconds=1.0),
        at(50, "epoch", epoch=2, seconds=49.0),
        at(60, "ended", epoch=2, outcome="stopped"),
    ]
    assert [(bar.start, bar.end, bar.what) for bar in bars_of(events)][1:] == [
        (1.0, 60.0, "training")
    ]


def test_who_runs_on_reaches_to_the_last_event():
    events = [placed(0, "a:0"), at(2, "first_step", seconds=2.0), at(8, "proposed", "t9")]
    assert [(bar.start, bar.end) for bar in bars_of(events)] == [(0.0, 2.0), (2.0, 8.0)]


def test_nothing_ran():
    assert bars_of([at(0, "proposed")]) == []
