"""Section on slots: which trial held which slot when, and why idle slots were idle.

The chart is a raster: it shows at most ``ROWS`` slots, evenly spaced, of ``CELLS`` cells in all,
so that 75,264 slots take no more room than 200. Shapes: R rows, T columns.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.campaign import CAUSES
from hydragnn_hpo.placement import Bar
from hydragnn_hpo.report.charts import (
    SERIES,
    cost_unit,
    rung_colour,
    scatter,
    time_unit,
    titled_axis,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Column, Figure, Number, Numbers, Section, Table
from hydragnn_hpo.report.sections.utilization import COLOURS, cause_label
from hydragnn_hpo.report.timeline import IDLE, Timeline

ROWS, CELLS, COLUMNS = 192, 120_000, 1200
NAMED = 300
"""Most bars that name their trial under the pointer."""

Codes = NDArray[np.int8]

KINDS = ("none", "tail", "brain", "held", "away", "start-up", "lost")
"""Kinds of cells beside training; the index is the code of a cell."""

FIRST_COLOUR = len(KINDS)
"""Code of the first colour of training."""


def make_section(facts: Facts) -> Section | None:
    """Show the slots of a campaign over time."""
    course = Timeline(facts)
    if not course.bars or not course.seconds:
        return None
    return Section(
        key="slots",
        title="Slots over time",
        lead="Which trial held which slot, to which rung it trained, and why idle slots were idle.",
        blocks=(_make_numbers(facts, course), _gantt(course), _idle(facts)),
    )


def _make_numbers(facts: Facts, course: Timeline) -> Numbers:
    hosts = {slot.rpartition(":")[0] for slot in course.slots}
    unit, size = time_unit(course.seconds)
    attempts = facts.figures
    first = attempts["first_step_seconds"]
    return Numbers(
        (
            Number("hosts", "hosts", len(hosts), note="that ever were there"),
            Number("slots", "slots", len(course.slots), note="that ever were there"),
            Number("duration", "duration", course.seconds / size, unit, "first start to last end"),
            Number("attempts", "attempts", attempts["attempts"]),
            Number("wide_attempts", "of two ranks or more", attempts["wide_attempts"]),
            Number("first_step", "start-up", first, "s", "median from placed to first step"),
        )
    )


def _idle(facts: Facts) -> Table:
    losses = facts.losses
    unit, size = cost_unit(losses.slot_seconds)
    rows = [
        (cause, losses.by_cause[cause] / size, losses.share(cause), CAUSES[cause]) for cause in IDLE
    ]
    columns = (
        Column("cause", "idle because"),
        Column("time", "slot time", f"slot {unit}"),
        Column("share", "share of all slot time", "%"),
        Column("meaning", "meaning"),
    )
    return Table("idle", columns, tuple(rows))


# -- the chart -----------------------------------------------------------------------


def _gantt(course: Timeline) -> Figure:
    shown = sample_slots(course.slots)
    columns = max(120, min(COLUMNS, CELLS // len(shown)))
    rungs = sorted({target_epochs(bar) for bar in course.bars})
    by_rung = {rung: FIRST_COLOUR + SERIES.index(rung_colour(k)) for k, rung in enumerate(rungs)}
    unit, size = time_unit(course.seconds)
    times = (np.arange(columns) + 0.5) * course.seconds / columns
    background = paint_idle(course, shown, times)
    names = row_names(shown, course.slots)
    pictures = [
        paint_bars(course, shown, background, lambda bar: by_rung[target_epochs(bar)]),
        paint_bars(
            course, shown, background, lambda bar: FIRST_COLOUR + trial_number(bar) % len(SERIES)
        ),
    ]
    maps = [_raster(picture, times / size, names, unit) for picture in pictures]
    maps[1]["visible"] = False
    labels = {
        cause_label(kind): COLOURS[kind] for k, kind in enumerate(KINDS) if (background == k).any()
    }
    labels |= {f"to epoch {rung}": SERIES[by_rung[rung] - FIRST_COLOUR] for rung in by_rung}
    labels |= {cause_label(kind): COLOURS[kind] for kind in ("start-up", "lost")}
    labels.pop("none", None)
    keys = [_legend_entry(label, colour) for label, colour in labels.items()]
    hover = _hover_labels(course, shown, names, size)
    return Figure(
        key="gantt",
        title="Slots over time",
        caption=_caption(len(shown), len(course.slots)),
        data=(*maps, *hover, *keys),
        layout=_layout(unit, course.seconds / size, len(names)),
        height=max(300, min(640, 150 + 14 * len(shown))),
    )


def _caption(shown: int, slots: int) -> str:
    what = "One row is one slot; colours tell the rung or, by the switch, the trial."
    if shown == slots:
        return what
    return f"{what} Shown are {shown} of {slots:,} slots, evenly spaced."


def _layout(unit: str, end: float, rows: int) -> dict[str, Any]:
    buttons = [
        {"label": label, "method": "restyle", "args": [{"visible": seen}, [0, 1]]}
        for label, seen in (("by rung", [True, False]), ("by trial", [False, True]))
    ]
    # Plotly paints the active button in a pale colour of its own: so all are pale, in any theme.
    pale = {"bgcolor": "#dfe3e8", "font": {"color": "#1a1f27"}, "bordercolor": "#a9b3bf"}
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, **pale}
    place = {"x": 0.0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    named = {"type": "category"} if rows <= 24 else {"type": "category", "nticks": 8}
    return {
        "xaxis": titled_axis(f"time since the first placement ({unit})", range=[0, end]),
        "yaxis": {"range": [rows - 0.5, -0.5], "automargin": True, **named},
        "margin": {"b": 90},
        "updatemenus": [{**menu, **place, "pad": {"b": 4}}],
        "legend": {"orientation": "h", "yref": "container", "y": 0.0, "yanchor": "bottom"},
        "showlegend": True,
    }


def _raster(picture: Codes, times: NDArray[np.float64], names: list[str], unit: str) -> Any:
    codes = FIRST_COLOUR + len(SERIES)
    colours = [*(COLOURS.get(kind, "card") for kind in KINDS), *SERIES]
    scale = [[(k + e) / codes, colour] for k, colour in enumerate(colours) for e in (0, 1)]
    return {
        "type": "heatmap",
        "z": picture,
        "x": times,
        "y": names,
        "zmin": -0.5,
        "zmax": codes - 0.5,
        "zsmooth": False,
        "colorscale": scale,
        "showscale": False,
        "ygap": 1 if len(names) <= 64 else 0,
        "hovertemplate": f"slot %{{y}} at %{{x:.3~g}} {unit}<extra></extra>",
    }


def _legend_entry(label: str, colour: str) -> dict[str, Any]:
    """Return an entry of the legend: a raster has none of its own."""
    marker = {"color": colour, "symbol": "square", "size": 10}
    return scatter([None], [None], "markers", name=label, marker=marker)


def _hover_labels(
    course: Timeline, shown: Sequence[str], names: list[str], size: float
) -> list[Any]:
    """Return invisible points in the longest bars that name the trial and its rung."""
    place = {slot: names[number] for number, slot in enumerate(shown)}
    bars = [bar for bar in course.bars if bar.what == "training"]
    bars.sort(key=lambda bar: bar.start - bar.end)
    points = [(bar, slot) for bar in bars for slot in bar.slots if slot in place][:NAMED]
    labels = [f"{bar.trial.partition('@')[0]}, to epoch {target_epochs(bar)}" for bar, _ in points]
    trace = scatter(
        [(bar.start + bar.end) / 2 / size for bar, _ in points],
        [place[slot] for _, slot in points],
        "markers",
        text=labels,
        hovertemplate="%{text}<br>slot %{y}<extra></extra>",
        marker={"size": 14, "opacity": 0},
        showlegend=False,
    )
    return [trace] if points else []


# -- the raster ----------------------------------------------------------------------


def sample_slots(slots: Sequence[str], most: int = ROWS) -> list[str]:
    """Choose slots evenly, the middle one of each group."""
    count = min(most, len(slots))
    return [slots[(2 * k + 1) * len(slots) // (2 * count)] for k in range(count)]


def row_names(shown: Sequence[str], slots: Sequence[str]) -> list[str]:
    """Return the names of rows: slots, without the host if there is only one."""
    hosts = {slot.rpartition(":")[0] for slot in slots}
    return [slot.rpartition(":")[2] if len(hosts) == 1 else slot for slot in shown]


def target_epochs(bar: Bar) -> int:
    """Return the epochs that an attempt was to reach: its rung."""
    return int(bar.trial.rpartition("@")[2])


def trial_number(bar: Bar) -> int:
    """Return a trial's number; neighbours in time differ in colour by it."""
    digits = "".join(filter(str.isdigit, bar.trial.rpartition("@")[0]))
    return int(digits) if digits else 0


def paint_idle(course: Timeline, shown: Sequence[str], times: NDArray[np.float64]) -> Codes:
    """Return for each cell why its slot would be idle, [R, T].

    Args:
        course: of the campaign.
        shown: slots of the rows.
        times: middles of the columns, in seconds.
    """
    codes: Mapping[str, int] = {kind: code for code, kind in enumerate(KINDS)}
    line = np.array([codes[course.idle.at(time)] for time in times], dtype=np.int8)
    picture = np.tile(line, (len(shown), 1))
    for row, slot in enumerate(shown):
        for begin, end in course.absences.get(slot.rpartition(":")[0], ()):
            picture[row, (times >= begin) & (times < end)] = codes["away"]
    return picture


def paint_bars(
    course: Timeline, shown: Sequence[str], background: Codes, code_of: Callable[[Bar], int]
) -> Codes:
    """Paint bars over the reasons of idle time; a cell shows what is in its middle.

    Args:
        course: of the campaign.
        shown: slots of the rows.
        background: what ``paint_idle`` returns.
        code_of: code of the colour of a bar of training.
    """
    picture = background.copy()
    place = {slot: row for row, slot in enumerate(shown)}
    columns = picture.shape[1]
    scale = columns / course.seconds
    for bar in course.bars:
        first = int(np.ceil(bar.start * scale - 0.5))
        last = int(np.ceil(bar.end * scale - 0.5))
        if last <= first:
            continue
        code = code_of(bar) if bar.what == "training" else KINDS.index(bar.what)
        for slot in bar.slots:
            if (row := place.get(slot)) is not None:
                picture[row, first:last] = code
    return picture
