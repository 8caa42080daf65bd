"""Gantt chart of slots as a PNG: slots from top to bottom, time from left to right.

Shapes: T times at which a bar starts or ends.
"""

from collections.abc import Callable, Iterator, Sequence
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

NAMED_SLOTS = 24
"""Maximum number of slots for which names of slots and trials are written."""

IDLE, STARTING = "#F1F1EF", "#9A9A9A"

TONES = {"training": COLOURS[0], "start-up": STARTING, "lost": ALARM}
"""Colours of the share of slots by activity."""

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
    _draw_slots(upper, chart, colours, size)
    if len(chart.slots) <= NAMED_SLOTS:
        _write_names(upper, chart, size)
    _draw_use(lower, chart, size)
    lower.set_xlabel(f"time in {unit}")
    _legend(upper, colours)
    set_title(upper, chart.heading)
    write_png(figure, out)


def rectangles(chart: Chart) -> Iterator[tuple[Bar, int, int]]:
    """Yield each bar with the first row and the number of rows of every run of adjacent slots."""
    row = {name: number for number, name in enumerate(chart.slots)}
    for bar in chart.bars:
        rows = np.sort([row[name] for name in bar.slots])
        for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
            yield bar, int(run[0]), len(run)


def _colour(bar: Bar, chart: Chart, colours: dict[str, str]) -> tuple[float, ...]:
    """Return the colour of a bar; trials of one label differ in lightness."""
    from matplotlib.colors import to_rgb

    if bar.what != "training":
        return to_rgb(STARTING if bar.what == "start-up" else ALARM)
    light = (sum(map(ord, bar.trial.partition("@")[0])) % 5) / 14.0
    return tuple(part + light * (1.0 - part) for part in to_rgb(colours[chart.label_of(bar)]))


def _draw_slots(axis: "Axes", chart: Chart, colours: dict[str, str], size: float) -> None:
    from matplotlib.collections import PolyCollection

    count = len(chart.slots)
    few = count <= NAMED_SLOTS
    corners = []
    faces = []
    for bar, first, rows in rectangles(chart):
        left, right = bar.start / size, bar.end / size
        last = first + rows
        corners.append(((left, first), (right, first), (right, last), (left, last)))
        faces.append(_colour(bar, chart, colours))
    edges = {"edgecolors": "white", "linewidths": 0.8} if few else {"linewidths": 0.0}
    axis.add_collection(PolyCollection(corners, facecolors=faces, **edges))
    axis.set(xlim=(0.0, chart.seconds / size), ylim=(count, 0.0), facecolor=IDLE)
    hosts = list(dict.fromkeys(name.rpartition(":")[0] for name in chart.slots))
    if few:
        axis.set_yticks(np.arange(count) + 0.5, chart.slots)
        axis.hlines(np.arange(1, count), *axis.get_xlim(), color="white", linewidth=2.0)
    else:
        each = count / len(hosts)
        marks = np.unique(np.linspace(0, len(hosts) - 1, 6).round().astype(int))
        axis.set_yticks((marks + 0.5) * each, [f"{mark + 1:,}" for mark in marks])
        axis.set_ylabel(f"{len(hosts):,} hosts of {each:.3g} slots")
    axis.tick_params(labelsize=8, color=FAINT)
    axis.spines[["top", "right"]].set_visible(False)


def _write_names(axis: "Axes", chart: Chart, size: float) -> None:
    """Write names of trials into the first run of slots of bars that are long enough."""
    room = chart.seconds / 26.0
    named = set[Bar]()
    for bar, first, _ in rectangles(chart):
        if bar.what == "training" and bar.end - bar.start >= room and bar not in named:
            named.add(bar)
            at = ((bar.start + bar.end) / 2 / size, first + 0.5)
            name = bar.trial.partition("@")[0]
            axis.text(*at, name, fontsize=7, color=INK, ha="center", va="center")


def use_of_slots(chart: Chart) -> tuple[Floats, dict[str, Floats]]:
    """Return the share of all slots by activity from each time on.

    Returns:
        Times in seconds, [T]; shares from 0 to 1 of ``training``, ``start-up``, ``lost``, [T].
    """
    ends = [time for bar in chart.bars for time in (bar.start, bar.end)]
    times = np.unique([0.0, *ends, chart.seconds])
    steps = {what: np.zeros(len(times)) for what in TONES}
    for bar in chart.bars:
        steps[bar.what][np.searchsorted(times, bar.start)] += len(bar.slots)
        steps[bar.what][np.searchsorted(times, bar.end)] -= len(bar.slots)
    return times, {what: step.cumsum() / len(chart.slots) for what, step in steps.items()}


def _draw_use(axis: "Axes", chart: Chart, size: float) -> None:
    """Draw the share of all slots that train, start up, or do work that is lost."""
    times, use = use_of_slots(chart)
    shares = np.array(list(use.values()))
    axis.stackplot(times / size, shares, colors=list(TONES.values()), step="post", linewidth=0.0)
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
