"""How good an ensemble is on a split, head by head, beside what it has to beat.

Shapes: R rows that have the target, w components.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hydragnn_hpo.ensemble.calibrate import Calibration


@dataclass(frozen=True)
class Scores:
    """One head on one split; errors in the target's unit."""

    rows: int
    """Rows that have the target: graphs, or nodes."""
    mae: float
    """Mean absolute error of the ensemble's mean."""
    rmse: float
    """Root mean square error of the ensemble's mean."""
    coverage90: float
    """Share of the truths inside the 90 % interval."""
    width90: float
    """Mean width of the 90 % interval."""
    single_mae: float
    """Mean absolute error of the candidate with the lowest validation objective."""
    mean_baseline_mae: float
    """Mean absolute error of predicting the training mean."""

    @property
    def ratio_to_mean(self) -> float:
        """Give the MAE as a share of predicting the mean; 0 where the mean is never wrong."""
        return self.mae / self.mean_baseline_mae if self.mean_baseline_mae else 0.0


@dataclass(frozen=True)
class Predicted:
    """What was predicted for the rows of one head, and what is true."""

    truth: np.ndarray
    """[R, w]."""
    mean: np.ndarray
    """The ensemble's mean, [R, w]."""
    spread: np.ndarray
    """The members' spread, [R, 1]."""
    single: np.ndarray
    """The best single candidate's prediction, [R, w]."""


def mae(prediction: np.ndarray | float, truth: np.ndarray) -> float:
    """Give the mean absolute error over rows and components."""
    return float(np.abs(prediction - truth).mean())


def score(predicted: Predicted, calibration: Calibration, train_mean: float) -> Scores:
    """Score one head.

    Args:
        predicted: the rows that have the target; at least one.
        calibration: the head's calibration.
        train_mean: the target's mean on the training split, in its unit.
    """
    error = predicted.mean - predicted.truth
    half = calibration.half_width(calibration.sigma(predicted.spread))
    return Scores(
        rows=len(error),
        mae=float(np.abs(error).mean()),
        rmse=float(np.sqrt(np.square(error).mean())),
        coverage90=float((np.abs(error) <= half).mean()),
        width90=float(2.0 * half.mean()),
        single_mae=mae(predicted.single, predicted.truth),
        mean_baseline_mae=mae(train_mean, predicted.truth),
    )


def as_table(scores: Scores, unit: str) -> dict[str, Any]:
    """Give the scores by the names that tables and artefacts use."""
    return {
        "unit": unit,
        "test_rows": scores.rows,
        "test_mae": scores.mae,
        "test_rmse": scores.rmse,
        "coverage90": scores.coverage90,
        "width90": scores.width90,
        "single_mae": scores.single_mae,
        "mean_baseline_mae": scores.mean_baseline_mae,
        "ratio_to_mean": scores.ratio_to_mean,
    }
