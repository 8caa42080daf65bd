"""Section on the cost model: predicted and actual seconds of trials."""

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hydragnn_hpo.campaign.history import TrialHistory
from hydragnn_hpo.campaign.status import find_conv
from hydragnn_hpo.report.charts import Trace, axes, scatter, series_colour, titled_axis
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import (
    Block,
    Figure,
    Number,
    Numbers,
    Section,
    Table,
    Text,
    make_table,
)

MOST_POINTS = 4000
"""Maximum number of points in a chart; of more, every n-th is drawn."""


@dataclass(frozen=True)
class PredictedCost:
    """Predicted and actual seconds of an epoch, or of an attempt, on its ranks."""

    trial: str
    group: str
    """Conv of the trial, or ``all`` where trials are a command."""
    predicted: float
    actual: float


def make_section(facts: Facts) -> Section:
    """Compare predicted with actual cost."""
    epochs = collect_epochs(facts)
    attempts = collect_attempts(facts)
    blocks: list[Block] = [Text("No epoch with a predicted time has ended yet.")]
    if epochs:
        blocks = [_make_numbers(epochs, attempts)]
        blocks.append(_make_figure("epochs", "Seconds per epoch", epochs))
        if attempts:
            blocks.append(_make_figure("attempts", "Seconds per attempt", attempts))
        blocks.append(_make_table(epochs))
    lead = (
        "Whether trials took as long as the cost model had predicted when they were placed: "
        "the planner packs the machine by these predictions."
    )
    title = "Machine: predicted and actual cost"
    return Section("costs", title, lead, tuple(blocks), folded=True)


def collect_epochs(facts: Facts) -> list[PredictedCost]:
    """Return predicted and median actual seconds of an epoch for each attempt."""
    return [
        PredictedCost(trial.name, _group(facts, trial), predicted, actual)
        for trial in facts.trials.values()
        for attempt, seconds in zip(trial.attempts, _epoch_seconds(trial), strict=True)
        if seconds and (actual := statistics.median(seconds)) > 0
        if (predicted := attempt.predicted_epoch_seconds)
    ]


def _group(facts: Facts, trial: TrialHistory) -> str:
    return find_conv(trial.trial, facts.config) or "all"


def _epoch_seconds(trial: TrialHistory) -> list[list[float]]:
    """Return the seconds of each attempt's epochs: those between its placement and the next."""
    starts = [attempt.placed for attempt in trial.attempts]
    seconds: list[list[float]] = [[] for _ in starts]
    for epoch in trial.epochs:
        place = bisect_right(starts, epoch["time"]) - 1
        if place >= 0:
            seconds[place].append(epoch["seconds"])
    return seconds


def collect_attempts(facts: Facts) -> list[PredictedCost]:
    """Return predicted and actual seconds of each attempt that was not stopped early."""
    return [
        PredictedCost(trial.name, _group(facts, trial), attempt.predicted_seconds, actual)
        for trial in facts.trials.values()
        for attempt in trial.attempts
        if attempt.outcome in ("completed", "stopped") and attempt.reason is None
        if attempt.ended is not None and (actual := attempt.ended - attempt.placed) > 0
        if attempt.predicted_seconds
    ]


def ratio_percentiles(costs: Iterable[PredictedCost]) -> tuple[float, float, float]:
    """Return percentiles of actual over predicted seconds.

    Returns:
        The 10th, 50th and 90th percentile, dimensionless.
    """
    ratios = [cost.actual / cost.predicted for cost in costs]
    low, middle, high = np.percentile(ratios, [10.0, 50.0, 90.0])
    return float(low), float(middle), float(high)


def _by_group(costs: Sequence[PredictedCost]) -> dict[str, list[PredictedCost]]:
    groups: defaultdict[str, list[PredictedCost]] = defaultdict(list)
    for cost in costs:
        groups[cost.group].append(cost)
    return dict(sorted(groups.items()))


def _make_numbers(epochs: Sequence[PredictedCost], attempts: Sequence[PredictedCost]) -> Numbers:
    low, middle, high = ratio_percentiles(epochs)
    numbers = [
        Number("epoch_ratio", "epochs: median", middle, note="actual over predicted"),
        Number("epoch_low", "epochs: 10th percentile", low, note="actual over predicted"),
        Number("epoch_high", "epochs: 90th percentile", high, note="actual over predicted"),
    ]
    if attempts:
        whole = ratio_percentiles(attempts)[1]
        note = "actual over predicted, start-up and end included"
        numbers.append(Number("attempt_ratio", "attempts: median", whole, note=note))
    return Numbers(tuple(numbers))


def _make_figure(key: str, title: str, costs: Sequence[PredictedCost]) -> Figure:
    thin = costs[:: -(-len(costs) // MOST_POINTS)]
    seconds = [end for cost in thin for end in (cost.predicted, cost.actual)]
    ends = [min(seconds), max(seconds)]
    dotted: Trace = {"color": "faint", "dash": "dot", "width": 1.5}
    traces = [scatter(ends, ends, "lines", name="as predicted", line=dotted, hoverinfo="skip")]
    for number, (group, here) in enumerate(_by_group(thin).items()):
        dots = scatter(
            np.array([cost.predicted for cost in here]),
            np.array([cost.actual for cost in here]),
            "markers",
            text=[cost.trial for cost in here],
            name=group,
            marker={"color": series_colour(number), "size": 6, "opacity": 0.6},
            hovertemplate="%{text}: predicted %{x:.3g} s, took %{y:.3g} s<extra></extra>",
        )
        traces.append(dots)
    across, up = (titled_axis(f"{what} (s)", type="log") for what in ("predicted", "actual"))
    caption = "Each point is an attempt; on the dotted line it took as long as was predicted."
    return Figure(key, title, caption, tuple(traces), axes(across, up, showlegend=True))


def _make_table(costs: Sequence[PredictedCost]) -> Table:
    columns = {
        "conv": "conv",
        "attempts": "attempts",
        "low": "10th percentile",
        "median": "median",
        "high": "90th percentile",
    }
    rows = [
        (group, len(here), *ratio_percentiles(here)) for group, here in _by_group(costs).items()
    ]
    note = "Actual over predicted seconds per epoch, each attempt by the median of its epochs."
    return make_table("convs", columns, rows, note)
