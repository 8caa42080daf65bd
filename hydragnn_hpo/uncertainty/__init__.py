"""Spread, calibration, intervals and scores of predictions: numbers alone, no nets."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.uncertainty.calibrate import (
        LEVELS,
        Calibration,
        Moments,
        Strata,
        clip_to_bounds,
        compute_moments,
        largest_per_graph,
    )
    from hydragnn_hpo.uncertainty.calibration_data import CalibrationData
    from hydragnn_hpo.uncertainty.class_probabilities import (
        as_probabilities,
        calibrate_probabilities,
        class_sets,
        class_std,
        log_losses,
    )
    from hydragnn_hpo.uncertainty.uncertainty_scores import compute_distance_figures, flatten_values

__all__ = [
    "Calibration",
    "CalibrationData",
    "LEVELS",
    "Moments",
    "Strata",
    "as_probabilities",
    "calibrate_probabilities",
    "class_sets",
    "class_std",
    "clip_to_bounds",
    "compute_distance_figures",
    "compute_moments",
    "flatten_values",
    "largest_per_graph",
    "log_losses",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
