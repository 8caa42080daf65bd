"""The common target and the bound: against hand counts and a slow search that is plainly right."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from makespan_bound import campaign_bound

from hydragnn_hpo.placement.deadline import build_price_table, common_deadline
from hydragnn_hpo.placement.task import PlanningContext, RunningTask, Task
from hydragnn_hpo.planning.simulator import SimulatedWork

OUTLOOK = PlanningContext(restart_seconds=1.0, efficiency_floor=0.0)


def work(name, seconds, widths=(1, 2, 4)):
    return SimulatedWork(name, widths, seconds)


def slow_bound(works, slots):
    """Try every time at which some width of some trial just fits, and those between by area."""
    times = sorted({second for each in works for second in each.seconds})
    best = np.inf
    for limit, following in itertools.pairwise([*times, np.inf]):
        area = 0.0
        for each in works:
            fitting = [
                width * second
                for width, second in zip(each.widths, each.seconds, strict=True)
                if second <= limit and width <= slots
            ]
            area += min(fitting, default=np.inf)
        if area / slots < following:
            best = min(best, max(limit, area / slots))
    return best


laws = st.builds(
    lambda seconds, loss: tuple(seconds * (1 + loss * (p - 1)) / p for p in (1, 2, 4)),
    st.floats(0.1, 100.0),
    st.floats(0.0, 0.3),
)


@settings(deadline=None)
@given(st.lists(laws, min_size=1, max_size=8), st.integers(4, 12))
def test_the_bound_is_what_a_slow_search_finds(seconds, slots):
    works = [work(str(row), each) for row, each in enumerate(seconds)]
    assert campaign_bound(works, slots) == pytest.approx(slow_bound(works, slots), rel=1e-4)


@settings(deadline=None)
@given(st.lists(laws, min_size=1, max_size=8), st.integers(4, 12))
def test_the_target_is_the_bound_where_no_trial_is_longer(seconds, slots):
    tasks = [Task(str(row), (1, 2, 4), each) for row, each in enumerate(seconds)]
    works = [work(str(row), each) for row, each in enumerate(seconds)]
    priced = build_price_table(tasks, [], slots, OUTLOOK)
    result = max(common_deadline(priced, slots), priced.quickest())
    assert result <= slow_bound(works, slots) * 1.004
    if priced.quickest() < result / 1.004:
        assert result >= slow_bound(works, slots) / 1.004


def test_what_runs_keeps_its_slots_and_its_time():
    # 6 s on 2 of 4 slots, and 8 slot-seconds that wait: 20 slot-seconds, 5 s; but 6 s it lasts.
    busy = [RunningTask(Task("r", (2,), (6.0,), restarts=3), 2, 6.0)]
    waiting = [Task("a", (1, 2, 4), (8.0, 4.0, 2.0))]
    priced = build_price_table(waiting, busy, 4, OUTLOOK)
    assert priced.quickest() == pytest.approx(6.0)
    assert common_deadline(priced, 4) == pytest.approx(4.0, rel=0.01)


def test_what_runs_is_priced_by_its_pace_and_the_restart():
    busy = [RunningTask(Task("r", (1, 2), (10.0, 6.0), measured=True), 1, 5.0, checkpoint_in=1.0)]
    priced = build_price_table([], busy, 4, OUTLOOK)
    # 1 s to the checkpoint, 1 s to start again, and 4 of 10 of the 6 s that all takes on 2 ranks.
    assert priced.seconds[0].tolist() == pytest.approx([1 + 1 + 4.0, 1 + 1 + 2.4])
    assert bool(priced.ready[0])


def test_nothing_to_do_takes_no_time():
    assert common_deadline(build_price_table([], [], 4, OUTLOOK), 4) == 0.0


def test_trials_with_next_to_nothing_left_do_not_keep_the_search_going():
    # All fit at once at their quickest, so that nothing but their own length limits them.
    busy = [
        RunningTask(Task("a", (1, 2, 4), (865.0, 457.0, 253.0), measured=True), 2, 425.5),
        RunningTask(Task("b", (1, 2), (754.9, 461.3), measured=True), 1, 484.7),
        RunningTask(Task("c", (1,), (7.27,), measured=True, lanes=2), 1, 0.0),
        RunningTask(Task("d", (1,), (521.0,), measured=True), 1, 234.0),
        RunningTask(Task("e", (1, 2), (941.6, 575.3), measured=True, requested_width=2), 2, 5e-324),
    ]
    priced = build_price_table([], busy, 8, OUTLOOK)
    assert common_deadline(priced, 8) < 1.0
    assert priced.quickest() == pytest.approx(1.0 + 484.7 * 461.3 / 754.9)


def test_a_trial_that_was_stopped_is_priced_with_its_restart():
    law = ((1, 2), (4.0, 2.0))
    priced = build_price_table(
        [Task("a", *law), Task("b", *law, requested_width=2)], [], 4, OUTLOOK
    )
    assert priced.seconds.tolist() == [[4.0, 2.0], [5.0, 3.0]]


def test_all_start_at_once_where_that_takes_little_longer():
    # In 10.1 s they need 3 + 2 ranks, in 10.5 s 3 + 1.
    widths = (1, 2, 3, 4)
    tasks = [
        Task(name, widths, tuple(s / p for p in widths)) for name, s in (("a", 30), ("b", 10.5))
    ]
    priced = build_price_table(tasks, [], 4, OUTLOOK)
    assert priced.all_at_once(2, 10.1, 5) == 10.1
    assert priced.all_at_once(2, 10.1, 4) == pytest.approx(10.5, rel=0.004)
    assert priced.all_at_once(2, 10.1, 3) == 10.1
