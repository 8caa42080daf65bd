"""Planted effects are found, noise is not believed, and odd campaigns are one sentence."""

import numpy as np
import pytest
from made_campaign import EFFECTS, make_campaign

from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.loading import parse
from hydragnn_hpo.report.importance.analysis import analyse
from hydragnn_hpo.report.importance.design import uniform
from hydragnn_hpo.report.importance.targets import Observed, Target, observed, targets_of
from hydragnn_hpo.report.reading.facts import read_facts

MAE, FAILURE = Target("mae", "objective"), Target("failure", "P(failure)", log=False)


def campaign(space, *, seed=0):
    plain = {
        "name": "planted",
        "seed": seed,
        "command": {"argv": ["true"]},
        "space": space,
        "search": {"trials": 10, "rungs": [1], "finalists": 1},
    }
    return parse(plain, CampaignConfig, "campaign")


def rows_of(config, count, of, key="mae", seed=0):
    return [Observed(v, {key: of(v)}) for v in uniform(config.space, count, seed=seed)]


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_planted_ranking_is_found(tmp_path, seed):
    run = make_campaign(tmp_path / "run", trials=300, seed=seed, failures=False, energy=False)
    facts = read_facts(run)
    found = analyse(facts.config, observed(facts), MAE)
    ranked = list(EFFECTS)  # the largest first
    assert found.doubt is None
    assert found.skill > 0.6
    assert list(found.effects)[:3] == ranked
    by_variance = sorted(found.effects, key=lambda name: -found.effects[name].fanova)
    assert by_variance[:3] == ranked
    by_best = sorted(found.effects, key=lambda name: -found.effects[name].ped_anova)
    assert set(by_best[:3]) == set(ranked)
    assert by_best[0] == "model.features"  # by the formula: see test_anova
    least = {name: found.effects[name].least_at for name in ranked}
    low, high = map(float, least["training.learning_rate"].split(" to "))
    assert low < 10 ** (-4 + 0.4 * 3) < high  # the planted optimum
    assert least["model.features"] in ("96 to 128", "112 to 128")
    assert least["model.layers"] in ("4 to 5", "5")


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_not_believed(tmp_path, seed):
    run = make_campaign(tmp_path / "run", trials=60, seed=seed, noise_only=True)
    facts = read_facts(run)
    rows = observed(facts)
    targets = targets_of(rows, facts.config.search.objective)
    for target in targets:
        if target.key.startswith("mae"):
            found = analyse(facts.config, rows, target)
            assert found.skill < 0.3
            assert "explains too little" in found.doubt
            assert found.effects


def test_what_the_search_has_settled_still_counts():
    # All but a few trials stand at the best rate; the others say that it matters most.
    config = campaign({"rate": {"low": 0.0, "high": 1.0}, "x": {"low": 0.0, "high": 1.0}})
    rng = np.random.default_rng(4)
    rates = np.concatenate([rng.uniform(0.0, 0.05, 180), rng.uniform(0.0, 1.0, 40)])
    rows = [
        Observed({"rate": r, "x": x}, {"mae": float(np.exp(3.0 * r + 0.3 * x))})
        for r, x in zip(rates, rng.random(220), strict=True)
    ]
    found = analyse(config, rows, MAE)
    assert list(found.effects) == ["rate", "x"]
    # against the space 3 |rate - 0.5| on average, against the trials 3 |rate - mean rate|
    assert found.effects["rate"].shap == pytest.approx(3 * np.abs(rates - 0.5).mean(), rel=0.15)
    assert 3 * np.abs(rates - rates.mean()).mean() < 0.5 * found.effects["rate"].shap


def test_a_switch_is_not_the_credit_of_what_it_switches_on():
    # gat is twice as bad whatever its heads are
    space = {
        "conv": {"choices": ["gin", "gat"]},
        "heads": {"choices": [1, 2, 4], "when": {"conv": "gat"}},
    }
    config = campaign(space)
    rng = np.random.default_rng(0)
    rows = rows_of(config, 200, lambda v: (1.0 + (v["conv"] == "gat")) * rng.uniform(0.95, 1.05))
    found = analyse(config, rows, MAE)
    assert found.effects["conv"].shap_share > 0.9
    assert found.effects["conv"].least_at == "gin"
    assert found.effects["conv"].shap == pytest.approx(0.5 * np.log(2.0), rel=0.1)


def test_a_parameter_that_acts_only_where_it_is_on():
    space = {
        "conv": {"choices": ["gin", "gat"]},
        "heads": {"choices": [1, 2, 4], "when": {"conv": "gat"}},
        "x": {"low": 0.0, "high": 1.0},
    }
    config = campaign(space)
    worth = {1: 2.0, 2: 0.5, 4: 1.0}
    found = analyse(config, rows_of(config, 300, lambda v: worth.get(v.get("heads"), 1.0)), MAE)
    assert list(found.effects)[0] == "heads"
    assert found.effects["heads"].least_at == "2"
    assert found.effects["x"].shap_share < 0.05


def test_fifteen_choices_are_one_parameter():
    space = {"conv": {"choices": [f"c{n}" for n in range(15)]}, "x": {"low": 0.0, "high": 1.0}}
    config = campaign(space)
    rng = np.random.default_rng(1)
    rows = rows_of(
        config, 450, lambda v: (1 + (v["conv"] in ("c3", "c7", "c11"))) * rng.uniform(0.9, 1.1)
    )
    found = analyse(config, rows, MAE)
    effect = found.effects["conv"]
    assert found.doubt is None
    assert min(effect.shap_share, effect.fanova, effect.ped_anova) > 0.7


def test_a_parameter_of_one_value_does_nothing():
    config = campaign({"one": {"choices": ["a"]}, "n": {"low": 2, "high": 8, "step": 2}})
    found = analyse(config, rows_of(config, 80, lambda v: float(v["n"])), MAE)
    assert found.effects["one"].shap == found.effects["one"].ped_anova == 0.0
    assert found.effects["n"].shap_share == 1.0
    assert found.effects["n"].least_at == "2"


def test_zero_is_no_logarithm():
    config = campaign({"n": {"low": 0, "high": 5}})
    rows = rows_of(config, 60, lambda v: float(v["n"]))
    (target,) = targets_of(rows, "weighted")
    assert not target.log
    assert analyse(config, rows, target).doubt is None


@pytest.mark.parametrize(
    ("count", "of", "said"),
    [
        (3, lambda v: v["x"], "3 trials say something"),
        (1, lambda v: v["x"], "1 trial says something"),
        (30, lambda v: 0.5, "the same in all trials"),
        (12, lambda v: v["x"] + 1.0, "12 trials are too few"),
    ],
)
def test_odd_campaigns_are_one_sentence(count, of, said):
    config = campaign({"x": {"low": 0.0, "high": 1.0}})
    assert said in analyse(config, rows_of(config, count, of), MAE).doubt


def test_a_space_of_one_configuration():
    config = campaign({"x": {"choices": ["only"]}})
    rows = [Observed({"x": "only"}, {"mae": 1.0 + n}) for n in range(30)]
    found = analyse(config, rows, MAE)
    assert "one configuration" in found.doubt
    assert found.effects == {}


@pytest.mark.parametrize(
    ("failures", "said"),
    [(40, "All trials failed"), (0, "No trial failed"), (3, "3 of 40 trials"), (37, "37 of 40")],
)
def test_too_few_failures_or_too_few_others(failures, said):
    config = campaign({"x": {"low": 0.0, "high": 1.0}})
    drawn = uniform(config.space, 40, seed=0)
    rows = [Observed(v, {"failure": float(n < failures)}) for n, v in enumerate(drawn)]
    assert said in analyse(config, rows, FAILURE).doubt


def test_failures_have_causes():
    config = campaign({"rate": {"low": 0.0, "high": 1.0}, "x": {"low": 0.0, "high": 1.0}})
    rng = np.random.default_rng(0)
    rows = rows_of(
        config, 120, lambda v: float(rng.random() < (0.8 if v["rate"] > 0.7 else 0.02)), "failure"
    )
    found = analyse(config, rows, FAILURE)
    assert found.doubt is None
    effect = found.effects["rate"]
    assert min(effect.shap_share, effect.fanova, effect.ped_anova) > 0.5


def test_all_failures_are_compared_with_all_trials_however_shares_round():
    # 14 / 100 * 100 is above 14: a trial that did not fail would count, and with it all of them
    config = campaign({"x": {"low": 0.0, "high": 1.0}, "c": {"choices": ["a", "b"]}})
    drawn = sorted(uniform(config.space, 100, seed=0), key=lambda v: v["x"])
    rows = [Observed(v, {"failure": float(n < 14)}) for n, v in enumerate(drawn)]
    assert analyse(config, rows, FAILURE).effects["x"].ped_anova > 0.8


def test_the_same_campaign_says_the_same_twice():
    config = campaign({"x": {"low": 0.0, "high": 1.0}}, seed=9)
    rows = rows_of(config, 40, lambda v: v["x"] + 0.1)
    assert analyse(config, rows, MAE).to_plain() == analyse(config, rows, MAE).to_plain()
