"""From the trials of a run to an ensemble: selected, predicted, calibrated, tested, packed."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.ensemble_build.build import build_ensemble
    from hydragnn_hpo.ensemble_build.evaluation import Evaluation, HeadEvaluation, evaluate_ensemble

__all__ = [
    "Evaluation",
    "HeadEvaluation",
    "build_ensemble",
    "evaluate_ensemble",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
