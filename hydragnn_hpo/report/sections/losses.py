"""What all slots did over time, and where what was not training went."""

from hydragnn_hpo.campaign.records.losses import CAUSES
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page.blocks import Column, Figure, Number, Numbers, Section, Table
from hydragnn_hpo.report.sections.axes import spent_unit, unit_of
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
"""Of what slots do, and of why they are idle."""

WORDS = {
    "start_up": "start-up",
    "between": "between epochs",
    "lost": "lost work",
    "held": "held back",
    "brain": "waiting for the brain",
    "away": "host away",
}


def section(facts: Facts) -> Section | None:
    """Account for all slot-seconds."""
    if not facts.losses.slot_seconds:
        return None
    return Section(
        key="losses",
        title="Utilization and losses",
        lead="Where the time of all slots went: training, or one of the causes of loss.",
        blocks=(_numbers(facts), _accounting(facts), _over_time(facts), _table(facts)),
    )


def _numbers(facts: Facts) -> Numbers:
    losses = facts.losses
    largest, total = losses.largest, losses.slot_seconds
    unit, size = spent_unit(total)
    return Numbers(
        (
            Number("utilization", "utilization", losses.share("training"), "%", "in training"),
            Number("slot_time", "slot time", total / size, f"slot {unit}"),
            Number(
                "largest",
                "largest loss",
                losses.share(largest) if largest else 0.0,
                "%",
                word(largest) if largest else "nothing was lost",
            ),
        )
    )


def word(cause: str) -> str:
    """Give a cause as people read it."""
    return WORDS.get(cause, cause)


def _accounting(facts: Facts) -> Figure:
    shares = facts.losses.shares
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [""],
            "x": [100.0 * shares[cause]],
            "name": word(cause),
            "marker": {"color": COLOURS[cause]},
            "hovertemplate": f"{word(cause)}: %{{x:.2f}} %<extra></extra>",
        }
        for cause in CAUSES
        if shares[cause] > 0.0
    ]
    return Figure(
        key="accounting",
        title="Slot time by cause",
        says="One bar of all slot time: the share of training, and of each cause of loss.",
        data=tuple(traces),
        layout={
            "barmode": "stack",
            "xaxis": {"title": {"text": "share of all slot time (%)"}, "range": [0, 100]},
            "yaxis": {"showticklabels": False},
            "showlegend": True,
        },
        height=210,
    )


def _over_time(facts: Facts) -> Figure:
    course = Timeline(facts)
    middles, found = course.shares(BINS)
    unit, size = unit_of(course.seconds)
    total = float(max(1, len(course.slots)))
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "slots",
            "x": middles / size,
            "y": 100.0 * slots / total,
            "name": word(what),
            "line": {"width": 0, "color": COLOURS[what], "shape": "hv"},
            "fillcolor": COLOURS[what],
            "hovertemplate": f"{word(what)}: %{{y:.1f}} %<extra></extra>",
        }
        for what, slots in found.items()
        if slots.any()
    ]
    return Figure(
        key="over_time",
        title="Slots over time",
        says="What share of the slots trains, starts or stands idle at each time, and why; "
        "checkpoints and ends of attempts count as training here.",
        data=tuple(traces),
        layout={
            "xaxis": {"title": {"text": f"time since the first placement ({unit})"}},
            "yaxis": {"title": {"text": "share of slots (%)"}, "range": [0, 100]},
            "hovermode": "x unified",
            "showlegend": True,
        },
    )


def _table(facts: Facts) -> Table:
    losses = facts.losses
    unit, size = spent_unit(losses.slot_seconds)
    rows = [
        (cause, losses.by_cause[cause] / size, losses.share(cause), said)
        for cause, said in CAUSES.items()
    ]
    columns = (
        Column("cause", "cause"),
        Column("time", "slot time", f"slot {unit}"),
        Column("share", "share", "%"),
        Column("meaning", "meaning"),
    )
    note = "Counted over all slots from the first placement to the last end of each controller."
    return Table("causes", columns, tuple(rows), note)
