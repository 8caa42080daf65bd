"""Section on slots: which trial held which slot when, and what all slot time was spent on.

The chart is a raster of at most ``ROWS`` evenly sampled slots and ``CELLS`` cells in all, so
that 75,264 slots take no more space than 200. Shapes: E events, R rows and
T columns of the raster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.campaign.accounting import CAUSES
from hydragnn_hpo.placement import Bar
from hydragnn_hpo.report.charts import (
    SERIES,
    Layout,
    Trace,
    axes,
    cost_unit,
    rung_colour,
    scatter,
    time_unit,
    titled_axis,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Figure, Number, Numbers, Section, Table, make_table

Floats = NDArray[np.float64]
Codes = NDArray[np.int8]

COLOURS = {
    "training": "c0",
    "start-up": "c8",
    "start_up": "c8",
    "between": "c4",
    "ending": "c7",
    "lost": "lost",
    "held": "warn",
    "brain": "c3",
    "tail": "idle",
    "away": "line",
}
"""Colour of each activity, and of each cause of idle time."""

LABELS = {
    "start_up": "start-up",
    "between": "between epochs",
    "lost": "lost work",
    "held": "held back",
    "brain": "waiting for the brain",
    "away": "host away",
}
"""Displayed names of activities and causes of idle time; others are shown by their key."""

ROWS, CELLS, COLUMNS = 192, 120_000, 1200
NAMED = 300
"""Maximum number of points that show a trial's name under the pointer."""

KINDS = ("none", "tail", "brain", "held", "away", "start-up", "lost")
"""Kinds of cells other than training; the index is the code of a cell."""

FIRST_COLOUR = len(KINDS)
"""Code of the first colour of training."""


# -- what slots did, and why they were idle ------------------------------------------------


@dataclass(frozen=True)
class Idle:
    """Idle slots, and the cause, after each event."""

    times: Floats
    """Seconds since the first placement, rising, [E]."""
    why: NDArray[np.str_]
    """Cause for slots of present hosts: ``held``, ``brain`` or ``tail``, [E]."""
    here: Floats
    """Number of idle slots of present hosts, [E]."""
    away: Floats
    """Number of idle slots of hosts that are lost or in quarantine, [E]."""

    def at(self, times: Floats) -> NDArray[np.str_]:
        """Return the cause for which a slot of a present host would be idle at each time."""
        if not len(self.why):
            return np.full(len(times), "tail")
        return self.why[np.maximum(np.searchsorted(self.times, times, side="right") - 1, 0)]


class Timeline:
    """Slots, bars and idle time of a campaign."""

    def __init__(self, facts: Facts) -> None:
        """Read slots and bars from the facts of a run."""
        self._facts = facts
        history = facts.history.slots
        self.begin = history.begin or 0.0
        self.bars: list[Bar] = history.bars
        self.seconds = max((bar.end for bar in self.bars), default=0.0)
        """Seconds from the first placement to the last end."""
        self.slots = history.all_slots
        """All slots that ever existed; neighbours are adjacent."""

    @cached_property
    def idle(self) -> Idle:
        """Idle slots after each event."""
        facts = self._facts
        causes = list[str]()
        steps = facts.history.slots.idle_steps
        then = "brain" if facts.state.is_searching(facts.config.search.trials) else "tail"
        for event, (_, why, _, _) in zip(reversed(facts.events), reversed(steps), strict=True):
            causes.append(then if why == "open" else why)
            if event["event"] in ("proposed", "added"):  # earlier idle time was a wait for it
                then = "brain" if event["event"] == "proposed" else "tail"
        times, _, here, away = np.array(steps, dtype=object).reshape(-1, 4).T
        return Idle(
            np.maximum.accumulate(times.astype(float) - self.begin),
            np.array(causes[::-1], dtype=np.str_),
            here.astype(float),
            away.astype(float),
        )

    @cached_property
    def absences(self) -> dict[str, list[tuple[float, float]]]:
        """Begin and end of each time that a host was lost or in quarantine.

        Returns:
            Pairs by host, in seconds since the first placement; an absence that has not ended
            lasts until ``seconds``.
        """
        absences: dict[str, list[tuple[float, float]]] = {}
        open_since: dict[str, float] = {}
        for event in self._facts.events:
            time = event["time"] - self.begin
            match event["event"]:
                case "host_lost" | "quarantined":
                    open_since.setdefault(event["host"], time)
                case "host_joined" if (host := event["host"]) in open_since:
                    absences.setdefault(host, []).append((open_since.pop(host), time))
        for host, since in open_since.items():
            absences.setdefault(host, []).append((since, self.seconds))
        return absences


# -- the section ---------------------------------------------------------------------------


def make_section(facts: Facts) -> Section | None:
    """Show the slots of a campaign over time, and where all slot time went."""
    timeline = Timeline(facts)
    if not timeline.bars or not timeline.seconds:
        return None
    blocks = (_make_numbers(facts, timeline), draw_raster(timeline), _accounting(facts))
    lead = "Which trial held which slot, and where the time of all slots went. For operators."
    causes = _cause_table(facts)
    return Section("slots", "Machine: use of the slots", lead, (*blocks, causes), folded=True)


def _make_numbers(facts: Facts, timeline: Timeline) -> Numbers:
    hosts = {slot.rpartition(":")[0] for slot in timeline.slots}
    unit, size = time_unit(timeline.seconds)
    figures = facts.figures
    losses = facts.losses
    seconds = timeline.seconds / size
    total, largest = losses.slot_seconds, losses.largest
    slot_unit, slot_size = cost_unit(total)
    lost = losses.share(largest) if largest else 0.0
    what = _label(largest) if largest else "nothing was lost"
    return Numbers(
        (
            Number("hosts", "hosts used", len(hosts)),
            Number("slots", "slots used", len(timeline.slots)),
            Number("duration", "duration", seconds, unit, "first start to last end"),
            Number("attempts", "attempts", figures["attempts"]),
            Number("wide_attempts", "multi-process attempts", figures["wide_attempts"]),
            Number("first_step", "start-up", figures["first_step_seconds"], "s",
                   "median from placement to first step"),
            Number("utilization", "utilization", losses.share("training"), "%", "in training"),
            Number("slot_time", "slot time", total / slot_size, f"slot {slot_unit}"),
            Number("largest", "largest loss", lost, "%", what),
        )
    )  # fmt: skip


def _cause_table(facts: Facts) -> Table:
    losses = facts.losses
    unit, size = cost_unit(losses.slot_seconds)
    columns = {
        "cause": "cause",
        "time": ("slot time", f"slot {unit}"),
        "share": ("share", "%"),
        "meaning": "meaning",
    }
    rows = ((_label(c), losses.by_cause[c] / size, losses.share(c), CAUSES[c]) for c in CAUSES)
    note = "Counted over all slots from the first placement to the last end of each controller."
    return make_table("causes", columns, rows, note)


def draw_raster(timeline: Timeline) -> Figure:
    """Draw the slots over time, coloured by rung or, with a button, by trial."""
    shown = sample_slots(timeline.slots)
    columns = max(120, min(COLUMNS, CELLS // len(shown)))
    rungs = sorted({target_epochs(bar) for bar in timeline.bars})
    by_rung = {rung: FIRST_COLOUR + SERIES.index(rung_colour(k)) for k, rung in enumerate(rungs)}
    times = (np.arange(columns) + 0.5) * timeline.seconds / columns
    background = paint_idle(timeline, shown, times)
    codes: tuple[Callable[[Bar], int], ...] = (
        lambda bar: by_rung[target_epochs(bar)],
        lambda bar: FIRST_COLOUR + trial_number(bar) % len(SERIES),
    )
    unit, size = time_unit(timeline.seconds)
    names = row_names(shown, timeline.slots)
    maps = [
        _raster(paint_bars(timeline, shown, background, code_of), times / size, names, unit)
        for code_of in codes
    ]
    maps[1]["visible"] = False
    kinds = [kind for code, kind in enumerate(KINDS) if code and (background == code).any()]
    legend = {_label(kind): COLOURS[kind] for kind in kinds}
    legend |= {f"to epoch {rung}": SERIES[code - FIRST_COLOUR] for rung, code in by_rung.items()}
    legend |= {_label(kind): COLOURS[kind] for kind in ("start-up", "lost")}
    keys = [_legend_entry(label, colour) for label, colour in legend.items()]
    caption = "One row is one slot; colours show the rung or, by the switch, the trial."
    if len(shown) < len(timeline.slots):
        caption += f" Shown are {len(shown)} of {len(timeline.slots):,} slots, evenly spaced."
    return Figure(
        key="gantt",
        name="slots",
        title="Slots over time",
        caption=caption,
        data=(*maps, *_hover_labels(timeline, shown, names, size), *keys),
        layout=_raster_layout(unit, timeline.seconds / size, len(names)),
        height=max(300, min(640, 150 + 14 * len(shown))),
    )


def _label(cause: str) -> str:
    return LABELS.get(cause, cause)


def _raster_layout(unit: str, end: float, rows: int) -> Layout:
    buttons: list[Layout] = [
        {"label": label, "method": "restyle", "args": [{"visible": seen}, [0, 1]]}
        for label, seen in (("by rung", [True, False]), ("by trial", [False, True]))
    ]
    # Plotly paints the active button in a fixed pale colour, so all are pale in both themes.
    pale: Layout = {"bgcolor": "#dfe3e8", "font": {"color": "#1a1f27"}, "bordercolor": "#a9b3bf"}
    place: Layout = {"x": 0.0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "pad": {"b": 4}}
    menu: Layout = {"type": "buttons", "direction": "right", "buttons": buttons, **pale, **place}
    slots: Layout = {"range": [rows - 0.5, -0.5], "automargin": True, "type": "category"}
    return axes(
        titled_axis(f"time since the first placement ({unit})", range=[0, end]),
        slots if rows <= 24 else slots | {"nticks": 8},
        margin={"b": 90},
        updatemenus=[menu],
        legend={"orientation": "h", "yref": "container", "y": 0.0, "yanchor": "bottom"},
        showlegend=True,
    )


def _raster(picture: Codes, times: Floats, names: list[str], unit: str) -> Trace:
    colours = [*(COLOURS.get(kind, "card") for kind in KINDS), *SERIES]
    codes = len(colours)
    scale: list[list[str | float]] = [
        [(k + e) / codes, colour] for k, colour in enumerate(colours) for e in (0, 1)
    ]
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


def _legend_entry(label: str, colour: str) -> Trace:
    """Return an empty trace that adds a legend entry, since a raster has none."""
    marker: Trace = {"color": colour, "symbol": "square", "size": 10}
    return scatter([None], [None], "markers", name=label, marker=marker)


def _hover_labels(
    timeline: Timeline, shown: Sequence[str], names: Sequence[str], size: float
) -> list[Trace]:
    """Return invisible points in the longest bars that name the trial and its rung.

    Args:
        timeline: timeline of the campaign.
        shown: slots of the rows.
        names: names of the rows.
        size: length of the unit of time in seconds.
    """
    place = dict(zip(shown, names, strict=True))
    bars = [bar for bar in timeline.bars if bar.what == "training"]
    bars.sort(key=lambda bar: bar.start - bar.end)
    points = [(bar, slot) for bar in bars for slot in bar.slots if slot in place][:NAMED]
    if not points:
        return []
    trace = scatter(
        [(bar.start + bar.end) / 2 / size for bar, _ in points],
        [place[slot] for _, slot in points],
        "markers",
        text=[f"{b.trial.partition('@')[0]}, to epoch {target_epochs(b)}" for b, _ in points],
        customdata=[bar.trial.partition("@")[0] for bar, _ in points],
        hovertemplate="%{text}<br>slot %{y}<extra></extra>",
        marker={"size": 14, "opacity": 0},
        showlegend=False,
    )
    return [trace]


def sample_slots(slots: Sequence[str], most: int = ROWS) -> list[str]:
    """Choose at most ``most`` slots, the middle ones of groups of equal size."""
    count = min(most, len(slots))
    return [slots[(2 * k + 1) * len(slots) // (2 * count)] for k in range(count)]


def row_names(shown: Sequence[str], slots: Sequence[str]) -> list[str]:
    """Return the names of rows: slots, without the host if there is only one."""
    hosts = {slot.rpartition(":")[0] for slot in slots}
    return [slot.rpartition(":")[2] if len(hosts) == 1 else slot for slot in shown]


def target_epochs(bar: Bar) -> int:
    """Return the rung to which an attempt trained, in epochs."""
    return int(bar.trial.rpartition("@")[2])


def trial_number(bar: Bar) -> int:
    """Return a trial's number, from which its colour derives."""
    digits = "".join(filter(str.isdigit, bar.trial.rpartition("@")[0]))
    return int(digits) if digits else 0


def paint_idle(timeline: Timeline, shown: Sequence[str], times: Floats) -> Codes:
    """Return the code of the cause for which each cell would be idle, [R, T].

    Args:
        timeline: timeline of the campaign.
        shown: slots of the rows.
        times: middles of the columns, in seconds.
    """
    line = np.array([KINDS.index(why) for why in timeline.idle.at(times)], dtype=np.int8)
    picture = np.tile(line, (len(shown), 1))
    for row, slot in enumerate(shown):
        for begin, end in timeline.absences.get(slot.rpartition(":")[0], ()):
            picture[row, (times >= begin) & (times < end)] = KINDS.index("away")
    return picture


def paint_bars(
    timeline: Timeline, shown: Sequence[str], background: Codes, code_of: Callable[[Bar], int]
) -> Codes:
    """Paint bars over the causes of idle time; a cell shows the state at its middle.

    Args:
        timeline: timeline of the campaign.
        shown: slots of the rows.
        background: result of ``paint_idle``.
        code_of: returns the colour code of a training bar.
    """
    picture = background.copy()
    place = {slot: row for row, slot in enumerate(shown)}
    scale = picture.shape[1] / timeline.seconds
    for bar in timeline.bars:
        first, last = (int(np.ceil(time * scale - 0.5)) for time in (bar.start, bar.end))
        if last > first:
            rows = [place[slot] for slot in bar.slots if slot in place]
            code = code_of(bar) if bar.what == "training" else KINDS.index(bar.what)
            picture[rows, first:last] = code
    return picture


def _accounting(facts: Facts) -> Figure:
    shares = facts.losses.shares
    traces: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [""],
            "x": [100.0 * shares[cause]],
            "name": _label(cause),
            "marker": {"color": COLOURS[cause]},
            "hovertemplate": f"{_label(cause)}: %{{x:.2f}} %<extra></extra>",
        }
        for cause in CAUSES
        if shares[cause] > 0.0
    ]
    share = titled_axis("share of all slot time (%)", range=[0, 100])
    return Figure(
        key="accounting",
        name="slot_time",
        title="Slot time by cause",
        caption="One bar of all slot time: the share of training, and of each cause of loss.",
        data=tuple(traces),
        layout=axes(share, {"showticklabels": False}, barmode="stack", showlegend=True),
        height=210,
    )
