"""Figures of the report for single kinds of targets: spectra along their axis.

Shapes: R rows of a head with a label, w components.
"""

from pathlib import Path

import numpy as np

from hydragnn_hpo.config import AxisConfig, Bounds, TargetConfig
from hydragnn_hpo.report.charts import (
    LEGEND,
    PlotlyValue,
    Trace,
    axes,
    format_number,
    readable_name,
    scatter,
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
        For a spectrum the test predictions of median and of largest error; else none.
    """
    target, errors = find_target(facts, name), facts.structure_errors
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
