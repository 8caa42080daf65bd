"""The planner, by hand: longest first, wide when it pays, holes filled, nobody starved."""

import pytest

from hydragnn_hpo.placement.planner import Running, Waiting, plan

FOUR = ("h:0", "h:1", "h:2", "h:3")


def widths(decisions):
    return {decision.name: decision.width for decision in decisions}


def test_longest_first_one_slot_each():
    waiting = [Waiting("short", 1.0, 8), Waiting("long", 1.3, 8), Waiting("middle", 1.2, 8)]
    decisions = plan(waiting, [], FOUR[:2], total=2, typical=1.2, more_to_come=True)
    assert [d.name for d in decisions] == ["long", "middle"]
    assert [d.slots for d in decisions] == [("h:0",), ("h:1",)]


def test_a_long_trial_gets_the_fewest_ranks_that_keep_it_typical():
    decisions = plan([Waiting("a", 2.2, 8)], [], FOUR, total=4, typical=1.0, more_to_come=True)
    assert widths(decisions) == {"a": 2}
    assert "2.2 times a typical trial" in decisions[0].reason


def test_width_is_bounded_by_the_batch():
    decisions = plan([Waiting("a", 9.0, 1)], [], FOUR, total=4, typical=1.0, more_to_come=True)
    assert widths(decisions) == {"a": 1}


def test_a_wide_trial_keeps_its_turn_and_short_ones_fill_the_hole():
    waiting = [Waiting("wide", 3.0, 2), Waiting("short", 0.5, 2), Waiting("late", 1.3, 2)]
    running = [Running("r", ("h:0",), 0.6)]
    decisions = plan(waiting, running, ("h:1",), total=2, typical=1.0, more_to_come=True)
    assert widths(decisions) == {"short": 1}
    assert "backfill before wide" in decisions[0].reason


def test_backfill_looks_at_the_slots_the_held_trial_needs_not_the_last_ones():
    waiting = [Waiting("wide", 2.0, 2), Waiting("short", 0.5, 2)]
    running = [Running("soon", ("h:0",), 0.1), Running("late", ("h:2", "h:3"), 9.0)]
    assert plan(waiting, running, ("h:1",), total=4, typical=1.0, more_to_come=True) == []


@pytest.mark.parametrize(("more", "width"), [(True, 1), (False, 4)])
def test_the_last_trial_takes_what_is_idle_only_when_nothing_follows(more, width):
    decisions = plan([Waiting("a", 1.0, 8)], [], FOUR, total=4, typical=1.0, more_to_come=more)
    assert widths(decisions) == {"a": width}


def test_no_slot_twice_and_never_more_than_free():
    waiting = [Waiting(f"t{i}", 1.0 + i / 10, 4) for i in range(9)]
    decisions = plan(waiting, [], FOUR, total=4, typical=0.7, more_to_come=True)
    used = [slot for decision in decisions for slot in decision.slots]
    assert sorted(used) == sorted(set(used))
    assert set(used) <= set(FOUR)
