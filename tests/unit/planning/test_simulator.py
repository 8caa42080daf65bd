"""The simulation, by hand: ends, restarts, failures, and where every slot-second went."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from makespan_bound import campaign_bound

from hydragnn_hpo.placement.task import Plan, ResizeTask
from hydragnn_hpo.planning.simulator import SimulatedWork, SimulationSettings, simulate

PAIR = SimulationSettings(
    hosts=1, slots_per_host=2, restart_seconds=2.0, checkpoint_every=10.0, tick=0.0, probe=0.1
)


def work(name, seconds, widths=(1,), loss=0.0, error=1.0, **more):
    law = tuple(seconds * (1 + loss * (p - 1)) / p for p in widths)
    return SimulatedWork(name, tuple(widths), law, tuple(error * each for each in law), **more)


def bars(result, trial):
    return [
        (bar.start, bar.end, len(bar.slots), bar.what) for bar in result.bars if bar.trial == trial
    ]


def spent(result):
    return {cause: value for cause, value in result.spent.items() if value}


def test_three_trials_on_two_slots():
    result = simulate([work("a", 10.0), work("b", 6.0), work("c", 6.0)], PAIR)
    assert bars(result, "a") == [(0.0, 10.0, 1, "training")]
    assert bars(result, "b") == [(0.0, 6.0, 1, "training")]
    assert bars(result, "c") == [(6.0, 12.0, 1, "training")]
    assert result.makespan == 12.0
    assert spent(result) == {"training": 22.0, "tail": 2.0}
    assert result.useful == pytest.approx(22.0 / 24.0)


def test_a_start_takes_its_time_on_all_slots():
    setting = replace(PAIR, start_seconds=3.0, cold_seconds=5.0)
    result = simulate([work("a", 10.0, (2,))], setting)
    assert bars(result, "a") == [(5.0, 8.0, 2, "start-up"), (8.0, 13.0, 2, "training")]
    assert spent(result) == {"start-up": 16.0, "training": 10.0}


def test_a_trial_that_lasts_longer_than_believed_is_widened_at_a_checkpoint():
    # Believed equal, "a" takes 100 s. "b" ends at 10 s, and "a" was measured at 10 s too; it
    # is asked at once, has a checkpoint at that moment, and goes on with 90 s on two ranks.
    late = work("a", 100.0, (1, 2), error=0.1)
    result = simulate([late, work("b", 10.0)], PAIR)
    assert bars(result, "a") == [
        (0.0, 10.0, 1, "training"),
        (10.0, 12.0, 2, "start-up"),
        (12.0, 57.0, 2, "training"),
    ]
    assert (result.restarts, result.makespan) == (1, 57.0)
    assert spent(result) == {"training": 110.0, "start-up": 4.0}


def test_a_trial_that_gets_a_request_goes_on_to_its_next_checkpoint():
    def decide(waiting, running, pool, outlook):
        from hydragnn_hpo.placement.planner import plan

        result = plan(waiting, running, pool, replace(outlook, more_to_come=True, to_come=0))
        one = [each for each in running if each.task.measured and each.width == 1]
        return Plan(result.starts, tuple(ResizeTask(each.task.name, 2, "") for each in one))

    result = simulate([work("a", 100.0, (1, 2))], replace(PAIR, probe=0.12), decide=decide)
    assert bars(result, "a")[0] == (0.0, 20.0, 1, "training")
    assert result.makespan == pytest.approx(20.0 + 2.0 + 40.0)


def test_time_without_trials_is_the_brains():
    setting = replace(PAIR, wave=1, brain_seconds=4.0)
    result = simulate([work("a", 10.0, (2,)), work("b", 10.0, (2,))], setting)
    # The first answer is there at once; the next one 4 s later, while "a" still runs.
    assert bars(result, "b") == [(5.0, 10.0, 2, "training")]
    slow = simulate(
        [work("a", 10.0, (2,)), work("b", 10.0, (2,))], replace(setting, brain_seconds=9)
    )
    assert bars(slow, "b") == [(9.0, 14.0, 2, "training")]
    assert spent(slow) == {"training": 20.0, "brain": 8.0}


def test_slots_that_are_too_few_for_who_waits_are_held():
    result = simulate([work("a", 10.0), work("b", 8.0, (2,))], PAIR)
    # "a" first, since it is the longer one; "b" needs both slots.
    assert bars(result, "b") == [(10.0, 14.0, 2, "training")]
    assert spent(result) == {"training": 18.0, "held": 10.0}


def test_a_promotion_arrives_when_its_rung_ends():
    requests = []

    def promote(name, now):
        requests.append((name, now))
        return [work("a.2", 5.0)] if name == "a" else []

    result = simulate([work("a", 10.0)], PAIR, promote=promote)
    assert requests == [("a", 10.0), ("a.2", 15.0)]
    assert result.makespan == 15.0


def test_the_allocation_is_drained():
    setting = replace(PAIR, wall_time=100.0)
    result = simulate([work("a", 200.0, (2,)), work("b", 90.0, (2,))], setting)
    # From 90 s on everybody stops at the next checkpoint: at once.
    assert result.makespan == pytest.approx(90.0)
    assert result.unfinished == pytest.approx({"a": 0.1, "b": 1.0})
    assert result.restarts == 0


def test_a_lost_host_costs_the_work_since_the_last_checkpoint():
    setting = SimulationSettings(
        hosts=1,
        slots_per_host=1,
        checkpoint_every=10.0,
        restart_seconds=2.0,
        tick=0.0,
        failures=3600.0 / 40.0,
        repair_seconds=5.0,
        seed=7,
    )
    when = float(np.random.default_rng(7).exponential(40.0))
    kept = math.floor(when / 10.0) * 10.0
    result = simulate([work("a", 60.0)], setting)
    first, lost, again = bars(result, "a")[:3]
    assert first == (0.0, kept, 1, "training")
    assert lost == (kept, when, 1, "lost")
    assert again == (when + 5.0, when + 7.0, 1, "start-up")
    assert result.failed_hosts >= 1
    assert result.spent["training"] == pytest.approx(60.0)
    assert not result.unfinished


def test_a_host_that_is_lost_while_a_trial_starts_costs_the_start():
    when = float(np.random.default_rng(7).exponential(40.0))
    setting = replace(PAIR, start_seconds=60.0, failures=3600.0 / 40.0, repair_seconds=5.0, seed=7)
    result = simulate([work("a", 30.0, (2,))], setting)
    assert bars(result, "a")[0] == (0.0, when, 2, "start-up")
    assert sum(result.spent.values()) == pytest.approx(2 * result.makespan)


def test_without_hosts_the_campaign_ends_unfinished():
    setting = replace(PAIR, failures=3600.0 / 5.0)
    result = simulate([work("a", 1000.0)], setting)
    assert result.unfinished
    assert sum(result.shares.values()) == pytest.approx(1.0)


many = st.lists(
    st.builds(
        lambda seconds, most, loss, error, lanes: (seconds, most, loss, error, lanes),
        st.floats(1.0, 500.0),
        st.integers(0, 4),
        st.floats(0.0, 0.2),
        st.floats(0.2, 5.0),
        st.sampled_from((1, 1, 1, 2)),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(
    many,
    st.integers(1, 4),
    st.sampled_from((0, 3)),
    st.sampled_from((0.0, 3.0)),
    st.sampled_from((math.inf, 300.0)),
    st.integers(0, 9),
)
def test_every_slot_second_has_one_cause_and_no_slot_two_trials(
    drawn, hosts, wave, failures, wall, seed
):
    works = [
        work(f"t{i:02}", s, [1 << k for k in range(most + 1)], loss, error, lanes=lanes)
        for i, (s, most, loss, error, lanes) in enumerate(drawn)
    ]
    setting = SimulationSettings(
        hosts=hosts,
        slots_per_host=4,
        start_seconds=1.0,
        restart_seconds=3.0,
        checkpoint_every=7.0,
        tick=0.5,
        wave=wave,
        brain_seconds=2.0,
        failures=failures,
        repair_seconds=60.0,
        wall_time=wall,
        seed=seed,
    )
    result = simulate(works, setting)

    assert sum(result.spent.values()) == pytest.approx(result.slots * result.makespan)
    assert min(result.spent.values()) >= -1e-6
    by_slot: dict[str, list[tuple[float, float]]] = {}
    for bar in result.bars:
        for slot in bar.slots:
            by_slot.setdefault(slot, []).append((bar.start, bar.end))
    for used in by_slot.values():
        used.sort()
        assert all(one[1] <= two[0] + 1e-9 for one, two in zip(used, used[1:], strict=False))
    assert simulate(works, setting).bars == result.bars
    if wall == math.inf:
        assert not result.unfinished
        trained = {}
        for bar in result.bars:
            if bar.what == "training":
                of = next(each for each in works if each.name == bar.trial)
                share = (bar.end - bar.start) / of.true(len(bar.slots) // of.lanes)
                trained[bar.trial] = trained.get(bar.trial, 0.0) + share
        assert trained == pytest.approx(dict.fromkeys(trained, 1.0))
        assert len(trained) == len(works)
    else:
        assert result.makespan <= wall
        assert failures or all(bar.what != "lost" for bar in result.bars)
    # The bound gives a trial one width: one that is widened on its way may beat it.
    if failures == 0.0 and wall == math.inf and not result.restarts:
        assert result.makespan >= campaign_bound(works, setting.slots) * 0.9999


def lognormal_works(count, seed, sigma, widest):
    """Draw a campaign as ``tests/benchmarks/placement.py`` does, widths 2^k."""
    draw = np.random.default_rng(seed)
    widths = [1 << k for k in range(widest.bit_length())]
    return [
        work(
            f"t{row:03}",
            3600.0 * math.exp(draw.normal(0.0, 0.84)),
            widths,
            0.002,
            math.exp(draw.normal(0.0, sigma)),
        )
        for row in range(count)
    ]


@pytest.mark.parametrize("sigma", [0.0, 0.7])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_campaign_ends_close_to_the_bound(sigma, seed):
    works = lognormal_works(100, seed, sigma, 128)
    setting = SimulationSettings(hosts=32, slots_per_host=8, restart_seconds=20.0, tick=5.0)
    result = simulate(works, setting)
    assert result.makespan / campaign_bound(works, setting.slots) < 1.25
    assert result.restarts <= 1.2 * len(works)


def test_on_two_slots_only_the_tail_is_resized():
    works = lognormal_works(24, 3, 0.3, 2)
    result = simulate(works, SimulationSettings(hosts=1, slots_per_host=2, start_seconds=2.0))
    assert result.restarts <= 2
    assert result.useful > 0.97
