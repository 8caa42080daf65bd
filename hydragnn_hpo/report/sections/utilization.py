"""Section on utilization: what all slots did over time, and the causes of idle time."""

from hydragnn_hpo.campaign import CAUSES
from hydragnn_hpo.report.charts import cost_unit, scatter, time_unit, titled_axis
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Column, Figure, Number, Numbers, Section, Table
from hydragnn_hpo.report.timeline import Timeline

BINS = 240

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
"""Colours of what slots do, and of why they are idle."""

LABELS = {
    "start_up": "start-up",
    "between": "between epochs",
    "lost": "lost work",
    "held": "held back",
    "brain": "waiting for the brain",
    "away": "host away",
}


def make_section(facts: Facts) -> Section | None:
    """Account for all slot-seconds."""
    if not facts.losses.slot_seconds:
        return None
    return Section(
        key="losses",
        title="Utilization and losses",
        lead="Where the time of all slots went: training, or one of the causes of loss.",
        blocks=(_make_numbers(facts), _accounting(facts), _over_time(facts), _make_table(facts)),
    )


def _make_numbers(facts: Facts) -> Numbers:
    losses = facts.losses
    largest, total = losses.largest, losses.slot_seconds
    unit, size = cost_unit(total)
    return Numbers(
        (
            Number("utilization", "utilization", losses.share("training"), "%", "in training"),
            Number("slot_time", "slot time", total / size, f"slot {unit}"),
            Number(
                "largest",
                "largest loss",
                losses.share(largest) if largest else 0.0,
                "%",
                cause_label(largest) if largest else "nothing was lost",
            ),
        )
    )


def cause_label(cause: str) -> str:
    """Return a cause as people read it."""
    return LABELS.get(cause, cause)


def _accounting(facts: Facts) -> Figure:
    shares = facts.losses.shares
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [""],
            "x": [100.0 * shares[cause]],
            "name": cause_label(cause),
            "marker": {"color": COLOURS[cause]},
            "hovertemplate": f"{cause_label(cause)}: %{{x:.2f}} %<extra></extra>",
        }
        for cause in CAUSES
        if shares[cause] > 0.0
    ]
    return Figure(
        key="accounting",
        title="Slot time by cause",
        caption="One bar of all slot time: the share of training, and of each cause of loss.",
        data=tuple(traces),
        layout={
            "barmode": "stack",
            "xaxis": titled_axis("share of all slot time (%)", range=[0, 100]),
            "yaxis": {"showticklabels": False},
            "showlegend": True,
        },
        height=210,
    )


def _over_time(facts: Facts) -> Figure:
    course = Timeline(facts)
    middles, found = course.shares(BINS)
    unit, size = time_unit(course.seconds)
    total = float(max(1, len(course.slots)))
    traces = [
        scatter(
            middles / size,
            100.0 * slots / total,
            "lines",
            stackgroup="slots",
            name=cause_label(what),
            line={"width": 0, "color": COLOURS[what], "shape": "hv"},
            fillcolor=COLOURS[what],
            hovertemplate=f"{cause_label(what)}: %{{y:.1f}} %<extra></extra>",
        )
        for what, slots in found.items()
        if slots.any()
    ]
    return Figure(
        key="over_time",
        title="Slots over time",
        caption="What share of the slots trains, starts or stands idle at each time, and why; "
        "checkpoints and ends of attempts count as training here.",
        data=tuple(traces),
        layout={
            "xaxis": titled_axis(f"time since the first placement ({unit})"),
            "yaxis": titled_axis("share of slots (%)", range=[0, 100]),
            "hovermode": "x unified",
            "showlegend": True,
        },
    )


def _make_table(facts: Facts) -> Table:
    losses = facts.losses
    unit, size = cost_unit(losses.slot_seconds)
    rows = [
        (cause, losses.by_cause[cause] / size, losses.share(cause), meaning)
        for cause, meaning in CAUSES.items()
    ]
    columns = (
        Column("cause", "cause"),
        Column("time", "slot time", f"slot {unit}"),
        Column("share", "share", "%"),
        Column("meaning", "meaning"),
    )
    note = "Counted over all slots from the first placement to the last end of each controller."
    return Table("causes", columns, tuple(rows), note)
