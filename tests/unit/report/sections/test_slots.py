"""What slots did and why they were idle, counted by hand; the raster of it, cell by cell."""

import numpy as np
import pytest
from unit.report.tiny_run import at, ended, facts_of, placed

from hydragnn_hpo.planning.simulator import Bar
from hydragnn_hpo.report.sections import slots
from hydragnn_hpo.report.sections.slots import (
    FIRST_COLOUR,
    KINDS,
    Idle,
    Timeline,
    paint_bars,
    paint_idle,
    sample_slots,
)


class FakeCourse:
    """A course that was made up."""

    def __init__(self, names, bars, seconds, why="tail"):
        self.slots = tuple(names)
        self.bars = bars
        self.seconds = seconds
        zero = np.zeros(1)
        self.idle = Idle(zero, np.array([why]), zero, zero)
        self.absences = {"b": [(2.0, 4.0)]}


def rows(picture):
    return ["".join("." if c == KINDS.index("tail") else str(c) for c in row) for row in picture]


def test_bars_are_painted_over_why_slots_would_be_idle():
    bars = [
        Bar("t7@9", ("a:0",), 0.0, 1.0, "start-up"),
        Bar("t7@9", ("a:0",), 1.0, 3.0, "training"),
        Bar("t8@9", ("a:0", "b:0"), 4.4, 4.6, "lost"),
    ]
    course = FakeCourse(["a:0", "b:0"], bars, 6.0)
    background = paint_idle(course, course.slots, np.arange(6) + 0.5)
    away, start, lost = (KINDS.index(kind) for kind in ("away", "start-up", "lost"))
    assert rows(background) == ["......", f"..{away}{away}.."]
    painted = paint_bars(course, course.slots, background, lambda bar: FIRST_COLOUR)
    assert rows(painted) == [
        f"{start}{FIRST_COLOUR}{FIRST_COLOUR}.{lost}.",
        f"..{away}{away}{lost}.",
    ]
    assert rows(background)[0] == "......"


def test_a_bar_between_two_middles_is_left_out():
    bars = [Bar("t1@9", ("a:0",), 0.6, 1.4, "training")]
    course = FakeCourse(["a:0"], bars, 6.0)
    background = paint_idle(course, course.slots, np.arange(6) + 0.5)
    assert rows(paint_bars(course, course.slots, background, lambda bar: FIRST_COLOUR)) == [6 * "."]


def test_slots_are_shown_evenly():
    assert sample_slots(list("abcdef"), 3) == ["b", "d", "f"]
    assert sample_slots(list("abc"), 3) == ["a", "b", "c"]


def test_a_whole_machine_takes_little_room():
    names = [f"n{host:04d}:{k}" for host in range(9408) for k in range(8)]
    bars = [
        Bar(f"t{k:04d}@9", tuple(names[k * 37 : k * 37 + 128]), 1.0 * k, k + 400.0, "training")
        for k in range(2000)
    ]
    figure = slots.draw_raster(FakeCourse(names, bars, 2400.0))
    assert sum(trace["z"].nbytes for trace in figure.data if "z" in trace) <= 2 * slots.CELLS
    assert "Shown are 192 of 75,264 slots" in figure.caption


def test_the_switch_shows_one_raster_or_the_other(tmp_path):
    events = [at(0, "opened", units={}, slots=["a:0"]), placed(1, "t3", "a:0", until=4)]
    events = [at(0, "proposed", "t3", values={}, until=4), *events]
    events += [at(1, "first_step", "t3", seconds=0.0), ended(9, "t3", "stopped", 1.0)]
    section = slots.make_section(facts_of(tmp_path, events))
    figure = section.blocks[1]
    by_rung, by_trial = (trace for trace in figure.data if trace["type"] == "heatmap")
    assert (by_rung.get("visible", True), by_trial["visible"]) == (True, False)
    assert np.unique(by_rung["z"]).tolist() == [FIRST_COLOUR]  # the first rung has the first colour
    assert np.unique(by_trial["z"]).tolist() == [FIRST_COLOUR + 3]  # trial 3 the fourth
    buttons = figure.layout["updatemenus"][0]["buttons"]
    assert [button["args"][0]["visible"] for button in buttons] == [[True, False], [False, True]]


# -- why slots were idle ------------------------------------------------------------------


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
    assert course.idle.at(np.array([2.0, 5.0, 15.0])).tolist() == ["brain", "held", "tail"]
    assert course.absences == {"b": [(6.0, 8.0)]}


def test_a_campaign_that_goes_on_waits_for_the_brain(tmp_path):
    until = list(events())[:-2]
    assert Timeline(facts_of(tmp_path, until)).idle.at(np.array([10.0])) == ["brain"]
    (tmp_path / "full").mkdir()
    full = Timeline(facts_of(tmp_path / "full", until, trials=2))
    assert full.idle.at(np.array([10.0])) == ["tail"]


def test_slots_and_attempts_are_counted(tmp_path):
    facts = facts_of(
        tmp_path, [*events(), placed(131, "t1", "a:0", "b:0"), ended(140, "t1", "failed")]
    )
    result = {n.key: n.value for n in slots.make_section(facts).blocks[0].numbers}
    counts = {"hosts": 2, "slots": 2, "duration": 40.0, "attempts": 3, "wide_attempts": 1}
    assert {key: result[key] for key in counts} == counts
    assert result["first_step"] == 0.5
