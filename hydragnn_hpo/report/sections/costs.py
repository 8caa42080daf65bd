"""Section on the cost model: predicted and actual seconds of trials."""

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hydragnn_hpo.campaign import Attempt, TrialHistory
from hydragnn_hpo.report.charts import scatter, series_colour, titled_axis
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import (
    Block,
    Column,
    Figure,
    Number,
    Numbers,
    Section,
    Table,
    Text,
)

MOST_POINTS = 4000
"""Points of a chart; of more every n-th is drawn."""


@dataclass(frozen=True)
class Pair:
    """Seconds of an epoch, or of an attempt, on the ranks it had."""

    trial: str
    group: str
    """Its conv, or ``all`` where none is searched."""
    predicted: float
    actual: float

    @property
    def ratio(self) -> float:
        """Return actual over predicted."""
        return self.actual / self.predicted


def make_section(facts: Facts) -> Section | None:
    """Compare predicted with actual cost."""
    epochs, attempts = collect_epoch_pairs(facts), collect_attempt_pairs(facts)
    lead = (
        "Whether trials took as long as the cost model had predicted when they were placed: "
        "the planner packs the machine by these predictions."
    )
    title = "Predicted and actual cost"
    if not epochs:
        nothing = Text("No epoch with a predicted time has ended yet.")
        return Section("costs", title, lead, (nothing,))
    figures = [_make_figure("epochs", "Seconds per epoch", epochs)]
    if attempts:
        figures.append(_make_figure("attempts", "Seconds per attempt", attempts))
    blocks: tuple[Block, ...] = (_make_numbers(epochs, attempts), *figures, _make_table(epochs))
    return Section("costs", title, lead, blocks)


def collect_epoch_pairs(facts: Facts) -> list[Pair]:
    """Return predicted and median actual seconds of an epoch for each attempt."""
    found = []
    for trial in facts.trials.values():
        for attempt, seconds in zip(trial.attempts, collect_epoch_seconds(trial), strict=True):
            predicted = attempt.predicted_epoch_seconds
            if seconds and predicted:
                actual = statistics.median(seconds)
                found.append(Pair(trial.name, _group(trial), predicted, actual))
    return [pair for pair in found if pair.actual > 0]


def collect_epoch_seconds(trial: TrialHistory) -> list[list[float]]:
    """Return the seconds of each attempt's epochs: those recorded after it was placed."""
    starts = [attempt.placed for attempt in trial.attempts]
    found: list[list[float]] = [[] for _ in starts]
    for epoch in trial.epochs:
        place = bisect_right(starts, epoch.time) - 1
        if place >= 0:
            found[place].append(epoch.seconds)
    return found


def collect_attempt_pairs(facts: Facts) -> list[Pair]:
    """Return predicted and actual seconds of each attempt that reached its rung."""
    found = []
    for trial in facts.trials.values():
        for attempt in trial.attempts:
            if _reached_rung(attempt) and attempt.predicted_seconds:
                assert attempt.ended is not None
                actual = attempt.ended - attempt.placed
                found.append(Pair(trial.name, _group(trial), attempt.predicted_seconds, actual))
    return [pair for pair in found if pair.actual > 0]


def _reached_rung(attempt: Attempt) -> bool:
    """Check whether an attempt ended at its rung, not by a rule or by patience."""
    at_rung = attempt.outcome in ("completed", "stopped") and attempt.reason is None
    return at_rung and attempt.ended is not None


def _group(trial: TrialHistory) -> str:
    return trial.trial.conv or "all"


def _make_numbers(epochs: Sequence[Pair], attempts: Sequence[Pair]) -> Numbers:
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


def ratio_percentiles(pairs: Iterable[Pair]) -> tuple[float, float, float]:
    """Return percentiles of actual over predicted.

    Returns:
        The 10th, the 50th and the 90th.
    """
    low, middle, high = np.percentile([pair.ratio for pair in pairs], [10.0, 50.0, 90.0])
    return float(low), float(middle), float(high)


def _group_pairs(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    found: defaultdict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        found[pair.group].append(pair)
    return dict(sorted(found.items()))


def _make_figure(key: str, title: str, pairs: Sequence[Pair]) -> Figure:
    thin = pairs[:: -(-len(pairs) // MOST_POINTS)]
    ends = [
        min(min(p.predicted, p.actual) for p in thin),
        max(max(p.predicted, p.actual) for p in thin),
    ]
    dotted = {"color": "faint", "dash": "dot", "width": 1.5}
    diagonal = scatter(ends, ends, "lines", name="as predicted", line=dotted, hoverinfo="skip")
    traces = [
        scatter(
            np.array([pair.predicted for pair in here]),
            np.array([pair.actual for pair in here]),
            "markers",
            text=[pair.trial for pair in here],
            name=group,
            marker={"color": series_colour(number), "size": 6, "opacity": 0.6},
            hovertemplate="%{text}: predicted %{x:.3g} s, took %{y:.3g} s<extra></extra>",
        )
        for number, (group, here) in enumerate(_group_pairs(thin).items())
    ]
    axes = {
        "xaxis": titled_axis("predicted (s)", type="log"),
        "yaxis": titled_axis("actual (s)", type="log"),
    }
    caption = "Each point is an attempt; on the dotted line it took as long as was predicted."
    return Figure(key, title, caption, (diagonal, *traces), {**axes, "showlegend": True})


def _make_table(pairs: Sequence[Pair]) -> Table:
    rows = [
        (group, len(here), *ratio_percentiles(here)) for group, here in _group_pairs(pairs).items()
    ]
    columns = (
        Column("conv", "conv"),
        Column("attempts", "attempts"),
        Column("low", "10th percentile"),
        Column("median", "median"),
        Column("high", "90th percentile"),
    )
    note = "Actual over predicted seconds per epoch, each attempt by the median of its epochs."
    return Table("convs", columns, tuple(rows), note)
