"""Optimizers, schedules and precisions may be searched; forces in bf16 only where wanted."""

import pytest

from hydragnn_hpo.campaign.setup import check_corners
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.errors import ConfigError

TARGETS = {
    "energy": {"level": "graph", "shape": "scalar", "unit": "eV"},
    "forces": {
        "level": "node", "shape": "vector", "unit": "eV/angstrom", "derived_from": "energy"
    },
}  # fmt: skip
SPACE = {
    "training.optimizer": ["adamw", "adam", "sgd", "lamb", "muon"],
    "training.schedule": ["cosine", "constant", "plateau", "one_cycle"],
    "training.scale_rate": ["none", "sqrt", "linear"],
    "training.precision": ["fp32", "tf32", "bf16"],
}


def campaign(heads, **training):
    trial = {"model": {"conv": "painn"}, "heads": dict.fromkeys(heads, {}), "training": training}
    return CampaignConfig.model_validate({
        "name": "ways", "data": {"card": "mine"}, "space": SPACE, "trial": trial,
        "search": {"trials": 8, "rungs": [2, 4]},
    })  # fmt: skip


def test_every_value_makes_a_valid_trial():
    check_corners(campaign(["energy"]), TARGETS, 6.0)
    check_corners(campaign(["energy", "forces"], bf16_derivatives=True), TARGETS, 6.0)


def test_forces_in_bf16_are_refused_before_a_trial_is_paid_for():
    with pytest.raises(ConfigError, match=r"precision = bf16.*head 'forces'.*bf16_derivatives"):
        check_corners(campaign(["energy", "forces"]), TARGETS, 6.0)
