"""What a rehearsal's journal and samples tell, by hand; what is told of one that fails."""

from types import SimpleNamespace

import pytest
import stub_campaign
from stub_agents import SpeedUp
from stub_campaign import (
    Load,
    Monitor,
    RehearsalError,
    RehearsalPlan,
    check_results,
    count_records,
    find_steady,
    measure_makespan,
)

from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.planning.forecast import ForecastMachine


def placed(trial, attempt, until, time=0.0):
    names = {"trial": trial, "attempt": attempt, "until": until}
    return {"event": "placed", "time": time, **names}


def ended(trial, attempt, outcome="stopped", time=0.0):
    return {"event": "ended", "time": time, "trial": trial, "attempt": attempt, "outcome": outcome}


RESULTS = {
    "two rungs, and an attempt lost with its host": (
        [
            *(placed("t0", 1, 10), ended("t0", 1, "interrupted"), placed("t0", 2, 10)),
            *(ended("t0", 2), placed("t0", 3, 30), ended("t0", 3, "completed")),
        ],
        [("t0", 2), ("t0", 3)], 0, 0,
    ),
    "results that the journal does not have": (
        [placed("t0", 1, 10), ended("t0", 1, "interrupted"), placed("t1", 1, 10)],
        [("t0", 1), ("t1", 1)], 2, 0,
    ),
    "a rung that is ended thrice": (
        [placed("t0", 1, 10), placed("t0", 2, 10), *(ended("t0", n) for n in (1, 2, 2))],
        [], 0, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("events", "expected_results", "lost", "doubled"), RESULTS.values(), ids=RESULTS
)
def test_results_are_lost_and_doubled(events, expected_results, lost, doubled):
    assert check_results(events, expected_results) == (lost, doubled)


def load(time, running):
    return Load(time, cpu_seconds=0.0, resident_bytes=0, running=running)


def test_figures_are_of_the_time_in_which_nearly_all_trials_ran():
    """Of at most 8, three quarters are 6: from the second to the fifth sample, a gap included."""
    samples = [load(t, n) for t, n in enumerate([5, 6, 8, 2, 7, 5])]
    assert find_steady(samples) == samples[1:5]
    with pytest.raises(RehearsalError, match="before anything was measured"):
        find_steady([])


def test_records_are_counted_in_real_time():
    """At tenfold speed from 100 on, 101 to 103 are 110 to 130 in the journal."""
    clock = SpeedUp(100.0, 10.0)
    times = [("epoch", 109.0), ("epoch", 110.0), ("first_step", 120.0), ("checkpoint", 129.0)]
    times += [("ended", 121.0), ("epoch", 130.0)]
    events = [{"event": event, "time": time} for event, time in times]
    assert count_records(events, [load(101.0, 1), load(103.0, 1)], clock) == 3


def test_a_makespan_is_from_the_first_start_to_the_last_end():
    events = [
        *({"event": "opened", "time": 1.0}, placed("t0", 1, 10, time=3.0)),
        *(placed("t1", 1, 10, time=4.0), ended("t0", 1, time=8.0), ended("t1", 1, time=10.5)),
    ]
    assert measure_makespan(events) == 7.5


# -- a rehearsal that fails ----------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Time that a test sets."""
    clock = SimpleNamespace(now=0.0)
    fake = SimpleNamespace(
        monotonic=lambda: clock.now, time=lambda: clock.now, process_time=lambda: 0.0
    )
    monkeypatch.setattr(stub_campaign, "time", fake)
    return clock


def monitor(exit_code=None, log=None):
    machine = ForecastMachine(find_profile("frontier"), hosts=20, slots_per_host=8)
    config = SimpleNamespace(seed=0)
    plan = RehearsalPlan(config, {}, {}, {}, machine, 600.0, speed_up=10.0, kills_per_minute=0.0)
    return Monitor(plan, SimpleNamespace(exit_code=exit_code, log=log))


def controller(hosts):
    return SimpleNamespace(backend=SimpleNamespace(slots=range(8 * hosts)))


@pytest.mark.parametrize(
    ("in_time", "late", "says"),
    [
        ((121.0, 7), (122.0, 0), r"^7 of 20 hosts joined within 122 s; 0 of 0 trials"),
        # 120 s and 1 s for 20 hosts; 3 times 60 s, and 300 s.
        ((600.0, 20), (602.0, 20), "after 602 s the campaign, predicted to take 60 s"),
    ],
    ids=["hosts do not join", "the campaign takes too long"],
)
def test_a_rehearsal_that_takes_too_long_is_ended(clock, in_time, late, says):
    look = monitor()
    clock.now, hosts = in_time
    look(State(), controller(hosts))
    clock.now, hosts = late
    with pytest.raises(RehearsalError, match=says):
        look(State(), controller(hosts))


def test_a_rehearsal_whose_stubs_ended_says_their_last_words(clock, tmp_path):
    log = tmp_path / "log"
    log.write_text("error: 20 hosts need 552 open files, 100 are allowed: ulimit -n.\n")
    with pytest.raises(RehearsalError, match=r"ended \(code 1\): error: 20 hosts need 552 open"):
        monitor(exit_code=1, log=log)(State(), controller(hosts=20))
