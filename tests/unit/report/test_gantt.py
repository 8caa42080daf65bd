"""The picture of which trial held which slot: rectangles, shares of slots, any size."""

import numpy as np
import pytest
from PIL import Image

from hydragnn_hpo.planning.simulator import Bar
from hydragnn_hpo.report.gantt import Chart, draw_gantt, rectangles, use_of_slots


def chart(bars, slots, seconds=16.0):
    return Chart(bars, slots, seconds, "heading", lambda bar: "gin")


def test_adjacent_slots_of_a_bar_are_one_rectangle():
    bar = Bar("t", ("a:3", "a:0", "a:1"), 0.0, 16.0, "training")
    slots = [f"a:{k}" for k in range(4)]
    assert [(first, rows) for _, first, rows in rectangles(chart([bar], slots))] == [(0, 2), (3, 1)]


def test_shares_are_those_of_all_slots_at_every_time():
    bars = [
        Bar("t", ("a:0",), 0.0, 4.0, "start-up"),
        Bar("t", ("a:0",), 4.0, 12.0, "training"),
        Bar("u", ("a:1",), 8.0, 12.0, "training"),
        Bar("t", ("a:0",), 12.0, 16.0, "lost"),
        Bar("u", ("a:1",), 16.0, 16.0, "lost"),
    ]
    times, use = use_of_slots(chart(bars, ["a:0", "a:1"]))
    assert times.tolist() == [0.0, 4.0, 8.0, 12.0, 16.0]
    assert use["start-up"].tolist() == [0.5, 0.0, 0.0, 0.0, 0.0]
    assert use["training"].tolist() == [0.0, 0.5, 1.0, 0.0, 0.0]
    assert use["lost"].tolist() == [0.0, 0.0, 0.0, 0.5, 0.0]


SIZES = [2, 200, *(pytest.param(size, marks=pytest.mark.stress) for size in (1, 24, 75_264))]


@pytest.mark.parametrize("slots", SIZES)
def test_a_figure_of_any_size_is_drawn(slots, tmp_path):
    names = [f"h{n // 8:05}:{n % 8}" for n in range(slots)]
    bars = []
    for n in range(0, slots, 3):
        begin = 10.0 * (n % 7)
        bars.append(Bar(f"t{n:04d}@4", tuple(names[n : n + 3]), begin, begin + 20.0, "training"))
    out = tmp_path / "gantt.png"
    draw_gantt(chart(bars, names, seconds=90.0), out)
    with Image.open(out) as image:
        assert image.width == 1650
        assert 400 < image.height < 1400
        blue = np.asarray(image.convert("RGB")).reshape(-1, 3) == (0, 114, 178)
    assert blue.all(axis=1).sum() > 100
