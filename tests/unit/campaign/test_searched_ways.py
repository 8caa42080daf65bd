"""How ranks share a model, and how it is trained, may be searched like anything else."""

import itertools

import pytest

from hydragnn_hpo.campaign.setup import DataFacts, check_corners, stores_of, trial_config
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.search import space

SPACE = {
    "parallel.shard": ["none", "gradients", "full", "hybrid"],
    "parallel.shard_ranks": {"low": 2, "high": 8, "when": {"parallel.shard": "hybrid"}},
    "parallel.tensor": [1, 2, 4],
    "parallel.recompute": [False, True],
    "parallel.bucket_mb": {"low": 1.0, "high": 25.0, "log": True},
}
TRAINING = {
    "training.optimizer": ["adamw", "adam", "sgd", "muon"],
    "training.schedule": ["cosine", "constant", "plateau", "one_cycle"],
    "training.scale_rate": ["none", "sqrt", "linear"],
    "training.precision": ["fp32", "tf32", "bf16"],
}
TARGETS = {
    "energy": {"level": "graph", "shape": "scalar", "unit": "eV"},
    "forces": {
        "level": "node", "shape": "vector", "unit": "eV/angstrom", "derived_from": "energy"
    },
}  # fmt: skip
DATA = DataFacts(TARGETS, cutoff=6.0)


def campaign(searched, heads=("energy",), **training):
    trial = {"model": {"conv": "painn"}, "heads": dict.fromkeys(heads, {}), "training": training}
    return CampaignConfig.model_validate({
        "name": "ways", "data": {"card": "mine"}, "space": searched, "trial": trial,
        "search": {"trials": 8, "rungs": [2, 4]},
    })  # fmt: skip


def test_every_way_to_share_a_model_makes_a_valid_trial():
    made = campaign(SPACE)
    check_corners(made, DATA)
    seen = set()
    for positions in itertools.product((0.0, 0.3, 0.6, 0.9), repeat=len(SPACE)):
        drawn = zip(made.space.items(), positions, strict=True)
        values = {key: space.value_at(searched, place) for (key, searched), place in drawn}
        chosen = space.active_parameters(made.space, values)
        trial = trial_config(made, "t", chosen, stores_of(made, ["mine"]))
        given = {f"parallel.{name}": value for name, value in trial.parallel.model_dump().items()}
        assert {key: given[key] for key in chosen} == chosen
        assert (trial.parallel.shard_ranks is None) == (trial.parallel.shard != "hybrid")
        seen.add((trial.parallel.shard, trial.parallel.tensor, trial.parallel.recompute))
    assert len(seen) == 4 * 3 * 2
    other = trial_config(made, "t2", chosen, stores_of(made, ["mine"]))
    assert other.seed != trial.seed, "each trial has a seed by its name"


def test_a_way_that_does_not_exist_is_refused_before_a_trial_is_paid_for():
    with pytest.raises(ConfigError, match=r"parallel\.shard"):
        check_corners(campaign({"parallel.shard": ["none", "optimizer"]}), DATA)


def test_forces_in_bf16_are_searched_only_where_that_is_wanted():
    check_corners(campaign(TRAINING), DATA)
    both = ("energy", "forces")
    check_corners(campaign(TRAINING, both, bf16_derivatives=True), DATA)
    with pytest.raises(ConfigError, match=r"precision = bf16.*head 'forces'.*bf16_derivatives"):
        check_corners(campaign(TRAINING, both), DATA)
