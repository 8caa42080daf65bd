"""Figures of the report for single kinds of targets: spectra along their axis, classes.

Shapes: R rows of a head with a label, w components.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hydragnn_hpo.config import AxisConfig, Bounds, TargetConfig
from hydragnn_hpo.file_records import Curves
from hydragnn_hpo.report.charts import (
    LEGEND,
    PlotlyValue,
    Trace,
    axes,
    format_number,
    format_percent,
    readable_name,
    scatter,
    square_axes,
    with_unit,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Figure
from hydragnn_hpo.report.structure_errors import LabelledHead


def find_target(facts: Facts, name: str) -> TargetConfig | None:
    """Return the target of a head in the cards of a run; None if no card has it."""
    for entry in facts.config.data:
        card = facts.cards.get(Path(entry.card).stem)
        own = name.removeprefix(entry.prefix)
        if card is not None and entry.prefix + own == name and own in card.targets:
            return card.targets[own]
    return None


def draw_head(facts: Facts, name: str) -> tuple[Figure, ...]:
    """Return the figures that a head has beside those of all heads.

    Args:
        facts: content of the run directory.
        name: name of the head.

    Returns:
        For a spectrum the test predictions of median and of largest error; for a class the
        reliability of its probabilities, and the confusion of the classes; else none.
    """
    target = find_target(facts, name)
    errors = facts.structure_errors
    curves: Curves = facts.ensemble["curves"].get(name, {}) if facts.ensemble else {}
    if target is not None and target.classes is not None and "reliability" in curves:
        return _draw_reliability(name, curves), _draw_confusion(name, curves, target.classes)
    if target is None or errors is None or name not in errors.heads:
        return ()
    head = errors.heads[name]
    order = np.argsort(head.error, kind="stable")
    if target.shape != "spectrum" or not len(order):
        return ()
    chosen = {"median": int(order[len(order) // 2]), "largest": int(order[-1])}
    return tuple(
        _draw_spectrum(facts, name, target, row=row, which=which) for which, row in chosen.items()
    )


def _draw_reliability(name: str, curves: Curves) -> Figure:
    """Draw how often the most probable class is true against its probability."""
    bins = curves["reliability"]
    rows = int(np.array(bins["count"], float).sum())
    ends = np.array([0.0, 1.0])
    confidence, right = (np.array(bins[key], float) for key in ("confidence", "right"))
    line: PlotlyValue = {"width": 1, "color": "ink"}
    return Figure(
        key=f"reliability.{name}",
        title=f"{readable_name(name)}: reliability",
        caption=f"{rows} test values in bins of rising probability of the most probable class; "
        "the diagonal is perfect.",
        data=(
            scatter(ends, ends, "lines", name="perfect", line=line, showlegend=False),
            scatter(confidence, right, "lines+markers", name="test", marker={"color": "c0"}),
        ),
        layout=square_axes(("probability", "share that is right"), (0.0, 1.0)),
        height=330,
    )


def _draw_confusion(name: str, curves: Curves, classes: Sequence[str]) -> Figure:
    """Draw the number of test values of each true class by the predicted one."""
    counts = np.array([curves["confusion"][str(number)] for number in range(len(classes))], float)
    right = np.trace(counts) / max(float(counts.sum()), 1.0)
    return Figure(
        key=f"confusion.{name}",
        title=f"{readable_name(name)}: {format_percent(float(right))} right",
        caption="Number of test values of each class by the most probable class.",
        data=(
            {
                "type": "heatmap",
                "x": list(classes),
                "y": list(classes),
                "z": counts.tolist(),
                "texttemplate": "%{z:.0f}",
                "colorscale": "Blues",
                "showscale": False,
            },
        ),
        layout=axes(
            {"title": {"text": "predicted"}, "type": "category"},
            {"title": {"text": "reference"}, "type": "category", "autorange": "reversed"},
        ),
        height=330,
    )


def _draw_spectrum(
    facts: Facts, name: str, target: TargetConfig, *, row: int, which: str
) -> Figure:
    """Draw one spectrum with its 90 % interval.

    Args:
        facts: content of the run directory, with errors by structure.
        name: name of the head.
        target: its axis and bounds.
        row: row of the head.
        which: what distinguishes the error of this row: ``median`` or ``largest``.
    """
    assert facts.structure_errors is not None
    head = facts.structure_errors.heads[name]
    structure = facts.structure_errors.structures.names[int(head.graph[row])]
    atom = f", atom {int(head.atom[row])}" if head.is_node else ""
    unit = "" if head.unit == "1" else f" {head.unit}"
    error = format_number(float(head.error[row]))
    axis = target.axis or AxisConfig(first=0, last=target.width - 1, unit="number of the value")
    return Figure(
        key=f"spectrum.{name}.{which}",
        title=f"{readable_name(name)}: {which} error",
        caption=f"{structure}{atom}: mean absolute error {error}{unit}. The band is the 90 % "
        "interval of each value.",
        data=_spectrum_traces(head, row, axis, target.bounds),
        layout=axes(
            with_unit("position", axis.unit),
            with_unit(readable_name(name), head.unit),
            legend=LEGEND,
        ),
        height=330,
    )


def _spectrum_traces(
    head: LabelledHead, row: int, axis: AxisConfig, bounds: Bounds | None
) -> tuple[Trace, ...]:
    """Return interval, prediction and reference of one row of a spectrum.

    Args:
        head: predictions and references.
        row: row of the head.
        axis: axis of the spectrum.
        bounds: where intervals end, in the unit.
    """
    mean, truth, half = head.mean[row], head.truth[row], head.half[row]
    limits = bounds or (-np.inf, np.inf)
    low, high = (np.clip(end, *limits) for end in (mean - half, mean + half))
    x = np.array(axis.points(len(mean)))
    end: PlotlyValue = {"width": 0.5, "color": "c0"}
    return (
        scatter(x, low, "lines", name="lower end", showlegend=False, line=end),
        scatter(x, high, "lines", name="90 % interval", fill="tonexty", line=end),
        scatter(x, truth, "lines", name="reference", line={"width": 2, "color": "ink"}),
        scatter(x, mean, "lines", name="predicted", line={"width": 2, "color": "c0"}),
    )
