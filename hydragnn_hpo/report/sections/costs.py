"""What trials were predicted to cost when they were placed, and what they cost."""

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hydragnn_hpo.report.facts import Attempt, Facts, TrialFacts
from hydragnn_hpo.report.page.blocks import (
    Block,
    Column,
    Figure,
    Number,
    Numbers,
    Section,
    Table,
    Text,
)

MOST = 4000
"""Points that are drawn of each kind; of more every n-th."""


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
        """Give actual over predicted."""
        return self.actual / self.predicted


def section(facts: Facts) -> Section | None:
    """Hold predicted against actual cost."""
    epochs, attempts = epoch_pairs(facts), attempt_pairs(facts)
    lead = (
        "Whether trials took as long as the cost model had predicted when they were placed: "
        "the planner packs the machine by these predictions."
    )
    title = "Predicted and actual cost"
    if not epochs:
        said = Text("No epoch with a predicted time has ended yet.")
        return Section("costs", title, lead, (said,))
    figures = [_figure("epochs", "Seconds per epoch", epochs)]
    if attempts:
        figures.append(_figure("attempts", "Seconds per attempt", attempts))
    blocks: tuple[Block, ...] = (_numbers(epochs, attempts), *figures, _table(epochs))
    return Section("costs", title, lead, blocks)


def epoch_pairs(facts: Facts) -> list[Pair]:
    """Give predicted and median actual seconds of an epoch for each attempt."""
    found = []
    for trial in facts.trials.values():
        for attempt, seconds in zip(trial.attempts, epoch_seconds(trial), strict=True):
            predicted = attempt.predicted_epoch_seconds
            if seconds and predicted:
                actual = statistics.median(seconds)
                found.append(Pair(trial.name, _group(trial), predicted, actual))
    return [pair for pair in found if pair.actual > 0]


def epoch_seconds(trial: TrialFacts) -> list[list[float]]:
    """Give the seconds of the epochs of each attempt: those told after it was placed."""
    starts = [attempt.placed for attempt in trial.attempts]
    found: list[list[float]] = [[] for _ in starts]
    for epoch in trial.epochs:
        place = bisect_right(starts, epoch.time) - 1
        if place >= 0:
            found[place].append(epoch.seconds)
    return found


def attempt_pairs(facts: Facts) -> list[Pair]:
    """Give predicted and actual seconds of each attempt that reached its rung."""
    found = []
    for trial in facts.trials.values():
        for attempt in trial.attempts:
            if _arrived(attempt) and attempt.predicted_seconds:
                assert attempt.ended is not None
                actual = attempt.ended - attempt.placed
                found.append(Pair(trial.name, _group(trial), attempt.predicted_seconds, actual))
    return [pair for pair in found if pair.actual > 0]


def _arrived(attempt: Attempt) -> bool:
    """Say whether an attempt ended at its rung, not by a rule or by patience."""
    there = attempt.outcome in ("completed", "stopped") and attempt.reason is None
    return there and attempt.ended is not None


def _group(trial: TrialFacts) -> str:
    return trial.trial.conv or "all"


def _numbers(epochs: Sequence[Pair], attempts: Sequence[Pair]) -> Numbers:
    low, middle, high = spread(epochs)
    numbers = [
        Number("epoch_ratio", "epochs: median", middle, note="actual over predicted"),
        Number("epoch_low", "epochs: 10th percentile", low, note="actual over predicted"),
        Number("epoch_high", "epochs: 90th percentile", high, note="actual over predicted"),
    ]
    if attempts:
        whole = spread(attempts)[1]
        note = "actual over predicted, start-up and end included"
        numbers.append(Number("attempt_ratio", "attempts: median", whole, note=note))
    return Numbers(tuple(numbers))


def spread(pairs: Iterable[Pair]) -> tuple[float, float, float]:
    """Give the 10th, 50th and 90th percentile of actual over predicted."""
    low, middle, high = np.percentile([pair.ratio for pair in pairs], [10.0, 50.0, 90.0])
    return float(low), float(middle), float(high)


def _grouped(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    found: defaultdict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        found[pair.group].append(pair)
    return dict(sorted(found.items()))


def _figure(key: str, title: str, pairs: Sequence[Pair]) -> Figure:
    thin = pairs[:: -(-len(pairs) // MOST)]
    ends = [
        min(min(p.predicted, p.actual) for p in thin),
        max(max(p.predicted, p.actual) for p in thin),
    ]
    diagonal = {
        "type": "scatter",
        "mode": "lines",
        "x": ends,
        "y": ends,
        "name": "as predicted",
        "line": {"color": "faint", "dash": "dot", "width": 1.5},
        "hoverinfo": "skip",
    }
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": np.array([pair.predicted for pair in here]),
            "y": np.array([pair.actual for pair in here]),
            "text": [pair.trial for pair in here],
            "name": group,
            "marker": {"color": f"c{number % 10}", "size": 6, "opacity": 0.6},
            "hovertemplate": "%{text}: predicted %{x:.3g} s, took %{y:.3g} s<extra></extra>",
        }
        for number, (group, here) in enumerate(_grouped(thin).items())
    ]
    axes = {
        "xaxis": {"title": {"text": "predicted (s)"}, "type": "log"},
        "yaxis": {"title": {"text": "actual (s)"}, "type": "log"},
    }
    says = "Each point is an attempt; on the dotted line it took as long as was predicted."
    return Figure(key, title, says, (diagonal, *traces), {**axes, "showlegend": True})


def _table(pairs: Sequence[Pair]) -> Table:
    rows = [(group, len(here), *spread(here)) for group, here in _grouped(pairs).items()]
    columns = (
        Column("conv", "conv"),
        Column("attempts", "attempts"),
        Column("low", "10th percentile"),
        Column("median", "median"),
        Column("high", "90th percentile"),
    )
    note = "Actual over predicted seconds per epoch, each attempt by the median of its epochs."
    return Table("convs", columns, tuple(rows), note)
