"""What was predicted against what it took, from a journal."""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrialPrediction:
    """One trial's first attempt."""

    trial: str
    width: int
    predicted: float
    """Seconds per epoch, before it ran."""
    actual: float
    """Median of its epochs, seconds."""

    @property
    def ratio(self) -> float:
        """Actual over predicted."""
        return self.actual / self.predicted


def compare_with_prediction(events: Iterable[Mapping[str, Any]]) -> list[TrialPrediction]:
    """Compare each trial that ended: its first attempt at the speed it was placed by.

    Args:
        events: of a journal, in order; those of first attempts count: ``placed`` with
            ``predicted_seconds`` up to epoch ``until``, and their ``epoch`` events.
    """
    placed: dict[str, tuple[int, float]] = {}
    attempt: dict[str, int] = {}
    epochs: dict[str, list[float]] = {}
    ended: dict[str, None] = {}
    for event in events:
        kind, trial = event["event"], event.get("trial")
        if kind == "placed" and trial is not None:
            attempt[trial] = event["attempt"]
            if event["attempt"] == 1:
                seconds = event.get("predicted_seconds") or 0.0
                placed[trial] = (event["width"], seconds / event["until"])
        elif kind == "epoch" and attempt.get(event["trial"]) == 1:
            epochs.setdefault(event["trial"], []).append(event["seconds"])
        elif kind == "ended" and trial in epochs:
            ended.setdefault(trial)
    return [
        TrialPrediction(trial, *placed[trial], statistics.median(epochs[trial]))
        for trial in ended
        if placed[trial][1] > 0.0
    ]


def typical_error(rows: Iterable[TrialPrediction]) -> float | None:
    """Give the median error of the predictions' logarithm; None without any."""
    errors = [abs(math.log(row.ratio)) for row in rows if row.actual > 0.0]
    return statistics.median(errors) if errors else None
