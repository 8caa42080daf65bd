"""The planner, by hand: longest first, wide when it pays, holes filled, no trial starved."""

import math
from dataclasses import replace

import pytest
from counting import calls
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.placement.planner import plan
from hydragnn_hpo.placement.pool import SlotPool
from hydragnn_hpo.placement.task import PlanningContext, RunningTask, Task, format_duration

PERFECT = PlanningContext(restart_seconds=1.0, efficiency_floor=0.9)
"""Trials here lose nothing by more ranks, unless they say so."""


def task(name, seconds, widths=(1, 2, 4, 8), **more):
    return Task(name, tuple(widths), tuple(seconds / width for width in widths), **more)


def pool(slots, taken=0):
    machine = SlotPool({"h": range(slots)})
    machine.claim(f"h:{index}" for index in range(taken))
    return machine


def widths(result):
    return {start.name: start.width for start in result.starts}


def running(name, seconds_left, width=1, *, measured=True, stoppable=True, **more):
    whole = task(name, seconds_left * width, **{"widths": (1, 2, 4, 8), **more})
    return RunningTask(replace(whole, measured=measured), width, seconds_left, stoppable)


def test_longest_first_one_slot_each():
    waiting = [task("short", 1.0), task("long", 1.3), task("middle", 1.2)]
    result = plan(waiting, [], pool(2), replace(PERFECT, more_to_come=True, to_come=9))
    assert [start.name for start in result.starts] == ["long", "middle"]
    assert [start.slots for start in result.starts] == [("h:0",), ("h:1",)]


def test_on_one_slot_the_given_order_holds_so_that_times_decide_nothing():
    waiting = [task("b", 1.0), task("a", 9.0), task("c", 2.0)]
    assert widths(plan(waiting, [], pool(1), PERFECT)) == {"b": 1}
    tasks = [*waiting, replace(task("d", 0.5), requested_width=1)]
    assert widths(plan(tasks, [], pool(1), PERFECT)) == {"d": 1}


def test_all_end_together_on_the_fewest_ranks():
    # 8 + 4 + 2 + 2 = 16 seconds of work on 8 slots: all of it can end in 2 seconds.
    waiting = [task("b", 4.0), task("a", 8.0), task("d", 2.0), task("c", 2.0)]
    result = plan(waiting, [], pool(8), PERFECT)
    assert widths(result) == {"a": 4, "b": 2, "c": 1, "d": 1}
    assert result.ends_in == pytest.approx(2.0, rel=0.01)
    assert (
        result.starts[0].reason == "number 1 of 4 by length: 4 ranks end it with the others in 2 s"
    )


def test_trials_to_come_are_left_room_for():
    waiting = [task("a", 8.0), task("b", 8.0)]
    assert widths(plan(waiting, [], pool(8), PERFECT)) == {"a": 4, "b": 4}
    # Two more like these: 32 seconds of work on 8 slots, 4 seconds, 2 ranks each.
    outlook = replace(PERFECT, more_to_come=True, to_come=2)
    assert widths(plan(waiting, [], pool(8), outlook)) == {"a": 2, "b": 2}


def test_while_no_end_is_in_sight_only_what_outlasts_the_others_is_wide():
    waiting = [task("a", 2.2), task("b", 1.0), task("c", 0.9)]
    outlook = replace(PERFECT, more_to_come=True)
    assert widths(plan(waiting, [], pool(8), outlook)) == {"a": 2, "b": 1, "c": 1}


@pytest.mark.parametrize(("more", "width"), [(True, 1), (False, 4)])
def test_the_last_trial_takes_what_is_idle_only_when_nothing_follows(more, width):
    result = plan([task("a", 1.0)], [], pool(4), replace(PERFECT, more_to_come=more))
    assert widths(result) == {"a": width}


@pytest.mark.parametrize(("floor", "width"), [(0.5, 4), (0.7, 2), (0.9, 1)])
def test_no_trial_is_so_wide_that_it_wastes_too_much(floor, width):
    # Efficiency 1 / (1 + 0.3 (p - 1)): 0.77 on 2 ranks, 0.53 on 4.
    seconds = tuple(10.0 * (1 + 0.3 * (p - 1)) / p for p in (1, 2, 4))
    outlook = PlanningContext(efficiency_floor=floor)
    assert widths(plan([Task("a", (1, 2, 4), seconds)], [], pool(8), outlook)) == {"a": width}


def test_a_wide_trial_keeps_its_turn_and_short_ones_fill_the_hole():
    waiting = [task("wide", 3.0, (2,)), task("short", 0.5, (1,)), task("late", 1.3, (1,))]
    result = plan(waiting, [running("r", 0.6, widths=(1,))], pool(2, taken=1), PERFECT)
    assert widths(result) == {"short": 1}
    assert "backfill before wide" in result.starts[0].reason
    assert result.held == {
        "wide": "waits 1 s for 2 slots: 1 of 2 are free",
        "late": "behind wide, which waits for its slots",
    }


def test_slots_that_the_held_trial_will_not_need_are_given_away():
    # In 1 s four slots are free, it needs two of them: one of the two free ones is spare now.
    waiting = [task("wide", 20.0, (3,)), task("a", 9.0, (1,)), task("b", 9.0, (1,))]
    busy = [running("r", 1.0, 2, widths=(2,))]
    assert widths(plan(waiting, busy, pool(4, taken=2), PERFECT)) == {"a": 1}


def test_backfill_looks_at_the_slots_the_held_trial_needs_not_the_last_ones():
    waiting = [task("wide", 2.0, (2,)), task("short", 0.5, (1,))]
    busy = [running("soon", 0.1, widths=(1,)), running("late", 9.0, 2, widths=(2,))]
    assert plan(waiting, busy, pool(4, taken=3), PERFECT).starts == ()


def test_a_trial_starts_narrower_where_that_ends_sooner_than_waiting():
    # On 4 ranks it takes 2 s, on 2 it takes 4 s; the others are free in 3 s: 4 < 3 + 2.
    busy = [running("r", 3.0, 2, widths=(2,))]
    result = plan([task("a", 8.0)], busy, pool(4, taken=2), PERFECT)
    assert widths(result) == {"a": 2}
    # Free in 1 s: 4 > 1 + 2.
    busy = [running("r", 1.0, 2, widths=(2,))]
    assert plan([task("a", 8.0)], busy, pool(4, taken=2), PERFECT).starts == ()


def test_a_trial_that_was_stopped_for_a_width_gets_it_first():
    waiting = [task("long", 9.0, (1,)), task("a", 2.0, requested_width=2, measured=True)]
    result = plan(waiting, [], pool(2), PERFECT)
    assert widths(result) == {"a": 2}
    assert result.starts[0].reason == "goes on at 2 ranks, for which it was stopped"


def test_slots_are_kept_for_a_trial_that_was_requested_to_yield():
    busy = [running("r", 5.0, measured=True, stoppable=False, requested_width=4)]
    waiting = [task("a", 5.0, (1,)), task("b", 5.0, (1,))]
    assert widths(plan(waiting, busy, pool(5, taken=1), PERFECT)) == {"a": 1}


def late(**more):
    return [running("late", 100.0, **more)]


def test_the_last_trial_is_widened_over_idle_slots():
    result = plan([], late(), pool(8, taken=1), PERFECT)
    # On 8 ranks 12.5 s and a restart of 1 s.
    (resize,) = result.resizes
    assert (resize.name, resize.width) == ("late", 8)
    assert result.ends_in == pytest.approx(13.5, rel=0.005)
    assert resize.reason == ("would end in 2 min, the others in 14 s: 8 ranks end it in 14 s")


@pytest.mark.parametrize(
    ("why", "busy", "outlook"),
    [
        ("its speed is not known", late(measured=False), {}),
        ("it cannot stop now", late(stoppable=False), {}),
        ("it was stopped often enough", late(restarts=3), {}),
        ("it may not be wider", late(widths=(1,)), {}),
        ("a restart costs what it gains", late(), {"restart_seconds": 30.0}),
        ("trials will come", late(), {"more_to_come": True}),
        ("the allocation ends", late(), {"time_left": 6.0, "checkpoint_seconds": 5.0}),
    ],
)
def test_a_late_trial_stays_as_it_is_where(why, busy, outlook):
    assert plan([], busy, pool(8, taken=1), replace(PERFECT, **outlook)).resizes == (), why


def test_a_restart_that_waits_long_for_a_checkpoint_does_not_pay():
    (busy,) = late()
    # At once: 1 + 100 / 8; after 86 s: 86 + 1 + 14 / 8 is 11 s sooner; after 97 s it gains 1 s.
    for wait, number in ((86.0, 1), (97.0, 0)):
        one = replace(busy, checkpoint_in=wait)
        assert len(plan([], [one], pool(8, taken=1), PERFECT).resizes) == number


def test_the_last_of_all_gets_the_free_slots_first():
    busy = [running("a", 50.0), running("b", 60.0), running("c", 10.0)]
    result = plan([], busy, pool(4, taken=3), PERFECT)
    # 120 slot-seconds on 4 slots end in 30 s at best: b needs 2.
    assert [(resize.name, resize.width) for resize in result.resizes] == [("b", 2)]


def test_who_ends_early_gives_ranks_to_a_trial_that_could_not_catch_up():
    # "late" can end in 1 + 160 / 2 = 81 s on 8 ranks, but four are free in 38 s only: then it
    # ends in 38 + 1 + 61 = 100 s. "early" on half its ranks ends in 1 + 76 = 77 s.
    busy = [running("late", 160.0, 4), running("early", 38.0, 8), running("soon", 40.0, 4)]
    result = plan([], busy, pool(16, taken=16), PERFECT)
    widths_by_name = {resize.name: resize.width for resize in result.resizes}
    assert widths_by_name.get("early") == 4
    assert "late" not in widths_by_name
    assert "could spare ranks" in result.resizes[0].reason


@pytest.mark.parametrize(
    ("why", "seconds", "restarts", "expected_resizes"),
    [
        # On 3 ranks it takes 200 / 3 s and a restart: it gains 22.3 s, twice the restart.
        ("it pays", 11.0, 0, [("late", 3)]),
        # It gains 21.3 s, the restart costs 12 s.
        ("it does not pay", 12.0, 0, []),
        ("it would be the last restart", 11.0, 2, []),
    ],
)
def test_a_late_trial_takes_what_is_free_where(why, seconds, restarts, expected_resizes):
    # With all six slots it would end with the others, but five are free in 40 s only.
    busy = [
        running("late", 100.0, 2, widths=(1, 2, 3, 6), restarts=restarts),
        running("other", 40.0, 3, widths=(3,)),
    ]
    result = plan([], busy, pool(6, taken=5), replace(PERFECT, restart_seconds=seconds))
    assert [(resize.name, resize.width) for resize in result.resizes] == expected_resizes, why


def test_nothing_starts_that_cannot_reach_a_checkpoint():
    outlook = replace(PERFECT, checkpoint_seconds=60.0, time_left=59.0)
    result = plan([task("a", 1.0)], [running("r", 300.0)], pool(4, taken=1), outlook)
    assert (result.starts, result.resizes, result.ends_in) == ((), (), 59.0)
    assert result.held == {"a": "no checkpoint can be reached in the 59 s left"}


def test_what_is_too_large_for_the_machine_is_held_with_a_reason_and_stops_no_other():
    result = plan([task("a", 1.0, (16,)), task("b", 1.0, (1,))], [], pool(4), PERFECT)
    assert widths(result) == {"b": 1}
    assert result.held == {"a": "needs 16 slots, there are 4"}
    assert plan([task("a", 1.0)], [], SlotPool({}), PERFECT).held == {
        "a": "needs 1 slots, there are 0"
    }


@pytest.mark.parametrize("seconds", [math.inf, math.nan])
def test_a_trial_without_a_price_is_held_and_one_that_runs_stops_no_other(seconds):
    waiting = [task("a", seconds, (1,)), task("b", 1.0, (1,))]
    result = plan(waiting, [running("r", 5.0), running("s", 3.0)], pool(4, taken=2), PERFECT)
    assert widths(result) == {"b": 1}
    assert result.held == {"a": "nobody knows how long it takes"}
    odd = replace(running("r", 5.0), seconds_left=seconds)
    assert plan(waiting[1:], [odd], pool(4, taken=2), PERFECT).starts


def test_a_trial_that_needs_whole_devices_is_not_starved_by_those_that_share_them():
    # Two devices of two lanes, one lane of each taken: singles would keep both broken for ever.
    machine = SlotPool({"h": range(4)})
    machine.claim(("h:0", "h:2"))
    busy = [running("x", 1.0, widths=(1,)), running("y", 2.0, widths=(1,))]
    waiting = [task("whole", 9.0, (1,), lanes=2), task("single", 3.0, (1,))]
    assert plan(waiting, busy, machine, PERFECT).starts == ()
    machine.give_back(("h:0",))
    result = plan(waiting, busy[1:], machine, PERFECT)
    assert result.starts[0].slots == ("h:0", "h:1")


def test_a_trial_with_nothing_left_and_one_at_a_width_it_no_longer_has_are_harmless():
    busy = [running("r", 0.0), RunningTask(task("s", 8.0, (2, 4)), 1, 8.0)]
    assert plan([task("a", 0.0)], busy, pool(4, taken=2), PERFECT).starts


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 s"), (99.0, "99 s"), (120.0, "2 min"), (6840.0, "1.9 h"), (360000.0, "4.2 days")],
)
def test_times_are_written_as_people_do(seconds, words):
    assert format_duration(seconds) == words


tasks = st.builds(
    lambda seconds, most, loss, lanes, wished: Task(
        "",
        tuple(1 << k for k in range(most + 1)),
        tuple(seconds * (1 + loss * ((1 << k) - 1)) / (1 << k) for k in range(most + 1)),
        measured=True,
        lanes=lanes,
        requested_width=wished,
    ),
    st.floats(0.01, 1000.0),
    st.integers(0, 5),
    st.floats(0.0, 0.3),
    st.sampled_from((1, 1, 2)),
    st.sampled_from((None, None, None, 1, 2)),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(tasks, max_size=20),
    st.lists(st.tuples(tasks, st.integers(0, 5), st.floats(0.0, 500.0)), max_size=6),
    st.integers(0, 6),
    st.sampled_from((0, 0, 5)),
)
def test_plans_keep_to_what_there_is(waiting, begun, hosts, to_come):
    machine = SlotPool({f"h{host}": range(8) for host in range(hosts)})
    waiting = [replace(each, name=f"w{i}") for i, each in enumerate(waiting)]
    busy = []
    for number, (each, column, left) in enumerate(begun):
        width = each.widths[min(column, len(each.widths) - 1)]
        if machine.take(width, each.lanes):
            busy.append(RunningTask(replace(each, name=f"r{number}"), width, left))
    outlook = PlanningContext(restart_seconds=2.0, more_to_come=to_come > 0, to_come=to_come)
    places = machine._free.copy()
    free = machine.free
    actual = plan(waiting, busy, machine, outlook)

    assert (machine._free == places).all()
    used = [slot for start in actual.starts for slot in start.slots]
    assert len(used) == len(set(used))
    rows, columns = places.nonzero()
    names = {machine._names[row][column] for row, column in zip(rows, columns, strict=True)}
    assert set(used) <= names
    known = {each.name: each for each in waiting}
    for start in actual.starts:
        assert start.width in known[start.name].widths
        assert len(start.slots) == start.width * known[start.name].lanes
        assert start.reason
    by_name = {each.task.name: each for each in busy}
    extra = sum(
        max(change.width - by_name[change.name].width, 0) * by_name[change.name].task.lanes
        for change in actual.resizes
    )
    assert extra + len(used) <= free
    decided = {start.name for start in actual.starts}
    assert not decided & set(actual.held)
    assert math.isfinite(actual.ends_in)
    assert plan(waiting[::-1], busy[::-1], machine, outlook) == actual
    if hosts and waiting and not busy:
        assert actual.starts


def test_a_decision_for_the_largest_machine_takes_few_calls():
    # All of Frontier, 2,000 trials queued, one that ended: `tests/benchmarks/placement.py` says
    # how long that takes. A third of the limits is needed; its slots are 75,264.
    waiting = [task(f"t{i:04}", 100.0 + i, [1 << k for k in range(13)]) for i in range(2000)]
    machine = SlotPool({f"n{host:04}": range(8) for host in range(9408)})
    whole, took = counted(waiting, [], machine)
    assert took < 640_000
    by_name = {each.name: replace(each, measured=True) for each in waiting}
    busy = []
    for start in whole.starts[1:]:
        machine.claim(start.slots)
        busy.append(
            RunningTask(by_name[start.name], start.width, by_name[start.name].at(start.width))
        )
    _, took = counted([replace(each, name=f"q{each.name}") for each in waiting], busy, machine)
    assert took < 140_000


def counted(waiting, busy, machine):
    """Return a plan and the calls it took."""
    results = []
    outlook = PlanningContext(restart_seconds=60.0)
    took = calls(lambda: results.append(plan(waiting, busy, machine, outlook)))
    return results[0], took


def test_each_trial_has_its_place_in_one_allocation():
    """Alone it would take all 8 slots; 4 and 4 are of two allocations."""
    both = SlotPool({"h@a": range(4), "h@b": range(4)})
    result = plan([task("t", 8.0)], [], both, PERFECT)
    assert widths(result) == {"t": 4}
    assert len({slot.partition("@")[2][0] for slot in result.starts[0].slots}) == 1

    wide = plan([task("t", 8.0, widths=(8,))], [], both, PERFECT)
    assert wide.held == {"t": "needs 8 slots, there are 4"}

    busy = running("r", 9.0, width=4)
    result = plan([task("t", 80.0)], [busy], SlotPool({"h@b": range(2), "h@c": range(1)}), PERFECT)
    assert widths(result) == {"t": 2}, "what runs on an allocation that leaves disturbs no other"
