"""The course of a campaign, counted by hand."""

import numpy as np
import pytest
from unit.report.tiny_run import at, ended, facts_of, placed

from hydragnn_hpo.report.timeline import Timeline, mean_of_steps


def test_the_mean_of_steps_by_bins():
    # 0 before 1, then 2 until 3, then 5 until 4, then 0.
    times, levels = np.array([1.0, 3.0, 4.0]), np.array([2.0, 5.0, 0.0])
    found = mean_of_steps(times, levels, np.array([0.0, 2.0, 4.0, 6.0]))
    assert found == pytest.approx([(0 * 1 + 2 * 1) / 2, (2 * 1 + 5 * 1) / 2, 0.0])


def test_the_last_step_goes_on_and_no_steps_are_nothing():
    found = mean_of_steps(np.array([1.0]), np.array([3.0]), np.array([0.0, 2.0, 4.0]))
    assert found == pytest.approx([1.5, 3.0])
    assert mean_of_steps(np.array([]), np.array([]), np.array([0.0, 1.0])) == pytest.approx([0.0])


def events():
    """Two hosts of one slot; one is lost at 6 and back at 8; the second trial comes at 4."""
    yield at(90, "opened", units={}, slots=["b:0", "a:0"])
    yield at(95, "proposed", "t0", values={}, until=4)
    yield placed(100, "t0", "a:0")
    yield at(101, "first_step", "t0", seconds=1.0)
    yield at(104, "proposed", "t1", values={}, until=4)
    yield at(106, "host_lost", host="b", reason="gone")
    yield at(108, "host_joined", host="b", slots=["b:0"])
    yield placed(108, "t1", "b:0")
    yield at(108, "first_step", "t1", seconds=0.0)
    yield ended(110, "t0", "stopped", 1.0)
    yield ended(120, "t1", "stopped", 1.0)
    yield at(130, "finished")


@pytest.fixture
def course(tmp_path):
    return Timeline(facts_of(tmp_path, list(events())))


def test_why_slots_were_idle(course):
    assert course.seconds == 20.0
    # Waiting for a proposal until 4, then t1 waits; after t1 is placed nothing is to come.
    assert [course.idle.at(t) for t in (2.0, 5.0, 15.0)] == ["brain", "held", "tail"]
    assert course.absences == {"b": [(6.0, 8.0)]}


def test_what_slots_did_in_bins_of_two_seconds(course):
    middles, found = course.shares(10)
    assert middles[:2] == pytest.approx([1.0, 3.0])
    assert found["start-up"] == pytest.approx([0.5] + 9 * [0.0])
    assert found["training"] == pytest.approx([0.5, 1, 1, 1, 2, 1, 1, 1, 1, 1])
    assert found["brain"] == pytest.approx([1, 1] + 8 * [0])
    assert found["held"] == pytest.approx([0, 0, 1] + 7 * [0])
    assert found["away"] == pytest.approx([0, 0, 0, 1] + 6 * [0])
    assert found["tail"] == pytest.approx(5 * [0] + 5 * [1])
    assert sum(found.values()) == pytest.approx(10 * [2.0])


def test_a_campaign_that_goes_on_waits_for_the_brain(tmp_path):
    until = list(events())[:-2]
    assert Timeline(facts_of(tmp_path, until)).idle.at(10.0) == "brain"
    (tmp_path / "full").mkdir()
    full = Timeline(facts_of(tmp_path / "full", until, trials=2))
    assert full.idle.at(10.0) == "tail"


def test_slots_stand_in_the_order_of_hosts_and_numbers(tmp_path):
    slots = ["b:0", "a:10", "a:2", "b:1"]
    facts = facts_of(tmp_path, [at(0, "opened", units={}, slots=slots)])
    assert facts.history.slots.all_slots == ("a:2", "a:10", "b:0", "b:1")
    assert facts.slots_per_host == 2.0
    assert Timeline(facts).seconds == 0.0
