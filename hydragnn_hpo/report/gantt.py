"""Gantt chart of slots as a PNG: slots from top to bottom, time from left to right.

Shapes: R rows of the picture, T columns. A row may stand for many slots; colours then mix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.placement import Bar
from hydragnn_hpo.report.charts import time_unit
from hydragnn_hpo.report.style import (
    ALARM,
    COLOURS,
    FAINT,
    INK,
    make_figure,
    set_title,
    tidy_axis,
    write_png,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS, COLUMNS = 640, 1600
"""Maximum number of rows, and number of columns, of the raster."""

NAMED_SLOTS = 24
"""Maximum number of slots for which names of slots and trials are written."""

IDLE, STARTING = "#F1F1EF", "#9A9A9A"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Chart:
    """Bars and slots of a Gantt chart."""

    bars: Sequence[Bar]
    slots: Sequence[str]
    """All slots as ``host:index``, unused ones included; neighbours are adjacent."""
    seconds: float
    """Length of the time axis."""
    heading: str
    label_of: Callable[[Bar], str]
    """Returns the label that determines the colour of a training bar: its conv or its rung."""


def draw_gantt(chart: Chart, out: Path) -> None:
    """Draw the bars of all slots and, below, the share of slots by activity over time.

    Args:
        chart: the bars and slots.
        out: PNG file to write.
    """
    labels = sorted(
        {chart.label_of(bar) for bar in chart.bars if bar.what == "training"}, key=_label_order
    )
    colours = {label: COLOURS[number % len(COLOURS)] for number, label in enumerate(labels)}
    tall = 1.6 + min(5.2, max(1.4, 0.32 * len(chart.slots)))
    figure = make_figure(11.0, tall + 1.7)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(tall, 1.3))
    unit, size = time_unit(chart.seconds)
    picture, use = paint(chart, colours)
    _draw_slots(upper, chart, picture, size)
    if len(chart.slots) <= NAMED_SLOTS:
        _write_names(upper, chart, size)
    _draw_use(lower, use, chart.seconds / size)
    lower.set_xlabel(f"time in {unit}")
    _legend(upper, colours)
    set_title(upper, chart.heading)
    write_png(figure, out)


def paint(chart: Chart, colours: dict[str, str]) -> tuple[Floats, dict[str, Floats]]:
    """Mix the colours of all bars into a raster.

    Args:
        chart: the bars and slots.
        colours: ``#rrggbb`` by label of training.

    Returns:
        The picture, [R, T, 3], red, green and blue from 0 to 1; and by activity (``training``,
        ``start-up``, ``lost``) the share of all slots, [T], from 0 to 1.
    """
    rows = max(1, min(ROWS, len(chart.slots)))
    columns = COLUMNS
    place = {name: number * rows // len(chart.slots) for number, name in enumerate(chart.slots)}
    height = np.bincount(np.fromiter(place.values(), np.intp), minlength=rows)
    picture = np.zeros((rows, columns, 3))
    covered = np.zeros((rows, columns))
    use = {what: np.zeros(columns) for what in ("training", "start-up", "lost")}
    for bar in chart.bars:
        first, weights = _columns(bar, chart.seconds, columns)
        at, counts = np.unique([place[name] for name in bar.slots], return_counts=True)
        share = np.outer(counts / height[at], weights)
        last = first + len(weights)
        covered[at, first:last] += share
        picture[at, first:last] += share[:, :, None] * _colour(bar, chart, colours)
        use[bar.what][first:last] += len(bar.slots) / len(chart.slots) * weights
    idle = np.clip(1.0 - covered, 0.0, 1.0)[:, :, None]
    return np.clip(picture + idle * _rgb(IDLE), 0.0, 1.0), use


def _columns(bar: Bar, seconds: float, columns: int) -> tuple[int, Floats]:
    """Return the first column that a bar touches, and the covered share of each column."""
    scale = columns / seconds
    start = bar.start * scale
    end = min(bar.end * scale, float(columns))
    first = int(start)
    last = max(int(np.ceil(end)), int(start) + 1)
    edges = np.arange(first, min(last, columns) + 1)
    return first, np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], start), 0.0, 1.0)


def _colour(bar: Bar, chart: Chart, colours: dict[str, str]) -> Floats:
    """Return the colour of a bar; trials of one label differ in lightness."""
    if bar.what != "training":
        return _rgb(STARTING if bar.what == "start-up" else ALARM)
    light = (sum(map(ord, bar.trial.partition("@")[0])) % 5) / 14.0
    plain = _rgb(colours[chart.label_of(bar)])
    return plain + light * (1.0 - plain)


def _draw_slots(axis: "Axes", chart: Chart, picture: Floats, size: float) -> None:
    count = len(chart.slots)
    extent = (0.0, chart.seconds / size, float(count), 0.0)
    axis.imshow(picture, extent=extent, aspect="auto", interpolation="nearest")
    hosts = list(dict.fromkeys(name.rpartition(":")[0] for name in chart.slots))
    if count <= NAMED_SLOTS:
        axis.set_yticks(np.arange(count) + 0.5, chart.slots)
        axis.hlines(np.arange(1, count), *extent[:2], color="white", linewidth=2.0)
    else:
        each = count / len(hosts)
        marks = np.unique(np.linspace(0, len(hosts) - 1, 6).round().astype(int))
        axis.set_yticks((marks + 0.5) * each, [f"{mark + 1:,}" for mark in marks])
        axis.set_ylabel(f"{len(hosts):,} hosts of {each:.3g} slots")
    axis.tick_params(labelsize=8, color=FAINT)
    axis.spines[["top", "right"]].set_visible(False)


def _write_names(axis: "Axes", chart: Chart, size: float) -> None:
    """Write names of trials into bars that are long enough, and separate bars by lines."""
    row = {name: number for number, name in enumerate(chart.slots)}
    room = chart.seconds / 26.0
    for bar in chart.bars:
        rows = [row[name] for name in bar.slots]
        for number in rows:
            axis.vlines(bar.end / size, number, number + 1, color="white", linewidth=0.8)
        if bar.what == "training" and bar.end - bar.start >= room:
            axis.text(
                (bar.start + bar.end) / 2 / size,
                min(rows) + 0.5,
                bar.trial.partition("@")[0],
                fontsize=7,
                color=INK,
                ha="center",
                va="center",
            )


def _draw_use(axis: "Axes", use: dict[str, Floats], length: float) -> None:
    """Draw the share of all slots that train, start up, or do work that is lost."""
    edges = np.linspace(0.0, length, COLUMNS + 1)
    bottom = np.zeros(COLUMNS)
    tones = {"training": COLOURS[0], "start-up": STARTING, "lost": ALARM}
    for what, share in use.items():
        axis.stairs(bottom + share, edges, baseline=bottom, fill=True, color=tones[what])
        bottom = bottom + share
    axis.set(ylim=(0.0, 1.0), ylabel="share of slots", facecolor=IDLE)
    axis.set_yticks([0.0, 0.5, 1.0], ["0", "50 %", "100 %"])
    tidy_axis(axis)
    axis.grid(visible=False)


def _legend(axis: "Axes", colours: dict[str, str]) -> None:
    known = {**colours, "start-up": STARTING, "lost": ALARM, "idle or away": IDLE}
    for label, colour in known.items():
        axis.bar([0.0], [0.0], width=0.0, color=colour, label=label, edgecolor=FAINT, linewidth=0.4)
    axis.legend(
        loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.3, frameon=False, fontsize=8,
        handlelength=1.0,
    )  # fmt: skip


def _label_order(label: str) -> tuple[float, str]:
    """Return the sort key of a label: its leading number, then the text."""
    head = label.split()[0] if label else ""
    return (float(head), label) if head.isdigit() else (float("inf"), label)


def _rgb(colour: str) -> Floats:
    return np.array([int(colour[k : k + 2], 16) / 255.0 for k in (1, 3, 5)])
