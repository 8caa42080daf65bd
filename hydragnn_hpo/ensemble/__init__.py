"""The winners of a campaign as one predictor with calibrated uncertainty."""

from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.simulation.calculator import EnsembleCalculator
from hydragnn_hpo.ensemble.simulation.stop import SpreadExceeded, StopAtSpread

__all__ = ["Ensemble", "EnsembleCalculator", "SpreadExceeded", "StopAtSpread"]
