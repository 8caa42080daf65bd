"""The winners of a campaign as one predictor with calibrated uncertainty."""

from hydragnn_hpo.ensemble.calculator import EnsembleCalculator, SpreadExceeded, StopAtSpread
from hydragnn_hpo.ensemble.inference import Ensemble

__all__ = ["Ensemble", "EnsembleCalculator", "SpreadExceeded", "StopAtSpread"]
