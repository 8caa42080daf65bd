"""The picture of who ran where: colours where bars are, mixed where many slots share a row."""

import numpy as np
import pytest
from PIL import Image

from hydragnn_hpo.placement.simulator import Bar
from hydragnn_hpo.report.gantt import (
    COLUMNS,
    IDLE,
    ROWS,
    STARTING,
    Chart,
    _rgb,
    draw_gantt,
    paint,
)
from hydragnn_hpo.report.style import ALARM

TRIAL = "\x05"  # its shade is the plain colour
COLOURS = {"gin": "#0072B2"}


def chart(bars, slots, seconds=16.0):
    return Chart(bars, slots, seconds, "heading", lambda bar: "gin")


def test_bars_have_their_colours_and_their_places():
    bars = [
        Bar(TRIAL, ("a:0",), 0.0, 4.0, "start-up"),
        Bar(TRIAL, ("a:0",), 4.0, 12.0, "training"),
        Bar(TRIAL, ("a:0",), 12.0, 16.0, "lost"),
    ]
    picture, use = paint(chart(bars, ["a:0", "a:1"]), COLOURS)
    assert picture.shape == (2, COLUMNS, 3)
    quarter = COLUMNS // 4
    for column, colour in [
        (0, STARTING),
        (quarter - 1, STARTING),
        (quarter, COLOURS["gin"]),
        (3 * quarter - 1, COLOURS["gin"]),
        (3 * quarter, ALARM),
        (COLUMNS - 1, ALARM),
    ]:
        assert picture[0, column] == pytest.approx(_rgb(colour)), column
    assert np.allclose(picture[1], _rgb(IDLE))
    assert use["training"].sum() == pytest.approx(0.5 * COLUMNS / 2)
    assert use["lost"][-1] == 0.5


def test_a_column_that_a_bar_half_covers_mixes():
    one = 16.0 / COLUMNS
    bars = [Bar(TRIAL, ("a:0",), 0.0, 1.5 * one, "training")]
    picture, _ = paint(chart(bars, ["a:0"]), COLOURS)
    half = 0.5 * _rgb(COLOURS["gin"]) + 0.5 * _rgb(IDLE)
    assert picture[0, 1] == pytest.approx(half)
    assert picture[0, 2] == pytest.approx(_rgb(IDLE))


def test_rows_of_many_slots_mix():
    """Four slots per row; a bar on two of those of the first row."""
    slots = [f"h{n:05}:{k}" for n in range(ROWS) for k in range(4)]
    bars = [Bar(TRIAL, ("h00000:0", "h00000:2"), 0.0, 16.0, "training")]
    picture, use = paint(chart(bars, slots), COLOURS)
    assert picture.shape[0] == ROWS
    assert picture[0, 5] == pytest.approx(0.5 * _rgb(COLOURS["gin"]) + 0.5 * _rgb(IDLE))
    assert picture[1, 5] == pytest.approx(_rgb(IDLE))
    assert use["training"][5] == pytest.approx(2 / (4 * ROWS))


def test_an_instant_at_the_very_end_does_no_harm():
    bars = [Bar(TRIAL, ("a:0",), 16.0, 16.0, "lost"), Bar(TRIAL, ("a:0",), 0.0, 16.0, "training")]
    picture, _ = paint(chart(bars, ["a:0"]), COLOURS)
    assert picture[0, -1] == pytest.approx(_rgb(COLOURS["gin"]))


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
